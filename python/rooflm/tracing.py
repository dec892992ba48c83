# SPDX-License-Identifier: Apache-2.0
"""Where the time goes: by layer and operation beside the limits of the machine, by stage from input to rendering, and
as a Chrome trace.
"""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Iterable, NamedTuple, Optional, Union

from rooflm import _core
from rooflm._costs import MATRICES, Cost, Costs
from rooflm._keywords import checked_keywords
from rooflm._output import html_table, table
from rooflm.device.roofline import Roofs, peak_gops, roofline

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    from rooflm.device.sampler import Sampler
    from rooflm.session import Session

SCHEMA = 1
ROOF_READS = 3
ABOVE = 1.05  # of a roof: more than the noise of a quiet machine
PHASES = (None, "prefill", "decode")

# What generate() and chat() pass through, in this order, plus the evaluations after the first token. "render" is the
# caller's own code between two pieces of text.
STAGES = ("input", "preprocess", "tokenize", "first_token", "sample", "decode", "postprocess", "render")
TAKEN_BACK = "taken back"  # a stage of its own, behind these: evaluations that were run ahead and not used


class TraceEvent(NamedTuple):
    layer: Optional[int]  #: None outside the layers
    op: str
    start_ns: int  #: monotonic clock
    end_ns: int
    wait_ns: int  #: of it, spent at barriers, waiting for other threads
    n_tokens: int  #: tokens that took part
    position: int  #: of the first of them in the sequence
    n_experts: int  #: whose stacked matrices were read; 0 elsewhere


class Span(NamedTuple):
    name: str
    start_ns: int  #: monotonic clock
    end_ns: int
    stage: bool  #: recorded by the library, not by the user
    ahead: bool = False  #: ran beside the stages, see rooflm.overlapping
    hidden_ns: int = 0  #: of such a step, the part that passed while other stages ran


class _Timed:
    """Appends one span when its block ends, however it ends."""

    def __init__(self, spans: list[Span], name: str, stage: bool) -> None:
        self._spans, self._name, self._stage = spans, name, stage

    def __enter__(self) -> None:
        self._start = time.monotonic_ns()

    def __exit__(self, *exc: object) -> None:
        self._spans.append(Span(self._name, self._start, time.monotonic_ns(), self._stage))


_NOTHING: ContextManager[None] = nullcontext()


def stage(session: Session, name: str) -> ContextManager[None]:
    """Records a stage of the session's running trace; costs nothing to speak of without one."""
    tracer = session._tracer
    return _NOTHING if tracer is None else _Timed(tracer.spans, name, True)


