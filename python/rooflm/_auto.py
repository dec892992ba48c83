# SPDX-License-Identifier: Apache-2.0
"""What compute="auto" takes for one token: int16 where it is free, int8 elsewhere.

One token is decoded at the speed of memory as long as the kernel is faster than memory is. So int16, which is exact for
all practical purposes, costs nothing where its kernel, out of a cache, reads faster than one core gets from memory
while all cores read. Both rates belong to the machine and are kept for it (_rates.py), not measured for a session: the
number of threads changes no bit. A process decides once. Where a rate is not to be believed it takes int8, which is
never slower.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Any, Optional

from rooflm import _rates
from rooflm._rates import Rate, Sample

MARGIN = 1.05  # how much faster than memory a kernel must be to hide behind it: waits do not overlap perfectly
ALIKE = 0.97  # int16 this near to int8 is taken whatever the memory does

_lock = threading.Lock()
_process: Optional[Rates] = None


class Rates:
    """The rates that this process decides by. Each is measured at most once in it, and then stays."""

    def __init__(self) -> None:
        self.key = _rates.machine_key()
        self.kept = _rates.load(self.key)
        self.used: dict[str, Sample] = {}
        self.changed = False
        self.source = f"kept in {_rates.path()}"

    def core(self) -> Sample:
        """What one core gets from memory while all read: ROOFLM_CORE_GBS where it is set."""
        given = os.environ.get("ROOFLM_CORE_GBS")
        if given:
            return Sample(float(given))
        if "core" not in self.used:
            rate = self.kept.get("core", Rate())
            self._use("core", rate, None if rate.settled else _rates.measure_core(rate.kernel))
        return self.used["core"]

    def kernels(self, names: tuple[str, str], type: str, cols: int) -> list[Sample]:
        """Rows kernels at this width. Those of one comparison are measured together."""
        keys = [f"{name}/{cols}" for name in names]
        if not all(key in self.used for key in keys):
            rates = [self.kept.get(key, Rate()) for key in keys]
            settled = all(rate.settled for rate in rates)
            samples = {} if settled else _rates.measure_kernels(names, type, cols)
            for name, key, rate in zip(names, keys, rates):
                self._use(key, rate, samples.get(name))
        return [self.used[key] for key in keys]

    def keep(self) -> None:
        """Writes what was measured since the last call."""
        if self.changed:
            self.changed, self.source = False, _rates.save(self.key, self.kept)

    def _use(self, key: str, rate: Rate, sample: Optional[Sample]) -> None:
        """Takes the largest that is known, now with this sample; a disturbed one only where nothing else is."""
        if sample is not None:
            rate.add(sample)
            self.kept[key] = rate
            self.changed = True
        if rate.gbs:
            self.used.setdefault(key, Sample(rate.gbs))
        else:
            self.used.setdefault(key, sample or Sample(0.0, f"all {rate.tries} measurements were disturbed"))


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
        core = rates.core()
        int8, int16 = rates.kernels((k8, k16), type, cols)
        take, why = _verdict(core, int8, int16)
        records.append(
            {"type": type, "cols": cols, "compute": take, "int8_gbs": int8.gbs, "int16_gbs": int16.gbs, "why": why}
        )
    return records


def _verdict(core: Sample, int8: Sample, int16: Sample) -> tuple[str, str]:
    # What was disturbed is too low if anything. So a bound from below is enough for int16, but not for what it is
    # compared with.
    need = MARGIN * core.gbs
    if int16.gbs >= need and not core.disturbed:
        return "int16", f"it hides behind memory: {int16.gbs:.1f} GB/s, {need:.1f} are enough"
    if int16.gbs >= ALIKE * int8.gbs and not int8.disturbed:
        return "int16", f"it is as fast as int8: {int16.gbs:.1f} and {int8.gbs:.1f} GB/s"
    for what, sample in (("memory", core), ("int8", int8), ("int16", int16)):
        if sample.disturbed:
            return "int8", f"it is never slower, and the rate of {what} was disturbed: {sample.disturbed}"
    return "int8", f"int16 would slow decode: {int16.gbs:.1f} GB/s, to hide behind memory takes {need:.1f}"


def decide(pairs: Iterable[tuple[str, int]], isa: Optional[str] = None) -> dict[str, Any]:
    """The record of a session: core_gbs, disturbed (why core_gbs is not to be believed, or None), agreeing (processes
    that measured the like, None where it was given), settled (no process measures again), source, and matrices."""
    global _process
    with _lock:
        rates = _process = _process or Rates()
        core = rates.core()
        given = bool(os.environ.get("ROOFLM_CORE_GBS"))
        source = "ROOFLM_CORE_GBS" if given else "this process alone, disturbed"
        matrices = choose(sorted(set(pairs)), isa, rates)
        rates.keep()
        kept = rates.kept.get("core", Rate())
        return {
            "matrices": matrices,
            "core_gbs": core.gbs,
            "disturbed": core.disturbed or None,
            "agreeing": None if given else kept.agree,
            "settled": given or kept.settled,
            "source": source if given or core.disturbed else rates.source,
        }
