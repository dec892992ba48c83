# SPDX-License-Identifier: Apache-2.0
"""Two rates of a machine that compute="auto" weighs: what one core gets from memory, and kernels out of a cache.

Noise only ever lowers a rate, so each is the largest seen, over short measurements of several processes: it is measured
again at the first session of a process until AGREEING of them agree, or TRIES have been made. Only what was undisturbed
counts: the threads were on a core nearly all of the time, and the passes took nearly the same time. What was disturbed
is never kept.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rooflm import _core

AGREEING, TRIES = 3, 20  # processes that must agree; processes that measure at most
ALIKE = 0.9  # rates of two processes agree when the lower is this share of the higher
BUSY = 0.95  # undisturbed: at least this share of the time on a core ...
SPREAD = 1.1  # ... and no more from the fastest to the slowest of three passes (median of kernels' turns)

READS, READ_S = 4, 0.4  # bandwidth: rounds over the read kernels, and when to stop
CACHE_BYTES = 128 << 10  # weights of a kernel's rate: they stay in the second-level cache
KERNEL_S = 3e-4  # of one timing of a kernel
TURNS = 5


@dataclass
class Sample:
    """One process's measurement: GB/s, and why it is not to be believed ("" where it is)."""

    gbs: float
    disturbed: str = ""
    kernel: str = ""


@dataclass
class Rate:
    """The largest undisturbed GB/s so far, how many processes agree with it, and how many have measured."""

    gbs: float = 0.0
    agree: int = 0
    tries: int = 0
    kernel: str = ""  # that read fastest, for bandwidth

    @property
    def settled(self) -> bool:
        return self.agree >= AGREEING or self.tries >= TRIES

    def add(self, sample: Sample) -> None:
        self.tries += 1
        if sample.disturbed or sample.gbs <= 0:
            return
        if self.gbs < ALIKE * sample.gbs:
            self.agree = 0  # what was lower before does not confirm this
        if sample.gbs >= ALIKE * self.gbs:
            self.agree += 1
        if sample.gbs > self.gbs:
            self.gbs, self.kernel = sample.gbs, sample.kernel or self.kernel


def best_of(samples: Iterable[Sample]) -> Sample:
    """The largest undisturbed sample, or the largest of all when each was disturbed."""
    every = list(samples)
    return max([s for s in every if not s.disturbed] or every, key=lambda s: s.gbs)


def judged(gbs: float, busy: float, spread: float, kernel: str = "") -> Sample:
    """A sample that says what disturbed it: `busy` is the share of the time on a core, `spread` slowest / fastest."""
    why = ""
    if busy < BUSY:
        why = f"its threads had a core {100 * busy:.0f} % of the time"
    elif spread > SPREAD:
        why = f"its passes differed {spread:.2f} times"
    return Sample(round(gbs, 2), why, kernel)


# ---- measuring ----


