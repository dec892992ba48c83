# SPDX-License-Identifier: Apache-2.0
"""What the system does to a model beside what the sampler sees: waiting for a core, stalls for memory, limits of the
clock, swap. Files below a root that tests can replace; what a system does not show is None, never zero."""

from __future__ import annotations

import os
import time
from typing import Any, Optional

from rooflm.device.files import Files


class Waiting:
    """From its start: the share of the time that this process's threads waited for a CPU, and that it was stalled for
    memory."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.start = time.perf_counter(), self._waited_s(), self._stalled_s()

    def _waited_s(self) -> Optional[float]:
        """Time that the threads of this process have waited for a CPU while they could run."""
        if not self.files.here:
            return None  # a copy of /proc does not know our threads
        waited = []
        for task in self.files.names("proc/self/task"):
            fields = (self.files.text(f"proc/self/task/{task}/schedstat") or "").split()
            if len(fields) > 1:  # else a thread that ended meanwhile, or a kernel without it
                waited.append(int(fields[1]))
        return sum(waited) * 1e-9 if waited else None

    def _stalled_s(self) -> Optional[float]:
        for line in (self.files.text("proc/pressure/memory") or "").splitlines():
            if line.startswith("some"):
                return int(line.rpartition("total=")[2]) * 1e-6
        return None

    def shares(self, n_threads: int) -> dict[str, Optional[float]]:
        at, waited, stalled = self.start
        elapsed = time.perf_counter() - at

        def share(before: Optional[float], now: Optional[float], whole: float) -> Optional[float]:
            return None if before is None or now is None else min(1.0, max(0.0, (now - before) / whole))

        return {
            "wait_share": share(waited, self._waited_s(), elapsed * n_threads),
            "stall_share": share(stalled, self._stalled_s(), elapsed),
        }


def frequencies(files: Files, cpus: list[int]) -> list[dict[str, Any]]:
    """Of each CPU with cpufreq: what its hardware can do, what it is limited to, what it was last asked for."""
    rows = []
    for cpu in cpus:
        base = f"sys/devices/system/cpu/cpu{cpu}/cpufreq/"
        most = files.integer(base + "cpuinfo_max_freq")
        if most:
            rows.append(
                {
                    "cpu": cpu,
                    "max_khz": most,
                    "limit_khz": files.integer(base + "scaling_max_freq"),
                    "current_khz": files.integer(base + "scaling_cur_freq"),
                    "governor": files.text(base + "scaling_governor"),
                }
            )
    return rows


def swap_state(files: Files) -> dict[str, Any]:
    """Bytes of this process in swap and in memory, swap in use and memory available on the whole system."""
    total, free = (files.kilobytes("proc/meminfo", k) for k in ("SwapTotal", "SwapFree"))
    return {
        "process_swap_bytes": files.kilobytes("proc/self/status", "VmSwap"),
        "process_resident_bytes": files.kilobytes("proc/self/status", "VmRSS"),
        "swap_used_bytes": total - free if total is not None and free is not None else None,
        "available_bytes": files.kilobytes("proc/meminfo", "MemAvailable"),
    }


def busiest(files: Files, n: int = 3) -> list[str]:
    """Names of the other processes that can run right now, as evidence for a busy neighbour."""
    found = []
    for pid in files.names("proc"):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        name, _, rest = (files.text(f"proc/{pid}/stat") or "").partition("(")[2].rpartition(")")
        fields = rest.split()
        if fields and fields[0] == "R":
            found.append((int(fields[11]) + int(fields[12]), name))
    return [name for _, name in sorted(found, reverse=True)[:n]]
