# SPDX-License-Identifier: Apache-2.0
"""The gap between two sets of results as a product of factors: bytes, bandwidth, and what is left.

Decode runs at share * bandwidth / bytes, where share is what it reaches of its ceiling. So the ratio of two speeds is
exactly the ratio of bandwidths, times the inverse ratio of the bytes, times the ratio of the shares. The bytes are the
sum of keys and values and of weights, which are parameters times bits; each of these gets the part of the bytes' ratio
that it has on average over all orders in which they could have changed (Shapley value, on logarithms), so that the
factors multiply to the whole whatever the order. The rest is the ratio of the shares: kernels, threads, waiting.
"""

from __future__ import annotations

import html
import itertools
import math
import statistics
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Sequence

from rooflm._keywords import checked_keywords
from rooflm._optional import axes
from rooflm._output import html_table, table
from rooflm.measuring.contrast import Moved, moved_facts
from rooflm.measuring.recording import record_line
from rooflm.measuring.results import Results
from rooflm.stats import t_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEEDED = ("decode_tps", "read_gbs", "weight_bytes_per_token", "kv_bytes_per_token")


class Explanation:
    """How side a's decode speed becomes side b's. `ratio` is b over a; `factors` multiply to it: name, factor, a, b and
    unit. `moved` are all facts that differ, `pairs` how many settings were compared."""

    def __init__(
        self, speeds: Sequence[Sequence[float]], factors: list[dict[str, Any]], moved: list[Moved], pairs: int
    ) -> None:
        self.a_tps, self.b_tps = (statistics.median(v) for v in speeds)
        self.a_range, self.b_range = ([min(v), max(v)] for v in speeds)
        self.n = min(map(len, speeds))
        self.ratio = math.prod(f["factor"] for f in factors)
        self.factors, self.moved, self.pairs = factors, moved, pairs

    @property
    def rest(self) -> float:
        return float(self.factors[-1]["factor"])

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "ratio": self.ratio,
            "a_tps": self.a_tps,
            "b_tps": self.b_tps,
            "a_range": self.a_range,
            "b_range": self.b_range,
            "factors": self.factors,
            "moved": [dict(m.__dict__) for m in self.moved],
            "pairs": self.pairs,
            "n": self.n,
        }

    columns = ("factor", "x", "a", "b", "unit")

    def _rows(self) -> list[dict[str, Any]]:
        rows = [{"factor": f["name"], "x": f["factor"], **{k: f[k] for k in ("a", "b", "unit")}} for f in self.factors]
        whole = {"factor": "together", "x": self.ratio, "a": self.a_tps, "b": self.b_tps, "unit": "decode, tok/s"}
        return [*rows, whole]

    def __repr__(self) -> str:
        text = table(self._rows(), self.columns)
        if self.moved:
            text += "\nmoved: " + "; ".join(str(m) for m in self.moved)
        return f"{text}\nmedians of n = {self.n} runs on the smaller side, {self.pairs} settings compared"

    def _repr_html_(self) -> str:
        moved = "; ".join(str(m) for m in self.moved)
        return f"{html_table(self._rows(), self.columns)}<p>moved: {html.escape(moved)}</p>"

    def plot(self, ax: Optional[Axes] = None) -> Axes:
        """The factors as a waterfall from the speed of a to that of b, with the range of the runs of each."""
        ax = axes(ax)
        at = self.a_tps
        for i, f in enumerate(self.factors, 1):
            after = at * f["factor"]
            ax.bar(i, after - at, bottom=at, color="tab:green" if after >= at else "tab:red")
            ax.annotate(f"x {f['factor']:.2f}", (i, max(at, after)), ha="center", va="bottom", fontsize="small")
            at = after
        last = len(self.factors) + 1
        for place, tps, (low, high) in ((0, self.a_tps, self.a_range), (last, at, self.b_range)):
            ax.bar(place, tps, color="tab:gray")
            ax.vlines(place, low, high, color="black")
        ax.set_ylim(0, 1.1 * ax.dataLim.y1)  # room for the factor over the highest bar
        ax.set_xticks(range(last + 1), ["a", *(f["name"] for f in self.factors), "b"], rotation=20, ha="right")
        ax.set_xlabel("factor")
        ax.set_ylabel("decode (tokens/s)")
        about = f"medians, lines: range of the runs, n = {self.n} runs a side"
        ax.set_title(f"x {self.ratio:.2f} as a product\n{about}", fontsize="medium")
        return ax


