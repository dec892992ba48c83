# SPDX-License-Identifier: Apache-2.0
"""Pictures of benchmarks. Every one says its units, how many runs it rests on, and what its bars are."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence

from rooflm._labels import from_zero
from rooflm._optional import axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rooflm.measuring.results import Results

LABELS = {
    "prefill_tps": "prefill (tokens/s)",
    "decode_tps": "decode (tokens/s)",
    "ttft_ms": "time to first token (ms)",
    "bytes_per_token": "bytes per token (bytes)",
    "read_gbs": "read bandwidth (GB/s)",
    "used_gbs": "bandwidth used by decode (GB/s)",
    "ceiling_tps": "ceiling of decode (tokens/s)",
    "ceiling_share": "share of the ceiling (1)",
    "token_p95_s": "95th percentile of time per token (s)",
    "token_longest_s": "longest gap between tokens (s)",
    "depth": "context before the prompt (tokens)",
    "prompt": "prompt (tokens)",
    "gen": "generated (tokens)",
    "threads": "threads (count)",
    "kv": "type of the KV cache",
    "compute": "activations",
    "model": "model",
}


def label(key: str) -> str:
    if key in LABELS:
        return LABELS[key]
    for suffix, unit in (("_s", "s"), ("_ms", "ms"), ("_bytes", "bytes"), ("_gbs", "GB/s"), ("_tps", "tokens/s")):
        if key.endswith(suffix):
            return f"{key[: -len(suffix)].replace('_', ' ')} ({unit})"
    return key.replace("_", " ")


def varied_settings(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(k for s in settings for k in s)
    return [k for k in keys if len({str(s.get(k)) for s in settings}) > 1]


def plot_results(results: Results, ax: Optional[Axes], y: str, x: Optional[str]) -> Axes:
    groups = [(s, [r[y] for r in records if r.get(y) is not None], records) for s, records in results.groups()]
    groups = [g for g in groups if g[1]]
    if not groups:
        raise ValueError(f"no record has a figure {y!r} to plot")
    varied = varied_settings([s for s, _, _ in groups])
    numeric = [k for k in varied if all(isinstance(s.get(k), (int, float)) for s, _, _ in groups)]
    across = x or (numeric or varied or ["model"])[0]
    if across not in groups[0][0]:
        raise ValueError(f"x={x!r} is no setting; they are {', '.join(groups[0][0])}")
    ax = axes(ax)
    places = _places([s[across] for s, _, _ in groups])
    series: dict[str, list[tuple[float, list[float], float]]] = {}
    for s, values, records in groups:
        name = ", ".join(f"{k} {s.get(k)}" for k in varied if k != across) or "median"
        ceilings = [r["ceiling_tps"] for r in records if r.get("ceiling_tps") is not None]
        ceiling = statistics.median(ceilings) if y == "decode_tps" and ceilings else float("nan")
        series.setdefault(name, []).append((places[str(s[across])], values, ceiling))
    for name, points in series.items():
        _draw(ax, name, sorted(points), "-" if across in numeric else "none")
    if across not in numeric:
        ax.set_xticks(list(places.values()), list(places))
    elif len(places) > 2 and min(places.values()) > 0 and max(places.values()) >= 16 * min(places.values()):
        ax.set_xscale("log", base=2)
    elif len(places) <= 6:
        ax.set_xticks(sorted(places.values()))
    counts = sorted({len(values) for _, values, _ in groups})
    n = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"
    ax.set_title(f"{_subject(results)}\nmedian, bars: range of the runs, {n} runs per setting", fontsize="medium")
    ax.set_xlabel(label(across))
    ax.set_ylabel(label(y))
    from_zero(ax)
    ax.legend(fontsize="small")
    return ax


def _places(values: Sequence[Any]) -> dict[str, float]:
    """Numbers at their value, anything else side by side."""
    different = list(dict.fromkeys(values))
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in different):
        return {str(v): float(v) for v in different}
    return {str(v): float(i) for i, v in enumerate(different)}


def _draw(ax: Axes, name: str, points: Sequence[tuple[float, list[float], float]], style: str) -> None:
    xs = [x for x, _, _ in points]
    middles = [statistics.median(v) for _, v, _ in points]
    below = [m - min(v) for m, (_, v, _) in zip(middles, points)]
    above = [max(v) - m for m, (_, v, _) in zip(middles, points)]
    line = ax.errorbar(xs, middles, yerr=[below, above], marker="o", linestyle=style, capsize=3, label=name)
    color = line.lines[0].get_color()
    for x, values, _ in points:
        ax.plot([x] * len(values), values, ".", color=color, alpha=0.4, markersize=4)
    ceilings = [c for _, _, c in points]
    if any(c == c for c in ceilings):
        dashes = "--" if style == "-" else "none"
        (roof,) = ax.plot(xs, ceilings, linestyle=dashes, color=color, alpha=0.7, label=f"ceiling, {name}")
        roof.set(marker="_", markersize=12)


def _subject(results: Results) -> str:
    models = list(dict.fromkeys(str(r["model"]) for r in results.records if r.get("model")))
    machine = results.machine or {}
    parts = [models[0] if len(models) == 1 else f"{len(models)} models" if models else None, machine.get("cpu")]
    return ", ".join(p for p in parts if p)
