# SPDX-License-Identifier: Apache-2.0
"""Where the time of evaluations goes, by layer and operation, as seen by the calling thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from rooflm._output import html_table, table

if TYPE_CHECKING:
    from types import TracebackType

    from rooflm.model import Session


class TraceEvent(NamedTuple):
    layer: Optional[int]  #: None outside the layers
    op: str
    start_ns: int  #: monotonic clock
    end_ns: int
    wait_ns: int  #: of it, spent at barriers, waiting for other threads
    n_tokens: int  #: tokens of the step


class Trace:
    """A context manager; made by Session.trace(). `events` has one record per operation of each step inside it.

    An operation ends at the barrier that closes it, so its time includes waiting for the slowest thread; wait_ns says
    how much of that the calling thread waited. One clock read per operation is all that tracing costs.
    """

    def __init__(self, session: Session, capacity: int) -> None:
        self._session = session
        self._capacity = capacity
        self.events: list[TraceEvent] = []
        self.dropped = 0  #: events beyond the capacity

    def __enter__(self) -> Trace:
        self._session._c._trace_start(self._capacity)
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        rows, self.dropped = self._session._c._trace_take()
        self.events = [TraceEvent(*row) for row in rows]

    def by_op(self) -> list[dict[str, Any]]:
        """Per operation: calls, time_s, wait_s and share of the traced time, longest first."""
        total: dict[str, list[int]] = {}
        for e in self.events:
            t = total.setdefault(e.op, [0, 0, 0])
            t[0] += 1
            t[1] += e.end_ns - e.start_ns
            t[2] += e.wait_ns
        whole = sum(t[1] for t in total.values()) or 1
        rows = [
            {"op": op, "calls": n, "time_s": ns * 1e-9, "wait_s": wait * 1e-9, "share": ns / whole}
            for op, (n, ns, wait) in total.items()
        ]
        return sorted(rows, key=lambda r: -r["time_s"])

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "op": r["op"],
                "calls": r["calls"],
                "ms": f"{r['time_s'] * 1e3:.3f}",
                "waiting ms": f"{r['wait_s'] * 1e3:.3f}",
                "share": f"{r['share']:.3f}",
            }
            for r in self.by_op()
        ]

    def __repr__(self) -> str:
        return table(self._rows(), ("op", "calls", "ms", "waiting ms", "share"))

    def _repr_html_(self) -> str:
        return html_table(self._rows(), ("op", "calls", "ms", "waiting ms", "share"))
