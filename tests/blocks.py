# SPDX-License-Identifier: Apache-2.0
"""Random quantized rows for tests: every byte random, block scales chosen. Not a test by itself."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np

# type -> (values per block, bytes, offsets of half-precision scales, name in kernels)
BLOCKS = {
    "Q4_0": (32, 18, (0,), "q4_0"),
    "Q4_1": (32, 20, (0, 2), "q4_1"),
    "Q5_0": (32, 22, (0,), "q5_0"),
    "Q5_1": (32, 24, (0, 2), "q5_1"),
    "Q8_0": (32, 34, (0,), "q8_0"),
    "IQ4_NL": (32, 18, (0,), "iq4nl"),
    "Q2_K": (256, 84, (80, 82), "q2k"),
    "Q3_K": (256, 110, (108,), "q3k"),
    "Q4_K": (256, 144, (0, 2), "q4k"),
    "Q5_K": (256, 176, (0, 2), "q5k"),
    "Q6_K": (256, 210, (208,), "q6k"),
    "Q8_K": (256, 292, (), "q8k"),
    "IQ4_XS": (256, 136, (0,), "iq4xs"),
}
FLOATS = {"F32": (1, 4, (), "f32"), "F16": (1, 2, (), "f16"), "BF16": (1, 2, (), "bf16")}
ALL = {**BLOCKS, **FLOATS}

# The largest int16 activation.
_API = (Path(__file__).resolve().parent.parent / "kernels" / "api.h").read_text()
Q16_MAX = int(re.search(r"^#define RL_ACT_Q16_MAX (\d+)", _API, re.M)[1])


def random_rows(
    rng: np.random.Generator,
    kind: str,
    rows: int,
    cols: int,
    power_of_two: bool = False,
    fill: int | None = None,
) -> np.ndarray:
    """(rows, bytes) uint8. fill: every quantized byte has this value (scales in blocks included)."""
    block, nbytes, halves, _ = ALL[kind]
    n = rows * (cols // block)
    if kind in FLOATS:
        w = rng.normal(size=(rows, cols)).astype(np.float32)
        if power_of_two:
            w = rng.integers(-15, 16, size=(rows, cols)).astype(np.float32)
        if kind == "F16":
            return w.astype(np.float16).view(np.uint8)
        if kind == "BF16":
            return np.ascontiguousarray((w.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8)
        return w.view(np.uint8)
    if fill is None:
        b = rng.integers(0, 256, size=(n, nbytes), dtype=np.uint8)
    else:
        b = np.full((n, nbytes), fill, np.uint8)

    def scale(k: int) -> np.ndarray:
        if power_of_two:
            return np.full((n, 1), (1.0, 0.5)[k])
        return rng.uniform(0.001, 0.02, size=(n, 1)) * rng.choice([-1, 1], size=(n, 1))

    for k, at in enumerate(halves):
        b[:, at : at + 2] = scale(k).astype(np.float16).view(np.uint8)
    if kind == "Q8_K":
        b[:, 0:4] = scale(0).astype(np.float32).view(np.uint8)
    return np.ascontiguousarray(b.reshape(rows, -1))


def dequantize(kind: str, raw: np.ndarray, cols: int) -> np.ndarray:
    """(rows, cols) float32 by the gguf package; Q8_K, which it lacks, by hand."""
    if kind == "Q8_K":
        b = raw.reshape(-1, 292)
        d = np.ascontiguousarray(b[:, 0:4]).view(np.float32)
        return (d * np.ascontiguousarray(b[:, 4:260]).view(np.int8).astype(np.float32)).reshape(-1, cols)
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]).reshape(-1, cols).astype(np.float32)
