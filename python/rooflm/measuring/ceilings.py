# SPDX-License-Identifier: Apache-2.0
"""What a token must read, and how fast those bytes can be read: the ceiling of decode.

What a token must read is counted from the file: each weight matrix once (of stacked experts the chosen ones, of the
input embedding one row, a tied output matrix once) and the keys and values of the positions it attends to.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

import numpy as np

from rooflm import _core
from rooflm.model import Model
from rooflm.session import Session

# Bytes of one value of the cache; q8_0 has a float32 scale for 32 values.
KV_VALUE_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 1.0 + 4.0 / 32.0}

Cpus = Union[None, str, Sequence[int]]


def kv_value_bytes(kv: str) -> tuple[float, float]:
    """Bytes of one value of K and of V, from "f16" or "q8_0/f16"."""
    k, _, v = kv.partition("/")
    for name in (k, v or k):
        if name not in KV_VALUE_BYTES:
            raise ValueError(f"kv={kv!r}: types of a cache are {', '.join(KV_VALUE_BYTES)}, K and V apart as q8_0/f16")
    return KV_VALUE_BYTES[k], KV_VALUE_BYTES[v or k]


def kv_bytes_per_token(model: Model, kv: str, n_attended: float) -> float:
    """Bytes of keys and values read for one token that attends to n_attended positions, its own included. A layer with
    a sliding window attends to at most the window."""
    hp = model.hparams
    per_value_k, per_value_v = kv_value_bytes(kv)
    total = 0.0
    for heads, sliding in zip(hp["n_head_kv"], hp["sliding"]):
        positions = min(n_attended, hp["window"]) if sliding and hp["window"] else n_attended
        total += positions * heads * (hp["head_dim_k"] * per_value_k + hp["head_dim_v"] * per_value_v)
    return total


def needed_bytes(model: Model, *, kv: str = "f16", n_attended: float = 1) -> float:
    """Bytes one token must read: the weights and the keys and values of n_attended positions."""
    return float(model.weight_bytes_per_token) + kv_bytes_per_token(model, kv, n_attended)


def read_arrays(model: Model) -> list[np.ndarray]:
    """The bytes that one token reads, as views of the file: each tensor once, the input embedding only where it is the
    output matrix as well, and of stacked experts as many as are chosen."""
    hp, arrays = model.hparams, []
    for name, tensor in model.gguf.tensors.items():
        raw = tensor.raw
        if name == "token_embd.weight" and not hp["tied_output"]:
            continue
        if "_exps." in name and hp["n_expert"]:
            raw = raw[: len(raw) * hp["n_expert_used"] // hp["n_expert"]]
        arrays.append(raw)
    return arrays


def read_gbs(session: Session, cpus: Cpus = None, passes: int = 7) -> float:
    """The ceiling in GB/s: the best read kernel over the very bytes that the session's next token reads, weights and
    pages of the KV cache, with the session's threads. Half of them, read again and again, would stay in a large
    processor cache in part."""
    return float(
        _core.read_bandwidth(
            read_arrays(session.model),
            kv=session._c,
            threads=session.n_threads,
            passes=passes,
            cpus=cpus,
            isa=session.isa,
        )["gbs"]
    )


def roof_name(needed: float, threads: int, caches: Sequence[dict[str, Any]]) -> str:
    """Where a working set of this many bytes lives: "L2" or "L3" when it fits the caches of these threads, else
    "memory". Small models can run above the roof of the memory."""
    best: Optional[tuple[int, str]] = None
    for c in caches:
        if c["type"] != "Instruction" and needed <= c["size_bytes"] * max(1, min(c["count"], threads)):
            here = (c["level"], f"L{c['level']}")
            best = here if best is None else min(best, here)
    return best[1] if best else "memory"
