# SPDX-License-Identifier: Apache-2.0
"""How long loading takes: cold and warm, mapped, buffered and copied into huge pages, each in a process of its own."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Optional, Sequence, Union

from rooflm import _core
from rooflm._keywords import at_least, checked_keywords
from rooflm._output import plain
from rooflm._pages import drop_pages, resident_share
from rooflm._progress import Progress, ProgressArg
from rooflm.measuring.manifest import build_manifest, machine_manifest, model_manifest
from rooflm.measuring.results import SCHEMA, Results

WAYS = ("mmap", "buffered", "copy")
STATES = ("cold", "warm")
COLD = 0.02  # share of the pages that may have stayed
NEVER_COLD = ("tmpfs", "ramfs", "rootfs", "hugetlbfs")


@checked_keywords
def load_times(
    model: Union[str, os.PathLike[str]],
    *,
    ways: Union[str, Sequence[str]] = WAYS,
    states: Union[str, Sequence[str]] = STATES,
    threads: Optional[int] = None,
    repeats: int = 3,
    seed: int = 0,
    progress: ProgressArg = None,
) -> Results:
    """Times to load a model file, one record per run, in an order drawn from seed.

    ways     "mmap" (pages of the file), "buffered" (read into memory in small pages), "copy" (into huge pages where the
             system gives them, as Model(load="copy") does)
    states   "cold": unmapped, synced and dropped from the page cache, which is then checked; "warm": all in the cache
    repeats  runs of each (default 3)

    Records: open_s, first_token_s, second_token_s, first_touch_s (the first token's time beyond the second's), ready_s,
    major_faults and minor_faults until the second token, resident_before and resident_after (share of the file in
    memory, None where the system does not tell), read_gbs of the memory that it ended in, and `state_reached`: False
    with `state_why`, and one FallbackWarning, where the file could not be made cold (tmpfs, mapped by others, not ours)
    or warm.
    """
    from rooflm import machine

    path = os.fspath(model)
    pairs = [(w, s) for w in _checked("ways", ways, WAYS) for s in _checked("states", states, STATES)]
    at_least(1, repeats=repeats, threads=threads)
    at_least(0, seed=seed)
    gguf = _core.GGUF(path)
    if len(gguf.shards) > 1:
        raise _core.Error(f"{path} is split into {len(gguf.shards)} files: load_times takes a single file")
    facts = model_manifest(gguf)
    gguf.close()  # pages that are mapped cannot be dropped
    del gguf
    manifest = {"schema": SCHEMA, "model": facts, "machine": machine_manifest(machine()), "build": build_manifest()}
    bar = Progress(repeats * len(pairs), progress)
    records: list[dict[str, Any]] = []
    try:
        for repeat in range(repeats):
            order = list(pairs)
            random.Random(f"{seed}/{repeat}").shuffle(order)
            for way, state in order:
                bar.show(f"{way}, {state}, repetition {repeat + 1} of {repeats}")
                before, reached, why = prepare(path, state)
                figures = _in_a_process(path, way, threads)
                setting = {"model": facts["file"], "load": way, "state": state, "threads": threads}
                record = {
                    "schema": SCHEMA,
                    "kind": "load",
                    "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    "setting": setting,
                    **setting,
                    "repeat": repeat,
                    "order": len(records),
                    "file_bytes": facts["file_bytes"],
                    **figures,
                    "resident_before": before,
                    "resident_after": resident_share(path),
                    "state_reached": reached,
                    "state_why": why,
                    "manifest": manifest,
                }
                records.append(plain(record))
                bar.step()
    except KeyboardInterrupt as e:
        e.results = _results(records, pairs)  # type: ignore[attr-defined]
        raise
    finally:
        bar.close()
    return _results(records, pairs)


def _results(records: list[dict[str, Any]], pairs: Sequence[tuple[str, str]]) -> Results:
    # The table has a row "cold" either way: that it was not must stand beside it.
    for line in sorted({f"{r['state']} was not reached: {r['state_why']}" for r in records if not r["state_reached"]}):
        warnings.warn(line, _core.FallbackWarning, stacklevel=4)
    ordered = sorted(records, key=lambda r: (pairs.index((r["load"], r["state"])), r["repeat"]))
    return Results(ordered)


def _checked(name: str, value: Union[str, Sequence[str]], known: Sequence[str]) -> list[str]:
    values = [value] if isinstance(value, str) else list(value)
    for v in values:
        if v not in known:
            raise ValueError(f"{name}: {v!r} is not one of {', '.join(known)}")
    if not values:
        raise ValueError(f"{name}=[] leaves nothing to run")
    return values


def prepare(path: str, state: str) -> tuple[Optional[float], Optional[bool], Optional[str]]:
    """Brings the file into the state; gives the resident share, whether it was reached (None: nobody can tell), and why
    not."""
    if state == "warm":
        with open(path, "rb", buffering=0) as f:
            while f.read(16 << 20):
                pass
        share = resident_share(path)
        if share is None:
            return None, None, "residency is told only for files that one owns or may write"
        return share, share > 1 - COLD, None if share > 1 - COLD else "memory is too short to keep the file in"
    kind = file_system(path)
    if kind in NEVER_COLD:
        return resident_share(path), False, f"{kind} lives in memory: it is never cold"
    share = drop_pages(path)
    if share is None:
        return None, None, "residency is told only for files that one owns or may write"
    if share <= COLD:
        return share, True, None
    return share, False, f"{100 * share:.0f} % of the pages stayed: another process has them mapped or dirty"


def file_system(path: str, root: str = "/") -> Optional[str]:
    """Type of the file system that holds the file, from mountinfo; None where that cannot be read."""
    try:
        lines = (Path(root) / "proc/self/mountinfo").read_text().splitlines()
        device = os.stat(path).st_dev
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == wanted:
            return rest.split()[0]
    return None


def _in_a_process(path: str, way: str, threads: Optional[int]) -> dict[str, Any]:
    import rooflm

    package = str(Path(rooflm.__file__).resolve().parent.parent)
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    wanted = json.dumps({"path": os.path.abspath(path), "way": way, "threads": threads})
    done = subprocess.run(
        [sys.executable, "-m", "rooflm.measuring.load_run", wanted],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()
        raise _core.Error(f"loading {path} ({way}) failed: {last[-1] if last else f'exit code {done.returncode}'}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures
