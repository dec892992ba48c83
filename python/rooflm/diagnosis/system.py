# SPDX-License-Identifier: Apache-2.0
"""What the system did while a model ran: other processes, waiting for a core, swap, clocks. Files below a root that
tests can replace; what a system does not show is None, never zero."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Any, Optional, Union

from rooflm._machine import _Files


class Watch:
    """Counters of the system at its start, and what happened since."""

    def __init__(self, root: Union[str, os.PathLike[str]] = "/") -> None:
        self.files = _Files(os.fspath(root))
        self.own = self.files.root == Path("/")
        self.start = self._counters()

    def _counters(self) -> dict[str, Any]:
        vmstat = dict(line.split() for line in (self.files.text("proc/vmstat") or "").splitlines() if " " in line)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "at": time.perf_counter(),
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "major_faults": usage.ru_majflt,
            "waited_s": _waited_s(),
            "stat": self._stat(),
            "swapped_in": int(vmstat["pswpin"]) if "pswpin" in vmstat else None,
            "stalled_us": self._stalled_us(),
        }

    def _stat(self) -> Optional[dict[str, float]]:
        """Seconds of all CPUs that were busy, and stolen by the host, since boot."""
        line = (self.files.text("proc/stat") or "").split("\n", 1)[0].split()
        if len(line) < 9 or line[0] != "cpu":
            return None
        user, nice, system, _, _, irq, softirq, steal = (int(v) / os.sysconf("SC_CLK_TCK") for v in line[1:9])
        return {"busy": user + nice + system + irq + softirq, "steal": steal}

    def _stalled_us(self) -> Optional[int]:
        for line in (self.files.text("proc/pressure/memory") or "").splitlines():
            if line.startswith("some"):
                return int(line.rpartition("total=")[2])
        return None

    def since(self, n_cpus: int, n_threads: int) -> dict[str, Any]:
        """Shares of the time since the start: of all CPUs, taken by others and by the host; of the threads, spent
        waiting for a CPU; stalled for memory. And the bytes swapped in, and major page faults."""
        a, b = self.start, self._counters()
        elapsed = b["at"] - a["at"]
        out: dict[str, Any] = {"elapsed_s": elapsed, "major_faults": b["major_faults"] - a["major_faults"]}
        out["other_share"] = out["steal_share"] = None
        if a["stat"] and b["stat"]:
            # Another machine's counters have nothing of this process in them.
            mine = b["cpu_s"] - a["cpu_s"] if self.own else 0.0
            others = b["stat"]["busy"] - a["stat"]["busy"] - mine
            out["other_share"] = min(1.0, max(0.0, others / (elapsed * n_cpus)))
            out["steal_share"] = min(1.0, max(0.0, (b["stat"]["steal"] - a["stat"]["steal"]) / (elapsed * n_cpus)))
        out["wait_share"] = None
        if a["waited_s"] is not None and b["waited_s"] is not None:
            out["wait_share"] = min(1.0, max(0.0, (b["waited_s"] - a["waited_s"]) / (elapsed * n_threads)))
        out["swapped_in_bytes"] = None
        if a["swapped_in"] is not None and b["swapped_in"] is not None:
            out["swapped_in_bytes"] = (b["swapped_in"] - a["swapped_in"]) * os.sysconf("SC_PAGE_SIZE")
        out["stall_share"] = None
        if a["stalled_us"] is not None and b["stalled_us"] is not None:
            out["stall_share"] = min(1.0, max(0.0, (b["stalled_us"] - a["stalled_us"]) * 1e-6 / elapsed))
        return out


def _waited_s() -> Optional[float]:
    """Time that the threads of this process have waited for a CPU while they could run."""
    total, seen = 0, False
    try:
        for task in os.listdir("/proc/self/task"):
            try:
                total += int(Path(f"/proc/self/task/{task}/schedstat").read_text().split()[1])
                seen = True
            except (OSError, IndexError, ValueError):  # a thread that ended meanwhile, or a kernel without it
                continue
    except OSError:
        return None
    return total * 1e-9 if seen else None


def frequencies(root: Union[str, os.PathLike[str]], cpus: list[int]) -> list[dict[str, Any]]:
    """Of each CPU with cpufreq: what its hardware can do, what it is limited to, what it was last asked for."""
    files, rows = _Files(os.fspath(root)), []
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


def throttle_count(root: Union[str, os.PathLike[str]], cpus: list[int]) -> Optional[int]:
    """How often the hardware slowed these cores down for heat since boot, where it counts that."""
    files = _Files(os.fspath(root))
    counts = [
        files.integer(f"sys/devices/system/cpu/cpu{c}/thermal_throttle/{kind}_throttle_count")
        for c in cpus
        for kind in ("core", "package")
    ]
    known = [n for n in counts if n is not None]
    return sum(known) if known else None


def swap_state(root: Union[str, os.PathLike[str]] = "/") -> dict[str, Any]:
    """Bytes of this process in swap, memory available and swap in use on the whole system."""
    files = _Files(os.fspath(root))

    def kilobytes(path: str, key: str) -> Optional[int]:
        number = dict(files.fields(path)).get(key, "").split()
        return int(number[0]) * 1024 if number and number[0].isdigit() else None

    total, free = kilobytes("proc/meminfo", "SwapTotal"), kilobytes("proc/meminfo", "SwapFree")
    return {
        "process_swap_bytes": kilobytes("proc/self/status", "VmSwap"),
        "process_resident_bytes": kilobytes("proc/self/status", "VmRSS"),
        "swap_used_bytes": total - free if total is not None and free is not None else None,
        "available_bytes": kilobytes("proc/meminfo", "MemAvailable"),
    }


def busiest(root: Union[str, os.PathLike[str]], n: int = 3) -> list[str]:
    """Names of the other processes that can run right now, as evidence for a busy neighbour."""
    files, found = _Files(os.fspath(root)), []
    try:
        pids = [p for p in os.listdir(files.root / "proc") if p.isdigit() and int(p) != os.getpid()]
    except OSError:
        return []
    for pid in pids:
        text = files.text(f"proc/{pid}/stat") or ""
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        if fields and fields[0] == "R":
            found.append((int(fields[11]) + int(fields[12]), name))
    return [name for _, name in sorted(found, reverse=True)[:n]]
