# SPDX-License-Identifier: Apache-2.0
"""A forward pass in NumPy float64, written from the architectures, for comparison with the engine's f32 path.

It reads the file with the outside `gguf` package and shares no code with the product. Clarity over speed: no
cache, every token attends over the whole prompt with a mask. Two architectures: llama (RoPE on neighbouring
pairs, optional factors that divide the frequencies) and gemma3 (RoPE on halves with two bases, norms before and
after, per-head norms of Q and K, sliding window in five layers of six, scaled embeddings, tanh-GELU).
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np


class NumpyModel:
    """The weights of one file as float64, one layer at a time, and its forward pass."""

    def __init__(self, path: Any) -> None:
        self.reader = gguf.GGUFReader(path)
        self.raw = {t.name: t for t in self.reader.tensors}
        self.arch = self._field("general.architecture")
        if self.arch not in ("llama", "gemma3"):
            raise ValueError(f"no NumPy forward pass for {self.arch}")
        self.gemma = self.arch == "gemma3"
        self.n_layer = int(self._key("block_count"))
        self.n_head = int(self._key("attention.head_count"))
        self.n_kv = int(self._key("attention.head_count_kv", self.n_head))
        self.width = int(self._key("embedding_length"))
        self.head_dim = int(self._key("attention.key_length", self.width // self.n_head))
        self.eps = float(self._key("attention.layer_norm_rms_epsilon"))
        self.base = float(self._key("rope.freq_base", 10000.0))
        self.base_local = float(self._key("rope.freq_base_swa", 10000.0))
        self.window = int(self._key("attention.sliding_window", 0)) if self.gemma else 0

    def _field(self, name: str, default: Any = None) -> Any:
        f = self.reader.fields.get(name)
        return default if f is None else f.contents()

    def _key(self, name: str, default: Any = None) -> Any:
        value = self._field(f"{self.arch}.{name}", default)
        if value is None:
            raise KeyError(f"{self.arch}.{name}")
        return value

    def weight(self, name: str, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """A tensor, or some of its rows, as float64 (out, in)."""
        t = self.raw[name]
        shape = tuple(int(n) for n in t.shape[::-1])
        data = t.data.reshape(shape[0], -1)[rows] if len(shape) > 1 else t.data
        values = gguf.quants.dequantize(np.ascontiguousarray(data), t.tensor_type)
        return values.reshape(-1, *shape[1:]).astype(np.float64)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weight(name)

    def rope(self, x: np.ndarray, base: float) -> np.ndarray:
        """x (token, head, dim): pairs are neighbours in llama's files, halves in gemma's."""
        d = self.head_dim
        freq = base ** (-np.arange(0, d, 2, dtype=np.float64) / d)
        if "rope_freqs.weight" in self.raw:
            freq = freq / self.weight("rope_freqs.weight")
        angle = np.arange(len(x), dtype=np.float64)[:, None, None] * freq
        cos, sin = np.cos(angle), np.sin(angle)
        a, b = (x[..., : d // 2], x[..., d // 2 :]) if self.gemma else (x[..., 0::2], x[..., 1::2])
        out = np.empty_like(x)
        first, second = a * cos - b * sin, a * sin + b * cos
        if self.gemma:
            out[..., : d // 2], out[..., d // 2 :] = first, second
        else:
            out[..., 0::2], out[..., 1::2] = first, second
        return out

    def attention(self, x: np.ndarray, layer: int) -> np.ndarray:
        blk = f"blk.{layer}."
        n = len(x)

        def project(part: str, heads: int) -> np.ndarray:
            y = x @ self.weight(f"{blk}attn_{part}.weight").T
            if f"{blk}attn_{part}.bias" in self.raw:
                y = y + self.weight(f"{blk}attn_{part}.bias")
            return y.reshape(n, heads, self.head_dim)

        q, k, v = project("q", self.n_head), project("k", self.n_kv), project("v", self.n_kv)
        local = self.gemma and (layer + 1) % 6 != 0
        if self.gemma:
            q, k = self.norm(q, blk + "attn_q_norm.weight"), self.norm(k, blk + "attn_k_norm.weight")
        out = self.heads(q, k, v, local)
        y = out.reshape(n, -1) @ self.weight(blk + "attn_output.weight").T
        if f"{blk}attn_output.bias" in self.raw:
            y = y + self.weight(f"{blk}attn_output.bias")
        return y

    def heads(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, local: bool) -> np.ndarray:
        """What each head makes of q, k, v (token, head, dim) before RoPE, the first token being position 0."""
        base = self.base_local if local else self.base
        q, k = self.rope(q, base), self.rope(k, base)
        n = len(q)
        age = np.arange(n)[:, None] - np.arange(n)[None, :]
        seen = age >= 0
        if local:
            seen &= age < self.window
        group = self.n_head // self.n_kv
        out = np.empty_like(q)
        for h in range(self.n_head):
            score = q[:, h] @ k[:, h // group].T / np.sqrt(self.head_dim)
            score = np.where(seen, score, -np.inf)
            p = np.exp(score - score.max(-1, keepdims=True))
            out[:, h] = p / p.sum(-1, keepdims=True) @ v[:, h // group]
        return out

    def ffn(self, x: np.ndarray, layer: int) -> np.ndarray:
        blk = f"blk.{layer}."
        gate = x @ self.weight(blk + "ffn_gate.weight").T
        if self.gemma:
            act = 0.5 * gate * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (gate + 0.044715 * gate**3)))
        else:
            act = gate / (1.0 + np.exp(-gate))
        return (act * (x @ self.weight(blk + "ffn_up.weight").T)) @ self.weight(blk + "ffn_down.weight").T

    def layers(self, tokens: np.ndarray) -> list[np.ndarray]:
        """The residual stream after each layer, (token, width)."""
        x = self.weight("token_embd.weight", np.asarray(tokens))
        if self.gemma:
            x = x * np.sqrt(float(self.width))
        out = []
        for i in range(self.n_layer):
            blk = f"blk.{i}."
            y = self.attention(self.norm(x, blk + "attn_norm.weight"), i)
            x = x + (self.norm(y, blk + "post_attention_norm.weight") if self.gemma else y)
            y = self.ffn(self.norm(x, blk + "ffn_norm.weight"), i)
            x = x + (self.norm(y, blk + "post_ffw_norm.weight") if self.gemma else y)
            out.append(x)
        return out

    def logits(self, x: np.ndarray, stride: int = 1, block: int = 4096) -> np.ndarray:
        """Logits for rows of the last layer's output, of every stride-th token, in blocks of the vocabulary."""
        head = "output.weight" if "output.weight" in self.raw else "token_embd.weight"
        x = self.norm(x, "output_norm.weight")
        step = block * stride
        n_vocab = int(self.raw[head].shape[1])
        parts = [x @ self.weight(head, slice(i, i + step, stride)).T for i in range(0, n_vocab, step)]
        return np.concatenate(parts, axis=-1)


class EvictingModel(NumpyModel):
    """The same where a full cache of sinks + recent + 64 positions drops the oldest 64 behind the sinks, and positions
    are those inside the cache, as StreamingLLM defines them."""

    def __init__(self, path: Any, sinks: int, recent: int) -> None:
        super().__init__(path)
        self.sinks, self.room = sinks, sinks + recent + 64

    def heads(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, local: bool) -> np.ndarray:
        out = np.empty_like(q)
        for first in range(0, len(q), 64):
            end = min(first + 64, len(q))
            dropped = max(0, (first - self.room) // 64 + 1) * 64
            held = np.r_[0 : min(self.sinks, end), self.sinks + dropped : end] if end > self.sinks else np.r_[0:end]
            out[first:end] = super().heads(q[held], k[held], v[held], local)[first - end :]
        return out


def logits_of(session, ids, n):
    """What a session says of all positions when it gets n ids at a time."""
    return np.concatenate([session.eval(ids[i : i + n], logits="all") for i in range(0, len(ids), n)])


def worst_row(got, want):
    """The largest |got - want| / |want| of a position."""
    return float((np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)).max())
