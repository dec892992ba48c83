# SPDX-License-Identifier: Apache-2.0
"""Values to quantize and the weighted error that llama.cpp's quantizers minimise: what the tests and the script that
recorded llama.cpp's figures share."""

from __future__ import annotations

import numpy as np

import rooflm

BLOCKS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
# Tensors of the real models, by their name in conftest.
REAL = {
    "smollm2": ["blk.0.attn_q.weight", "blk.12.ffn_gate.weight", "blk.29.ffn_down.weight", "token_embd.weight"],
    "gemma3": ["blk.0.attn_k.weight", "blk.9.ffn_down.weight", "blk.17.attn_output.weight", "token_embd.weight"],
}
ROWS = 48


def values(rows: int, n: int, seed: int = 0) -> np.ndarray:
    """Like weights: groups of different size and spread, some skewed, a few far outliers."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, n)) * np.exp(rng.standard_normal((rows, n // 32)).repeat(32, 1))
    x += rng.standard_normal((rows, n // 32)).repeat(32, 1)
    x[rng.random((rows, n)) < 0.002] *= 20
    return (x * 0.02).astype(np.float32)


def importance(n: int, seed: int = 0) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).standard_normal(n)).astype(np.float32)


def off_grid(x: np.ndarray) -> np.ndarray:
    """The weights of a quantized file lie on the grid of their type; a little noise takes them off it."""
    noise = np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)
    return np.ascontiguousarray(x + np.float32(0.05) * np.sqrt((x * x).mean()) * noise)


def real_values(path: object, name: str) -> np.ndarray:
    return off_grid(rooflm.GGUF(path).tensors[name].dequantize(rows=slice(0, ROWS)))  # type: ignore[arg-type]


def weights(x: np.ndarray, type: str, importance: np.ndarray | None) -> np.ndarray:
    """How llama.cpp's quantizer of the type weights the squared error of each value."""
    x = x.astype(float)
    size = 256 if type[-2:] in ("_K", "XS") else 32

    def mean_square(block: int) -> np.ndarray:
        return (x * x).reshape(len(x), -1, block).mean(2).repeat(block, 1)

    if importance is not None:
        if type == "Q6_K":
            return np.broadcast_to(importance, x.shape).astype(float)
        if size == 32 and type != "IQ4_NL":
            return importance * np.sqrt((x * x).mean(1, keepdims=True) + x * x)
        return importance * np.sqrt((1 if type == "Q2_K" else 2) * mean_square(size) + x * x)
    if type in ("Q4_K", "Q5_K"):
        return abs(x) + np.sqrt(mean_square(32))
    if type == "Q2_K":
        return abs(x)
    if type in ("Q3_K", "Q6_K", "IQ4_NL", "IQ4_XS"):
        return x * x
    return np.ones_like(x)


def weighted_error(x: np.ndarray, y: np.ndarray, type: str, importance: np.ndarray | None) -> float:
    """Root of the weighted mean squared error, relative to the root of the weighted mean square."""
    w = weights(x, type, importance)
    return float(np.sqrt((w * (x.astype(float) - y) ** 2).sum() / (w * x.astype(float) ** 2).sum()))


def cases(models: dict[str, object]) -> dict[str, np.ndarray]:
    out = {"made": values(ROWS, 1024)}
    for model, names in REAL.items():
        if model in models:
            out.update({f"{model} {name}": real_values(models[model], name) for name in names})
    return out