class Trace:
    """A context manager; made by Session.trace().

    events   one TraceEvent per operation of each step inside it. An operation ends at the barrier that closes it, so
             its time includes waiting for the slowest thread; wait_ns says how much of that the calling thread waited.
    spans    the stages of generate() and chat(), see STAGES, and what span() was used for
    dropped  events beyond the capacity
    roofs    the limits that operations are held against: the best read of the model's own bytes and the peaks of
             arithmetic, with the session's threads and tier. Measured when first asked for, which takes some tenths of
             a second; may be set to the Roofs of another machine.
    doubts   why shares of the roof are not to be trusted: what was faster than its roof, events that were dropped

    Costs: see _costs.py. Tracing takes two clock reads per operation, under 2 % of a token's time; off, nothing.
    """

    def __init__(self, session: Session, capacity: int) -> None:
        self._session = session
        self._capacity = capacity
        self._model, self._threads, self._isa = session.model, session.n_threads, session.isa
        self._costs = Costs(session)
        self._raw = b""
        self._events: Optional[list[TraceEvent]] = None
        self.spans: list[Span] = []
        self.dropped = 0
        self._roofs: Optional[Roofs] = None
        self._roofs_ns: Optional[int] = None  # when they were measured; None where they were given

    def __enter__(self) -> Trace:
        if self._session._tracer is not None:
            raise _core.Error("this session is being traced already; one trace holds any number of evaluations")
        self._session._c._trace_start(self._capacity)
        self._session._tracer = self
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()

    def _end(self) -> None:
        """Takes what was gathered and stops: when the block ends, or earlier when its session is closed."""
        if self._session._tracer is not self:
            return
        self._raw, token_counts, self.dropped = self._session._c._trace_take()
        self._session._tracer = None
        self._events = None
        for n in token_counts:
            self._costs.learn(self._session, n)

    @property
    def events(self) -> list[TraceEvent]:
        if self._events is None:  # made when somebody looks: ending a trace in the middle of an answer must be cheap
            self._events = [TraceEvent(*row) for row in _core.Session._trace_rows(self._raw)]
        return self._events

    def span(self, name: str) -> ContextManager[None]:
        """Context manager: records the block under this name. A name of STAGES counts as that stage."""
        return _Timed(self.spans, name, name in STAGES)

    # ---- limits ----

    @property
    def roofs(self) -> Roofs:
        if self._roofs is None:
            from rooflm.measuring.ceilings import read_arrays

            arrays, read = read_arrays(self._model), 0.0
            self._roofs_ns = time.monotonic_ns()
            for _ in range(ROOF_READS):  # a read that is slower than the work was is not the best one
                got = _core.read_bandwidth(arrays, threads=self._threads, passes=5, isa=self._isa)
                read = max(read, float(got["gbs"]))
                self._roofs = Roofs(read, peak_gops(self._threads, self._isa), self._threads, self._isa)
                if not any(r["bound"] == "memory" for r in self._above_roof()):
                    break
            assert self._roofs is not None
        return self._roofs

    @roofs.setter
    def roofs(self, value: Roofs) -> None:
        self._roofs, self._roofs_ns = value, None

    def _above_roof(self) -> list[dict[str, Any]]:
        """Matrices of a phase that were faster than the limit they are held against. Their bytes are those that the
        roof was read from, so a cache is no excuse."""
        rows = [{"phase": p, **r} for p in PHASES[1:] for r in self.by_op(p) if r["op"] in MATRICES]
        return [r for r in rows if (r["roof_share"] or 0.0) > ABOVE]

    @property
    def doubts(self) -> list[str]:
        found = [f"{self.dropped} events were dropped: give the trace a larger capacity"] if self.dropped else []
        above = self._above_roof()
        if above:
            most = max(above, key=lambda r: float(r["roof_share"]))
            found.append(
                f"{len(above)} of the operations ran above their roof, {most['phase']} {most['op']} at "
                f"{most['roof_share']:.2f} of it ({most['bound']}): {self._why_low()}"
            )
        return found

    def _why_low(self) -> str:
        if self._roofs_ns is None or not self.events:
            return "the roofs were given, not measured with it"
        later = (self._roofs_ns - self.events[-1].end_ns) * 1e-9
        return f"the roofs were measured {later:.1f} s after the trace ended, when the machine was slower; trace again"

    def cost(self, event: TraceEvent) -> Cost:
        """Bytes, operations and kind of operands of one event."""
        return self._costs.of(event)

    # ---- tables ----

    def by_op(self, phase: Optional[str] = None) -> list[dict[str, Any]]:
        """Per operation, longest first: calls, time_s, share of the traced time, and what roofline() gives: bytes,
        operations, gbs, gops, bound, roof_share, wait_s, other_s. phase: "prefill" (several tokens at once), "decode"
        (one), or None for both together."""
        return sorted(self._grouped(lambda e: {"op": e.op}, phase), key=lambda r: -r["time_s"])

    def by_layer(self, phase: Optional[str] = None) -> list[dict[str, Any]]:
        """The same per layer, in order; None is what lies outside the layers."""
        rows = self._grouped(lambda e: {"layer": e.layer}, phase)
        return sorted(rows, key=lambda r: (r["layer"] is None, r["layer"]))

    def by_layer_and_op(self, phase: Optional[str] = None) -> list[dict[str, Any]]:
        """The same per layer and operation, in the order in which they ran."""
        return self._grouped(lambda e: {"layer": e.layer, "op": e.op}, phase)

    def stages(self, *, sampler: Optional[Sampler] = None) -> list[dict[str, Any]]:
        """Per stage, in their order, then the user's spans: calls, time_s, longest_s, of stages hidden_s (what of it
        passed beside other stages, see overlap()) and the share of what was not hidden of their sum. With a Sampler
        that ran beside the trace also power_w and temperature_c: the means of its samples within the spans, None where
        none fell into them or nothing could be read."""
        order = {name: i for i, name in enumerate(STAGES)}
        found: dict[tuple[str, bool], list[Span]] = {}
        for s in self.spans:
            found.setdefault((s.name, s.stage), []).append(s)
        whole = sum(s.end_ns - s.start_ns - s.hidden_ns for s in self.spans if s.stage) or 1
        rows = []
        for (name, is_stage), spans in found.items():
            ns = [s.end_ns - s.start_ns for s in spans]
            hidden = sum(s.hidden_ns for s in spans)
            row = {"span": name, "stage": is_stage, "calls": len(ns), "time_s": sum(ns) * 1e-9,
                   "longest_s": max(ns) * 1e-9, "hidden_s": hidden * 1e-9 if is_stage else None,
                   "share": (sum(ns) - hidden) / whole if is_stage else None}  # fmt: skip
            if sampler is not None:
                row.update(sampler.means([(s.start_ns * 1e-9, s.end_ns * 1e-9) for s in spans]))
            rows.append(row)
        return sorted(rows, key=lambda r: order.get(str(r["span"]), len(order)))

    def overlap(self) -> Optional[dict[str, Any]]:
        """Evaluations that were run ahead, beside the making of text and the caller's code (generate(overlap=)): steps
        and their time_s, hidden_s (what of it passed before the generation came to wait for it) and hidden_share;
        taken_back, how many more were not used, and taken_back_s. None where nothing was run ahead."""
        ahead = [s for s in self.spans if s.ahead]
        if not ahead:
            return None
        used = [s for s in ahead if s.name != TAKEN_BACK]
        time_s, all_s = (sum(s.end_ns - s.start_ns for s in spans) * 1e-9 for spans in (used, ahead))
        hidden_s = sum(s.hidden_ns for s in used) * 1e-9
        return {"steps": len(used), "time_s": time_s, "hidden_s": hidden_s,
                "hidden_share": hidden_s / time_s if used else None, "taken_back": len(ahead) - len(used),
                "taken_back_s": all_s - time_s}  # fmt: skip

    def effective_tops(self, phase: Optional[str] = None) -> Optional[float]:
        """10^12 operations per second of the time from the first event to the last, whatever happened in between:
        sampling and the caller's code count. None without events."""
        events = self._of_phase(phase)
        if not events:
            return None
        seconds = (events[-1].end_ns - events[0].start_ns) * 1e-9
        return sum(self.cost(e).operations for e in events) / seconds * 1e-12

    def memory_bound_share(self, phase: Optional[str] = None) -> Optional[float]:
        """Share of the traced time that the memory's limit alone explains, an estimate of the stalls on memory where
        the processor's own counters cannot be read. None without events or without the roof."""
        rows = self.by_op(phase)
        if not rows or self.roofs.read_gbs is None:
            return None
        stalled = sum(max(0.0, (r["memory_s"] or 0.0) - (r["compute_s"] or 0.0)) for r in rows)
        time_s: float = sum(r["time_s"] for r in rows)
        return min(1.0, stalled / time_s)

    def _of_phase(self, phase: Optional[str]) -> list[TraceEvent]:
        """Steps of one token are decoding. The head counts the rows that want logits, so its step decides, not they."""
        if phase not in PHASES:
            raise ValueError(f"phase={phase!r}: must be None, 'prefill' or 'decode'")
        if phase is None:
            return self.events
        out, wanted = [], False
        for e in self.events:
            if e.op == "embed":  # the first of each step
                wanted = (e.n_tokens == 1) == (phase == "decode")
            if wanted:
                out.append(e)
        return out

    def _grouped(self, key: Callable[[TraceEvent], dict[str, Any]], phase: Optional[str]) -> list[dict[str, Any]]:
        groups: dict[tuple[Any, ...], _Sum] = {}
        for e in self._of_phase(phase):
            k = key(e)
            groups.setdefault(tuple(k.values()), _Sum(k)).add(e, self.cost(e))
        whole = sum(g.ns for g in groups.values()) or 1
        return [g.row(self.roofs, whole) for g in groups.values()]

    # ---- output ----

    def to_dict(self) -> dict[str, Any]:
        """Record of the whole trace, ready for JSON; events themselves are in to_pandas() and to_chrome()."""
        doubts = self.doubts
        return {
            "schema": SCHEMA,
            "roofs": self.roofs.to_dict(),
            "effective_tops": {p or "all": self.effective_tops(p) for p in PHASES},
            "by_op": {p or "all": self.by_op(p) for p in PHASES},
            "by_layer": self.by_layer(),
            "stages": self.stages(),
            "overlap": self.overlap(),
            "dropped": self.dropped,
            "doubts": doubts,
            "reliable": not doubts,
        }

    def to_pandas(self) -> pandas.DataFrame:
        """One row per event, with its bytes, operations and their kind."""
        from rooflm._optional import need

        rows = [{**e._asdict(), **self.cost(e)._asdict()} for e in self.events]
        return need("pandas").DataFrame(rows)

    def to_chrome(self, path: Union[str, os.PathLike[str]], *, sampler: Optional[Sampler] = None) -> None:
        """Writes the file that chrome://tracing and ui.perfetto.dev show: operations, stages, the user's spans and
        steps that were run ahead on lines of their own; with a Sampler that ran beside it also temperature, clocks and
        power."""
        from rooflm._trace_views import write_chrome

        write_chrome(path, self, sampler)

    @checked_keywords
    def plot(self, ax: Optional[Axes] = None, *, kind: str = "roofline", phase: Optional[str] = None) -> Axes:
        """kind "roofline": G operations/s of each operation over its operations per byte, under the roofs of memory and
        arithmetic. "time": milliseconds per layer, stacked by operation. "stages": seconds per stage."""
        from rooflm import _trace_views

        kinds = {"roofline": _trace_views.roofline_plot, "time": _trace_views.time_plot,
                 "stages": _trace_views.stages_plot}  # fmt: skip
        if kind not in kinds:
            raise ValueError(f"kind={kind!r}: must be one of {', '.join(kinds)}")
        return kinds[kind](self, ax, phase)

    def text(self, phase: Optional[str] = None) -> str:
        """by_op() as a plain table."""
        return table(*self._shown(phase))

    def __repr__(self) -> str:
        return "\n".join([self.text(), *self._notes()])

    def _repr_html_(self) -> str:
        return html_table(*self._shown()) + "".join(f"<p>{note}</p>" for note in self._notes())

    def _notes(self) -> list[str]:
        """What stands below the table."""
        found = self.overlap()
        return self.doubts if found is None else [overlap_text(found), *self.doubts]

    def _shown(self, phase: Optional[str] = None) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
        rows = [
            {"op": r["op"], "calls": r["calls"], "ms": r["time_s"] * 1e3, "waiting ms": r["wait_s"] * 1e3,
             "share": r["share"], "GB/s": r["gbs"] or None, "Gop/s": r["gops"] or None, "bound": r["bound"],
             "of roof": r["roof_share"]}
            for r in self.by_op(phase)
        ]  # fmt: skip
        return rows, ("op", "calls", "ms", "waiting ms", "share", "GB/s", "Gop/s", "bound", "of roof")


