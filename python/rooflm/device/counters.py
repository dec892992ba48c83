# SPDX-License-Identifier: Apache-2.0
"""Counters of the processor and the kernel around a piece of work, by perf_event_open, and what they say.

Containers, virtual machines and careful systems refuse some or all of them. That is a fact of the result: each counter
that is not there has its reason in `unavailable`.
"""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from rooflm import _core
from rooflm._keywords import checked_keywords
from rooflm._output import html_table, table
from rooflm.device.files import Files

if TYPE_CHECKING:
    from rooflm.tracing import Trace

SCHEMA = 1

# Name -> (type, config) of perf_event_open(2): 0 hardware, 1 software, 3 caches (cache | operation << 8 | miss << 16).
EVENTS = {
    "cycles": (0, 0),
    "instructions": (0, 1),
    "cache_references": (0, 2),
    "cache_misses": (0, 3),
    "branch_misses": (0, 5),
    "stalled_frontend": (0, 7),
    "stalled_backend": (0, 8),
    "llc_load_misses": (3, 2 | 0 << 8 | 1 << 16),
    "dtlb_load_misses": (3, 3 | 0 << 8 | 1 << 16),
    "task_clock_ns": (1, 1),
    "page_faults": (1, 2),
    "context_switches": (1, 3),
    "cpu_migrations": (1, 4),
    "major_faults": (1, 6),
}
IN_THE_KERNEL = ("context_switches", "cpu_migrations")  # events that user-space counting never sees

# What is healthy, by experience with language models on small devices.
MEMORY_STALLS = 0.15
ISSUE_STALLS = 0.08
UTILISATION = 0.70
MEMORY_STALLS_BAD = 0.40  # above it: work on the layout of the data, not on kernels


class Count(NamedTuple):
    value: float  #: what it would have counted had it run all the time
    raw: int
    enabled_s: float
    running_s: float  #: less than enabled_s where counters took turns


