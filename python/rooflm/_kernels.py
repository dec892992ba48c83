# SPDX-License-Identifier: Apache-2.0
"""The table of kernels, and multiplying with one tensor the way the engine does."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union, overload

import numpy as np

from rooflm import _core
from rooflm._keywords import checked_keywords

# Names of kernels/tiers.h, best last; only one architecture's are in a build.
TIERS = ("ref", "neon", "dotprod", "i8mm", "avx2", "avxvnni", "avx512", "amx")


@dataclass(frozen=True)
class Kernel:
    """One entry of the table: what it computes, what it needs, and whether it is the one that runs here."""

    name: str
    family: str
    type: Optional[str]  # weight type, None where the family has none
    act: Optional[str]  # activations: "f32", "int8", "int16"
    isa: str
    needs: tuple[str, ...]  # CPU features
    tile: tuple[int, int]  # rows, tokens; (0, 0) where the family has no tile
    available: bool  # runs here, within the limit
    chosen: bool
    why: str
    layout: str


class Kernels(Sequence[Kernel]):
    """A list of kernels that prints as a table. ``select`` narrows it by any field."""

    def __init__(self, items: Iterable[Kernel]):
        self._items = tuple(items)

    @overload
    def __getitem__(self, i: int) -> Kernel: ...
    @overload
    def __getitem__(self, i: slice) -> Kernels: ...
    def __getitem__(self, i: Union[int, slice]) -> Union[Kernel, Kernels]:
        return Kernels(self._items[i]) if isinstance(i, slice) else self._items[i]

    def __len__(self) -> int:
        return len(self._items)

    @property
    def isa(self) -> str:
        """The best tier among the chosen kernels."""
        return max((k.isa for k in self if k.chosen), key=TIERS.index, default="ref")

    def select(self, **fields: Any) -> Kernels:
        """The entries whose fields have these values, e.g. ``select(family="rows", chosen=True)``."""
        unknown = set(fields) - set(Kernel.__dataclass_fields__)
        if unknown:
            raise TypeError(f"kernels have no field {sorted(unknown)[0]!r}; "
                            f"fields are {', '.join(Kernel.__dataclass_fields__)}")
        return Kernels(k for k in self if all(getattr(k, f) == v for f, v in fields.items()))

    def _table(self) -> list[tuple[str, ...]]:
        return [
            (k.name, k.family, k.type or "", k.act or "", k.isa, "yes" if k.available else "no",
             "*" if k.chosen else "", k.why)
            for k in self
        ]  # fmt: skip

    _HEAD = ("name", "family", "type", "act", "isa", "available", "chosen", "why")

    def __repr__(self) -> str:
        rows = [self._HEAD, *self._table()]
        widths = [max(len(r[c]) for r in rows) for c in range(len(self._HEAD))]
        return "\n".join("  ".join(v.ljust(w) for v, w in zip(r, widths)).rstrip() for r in rows)

    def _repr_html_(self) -> str:
        def line(cells: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

        return "<table>" + line(self._HEAD, "th") + "".join(line(r, "td") for r in self._table()) + "</table>"


def _names(kernels: Union[None, str, Iterable[str]]) -> Optional[str]:
    return kernels if kernels is None or isinstance(kernels, str) else ",".join(kernels)


@checked_keywords
def kernels(*, isa: Optional[str] = None, kernels: Union[None, str, Iterable[str]] = None) -> Kernels:
    """The whole table of kernels and, for each entry, whether it runs on this CPU and is chosen.

    isa: the best ISA tier to use ("ref", "avx2", "avxvnni", "avx512", "amx"; "neon", "dotprod", "i8mm"); by default
        the environment variable ROOFLM_ISA, or no limit.
    kernels: names to prefer, a list or comma-separated; by default ROOFLM_KERNELS.

    Raises KernelUnavailable for a tier or name that does not exist or that this CPU cannot run.
    """
    return Kernels(Kernel(*row) for row in _core._kernel_table(isa, _names(kernels)))


@checked_keywords
def linear(
    X: Any,
    tensor: Any,
    *,
    compute: str = "auto",
    kernel: Optional[str] = None,
    threads: int = 1,
    isa: Optional[str] = None,
    out: Optional[np.ndarray] = None,
) -> np.ndarray:
    """Multiplies activations with one tensor the way the engine does: ``X @ W.T`` from the quantized blocks.

    X: (tokens, in) or (in,) float32. tensor: a tensor of a GGUF file, (out, in).
    compute: "int8" and "int16" quantize X once (per 32 and per 256 values), "f32" dequantizes the weights and
        is exact; "auto" takes what the engine would take. Float weights always use float32 activations.
    kernel: the name of the rows kernel that must run; see rooflm.kernels().
    threads: the bits of the result do not depend on it.

    Returns (tokens, out) or (out,) float32. Raises KernelUnavailable when `kernel` or `isa` cannot be met,
    ValueError when shapes do not fit.
    """
    x = np.ascontiguousarray(X, dtype=np.float32)
    single = x.ndim == 1
    if single:
        x = x[None]
    shape = tuple(tensor.shape)
    if len(shape) != 2:
        raise ValueError(f"a matrix is needed, not a tensor of shape {shape}")
    if x.ndim != 2 or x.shape[1] != shape[1]:
        raise ValueError(f"X must be (tokens, {shape[1]}), not {np.shape(X)}, for a tensor of shape {shape}")
    want = (x.shape[0], shape[0])
    if out is None:
        result = np.empty(want, np.float32)
    else:
        result = out[None] if single else out
        if result.shape != want or result.dtype != np.float32 or not result.flags.c_contiguous:
            raise ValueError(f"out must be C-contiguous float32 of shape {want[1:] if single else want}")
    if x.shape[0]:
        _core._linear(x, tensor.raw, str(tensor.type), shape[0], result, compute, kernel, threads, isa, None)
    return (result[0] if out is None else out) if single else result
