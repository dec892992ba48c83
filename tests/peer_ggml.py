# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's own quantizers through ctypes, where llama-cpp-python is installed or LIBGGML_BASE names the library."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path

import numpy as np

import rooflm
from rooflm import _core


def find_library() -> str | None:
    if os.environ.get("LIBGGML_BASE"):
        return os.environ["LIBGGML_BASE"]
    spec = importlib.util.find_spec("llama_cpp")
    found = spec and spec.origin and Path(spec.origin).parent / "lib" / "libggml-base.so"
    return str(found) if found and found.exists() else None


class _InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class Ggml:
    def __init__(self, library: str) -> None:
        self.lib = ctypes.CDLL(library)
        self.lib.ggml_init.argtypes, self.lib.ggml_init.restype = [_InitParams], ctypes.c_void_p
        self.lib.ggml_init(_InitParams(1 << 20, None, False))  # fills its table of half floats
        self.lib.ggml_quantize_chunk.restype = ctypes.c_size_t
        self.lib.ggml_quantize_chunk.argtypes = [
            ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64,
            ctypes.c_void_p,
        ]  # fmt: skip

    def quantize(self, x: np.ndarray, type: str, importance: np.ndarray | None = None) -> np.ndarray:
        id, block, size = _core._type_info(type)
        out = np.zeros((x.shape[0], x.shape[1] // block * size), np.uint8)
        w = None if importance is None else importance.ctypes.data
        written = self.lib.ggml_quantize_chunk(id, x.ctypes.data, out.ctypes.data, 0, *x.shape, w)
        assert written == out.nbytes
        return out

    def round_trip(self, x: np.ndarray, type: str, importance: np.ndarray | None = None) -> np.ndarray:
        return restore(self.quantize(x, type, importance), type, x.shape[1])


def restore(raw: np.ndarray, type: str, n: int) -> np.ndarray:
    out = np.empty((raw.shape[0], n), np.float32)
    kernel = rooflm.kernels().select(family="dequant", type=type, isa="ref")[0].name
    _core._dequantize(kernel, np.ascontiguousarray(raw), out)
    return out