class Counters:
    """Counts while its block runs, over all threads that the process has at its start and those they start:

        with Counters() as c:
            session.eval(tokens)
        print(c)

    counts       {name: Count}, names as in EVENTS; user-space work only, but for switches and migrations
    threads      that the work is meant to use, for the utilisation; default those of this machine
    unavailable  {name: why}
    judge()      shares of stalls and utilisation beside the thresholds

    open_counter and root are for tests: what opens a counter, and where /proc is.
    """

    @checked_keywords
    def __init__(
        self,
        *,
        threads: Optional[int] = None,
        open_counter: Callable[[int, int, int, bool], int] = _core._counter_open,
        root: str = "/",
    ) -> None:
        self.threads = threads or _core._cpus("/")["default_threads"]
        self._open_counter = open_counter
        self._files = Files(root)
        self._fds: dict[str, list[int]] = {}
        self.counts: dict[str, Count] = {}
        self.unavailable: dict[str, str] = {}
        self.elapsed_s = 0.0

    def __enter__(self) -> Counters:
        if self._fds:
            raise RuntimeError("these counters run already; make others")
        self.counts, self.unavailable = {}, {}
        threads = [int(t) for t in os.listdir("/proc/self/task")]
        for name, (kind, config) in EVENTS.items():
            fds = []
            for tid in threads:
                fd = self._open_counter(kind, config, tid, name in IN_THE_KERNEL)
                if fd >= 0:
                    fds.append(fd)
                elif fd != -errno.ESRCH:  # a thread may end meanwhile
                    self.unavailable[name] = self._why(-fd)
                    break
            if name in self.unavailable:
                _close(fds)
            else:
                self._fds[name] = fds
        self._start = time.monotonic()
        for fds in self._fds.values():
            for fd in fds:
                _core._counter_run(fd, True)
        return self

    def __exit__(self, *exc: object) -> None:
        self.elapsed_s = time.monotonic() - self._start
        for fds in self._fds.values():
            for fd in fds:
                _core._counter_run(fd, False)
        for name, fds in self._fds.items():
            self._take(name, fds)
            _close(fds)
        self._fds = {}

    def _take(self, name: str, fds: list[int]) -> None:
        value, raw, enabled, running = 0.0, 0, 0, 0
        for fd in fds:
            got = _core._counter_read(fd)
            if isinstance(got, int):
                self.unavailable[name] = self._why(-got)
                return
            n, on, ran = got
            raw, enabled, running = raw + n, enabled + on, running + ran
            value += n * on / ran if ran else 0.0
        if enabled and not running:
            self.unavailable[name] = "the processor's counters were all taken by others the whole time"
            return
        self.counts[name] = Count(value, raw, enabled * 1e-9, running * 1e-9)

    def _why(self, number: int) -> str:
        said = errno.errorcode.get(number, str(number))
        if number in (errno.EPERM, errno.EACCES):
            level = self._files.text("proc/sys/kernel/perf_event_paranoid")
            if level is not None and level.lstrip("-").isdigit() and int(level) > 2:
                return f"{said}: kernel.perf_event_paranoid is {level}; 2 or less lets users count their own work"
            return f"{said}: a filter of the container or the system refuses perf_event_open (CAP_PERFMON may allow it)"
        if number in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
            return f"{said}: this processor, or the virtual machine around it, does not offer the event"
        if number == errno.ENOSYS:
            return f"{said}: this kernel has no perf_event_open, or a filter hides it"
        if number == errno.EMFILE:
            return f"{said}: the limit of open files is too low (ulimit -n)"
        return f"{said}: {os.strerror(number)}"

    def value(self, name: str) -> Optional[float]:
        count = self.counts.get(name)
        return None if count is None else count.value

    def _ratio(self, a: str, b: str) -> Optional[float]:
        x, y = self.value(a), self.value(b)
        return x / y if x is not None and y else None

    def judge(self, trace: Optional[Trace] = None) -> dict[str, Any]:
        """Shares beside what is healthy: memory_stalls (stalled back-end cycles over cycles) under 0.15, issue_stalls
        (stalled front-end cycles over cycles) under 0.08, utilisation (processor time over time and threads) over 0.70.
        Each has share, healthy (None when unknown) and source: "counters", "model" (with a trace: the share of the time
        that the memory's limit explains), or the reason why there is none. advice is a sentence or None."""
        busy = self.value("task_clock_ns")
        utilisation = None
        if busy is not None and self.elapsed_s > 0:
            utilisation = busy * 1e-9 / (self.elapsed_s * self.threads)
        memory, source = self._ratio("stalled_backend", "cycles"), "counters"
        if memory is None and trace is not None:
            memory, source = trace.memory_bound_share(), "model"
        out: dict[str, Any] = {
            "memory_stalls": _judged(memory, lambda x: x < MEMORY_STALLS, source, self._missing("stalled_backend")),
            "issue_stalls": _judged(self._ratio("stalled_frontend", "cycles"), lambda x: x < ISSUE_STALLS, "counters",
                                    self._missing("stalled_frontend")),
            "utilisation": _judged(utilisation, lambda x: x > UTILISATION, "counters", self._missing("task_clock_ns")),
            "instructions_per_cycle": self._ratio("instructions", "cycles"),
        }  # fmt: skip
        out["advice"] = None
        if memory is not None and memory > MEMORY_STALLS_BAD:
            out["advice"] = (
                f"{100 * memory:.0f} % of the time waits for memory: fewer bytes or a better layout help (fewer bits, "
                "a shorter context, 8-bit KV, huge pages), faster kernels do not"
            )
        return out

    def _missing(self, name: str) -> str:
        return self.unavailable.get(name) or self.unavailable.get("cycles") or "nothing was counted"

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "elapsed_s": self.elapsed_s, "threads": self.threads,
                "counts": {n: c._asdict() for n, c in self.counts.items()}, "unavailable": self.unavailable,
                "judged": self.judge()}  # fmt: skip

    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [
            {"counter": n, "value": c.value, "running": c.running_s / c.enabled_s if c.enabled_s else None, "why": ""}
            for n, c in self.counts.items()
        ]
        return rows + [{"counter": n, "value": None, "why": f"not available: {w}"} for n, w in self.unavailable.items()]

    def __repr__(self) -> str:
        return table(self._rows(), ("counter", "value", "running", "why"))

    def _repr_html_(self) -> str:
        return html_table(self._rows(), ("counter", "value", "running", "why"))


def _judged(share: Optional[float], healthy: Callable[[float], bool], source: str, missing: str) -> dict[str, Any]:
    if share is None:
        return {"share": None, "healthy": None, "source": f"not available: {missing}"}
    return {"share": share, "healthy": healthy(share), "source": source}


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
