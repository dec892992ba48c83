# SPDX-License-Identifier: Apache-2.0
"""What the times of single tokens say: percentiles, spread without the trend of the growing context, longest gap."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

P99_NEEDS = 500  # tokens; below it the 99th percentile rests on fewer than five


def token_statistics(times_s: Sequence[float]) -> dict[str, Any]:
    """From the times at which tokens were there (seconds from the start of the prompt): the time per token behind the
    first one. All in seconds:

    token_n          gaps between tokens, one less than tokens
    token_mean_s, token_median_s, token_p5_s, token_p95_s
    token_p99_s      None below 500 gaps
    token_longest_s  the longest gap
    token_trend_s    what each token takes longer than the one before it: slope of a least-squares line
    token_spread_s   standard deviation around that line (n - 2 degrees of freedom)
    token_mad_s      median absolute deviation around it, which single outliers leave alone
    """
    gaps = np.diff(np.asarray(times_s, np.float64))
    n = len(gaps)
    if not n:
        return {"token_n": 0, **dict.fromkeys(FIGURES)}
    p5, median, p95 = np.percentile(gaps, (5, 50, 95))
    slope, rest = 0.0, gaps - gaps.mean()
    if n > 2:
        x = np.arange(n) - (n - 1) / 2
        slope = float(x @ gaps / (x @ x))
        rest = rest - slope * x
    return {
        "token_n": n,
        "token_mean_s": float(gaps.mean()),
        "token_median_s": float(median),
        "token_p5_s": float(p5),
        "token_p95_s": float(p95),
        "token_p99_s": float(np.percentile(gaps, 99)) if n >= P99_NEEDS else None,
        "token_longest_s": float(gaps.max()),
        "token_trend_s": slope if n > 2 else None,
        "token_spread_s": float(np.sqrt(rest @ rest / (n - 2))) if n > 2 else None,
        "token_mad_s": float(np.median(np.abs(rest - np.median(rest)))),
    }


FIGURES = (
    "token_mean_s",
    "token_median_s",
    "token_p5_s",
    "token_p95_s",
    "token_p99_s",
    "token_longest_s",
    "token_trend_s",
    "token_spread_s",
    "token_mad_s",
)
