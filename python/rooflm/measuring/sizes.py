# SPDX-License-Identifier: Apache-2.0
"""Bytes before anything is measured: what one token reads, and what a KV cache holds."""

from __future__ import annotations

import os
from typing import Any, Optional, Sequence, Union

from rooflm import _core, _eviction
from rooflm._keywords import at_least, checked_keywords
from rooflm._output import html_table, megabytes, table
from rooflm.measuring.ceilings import kv_value_bytes
from rooflm.model import Model

ModelArg = Union[Model, str, "os.PathLike[str]"]


def opened(model: ModelArg) -> Model:
    return model if isinstance(model, Model) else Model(model)


class TokenBytes:
    """What generating one token reads. `total` = `weights` + `kv`; `tensors` has name, type, nbytes and read_bytes of
    each tensor, `layers` the KV bytes by layer. float() gives the total."""

    def __init__(self, model: Model, n_ctx: int, kv: str, evict: Optional[str] = None) -> None:
        self.model, self.n_ctx, self.kv_type = os.path.basename(str(model.gguf.path)), n_ctx, kv
        self.tensors = _tensor_reads(model)
        self.weights = int(model.weight_bytes_per_token)
        self.cache = kv_size(model, n_ctx=n_ctx, kv=kv, evict=evict)
        self.kv = self.cache.read_bytes
        self.total = self.weights + self.kv

    @property
    def layers(self) -> list[dict[str, Any]]:
        return self.cache.layers

    def by_type(self) -> list[dict[str, Any]]:
        """Bytes read per tensor type, and the cache, largest first."""
        sums: dict[str, float] = {f"KV cache, {self.kv_type}": self.kv}
        for t in self.tensors:
            sums[t["type"]] = sums.get(t["type"], 0) + t["read_bytes"]
        rows = [{"what": k, "bytes": v, "share": v / self.total} for k, v in sums.items()]
        return sorted(rows, key=lambda r: -float(r["bytes"]))

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "model": self.model,
            "n_ctx": self.n_ctx,
            "kv": self.kv_type,
            "evict": self.cache.evict,
            "total_bytes": self.total,
            "weight_bytes": self.weights,
            "kv_bytes": self.kv,
            "by_type": self.by_type(),
            "tensors": self.tensors,
            "layers": self.layers,
            "gqa_saves_bytes": self.cache.gqa_saves_bytes,
            "windows_save_bytes": self.cache.windows_save_bytes,
        }

    def __float__(self) -> float:
        return float(self.total)

    def _rows(self) -> list[dict[str, Any]]:
        return [{"what": r["what"], "size": megabytes(r["bytes"]), "share": r["share"]} for r in self.by_type()]

    def __repr__(self) -> str:
        kept = f", of which evict {self.cache.evict} keeps {self.cache.held}" if self.cache.evict else ""
        head = f"{self.model}: {megabytes(self.total)} per token with {self.n_ctx} positions in use{kept}"
        saved = ", ".join(_savings(self.cache))
        return f"{head}\n{table(self._rows(), ('what', 'size', 'share'))}" + (f"\n{saved}" if saved else "")

    def _repr_html_(self) -> str:
        return html_table(self._rows(), ("what", "size", "share"))


def _tensor_reads(model: Model) -> list[dict[str, Any]]:
    """Each tensor once; of stacked experts the chosen ones, of an input embedding one row (all of it as well where it
    is the output matrix)."""
    hp, rows = model.hparams, []
    for name, t in model.gguf.tensors.items():
        read = t.nbytes
        if name == "token_embd.weight":
            row = t.nbytes // t.shape[0]
            read = t.nbytes + row if hp["tied_output"] else row
        elif "_exps." in name and hp["n_expert"]:
            read = t.nbytes * hp["n_expert_used"] // hp["n_expert"]
        rows.append({"name": name, "type": str(t.type), "nbytes": t.nbytes, "read_bytes": read})
    return rows


@checked_keywords
def bytes_per_token(
    model: ModelArg, *, n_ctx: int = 1, kv: str = "f16", evict: Optional[str] = None
) -> TokenBytes:
    """Bytes that generating one token reads, by tensor and for the KV cache, counted from the file; no weight is read.

    n_ctx   positions in use, the token's own included (default 1: nearly the weights alone)
    kv      "f32", "f16", "q8_0", or K and V apart: "q8_0/f16"
    evict   "64+960": of n_ctx positions only those that such a session keeps are read

    A layer with a sliding window reads at most the window. ValueError for n_ctx below 1 or an unknown kv.
    """
    return TokenBytes(opened(model), n_ctx, kv, evict)


