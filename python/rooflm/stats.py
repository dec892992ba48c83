# SPDX-License-Identifier: Apache-2.0
"""The few statistics the records need, without SciPy: the t distribution and intervals from window means."""

from __future__ import annotations

import math
import statistics
from typing import Optional, Sequence


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function, by the modified Lentz method."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    h = d
    for m in range(1, 500):
        for num in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + num * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + num / c
            c = c if abs(c) > tiny else tiny
            h *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return h


def t_cdf(t: float, df: float) -> float:
    """P(T <= t) of Student's t with df degrees of freedom."""
    x = df / (df + t * t)
    a, b = df / 2.0, 0.5
    if x >= 1.0:
        return 0.5
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        tail = front * _beta_fraction(a, b, x) / a
    else:
        tail = 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b
    return 1.0 - tail / 2.0 if t > 0 else tail / 2.0


def t_quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = p, by bisection."""
    if not 0.0 < p < 1.0 or df <= 0:
        raise ValueError(f"t_quantile needs 0 < p < 1 and df > 0, not p={p}, df={df}")
    lo, hi = -1.0, 1.0
    while t_cdf(lo, df) > p:
        lo *= 2.0
    while t_cdf(hi, df) < p:
        hi *= 2.0
    for _ in range(200):
        mid = 0.5 * (lo + hi)
        if mid in (lo, hi):
            break
        lo, hi = (mid, hi) if t_cdf(mid, df) < p else (lo, mid)
    return 0.5 * (lo + hi)


def mean_and_se(values: Sequence[float]) -> tuple[float, Optional[float]]:
    """Mean and standard error of independent values; the error of one value is unknown (None)."""
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return mean, None
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    return mean, math.sqrt(variance / n)


def median_and_mad(values: Sequence[float]) -> tuple[float, float]:
    """Median, and the median of the absolute deviations from it."""
    median = statistics.median(values)
    return median, statistics.median(abs(v - median) for v in values)


def t_interval(values: Sequence[float], level: float = 0.95) -> Optional[tuple[float, float]]:
    """Interval of the mean of independent values (window means, not tokens, which are correlated)."""
    mean, se = mean_and_se(values)
    if se is None:
        return None
    half = t_quantile(0.5 + level / 2.0, len(values) - 1) * se
    return mean - half, mean + half


def wilson(right: float, n: int) -> Optional[list[float]]:
    """95 % interval of a share, by Wilson's score."""
    if n == 0:
        return None
    z, p = 1.959963984540054, right / n
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return [max(0.0, (centre - half) / (1 + z * z / n)), min(1.0, (centre + half) / (1 + z * z / n))]
