# SPDX-License-Identifier: Apache-2.0
"""Power, delay and temperature of a run: their scatter, the cliff in it, the time to throttling, the sustained rate."""

from __future__ import annotations

import bisect
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Sequence

from rooflm._keywords import checked_keywords
from rooflm._optional import axes, need
from rooflm._output import html_table, table

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    from rooflm.device.sampler import Sampler

SCHEMA = 1
LEAST_SIDE = 5  # points on either side of a change


@dataclass(frozen=True)
class Change:
    """Where a sequence of values steps from one level to another."""

    index: int  #: of the first value of the second level
    before: float  #: medians
    after: float
    p: float  #: how often shuffled values split as well: small is a real step

    @property
    def size(self) -> float:
        """Relative: 2.0 when values triple (a delay 200 % longer)."""
        return self.after / self.before - 1.0 if self.before else math.inf


def change_point(values: Sequence[float], *, permutations: int = 999, seed: int = 0) -> Optional[Change]:
    """The split of the sequence into two levels that explains most: least sum of squared ranks around the two means
    (ranks, so that single outliers do not decide), with a permutation test. None with fewer than ten values."""
    import numpy as np

    n = len(values)
    if n < 2 * LEAST_SIDE:
        return None
    order = np.argsort(np.asarray(values, float), kind="stable")
    ranks = np.empty(n)
    ranks[order] = np.arange(n)
    sorted_values = np.asarray(values, float)[order]
    for v in np.unique(sorted_values):  # equal values share their mean rank
        ties = order[sorted_values == v]
        ranks[ties] = ranks[ties].mean()
    at = np.arange(LEAST_SIDE, n - LEAST_SIDE + 1)

    def gain(r: Any) -> Any:
        left = np.cumsum(r - r.mean())[at - 1]
        return left**2 * n / (at * (n - at))  # what two levels explain beyond one

    gains = gain(ranks)
    best = int(at[int(np.argmax(gains))])
    rng = np.random.default_rng(seed)
    as_good = sum(float(gain(rng.permutation(ranks)).max()) >= float(gains.max()) for _ in range(permutations))
    return Change(best, statistics.median(values[:best]), statistics.median(values[best:]),
                  (as_good + 1) / (permutations + 1))  # fmt: skip