class KVSize:
    """Bytes of a KV cache with n_ctx positions in use, over all layers:

    held                of the positions those that the cache holds: all, unless it evicts
    read_bytes          keys and values that one token reads
    held_bytes          memory of the pages (64 tokens each, heads padded to 16; windowed layers keep n_batch more, and
                        once something is evicted there are two copies of the keys and values of the sinks)
    bytes_per_position  what one more position adds to read_bytes while no window is full
    gqa_saves_bytes     what a KV head for each query head would read more
    windows_save_bytes  what layers without windows would read more
    layers              by layer: n_head_kv, positions, read_bytes
    """

    def __init__(self, shape: dict[str, Any], n_ctx: int, kv: str, n_batch: int, evict: Optional[str] = None) -> None:
        at_least(1, n_ctx=n_ctx, n_batch=n_batch)
        kept = _eviction.kept_by(evict)
        held = n_ctx if kept is None else kept.held(n_ctx)
        per_k, per_v = kv_value_bytes(kv)
        value = shape["head_dim_k"] * per_k + shape["head_dim_v"] * per_v
        self.n_ctx, self.kv, self.evict, self.held = n_ctx, kv, None if kept is None else str(kept), held
        self.layers: list[dict[str, Any]] = []
        full_heads = no_windows = 0.0
        for i, (heads, kv_heads, window) in enumerate(zip(shape["n_head"], shape["n_head_kv"], shape["windows"])):
            positions = min(held, window) if window else held
            read = positions * kv_heads * value
            self.layers.append({"layer": i, "n_head_kv": kv_heads, "positions": positions, "read_bytes": read})
            full_heads += positions * heads * value
            no_windows += held * kv_heads * value
        self.read_bytes = sum(layer["read_bytes"] for layer in self.layers)
        self.bytes_per_position = sum(n * value for n in shape["n_head_kv"])
        self.gqa_saves_bytes = full_heads - self.read_bytes
        self.windows_save_bytes = no_windows - self.read_bytes

        def pages(kv_heads: int, positions: int, window: int) -> int:
            if not positions:
                return 0
            return _core.KVCache(
                n_head_kv=kv_heads,
                dim_k=shape["head_dim_k"],
                dim_v=shape["head_dim_v"],
                n_ctx=positions,
                kv=kv,
                window=window or None,
                window_slack=max(n_batch, 64),
            ).nbytes_reserved

        most, twice = n_ctx, 0  # positions held, and those of them in two copies: turned, and as they were
        if kept is not None and n_ctx > kept.n_ctx:
            most, twice = kept.n_ctx, kept.sinks
        self.held_bytes = 0
        for kv_heads, window in zip(shape["n_head_kv"], shape["windows"]):
            self.held_bytes += pages(kv_heads, most, window)
            if not 0 < window < most:  # other layers never look at the sinks again
                self.held_bytes += pages(kv_heads, twice, window)

    def to_dict(self) -> dict[str, Any]:
        return {"schema": 1, **self.__dict__}

    def __repr__(self) -> str:
        kept = f", {self.held} kept by evict {self.evict}" if self.evict else ""
        parts = [f"KV cache {self.kv}, {self.n_ctx} positions{kept}: {megabytes(self.read_bytes)} read per token"]
        parts += [f"{megabytes(self.held_bytes)} held", *_savings(self)]
        return ", ".join(parts)


def _savings(size: KVSize) -> list[str]:
    out = []
    if size.gqa_saves_bytes:
        out.append(f"grouped heads save {megabytes(size.gqa_saves_bytes)}")
    if size.windows_save_bytes:
        out.append(f"sliding windows save {megabytes(size.windows_save_bytes)}")
    return out


@checked_keywords
def kv_size(
    model: Optional[ModelArg] = None,
    *,
    n_ctx: int,
    kv: str = "f16",
    evict: Optional[str] = None,
    n_batch: int = 512,
    n_layer: Optional[int] = None,
    n_head: Optional[int] = None,
    n_head_kv: Optional[int] = None,
    head_dim: Optional[int] = None,
    window: Union[None, int, Sequence[Optional[int]]] = None,
) -> KVSize:
    """Size of a KV cache: of a model file, or of a shape given as n_layer, n_head, n_head_kv (default n_head), head_dim
    and window (None, one length for all layers, or one for each). evict: as in Model.session(); n_ctx is then how long
    the text is.

        kv_size(n_layer=32, n_head=32, n_head_kv=8, head_dim=128, n_ctx=32768, kv="q8_0")
    """
    given = {"n_layer": n_layer, "n_head": n_head, "head_dim": head_dim}
    if model is not None:
        if any(v is not None for v in (*given.values(), n_head_kv, window)):
            raise ValueError("kv_size takes a model or a shape, not both")
        hp = opened(model).hparams
        shape = {k: hp[k] for k in ("n_head", "n_head_kv", "head_dim_k", "head_dim_v")}
        shape["windows"] = [hp["window"] if sliding else 0 for sliding in hp["sliding"]]
    else:
        for name, value in given.items():
            if value is None:
                raise ValueError(f"kv_size without a model needs {name}")
        at_least(1, **given, n_head_kv=n_head_kv)
        assert n_layer is not None and n_head is not None
        windows = list(window) if isinstance(window, Sequence) else [window] * n_layer
        if len(windows) != n_layer:
            raise ValueError(f"window has {len(windows)} entries for n_layer={n_layer}")
        shape = {
            "n_head": [n_head] * n_layer,
            "n_head_kv": [n_head_kv or n_head] * n_layer,
            "head_dim_k": head_dim,
            "head_dim_v": head_dim,
            "windows": [w or 0 for w in windows],
        }
    return KVSize(shape, n_ctx, kv, n_batch, evict)
