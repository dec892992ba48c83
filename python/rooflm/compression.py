# SPDX-License-Identifier: Apache-2.0
"""Old pages of a KV cache at a lower rank: what Session.compress() does.

Keys and values of one KV head lie near a space of fewer dimensions than the head has. The space is found from the very
pages that are compressed first: eigenvectors of the sum of x x' with the largest values, so that |x - B B' x| is the
least of all spaces of that rank (Eckart and Young 1936). Keys are compressed as they lie in the cache, behind RoPE, so
that attention can multiply the query by the basis and read the short keys as they are. The first page stays whole: its
keys, on which much attention rests, are far from all others. Weighting keys by recent queries was no better.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

from rooflm._eviction import PAGE
from rooflm._keywords import at_least

if TYPE_CHECKING:
    from rooflm.session import Session


def parse_rank(rank: Union[int, str]) -> tuple[int, int]:
    """Ranks of K and V from 48, "48" or "48/32"."""
    parts = str(rank).split("/")
    if len(parts) > 2 or not all(p.strip().isdecimal() for p in parts):
        raise ValueError(f'rank={rank!r}: it is a number, or two for K and V such as "48/32"')
    return int(parts[0]), int(parts[-1])


def compress(session: Session, rank: Union[None, int, str], recent: int) -> dict[str, Any]:
    start = time.perf_counter()
    core = session._c
    at_least(0, recent=recent)
    done, *ranks_now = core._compressed
    ranks = tuple(ranks_now) if rank is None else parse_rank(rank)
    if rank is None and not done:
        raise TypeError("compress() needs rank= the first time")
    if done and ranks != tuple(ranks_now):
        raise ValueError(
            f"pages are compressed to ranks {ranks_now[0]}/{ranks_now[1]} already, and stay so until rewind(0): leave "
            "rank out to compress more"
        )
    hp = session.model.hparams
    for name, r, dim in (("K", ranks[0], hp["head_dim_k"]), ("V", ranks[1], hp["head_dim_v"])):
        if not 1 <= r <= dim:
            raise ValueError(f"rank={rank!r}: {name} has heads of {dim} values, so 1 to {dim}")
    if session.evict is not None:
        raise ValueError(f"this session evicts old positions (evict={session.evict!r}): there is nothing to compress")
    first, end = PAGE + done, max((session.n_past - recent) // PAGE * PAGE, PAGE)
    before = core.kv_nbytes
    errors: tuple[Optional[float], Optional[float]] = (None, None)
    if end > first:
        old = None if done else _old_values(session, end)
        bases = None
        if old is not None:
            bases = [pair and (_basis(pair[0], ranks[0]), _basis(pair[1], ranks[1]).transpose(0, 2, 1)) for pair in old]
        core._compress(end, ranks[0], ranks[1], bases)
        if old is not None:
            errors = _errors(session, old, end)
    return {
        "schema": 1,
        "ranks": list(ranks),
        "positions": [PAGE, max(end, first)],
        "tokens": max(end, first) - PAGE,
        "kv_nbytes_before": before,
        "kv_nbytes": core.kv_nbytes,
        "k_error": errors[0],
        "v_error": errors[1],
        "seconds": time.perf_counter() - start,
    }


def _old_values(session: Session, end: int) -> list[Optional[tuple[np.ndarray, np.ndarray]]]:
    """Keys and values of the pages to compress by layer, (positions, heads, dim); None for layers with a window."""
    layers = session._c.kv
    return [
        (layer.k()[PAGE:end], layer.v()[PAGE:end]) if whole else None
        for layer, whole in zip(layers, session._c._whole_layers)
    ]


def _basis(x: np.ndarray, rank: int) -> np.ndarray:
    """Orthonormal columns (heads, dim, rank) for x (positions, heads, dim)."""
    by_head = x.transpose(1, 0, 2).astype(np.float64)
    vectors = np.linalg.eigh(by_head.transpose(0, 2, 1) @ by_head)[1]
    return vectors[..., ::-1][..., :rank].astype(np.float32)


def _errors(session: Session, old: list[Any], end: int) -> tuple[float, float]:
    """|x - x'| / |x| of all keys and of all values that were compressed."""
    sums = np.zeros((2, 2))
    for layer, pair in zip(session._c.kv, old):
        if pair is None:
            continue
        for i, (was, now) in enumerate(zip(pair, (layer.k()[PAGE:end], layer.v()[PAGE:end]))):
            sums[i] += np.square(was - now, dtype=np.float64).sum(), np.square(was, dtype=np.float64).sum()
    k, v = (float(np.sqrt(a / b)) if b else 0.0 for a, b in sums)
    return k, v
