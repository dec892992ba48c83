# SPDX-License-Identifier: Apache-2.0
"""The fastest kernels of a machine, kept in a file. An entry counts for exactly the processor, tier, threads, shape and
library version it was measured with; any other is ignored, and said to be."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, Optional, Sequence

from rooflm import _core
from rooflm._keywords import at_least, checked_keywords
from rooflm._whole_file import write_whole
from rooflm.measuring.recording import PathLike
from rooflm.model import Model


def _default_file() -> Path:
    from rooflm.fetching import cache_dir

    return cache_dir() / "kernels.json"


def _machine_key() -> dict[str, Any]:
    from rooflm import __version__
    from rooflm.device.machine import machine

    return {"cpu": machine().cpu, "isa": _core._isa()["in_use"], "rooflm": __version__}


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        entries = json.loads(path.read_text())["entries"]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as e:
        raise ValueError(f"{path}: no file of kernel choices ({e}); remove it") from None
    return list(entries)


def save_choice(fastest: Sequence[dict[str, Any]], path: Optional[PathLike] = None) -> Path:
    """Adds the rows of Sweep.fastest for single tokens to the file; an entry with the same key is replaced."""
    file = Path(path) if path is not None else _default_file()
    keys = ("cpu", "isa", "rooflm", "type", "rows", "columns", "threads", "compute")
    key = _machine_key()
    fresh = [
        {**key, **{k: r[k] for k in ("type", "rows", "columns", "threads", "compute", "kernel", "time_us")}}
        for r in fastest
        if r["tokens"] == 1 and r["kernel"] != "openblas"
    ]
    same = {tuple(e[k] for k in keys) for e in fresh}
    kept = [e for e in _read(file) if tuple(e.get(k) for k in keys) not in same]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps({"schema": 1, "entries": [*kept, *fresh]}, indent=1))
    return file


@checked_keywords
def kernel_choice(
    model: Model, *, compute: str = "int16", threads: Optional[int] = None, choices: Optional[PathLike] = None
) -> dict[str, Any]:
    """What sweep("kernels", model, save=True) found to be fastest, as options of a session:

        model.session(**rooflm.kernel_choice(model)["options"])

    compute: "int8", "int16" or "f32": which activations. threads: as measured; default those of this machine.
    The dict has options ({"kernel": names, "compute", "n_threads"}, empty where nothing fits), used (the entries),
    stale (entries for these shapes with another processor, tier, number of threads or library version, each with
    `why`) and missing (shapes without an entry). Stale entries are ignored with one FallbackWarning.
    """
    from rooflm.device.machine import machine
    from rooflm.diagnosis.sweep_kernels import shapes

    at_least(1, threads=threads)
    file = Path(choices) if choices is not None else _default_file()
    now = {**_machine_key(), "threads": threads or machine().default_threads}
    wanted = {(t, rows, columns) for t, rows, columns, _ in shapes(model)}
    used: list[dict[str, Any]] = []
    stale: list[dict[str, Any]] = []
    for e in _read(file):
        if (e.get("type"), e.get("rows"), e.get("columns")) not in wanted or e.get("compute") != compute:
            continue
        other = [f"{k} {e.get(k)} is {v} now" for k, v in now.items() if e.get(k) != v]
        if other:
            stale.append({**e, "why": "; ".join(other)})
        else:
            used.append(e)
    if stale and not used:
        warnings.warn(
            f"{file}: {len(stale)} saved kernel choices are ignored: {stale[0]['why']}; "
            f"sweep('kernels', model, save=True) measures again",
            _core.FallbackWarning,
            stacklevel=3,
        )
    # A session prefers one kernel per type: the one that is fastest over the shapes, by the time they take.
    by_type: dict[str, dict[str, float]] = {}
    for e in used:
        votes = by_type.setdefault(e["type"], {})
        votes[e["kernel"]] = votes.get(e["kernel"], 0.0) + e["time_us"]
    names = [max(votes, key=lambda k: votes[k]) for votes in by_type.values()]
    missing = sorted(wanted - {(e["type"], e["rows"], e["columns"]) for e in used})
    options = {"kernel": ",".join(names), "compute": compute, "n_threads": now["threads"]} if names else {}
    return {"schema": 1, "options": options, "used": used, "stale": stale, "missing": missing}