@checked_keywords
def explain(a: Any, b: Any) -> Explanation:
    """Splits the gap between the decode speeds of two sets of results (Results, or paths of files of records) into
    factors: parameters read, bits per weight, context (KV bytes), bandwidth, and the rest. Settings that both sides
    have are compared; where they have none in common, each side must have one setting only, and that moves as well.

    ValueError when records lack decode_tps or the ceiling, or nothing can be compared.
    """
    sides = [s if isinstance(s, Results) else Results.load(s) for s in (a, b)]
    known = []
    for name, side in zip("ab", sides):
        whole = [r for r in side.records if all(r.get(k) for k in NEEDED)]
        if not whole:
            raise ValueError(f"side {name} has no record with {', '.join(NEEDED)}")
        known.append(whole)
    pairs = _compared(*known)
    per_pair = [_factors(_medians(x), _medians(y)) for x, y in pairs]
    used_a, used_b = ([r for pair in pairs for r in pair[i]] for i in (0, 1))
    med_a, med_b = _medians(used_a), _medians(used_b)
    factors = []
    for i, first in enumerate(per_pair[0]):
        factor = math.exp(statistics.fmean(math.log(p[i]["factor"]) for p in per_pair))
        interval = None
        if len(per_pair) > 2:
            span = t_interval([math.log(p[i]["factor"]) for p in per_pair])
            interval = [math.exp(v) for v in span] if span else None
        values = (first["a"], first["b"]) if len(per_pair) == 1 else (first["of"](med_a), first["of"](med_b))
        factors.append(
            {
                "name": first["name"],
                "factor": factor,
                "a": values[0],
                "b": values[1],
                "unit": first["unit"],
                "interval": interval,
            }
        )
    speeds = ([r["decode_tps"] for r in used_a], [r["decode_tps"] for r in used_b])
    return Explanation(speeds, factors, moved_facts(used_a, used_b), len(pairs))


Records = Sequence[Mapping[str, Any]]


def _compared(a: Records, b: Records) -> list[tuple[Records, Records]]:
    """Runs of the same setting, as far as both sides have the same; or the only setting of each side."""

    def cells(side: Records, keys: Sequence[str]) -> dict[str, list[Mapping[str, Any]]]:
        found: dict[str, list[Mapping[str, Any]]] = {}
        for r in side:
            found.setdefault(record_line({k: r.get(k) for k in keys}), []).append(r)
        return found

    for keys in (("prompt", "gen", "depth", "kv", "compute", "threads", "model"), ("prompt", "gen", "depth", "kv")):
        ca, cb = cells(a, keys), cells(b, keys)
        shared = [k for k in ca if k in cb]
        if shared:
            return [(ca[k], cb[k]) for k in shared]
    every = ("prompt", "gen", "depth", "kv", "compute", "threads", "model")
    if len(cells(a, every)) == len(cells(b, every)) == 1:
        return [(a, b)]
    raise ValueError("the two sides have no setting in common; select one setting of each")


def _medians(records: Records) -> dict[str, float]:
    out = {k: statistics.median(r[k] for r in records) for k in NEEDED}
    bits = [((r.get("manifest") or {}).get("model") or {}).get("bits_per_weight") for r in records]
    known = [b for b in bits if b]
    out["bits"] = statistics.median(known) if known else 8.0
    out["read_params"] = out["weight_bytes_per_token"] * 8 / out["bits"]
    return out


def _bytes(parameters: float, bits: float, kv: float) -> float:
    return parameters * bits / 8 + kv


def shapley(f: Callable[..., float], a: Sequence[float], b: Sequence[float]) -> list[float]:
    """The factor of each argument in f(*b) / f(*a), averaged over all orders of change; they multiply to the whole."""
    n = len(a)
    logs = [0.0] * n
    orders = list(itertools.permutations(range(n)))
    for order in orders:
        at = list(a)
        for i in order:
            before = f(*at)
            at[i] = b[i]
            logs[i] += math.log(f(*at) / before) / len(orders)
    return [math.exp(v) for v in logs]


def _factors(a: Mapping[str, float], b: Mapping[str, float]) -> list[dict[str, Any]]:
    def bytes_of(m: Mapping[str, float]) -> tuple[float, float, float]:
        return m["read_params"], m["bits"], m["kv_bytes_per_token"]

    parameters, bits, kv = (1 / f for f in shapley(_bytes, bytes_of(a), bytes_of(b)))

    def share(m: Mapping[str, float]) -> float:
        return m["decode_tps"] * _bytes(*bytes_of(m)) / (m["read_gbs"] * 1e9)

    rows: list[tuple[str, float, Callable[[Mapping[str, float]], float], str]] = [
        ("parameters read", parameters, lambda m: m["read_params"], "per token"),
        ("bits per weight", bits, lambda m: m["bits"], "bits"),
        ("context (KV)", kv, lambda m: m["kv_bytes_per_token"], "bytes per token"),
        ("bandwidth", b["read_gbs"] / a["read_gbs"], lambda m: m["read_gbs"], "GB/s"),
        ("rest", share(b) / share(a), share, "share of the ceiling"),
    ]
    return [{"name": n, "factor": f, "a": of(a), "b": of(b), "unit": u, "of": of} for n, f, of, u in rows]

