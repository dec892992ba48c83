# SPDX-License-Identifier: Apache-2.0
"""What compute="auto" takes for one token: int16 where it is free, int8 elsewhere.

One token is decoded at the speed of memory as long as the kernel is faster than memory is. So int16, which is exact for
all practical purposes, costs nothing where its kernel, out of a cache, reads faster than one core gets from memory
while all cores read. Both rates are measured once for a machine and kept, so that every process there decides alike and
no session depends on the noise of its own moment. They belong to the machine, not to the session: the number of threads
changes no bit.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

import numpy as np

from rooflm import _core

MARGIN = 1.05  # how much faster than memory a kernel must be to hide behind it: waits do not overlap perfectly
ALIKE = 0.97  # int16 this near to int8 is taken whatever the memory does
CACHE_BYTES = 128 << 10  # weights of a rate: they stay in the second-level cache
SECONDS = 3e-4  # of one timing
TURNS = 5
READS, REST_S = 4, 0.02  # bandwidth: as many rounds of reads, with a rest between, since neighbours come and go

_lock = threading.Lock()
_kept: dict[Optional[str], Rates] = {}  # by the bandwidth that was given, if any


class Rates:
    """The rates of one machine: what one core gets from memory while all read, and kernels in a cache."""

    def __init__(self, key: str, core_gbs: float, kernels: dict[str, float], source: str = "") -> None:
        self.key, self.core_gbs, self.kernels, self.source = key, core_gbs, kernels, source
        self.changed = not source

    def of(self, kernel: str, type: str, cols: int) -> float:
        """GB/s of a rows kernel at this width, measured at the first call."""
        key = f"{kernel}/{cols}"
        if key not in self.kernels:
            self.kernels[key] = round(kernel_gbs(kernel, type, cols), 2)
            self.changed = True
        return self.kernels[key]


def kernel_gbs(kernel: str, type: str, cols: int) -> float:
    """Best GB/s of several short runs of a rows kernel, one token, weights in the second-level cache."""
    _, block, nbytes = _core._type_info(type)
    row_bytes = cols // block * nbytes
    rows = max(1, CACHE_BYTES // row_bytes)
    w = np.zeros((rows, row_bytes), np.uint8)
    x = np.ones((1, cols), np.float32)
    out = np.empty((1, rows), np.float32)
    once = _core._rows(kernel, w, row_bytes, rows, x, out)
    repeats = max(1, int(SECONDS / max(once, 1e-9)))
    best = min(_core._rows(kernel, w, row_bytes, rows, x, out, repeats) for _ in range(TURNS))
    return w.nbytes * repeats / best / 1e9


def core_gbs() -> float:
    """What one core gets from memory while all read, in GB/s: ROOFLM_CORE_GBS, or the best of several reads of a
    buffer four times as large as the last cache."""
    given = os.environ.get("ROOFLM_CORE_GBS")
    if given:
        return float(given)
    from rooflm.device.machine import machine

    m = machine()
    caches = [c["bytes"] for c in m["caches"] if c.get("bytes")]
    size = min(max([64 << 20, *(4 * c for c in caches)]), 256 << 20)
    if m.get("memory_available_bytes"):
        size = min(size, int(m["memory_available_bytes"]) // 8)
    best = 0.0
    for turn in range(READS):
        time.sleep(REST_S if turn else 0.0)
        r = _core.memory_bandwidth(size, passes=5, huge=False)
        best = max(best, size / min(r["passes_s"]) / 1e9 / r["threads"])
    return best


def choose(pairs: Iterable[tuple[str, int]], isa: Optional[str], rates: Rates) -> list[dict[str, Any]]:
    """One record for each (type, columns) that auto has a choice for."""
    from rooflm._kernels import kernels

    table = kernels(isa=isa)

    def kernel(type: str, act: str) -> Optional[str]:
        found = [k for k in table.select(family="rows", type=type, act=act, chosen=True) if k.isa != "ref"]
        return found[-1].name if found else None

    records = []
    for type, cols in pairs:
        k8, k16 = kernel(type, "int8"), kernel(type, "int16")
        if not k8 or not k16:
            continue
        int8, int16, need = rates.of(k8, type, cols), rates.of(k16, type, cols), MARGIN * rates.core_gbs
        if int16 >= need:
            take, why = "int16", f"it hides behind memory: {int16:.1f} GB/s, {need:.1f} are enough"
        elif int16 >= ALIKE * int8:
            take, why = "int16", f"it is as fast as int8: {int16:.1f} and {int8:.1f} GB/s"
        else:
            take, why = "int8", f"int16 would slow decode: {int16:.1f} GB/s, to hide behind memory takes {need:.1f}"
        records.append(
            {"type": type, "cols": cols, "compute": take, "int8_gbs": int8, "int16_gbs": int16, "why": why}
        )
    return records


def decide(pairs: Iterable[tuple[str, int]], isa: Optional[str] = None) -> dict[str, Any]:
    """The record of a session: {"core_gbs", "source", "matrices"}. Measures what is not known of this machine yet."""
    with _lock:
        given = os.environ.get("ROOFLM_CORE_GBS")
        rates = _kept.get(given)
        if rates is None:
            rates = _kept[given] = _load(_key())
        matrices = choose(sorted(set(pairs)), isa, rates)
        if rates.changed:
            _save(rates)
        return {"core_gbs": rates.core_gbs, "source": rates.source, "matrices": matrices}


# ---- kept for the machine ----


def _key() -> str:
    from rooflm import __version__
    from rooflm.device.machine import machine

    given = os.environ.get("ROOFLM_CORE_GBS") or ""
    m = machine()
    return "|".join(str(v) for v in (m["cpu"], m["default_threads"], __version__, given))


def path() -> Path:
    """Where the rates are kept."""
    from rooflm.fetching import cache_dir

    return cache_dir() / "rates.json"


def _read() -> dict[str, Any]:
    try:
        kept = json.loads(path().read_text())
        return kept if isinstance(kept, dict) and kept.get("schema") == 1 else {}
    except (OSError, ValueError):
        return {}


def _load(key: str) -> Rates:
    entry = _read().get("machines", {}).get(key)
    if entry:
        return Rates(key, float(entry["core_gbs"]), dict(entry["kernels"]), f"kept in {path()}")
    return Rates(key, round(core_gbs(), 2), {})


def _save(rates: Rates) -> None:
    rates.changed = False
    all_kept = _read()
    entry = {"core_gbs": rates.core_gbs, "kernels": rates.kernels}
    record = {"schema": 1, "machines": {**all_kept.get("machines", {}), rates.key: entry}}
    target = path()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.{os.getpid()}")
        part.write_text(json.dumps(record, indent=1))
        part.replace(target)
        rates.source = f"kept in {target}"
    except OSError as e:
        rates.source = f"measured by this process; {target} cannot be written: {e.strerror}"
