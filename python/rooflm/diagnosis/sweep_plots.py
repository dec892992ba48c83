# SPDX-License-Identifier: Apache-2.0
"""Pictures of sweeps that say more than one figure over one setting: predicted beside measured, the knee, layouts."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Callable, Optional

from rooflm._labels import from_zero, plain_log
from rooflm._optional import axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rooflm.diagnosis.sweeps import Sweep


def _points(records: list[dict[str, Any]], x: str, y: str) -> list[tuple[float, list[float]]]:
    by: dict[float, list[float]] = {}
    for r in records:
        by.setdefault(r[x], []).append(r[y])
    return sorted(by.items())


def _with_range(ax: Axes, points: list[tuple[float, list[float]]], **style: Any) -> Any:
    middles = [statistics.median(v) for _, v in points]
    bars = [[m - min(v) for m, (_, v) in zip(middles, points)], [max(v) - m for m, (_, v) in zip(middles, points)]]
    return ax.errorbar([x for x, _ in points], middles, yerr=bars, marker="o", capsize=3, **style)


def _runs(records: list[dict[str, Any]]) -> str:
    return f"median, bars: range of n = {len({r['repeat'] for r in records})} runs"


def _context(sweep: Sweep, ax: Optional[Axes]) -> Axes:
    ax = axes(ax, figsize=(7, 4))
    for kv in dict.fromkeys(r["kv"] for r in sweep):
        mine = [r for r in sweep if r["kv"] == kv]
        used = [r for r in mine if r["axis"] == "in use"]
        line = _with_range(ax, _points(used, "depth", "decode_tps"), label=f"{kv}, in use, measured")
        color = line.lines[0].get_color()
        predicted = [(x, statistics.median(v)) for x, v in _points(used, "depth", "predicted_tps")]
        ax.plot(*zip(*predicted), "--", color=color, label=f"{kv}, predicted from bytes")
        allocated = [r for r in mine if r["axis"] == "allocated"]
        if allocated:
            points = _points(allocated, "ctx", "decode_tps")
            _with_range(ax, points, color=color, alpha=0.5, linestyle=":", label=f"{kv}, allocated, 16 in use")
    ax.set_xlabel("context (tokens)")
    ax.set_ylabel("decode (tokens/s)")
    from_zero(ax)
    ax.set_title(f"context in use and allocated\n{_runs(sweep.records)}", fontsize="medium")
    ax.legend(fontsize="small")
    return ax


def _cache(sweep: Sweep, ax: Optional[Axes]) -> Axes:
    ax = axes(ax, figsize=(7, 4))
    _with_range(ax, _points(sweep.records, "kv_bytes", "attention_gbs"), label="attention")
    read = [(x, statistics.median(v)) for x, v in _points(sweep.records, "kv_bytes", "read_gbs")]
    ax.plot(*zip(*read), "--", color="tab:gray", label="reading the same pages")
    for c in sweep.records[0]["caches"]:
        size = c["size_bytes"] * max(1, min(c["count"], sweep.records[0]["setting"]["threads"]))
        ax.axvline(size, color="tab:gray", linewidth=0.8)
        ax.text(size, 0.02, f" L{c['level']}", transform=ax.get_xaxis_transform(), fontsize="small")
    found = sweep.knee
    if found:
        ax.axvline(found["kv_bytes"], color="tab:red", linewidth=1, label=f"knee at {found['kv_bytes'] / 1e6:.1f} MB")
    ax.set_xscale("log")
    plain_log(ax, "y")
    ax.set_xlabel("KV cache (bytes)")
    ax.set_ylabel("attention (GB/s)")
    ax.set_title(f"attention by size of the KV cache\n{_runs(sweep.records)}", fontsize="medium")
    ax.legend(fontsize="small")
    return ax


def _bars(sweep: Sweep, ax: Optional[Axes], name: Callable[[dict[str, Any]], str], y: str, label: str) -> Axes:
    by: dict[str, list[float]] = {}
    for r in sweep:
        by.setdefault(name(r), []).append(r[y])
    ax = axes(ax, figsize=(7, 1 + 0.35 * len(by)))
    for i, values in enumerate(by.values()):
        middle = statistics.median(values)
        bar = [[middle - min(values)], [max(values) - middle]]
        ax.barh(i, middle, xerr=bar, capsize=3, color="tab:blue", alpha=0.7)
    ax.set_yticks(range(len(by)), list(by))
    ax.set_ylim(len(by) - 0.4, -0.6)
    ax.set_xlabel(label)
    return ax


def _kv(sweep: Sweep, ax: Optional[Axes]) -> Axes:
    several = len({r["depth"] for r in sweep}) > 1
    ax = _bars(sweep, ax, lambda r: f"{r['kv']}, {r['layout']}" + (f", {r['depth']}" if several else ""),
               "attention_us", "attention per token (µs)")  # fmt: skip
    s = sweep.records[0]["setting"]
    where = f"{s['n_layer']} layers, {s['n_head']} heads over {s['n_head_kv']}, {s['depth']} tokens"
    ax.set_title(f"types and layouts of the KV cache: {where}\n{_runs(sweep.records)}", fontsize="medium")
    return ax


def _kernels(sweep: Sweep, ax: Optional[Axes]) -> Axes:
    def name(r: dict[str, Any]) -> str:
        return f"{r['type']} {r['rows']} x {r['columns']}, {r['tokens']}: {r['kernel']} {r['compute']}"

    ax = _bars(sweep, ax, name, "time_us", "time of one product (µs)")
    ax.set_xscale("log")
    ax.set_title(f"kernels by type, shape, tokens\n{_runs(sweep.records)}", fontsize="medium")
    return ax


OWN = {"context": _context, "cache": _cache, "kv": _kv, "kernels": _kernels}