def _read_size() -> int:
    """Four times the last cache, within what memory allows."""
    from rooflm.device.machine import machine

    m = machine()
    caches = [c["bytes"] for c in m["caches"] if c.get("bytes")]
    size = min(max([64 << 20, *(4 * c for c in caches)]), 256 << 20)
    if m.get("memory_available_bytes"):
        size = min(size, int(m["memory_available_bytes"]) // 8)
    return int(size)


def _reads(kernels: list[str], rounds: int) -> Iterator[Sample]:
    memory = mmap.mmap(-1, _read_size())
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # small pages, as those of a file
        try:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        except OSError:
            pass  # a kernel without huge pages
    data = np.frombuffer(memory, np.uint8)
    data[:: mmap.PAGESIZE] = 1  # pages that were never written would all be one page of zeros
    end = time.monotonic() + READ_S
    for _ in range(rounds):
        for kernel in kernels:
            r = _core.read_bandwidth([data], passes=3, kernel=kernel)
            fastest, slowest = min(r["passes_s"]), max(r["passes_s"])
            gbs = data.nbytes / fastest / 1e9 / r["threads"]
            yield judged(gbs, min(r["passes_busy"]), slowest / fastest, kernel)
            if time.monotonic() > end:
                return


def measure_core(known: str = "") -> Sample:
    """What one core gets from memory while all read: the best of the read kernels, or of the one known to be best."""
    from rooflm._kernels import kernels

    table = [k for k in kernels().select(family="read", available=True)]
    names = [k.name for k in table if k.isa != "ref"] or [k.name for k in table]
    return best_of(_reads([known] if known in names else names, 2 if known in names else READS))


def rows_in_cache(type: str, cols: int) -> tuple[Callable[[str, int], float], int]:
    """(seconds, bytes): seconds(kernel, repeats) of a rows kernel for one token, over so many bytes of weights of its
    own, which stay in the second-level cache. ValueError for another kind of kernel."""
    _, block, block_bytes = _core._type_info(type)
    row_bytes = cols // block * block_bytes
    n = max(1, CACHE_BYTES // row_bytes)
    w = np.zeros((n, row_bytes), np.uint8)
    x, out = np.ones((1, cols), np.float32), np.empty((1, n), np.float32)
    return lambda kernel, repeats: _core._rows(kernel, w, row_bytes, n, x, out, repeats), w.nbytes


def measure_kernels(names: Iterable[str], type: str, cols: int) -> dict[str, Sample]:
    """Rows kernels of one token with weights in the second-level cache, by turns."""
    run, nbytes = rows_in_cache(type, cols)
    repeats = {k: max(1, int(KERNEL_S / max(run(k, 1), 1e-9))) for k in names}
    turns: dict[str, list[tuple[float, float]]] = {k: [] for k in repeats}
    for _ in range(TURNS):
        for kernel, n in repeats.items():
            wall, core = time.perf_counter(), time.thread_time()
            seconds = run(kernel, n) / n
            core, wall = time.thread_time() - core, time.perf_counter() - wall
            turns[kernel].append((seconds, core / wall))
    found = {}
    for kernel, timed in turns.items():
        timed.sort()
        fastest, busy = timed[0][0], sorted(b for _, b in timed)[TURNS // 2]
        found[kernel] = judged(nbytes / fastest / 1e9, busy, timed[TURNS // 2][0] / fastest)
    return found


# ---- kept for the machine ----


def path() -> Path:
    """Where the rates are kept."""
    from rooflm.fetching import cache_dir

    return cache_dir() / "rates.json"


def machine_key() -> str:
    from rooflm import __version__
    from rooflm.device.machine import machine

    m = machine()
    return "|".join(str(v) for v in (m["cpu"], m["default_threads"], __version__))


def _read_file() -> dict[str, Any]:
    try:
        kept = json.loads(path().read_text())
        # Schema 1 kept what was measured on a busy machine, too.
        return kept if isinstance(kept, dict) and kept.get("schema") == 2 else {}
    except (OSError, ValueError):
        return {}


def load(key: str) -> dict[str, Rate]:
    """The rates kept of a machine, by "core" and "kernel/columns"; empty when the file has none of it."""
    return _rates_of(_read_file(), key)


def _rates_of(kept: dict[str, Any], key: str) -> dict[str, Rate]:
    try:
        return {name: Rate(**rate) for name, rate in kept["machines"][key].items()}
    except (KeyError, TypeError, AttributeError):
        return {}


def save(key: str, rates: dict[str, Rate]) -> str:
    """Writes them, beside what another process may have written meanwhile; returns where they are, or why not."""
    kept = _read_file()
    machines, larger = kept.get("machines"), _rates_of(kept, key)
    for name, rate in rates.items():
        if name not in larger or larger[name].gbs <= rate.gbs:
            larger[name] = rate
    machines = {**(machines if isinstance(machines, dict) else {}), key: {n: asdict(r) for n, r in larger.items()}}
    target = path()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.{os.getpid()}")
        part.write_text(json.dumps({"schema": 2, "machines": machines}, indent=1))
        part.replace(target)
        return f"kept in {target}"
    except OSError as e:
        return f"measured by this process; {target} cannot be written: {e.strerror}"
