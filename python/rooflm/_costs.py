# SPDX-License-Identifier: Apache-2.0
"""What each operation of a step must read and calculate, counted from the model and the events of a trace.

Bytes are those that must come from memory: matrices once per step (of stacked experts those that were chosen), rows of
the input embedding, keys and values once per step, and the keys and values that are written. Activations are left out:
they stay in caches. Operations are those of matrices and attention, a multiply-add being 2; norms, RoPE and activation
functions count none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional

if TYPE_CHECKING:
    from rooflm.session import Session
    from rooflm.tracing import TraceEvent

# Operation of a trace -> matrices by the names of Session.kernels(): those of every token, and those of experts.
MATRICES = {
    "qkv": (("attn_q", "attn_k", "attn_v"), ()),
    "attn_out": (("attn_output",), ()),
    "router": (("ffn_gate_inp",), ()),
    "gate_up": (("ffn_gate", "ffn_up", "ffn_gate_shexp", "ffn_up_shexp"), ("ffn_gate_exps", "ffn_up_exps")),
    "down": (("ffn_down", "ffn_down_shexp"), ("ffn_down_exps",)),
    "head": (("output",), ()),
}


class Cost(NamedTuple):
    nbytes: float
    operations: float
    kind: Optional[str]  #: of the operands: "int8", "int16", "f32"; None without arithmetic


class _Matrix(NamedTuple):
    nbytes: int
    weights: int
    kind: str


class Costs:
    """Costs of a session's operations. It keeps what it needs, so that it outlives the session."""

    def __init__(self, session: Session) -> None:
        from rooflm.measuring.ceilings import kv_value_bytes

        self._hp = session.model.hparams
        embedding = session.model.gguf.tensors["token_embd.weight"]
        self._embedding_row_bytes = embedding.nbytes / int(embedding.shape[0])
        self._kv_bytes = kv_value_bytes(session.kv_type)
        self._kv_kind = "int16" if session.kv_type.startswith("q8_0") else "f32"
        self._by_tokens: dict[int, dict[tuple[Optional[int], str], _Matrix]] = {}

    def learn(self, session: Session, n_tokens: int) -> None:
        """Notes which kernels multiply so many tokens; must have been called for every number of tokens asked about."""
        from rooflm._kernels import kernels

        if n_tokens in self._by_tokens:
            return
        acts = {k.name: k.act for k in kernels()}
        found = self._by_tokens[n_tokens] = {}
        for row in session.kernels(n_tokens):
            weights = row["rows"] * row["columns"] * row["experts"]
            found[row["layer"], row["op"]] = _Matrix(row["nbytes"], weights, acts.get(row["kernel"]) or "f32")

    def of(self, e: TraceEvent) -> Cost:
        if e.op in MATRICES:
            return self._matrices(e)
        if e.op == "attention":
            return self._attention(e)
        if e.op == "embed":
            return Cost(e.n_tokens * self._embedding_row_bytes, 0.0, None)
        if e.op == "rope":  # and the write to the cache
            return Cost(e.n_tokens * self._position_bytes(e.layer or 0), 0.0, None)
        return Cost(0.0, 0.0, None)

    def _matrices(self, e: TraceEvent) -> Cost:
        dense, stacked = MATRICES[e.op]
        found = self._by_tokens[e.n_tokens]
        nbytes, operations, kind = 0.0, 0.0, None
        for name in stacked if e.n_experts else dense:
            m = found.get((e.layer, name))
            if m is None:
                continue
            read, used = 1.0, 1.0
            if e.n_experts:
                read, used = e.n_experts / self._hp["n_expert"], self._hp["n_expert_used"] / self._hp["n_expert"]
            nbytes += m.nbytes * read
            operations += 2.0 * m.weights * used * e.n_tokens
            kind = m.kind
        return Cost(nbytes, operations, kind)

    def _position_bytes(self, layer: int) -> float:
        k, v = self._kv_bytes
        return float(self._hp["n_head_kv"][layer] * (self._hp["head_dim_k"] * k + self._hp["head_dim_v"] * v))

    def _attention(self, e: TraceEvent) -> Cost:
        hp, layer = self._hp, e.layer or 0
        window = hp["window"] if hp["sliding"][layer] else 0
        first = max(0, e.position + 1 - window) if window else 0
        # Each token sees itself and what is before it, at most the window.
        last = e.position + e.n_tokens
        seen = sum(min(p, window) if window else p for p in range(e.position + 1, last + 1))
        pair = 2.0 * hp["n_head"][layer] * (hp["head_dim_k"] + hp["head_dim_v"])
        return Cost((last - first) * self._position_bytes(layer), pair * seen, self._kv_kind)