def overlap_text(found: dict[str, Any]) -> str:
    """Trace.overlap() in words."""
    text = f"{found['steps']} steps run ahead, {1e3 * found['time_s']:.1f} ms"
    if found["steps"]:
        text += (
            f", of which {1e3 * found['hidden_s']:.1f} ms ({100 * found['hidden_share']:.0f} %) passed beside the "
            "caller's code and the making of text"
        )
    if found["taken_back"]:
        text += f"; {found['taken_back']} taken back, {1e3 * found['taken_back_s']:.1f} ms"
    return text


class _Sum:
    """Events that belong together."""

    def __init__(self, key: dict[str, Any]) -> None:
        self.key = key
        self.calls, self.ns, self.wait_ns = 0, 0, 0
        self.nbytes = 0.0
        self.operations: dict[Optional[str], float] = {}

    def add(self, e: TraceEvent, cost: Cost) -> None:
        self.calls += 1
        self.ns += e.end_ns - e.start_ns
        self.wait_ns += e.wait_ns
        self.nbytes += cost.nbytes
        self.operations[cost.kind] = self.operations.get(cost.kind, 0.0) + cost.operations

    def row(self, roofs: Roofs, whole_ns: int) -> dict[str, Any]:
        operations = sum(self.operations.values())
        peak = mixed_peak(self.operations.items(), roofs)
        limits = roofline(operations, self.nbytes, max(self.ns, 1) * 1e-9, read_gbs=roofs.read_gbs, peak_gops=peak,
                          wait_s=self.wait_ns * 1e-9)  # fmt: skip
        return {**self.key, "calls": self.calls, "share": self.ns / whole_ns, **limits}


def mixed_peak(operations: Iterable[tuple[Optional[str], float]], roofs: Roofs) -> Optional[float]:
    """The peak of work of several kinds: its operations over the sum of the least times of each kind."""
    total, seconds = 0.0, 0.0
    for kind, n in operations:
        if n:
            peak = roofs.gops.get(kind or "")
            if not peak:
                return None
            total, seconds = total + n, seconds + n / peak
    return total / seconds if seconds else None
