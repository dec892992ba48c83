# SPDX-License-Identifier: Apache-2.0
"""Pictures of a trace, and its export for Chrome's viewer."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Optional, Union

from rooflm._labels import plain_log
from rooflm._optional import axes, need

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rooflm.device.sampler import Sampler
    from rooflm.tracing import Trace

LINES = {"operations": 1, "stages": 2, "spans": 3, "steps ahead": 4}  # of the viewer


def write_chrome(path: Union[str, os.PathLike[str]], trace: Trace, sampler: Optional[Sampler]) -> None:
    """Complete events ("X") with times in microseconds, and counters ("C") from the sampler."""
    pid = os.getpid()
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        for name, tid in LINES.items()
    ]

    def complete(name: str, line: str, start_ns: int, end_ns: int, args: dict[str, Any]) -> None:
        events.append(
            {"ph": "X", "name": name, "cat": line, "pid": pid, "tid": LINES[line], "ts": start_ns / 1e3,
             "dur": (end_ns - start_ns) / 1e3, "args": args}
        )  # fmt: skip

    for e in trace.events:
        cost = trace.cost(e)
        args = {"layer": e.layer, "tokens": e.n_tokens, "position": e.position, "wait_us": e.wait_ns / 1e3,
                "bytes": cost.nbytes, "operations": cost.operations}  # fmt: skip
        complete(e.op, "operations", e.start_ns, e.end_ns, args)
    for s in trace.spans:
        if s.ahead:
            share = s.hidden_ns / max(s.end_ns - s.start_ns, 1)
            complete(s.name, "steps ahead", s.start_ns, s.end_ns,
                     {"hidden_us": s.hidden_ns / 1e3, "hidden_share": share})  # fmt: skip
        else:
            complete(s.name, "stages" if s.stage else "spans", s.start_ns, s.end_ns, {})
    for x in sampler.samples if sampler else ():
        assert sampler is not None
        values = {"temperature_c": sampler.sensors.temperature(x.sensors)}
        values.update({f"{cpu} MHz": f for cpu, f in x.sensors.freq_mhz.items()})
        values.update({f"{name} W": w for name, w in x.sensors.power_w.items()})
        for name, v in values.items():
            if v is not None:
                events.append({"ph": "C", "name": name, "pid": pid, "ts": x.time_s * 1e6, "args": {"value": v}})
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, f, allow_nan=False)


def _phase_text(phase: Optional[str]) -> str:
    return phase or "prefill and decode"


def roofline_plot(trace: Trace, ax: Optional[Axes], phase: Optional[str]) -> Axes:
    """Prefill and decode stay apart: their operations do different work per byte."""
    np = need("numpy")
    ax = axes(ax, figsize=(9, 5))
    roofs = trace.roofs
    phases = (phase,) if phase else ("prefill", "decode")
    rows = [(p, r) for p in phases for r in trace.by_op(p) if r["operations"] and r["bytes"]]
    if not rows:
        raise ValueError(f"nothing was multiplied in this trace ({_phase_text(phase)})")
    intensity = [r["operations"] / r["bytes"] for _, r in rows]
    x = np.geomspace(min(intensity) / 2, max(intensity) * 2, 200)
    memory = x * roofs.read_gbs if roofs.read_gbs else None
    kinds = {trace.cost(e).kind for e in trace.events}
    for kind, style in (("int8", "-"), ("int16", "--"), ("f32", ":")):
        peak = roofs.gops.get(kind)
        if kind in kinds and peak:
            y = np.minimum(memory, peak) if memory is not None else np.full_like(x, peak)
            ax.plot(x, y, style, color="black", lw=1, label=f"roof, {kind}: {peak:.0f} Gop/s")
    names = list(dict.fromkeys(r["op"] for _, r in rows))
    for (p, r), at in zip(rows, intensity):
        share = "" if r["roof_share"] is None else f", {100 * r['roof_share']:.0f} % of its roof"
        label = f"{p} {r['op']}: {1e3 * r['time_s']:.3g} ms{share}"
        ax.scatter([at], [r["gops"]], s=25 + 400 * r["share"], color=f"C{names.index(r['op'])}", label=label, zorder=3,
                   marker="o" if p == "decode" else "s", alpha=0.8)  # fmt: skip
    plain_log(ax, "x")
    plain_log(ax, "y")
    ax.set(xlabel="operations per byte from memory", ylabel="G operations/s")
    read = "unknown" if roofs.read_gbs is None else f"{roofs.read_gbs:.1f} GB/s"
    doubt = "\nnot reliable: see .doubts" if trace.doubts else ""
    ax.set_title(f"Roofline, {_phase_text(phase)}, n = {sum(r['calls'] for _, r in rows)} operations\n"
                 f"{roofs.threads} threads, {roofs.isa}, memory {read}{doubt}", fontsize="medium")  # fmt: skip
    ax.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5), markerscale=0.6)
    return ax


def time_plot(trace: Trace, ax: Optional[Axes], phase: Optional[str]) -> Axes:
    rows = trace.by_layer_and_op(phase)
    if not rows:
        raise ValueError(f"nothing was evaluated in this trace ({_phase_text(phase)})")
    layers = sorted({r["layer"] for r in rows if r["layer"] is not None})
    names = [*map(str, layers), "outside"]
    place: dict[Optional[int], int] = {layer: i for i, layer in enumerate(layers)}
    place[None] = len(layers)
    ax = axes(ax, figsize=(max(7.0, 0.25 * len(names)), 4.5))
    below = [0.0] * len(names)
    steps = sum(e.op == "embed" for e in trace._of_phase(phase))
    for i, op in enumerate(dict.fromkeys(r["op"] for r in rows)):
        heights = [0.0] * len(names)
        for r in rows:
            if r["op"] == op:
                heights[place[r["layer"]]] += 1e3 * r["time_s"] / steps
        ax.bar(range(len(names)), heights, bottom=below, color=f"C{i % 10}", hatch="//" if i >= 10 else None, label=op)
        below = [b + h for b, h in zip(below, heights)]
    every = max(1, len(names) // 12)
    ticks = [*range(0, len(layers) - every // 2, every), len(layers)]
    ax.set_xticks(ticks, [names[i] for i in ticks])
    ax.set(xlabel="layer", ylabel="ms per step")
    ax.set_title(f"Time by layer and operation, {_phase_text(phase)}, mean of n = {steps} steps", fontsize="medium")
    ax.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def stages_plot(trace: Trace, ax: Optional[Axes], phase: Optional[str]) -> Axes:
    rows = trace.stages()
    if not rows:
        raise ValueError("this trace has no stages: use generate() or chat() inside it, or span()")
    ax = axes(ax, figsize=(7, 0.5 + 0.45 * len(rows)))
    names = [f"{r['span']} (n = {r['calls']})" for r in rows]
    times_ms = [1e3 * r["time_s"] for r in rows]
    ax.barh(range(len(rows)), times_ms, color=["C0" if r["stage"] else "C1" for r in rows])
    hidden_ms = [1e3 * (r["hidden_s"] or 0.0) for r in rows]
    if any(hidden_ms):
        seen_ms = [t - h for t, h in zip(times_ms, hidden_ms)]
        ax.barh(range(len(rows)), hidden_ms, left=seen_ms, color="white", alpha=0.6, hatch="//",
                label="passed beside other stages")  # fmt: skip
        ax.legend(fontsize="small", loc="lower right")
    for i, ms in enumerate(times_ms):
        ax.annotate(f" {ms:.3g} ms", (ms, i), va="center", fontsize="small")
    ax.margins(x=0.2)
    ax.set_yticks(range(len(rows)), names)
    ax.invert_yaxis()
    ax.set(xlabel="time (ms)", ylabel="stage")
    ax.set_title("Time by stage, from input to rendering", fontsize="medium")
    return ax