class HeatRun:
    """Items of a run (tokens) beside what the machine did; made by heat_run().

    points  one dict per item: time_s since the start, delay_s, power_w, temperature_c, throttled
    """

    def __init__(self, points: list[dict[str, Any]], unavailable: dict[str, str]) -> None:
        self.points = points
        self.unavailable = unavailable

    @property
    def cliff(self) -> Optional[dict[str, Any]]:
        """The step of the delay over rising power (over temperature where no power is known): x_before and x_after are
        the values on either side of it, delay_before_s and delay_after_s the medians, size the relative growth, p of a
        permutation test. None where delay does not grow, or not beyond chance (p > 0.01)."""
        by = self._axis()
        if by is None:
            return None
        points = sorted((p for p in self.points if p[by] is not None), key=lambda p: float(p[by]))
        change = change_point([p["delay_s"] for p in points])
        if change is None or change.p > 0.01 or change.size <= 0:
            return None
        before, after = points[change.index - 1][by], points[change.index][by]
        return {"by": by, "x_before": before, "x_after": after, "delay_before_s": change.before,
                "delay_after_s": change.after, "size": change.size, "p": change.p, "n": len(points)}  # fmt: skip

    @property
    def throttle(self) -> dict[str, Any]:
        """time_to_throttle_s: when the delay stepped up for good (the change point over time), None when it never did;
        signs_s: when the machine's own signs first showed; rate_before and rate_sustained: items per second before and
        after, the same without a step."""
        change = change_point([p["delay_s"] for p in self.points])
        shown = next((p["time_s"] for p in self.points if p["throttled"]), None)
        stepped = change is not None and change.p <= 0.01 and change.size > 0.05
        whole = _rate(self.points)
        if not stepped or change is None:
            return {"time_to_throttle_s": None, "signs_s": shown, "rate_before": whole, "rate_sustained": whole}
        return {
            "time_to_throttle_s": self.points[change.index]["time_s"],
            "signs_s": shown,
            "rate_before": _rate(self.points[: change.index]),
            "rate_sustained": _rate(self.points[change.index :]),
        }

    def _axis(self) -> Optional[str]:
        for by in ("power_w", "temperature_c"):
            if len({p[by] for p in self.points if p[by] is not None}) > 1:
                return by
        return None

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "points": self.points, "cliff": self.cliff, "throttle": self.throttle,
                "unavailable": self.unavailable}  # fmt: skip

    def to_pandas(self) -> pandas.DataFrame:
        """One row per item."""
        return need("pandas").DataFrame(self.points)

    def plot(self, ax: Optional[Axes] = None) -> Axes:
        """Delay over power (or temperature), coloured by temperature, with the cliff. ValueError without a sensor."""
        by = self._axis()
        if by is None:
            raise ValueError(f"neither power nor temperature changed or could be read: {self.unavailable}")
        points = [p for p in self.points if p[by] is not None]
        ax = axes(ax, figsize=(7, 4.5))
        heat = [p["temperature_c"] for p in points]
        coloured = by == "power_w" and all(t is not None for t in heat)
        dots = ax.scatter([p[by] for p in points], [1e3 * p["delay_s"] for p in points], c=heat if coloured else None,
                          s=12, cmap="inferno" if coloured else None)  # fmt: skip
        if coloured:
            ax.figure.colorbar(dots, ax=ax, label="temperature (°C)")
        title, cliff = f"Delay per item, n = {len(points)}", self.cliff
        if cliff:
            x = 0.5 * (cliff["x_before"] + cliff["x_after"])
            ax.axvline(x, color="black", ls="--", lw=1)
            unit = "W" if by == "power_w" else "°C"
            before, after, more = 1e3 * cliff["delay_before_s"], 1e3 * cliff["delay_after_s"], 100 * cliff["size"]
            title += f"\ncliff at {x:.2f} {unit}: {before:.3g} to {after:.3g} ms, {more:+.0f} % (p = {cliff['p']:.3f})"
        ax.set(xlabel="power (W)" if by == "power_w" else "temperature (°C)", ylabel="delay (ms)")
        ax.set_title(title, fontsize="medium")
        return ax

    def _rows(self) -> list[dict[str, Any]]:
        facts = {"items": len(self.points), **self.throttle}
        facts.update({f"cliff {k}": v for k, v in (self.cliff or {"": "none"}).items()})
        return [{"": k, "value": v} for k, v in facts.items()]

    def __repr__(self) -> str:
        return table(self._rows(), ("", "value"))

    def _repr_html_(self) -> str:
        return html_table(self._rows(), ("", "value"))


@checked_keywords
def heat_run(times_s: Sequence[float], sampler: Sampler) -> HeatRun:
    """Aligns the moments at which items were there (monotonic clock, time.monotonic()) with the samples taken beside
    them: each item gets the power, temperature and signs of throttling of the sample that ends its delay."""
    from rooflm.device.sensors import throttled

    if len(times_s) < 2 or len(sampler.samples) < 2:
        raise ValueError("a run needs at least two items and two samples")
    samples = sampler.samples
    moments = [s.time_s for s in samples]
    _, watts, _ = sampler.power_trace()
    points = []
    for before, at in zip(times_s, times_s[1:]):
        i = min(bisect.bisect_left(moments, at), len(samples) - 1)
        signs = throttled(samples[0].sensors.throttle, samples[i].sensors.throttle)
        points.append(
            {
                "time_s": at - times_s[0],
                "delay_s": at - before,
                "power_w": watts[max(i, 1) - 1],
                "temperature_c": sampler.sensors.temperature(samples[i].sensors),
                "throttled": None if signs is None else bool(signs),
            }
        )
    return HeatRun(points, sampler.sensors.unavailable)


def _rate(points: Sequence[dict[str, Any]]) -> Optional[float]:
    total = sum(p["delay_s"] for p in points)
    return len(points) / total if total > 0 else None
