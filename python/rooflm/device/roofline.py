# SPDX-License-Identifier: Apache-2.0
"""The two limits of a piece of work, memory and arithmetic, and what is left of its time beside them."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any, Mapping, Optional

from rooflm import _core
from rooflm._keywords import checked_keywords
from rooflm._kernels import TIERS

PEAK_S = 0.02  # per kind of arithmetic and tier


@dataclass(frozen=True)
class Roofs:
    """What the machine can do at best with these threads; figures of this machine come with the same threads and tier
    as the work they are held against."""

    read_gbs: Optional[float]  #: GB/s (1e9 bytes/s)
    gops: Mapping[str, Optional[float]]  #: G operations/s by kind: "int8", "int16", "f32"; a multiply-add is 2
    threads: int
    isa: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@functools.cache
def peak_gops(threads: int, isa: str) -> dict[str, Optional[float]]:
    """G operations/s (a multiply-add is 2) of all threads together by kind of operand, the best tier up to `isa`; None
    where there is no such loop (isa="ref"). Measured once per process."""
    best: dict[str, Optional[float]] = {"int8": None, "int16": None, "f32": None}
    for (tier, kind), made in _core._peaks(PEAK_S, threads).items():
        if TIERS.index(tier) <= TIERS.index(isa):
            best[kind] = max(best[kind] or 0.0, 2e-9 * made)
    return best


@checked_keywords
def roofline(
    operations: float,
    nbytes: float,
    time_s: float,
    *,
    read_gbs: Optional[float] = None,
    peak_gops: Optional[float] = None,
    wait_s: float = 0.0,
) -> dict[str, Any]:
    """A piece of work beside its two limits (the roofline model of Williams, Waterman and Patterson, 2009).

    operations: of arithmetic; a multiply-add is 2. nbytes: that must come from memory. time_s: what it took.
    read_gbs: the memory's roof in GB/s. peak_gops: the arithmetic's in G operations/s. wait_s: the part of the time
    that is known to be waiting for other threads.

    Returns gbs, gops, effective_tops (operations / time / 1e12), memory_s and compute_s (the least time each limit
    allows), limit_s (the larger), bound ("memory" or "compute"), roof_share (limit_s / time_s; above 1 means that the
    roof was higher than the one given: bytes that lay in a cache, or a roof measured on a busy machine), wait_s and
    other_s (what is neither: scheduling, conversion, kernels below their peak). What a missing roof would be needed for
    is None.
    """
    if not time_s > 0 or operations < 0 or nbytes < 0:
        raise ValueError(f"time_s={time_s} must be positive, operations={operations} and nbytes={nbytes} not negative")
    memory = nbytes / (read_gbs * 1e9) if read_gbs else None
    compute = operations / (peak_gops * 1e9) if peak_gops else None
    limits = {"memory": memory, "compute": compute}
    known = {name: t for name, t in limits.items() if t}
    bound = max(known, key=lambda n: known[n]) if known else None
    limit = known[bound] if bound else None
    return {
        "time_s": time_s,
        "operations": operations,
        "bytes": nbytes,
        "gbs": nbytes / time_s * 1e-9,
        "gops": operations / time_s * 1e-9,
        "effective_tops": operations / time_s * 1e-12,
        "memory_s": memory,
        "compute_s": compute,
        "limit_s": limit,
        "bound": bound,
        "roof_share": limit / time_s if limit is not None else None,
        "wait_s": wait_s,
        "other_s": max(0.0, time_s - limit - wait_s) if limit is not None else None,
    }
