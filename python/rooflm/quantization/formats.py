# SPDX-License-Identifier: Apache-2.0
"""Types side by side on the same weights: error, bits, and the speed at which rows of each are multiplied here."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional, Sequence, Union

import numpy as np

from rooflm import _core
from rooflm._keywords import at_least, checked_keywords
from rooflm._labels import label_points
from rooflm._optional import axes, need
from rooflm._output import html_table, table
from rooflm.quantization.recipes import FLOATS, TYPES, check_type

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# How the values of a block are placed: around zero, from a minimum of their own, on uneven levels, or as floats.
PLACEMENT = {
    "Q4_0": "symmetric", "Q5_0": "symmetric", "Q8_0": "symmetric", "Q3_K": "symmetric", "Q6_K": "symmetric",
    "Q4_1": "asymmetric", "Q5_1": "asymmetric", "Q2_K": "asymmetric", "Q4_K": "asymmetric", "Q5_K": "asymmetric",
    "IQ4_NL": "levels", "IQ4_XS": "levels", "F16": "float", "BF16": "float", "F32": "float",
}  # fmt: skip
DISTRIBUTIONS = ("normal", "laplace", "uniform", "skewed")
WORKING_SET = 96 << 20  # bytes multiplied for a speed: beyond the caches of most machines


def sample(distribution: str, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Float32 values of unit spread: "normal", "laplace" (heavy tails), "uniform", "skewed" (a gamma distribution)."""
    rng = np.random.default_rng(seed)
    if distribution == "normal":
        x = rng.standard_normal(shape)
    elif distribution == "laplace":
        x = rng.laplace(scale=np.sqrt(0.5), size=shape)
    elif distribution == "uniform":
        x = rng.uniform(-np.sqrt(3), np.sqrt(3), shape)
    elif distribution == "skewed":
        x = rng.gamma(2.0, np.sqrt(0.5), shape)
    else:
        raise ValueError(f"there is no distribution {distribution!r}; there are {', '.join(DISTRIBUTIONS)}")
    return x.astype(np.float32)


@functools.cache
def _dequantizer(type: str) -> str:
    from rooflm._kernels import kernels

    return kernels().select(family="dequant", type=type, chosen=True)[0].name


def restore(raw: np.ndarray, type: str, n: int) -> np.ndarray:
    """Float32 rows of n values from their blocks."""
    out = np.empty((len(raw), n), np.float32)
    _core._dequantize(_dequantizer(type), raw, out)
    return out


def errors(x: np.ndarray, type: str, importance: Optional[np.ndarray] = None) -> dict[str, float]:
    """Of the rows in a type: relative root mean square, signal to noise in dB, largest error relative to the root mean
    square, and the relative error weighted by importance (the same without one)."""
    y = restore(_core.quantize_rows(x, type, importance), type, x.shape[1]).astype(np.float64)
    e, w = (x - y) ** 2, 1.0 if importance is None else importance.astype(np.float64)
    power, weighted = float((x.astype(np.float64) ** 2).mean()), float((w * x.astype(np.float64) ** 2).sum())
    relative = np.sqrt(e.mean() / power) if power > 0 else 0.0
    return {
        "error": float(relative),
        "error_weighted": float(np.sqrt((w * e).sum() / weighted)) if weighted > 0 else 0.0,
        "snr_db": float(-20 * np.log10(relative)) if relative > 0 else None,  # type: ignore[dict-item]
        "error_max": float(np.sqrt(e.max() / power)) if power > 0 else 0.0,
    }


def rates(types: Sequence[str], cols: int, *, threads: int, repeats: int = 5) -> dict[str, dict[str, Any]]:
    """{type: gbs, rows_per_s, kernel, samples_gbs}: one activation times rows of `cols` values that fill WORKING_SET,
    as one token does. The types take turns in each of the repeats; gbs is the median of all."""
    x, some = sample("normal", (1, cols)), sample("normal", (64, cols), seed=1)
    buffer = np.empty(WORKING_SET, np.uint8)  # one for all types: filled anew for each, which is not timed
    parts = {t: _core.quantize_rows(some, t) for t in types}
    seconds: dict[str, list[float]] = {t: [] for t in types}
    rows, kernel = {}, {}
    for i in range(repeats + 1):  # the first is a warm-up
        for t, part in parts.items():
            copies = max(1, WORKING_SET // part.nbytes)
            rows[t] = 64 * copies
            if part.nbytes > WORKING_SET:
                blocks = part
            else:
                blocks = buffer[: copies * part.nbytes].reshape(rows[t], -1)
                blocks.reshape(copies, -1)[:] = part.reshape(-1)
            out = np.empty((1, rows[t]), np.float32)
            start = time.perf_counter()
            kernel[t] = _core._linear(x, blocks, t, rows[t], out, "auto", None, threads)
            if i:
                seconds[t].append(time.perf_counter() - start)
    result = {}
    for t, part in parts.items():
        row_bytes, s = part.shape[1], float(np.median(seconds[t]))
        result[t] = {
            "gbs": rows[t] * row_bytes / s / 1e9, "rows_per_s": rows[t] / s, "kernel": kernel[t],
            "samples_gbs": [rows[t] * row_bytes / v / 1e9 for v in seconds[t]],
        }  # fmt: skip
    return result


@dataclass(repr=False)
class Formats:
    """rows: one per type that fits, by falling bits: type, bits_per_weight, placement, error (relative root mean
    square), error_weighted, snr_db, error_max, and where speeds were measured gbs, rows_per_s, kernel, tps (tokens/s
    of a model of `weights` weights in that type, from its bytes and gbs)."""

    source: str
    shape: tuple[int, int]
    rows: list[dict[str, Any]] = field(repr=False)
    weights: float
    threads: int
    skipped: dict[str, str]
    note: Optional[str] = None  # what stands between these errors and those of the original weights

    def __getitem__(self, type: str) -> dict[str, Any]:
        for r in self.rows:
            if r["type"] == type:
                return r
        raise KeyError(type)

    def asymmetry(self) -> list[dict[str, Any]]:
        """Pairs of a symmetric and an asymmetric type with as many bits for codes: what a minimum of their own brings
        these weights. gain: error of the symmetric over that of the asymmetric; above 1 the minimum pays."""
        have = {r["type"]: r for r in self.rows}
        return [
            {"symmetric": s, "asymmetric": a, "gain": have[s]["error"] / have[a]["error"],
             "extra_bits": have[a]["bits_per_weight"] - have[s]["bits_per_weight"]}
            for s, a in (("Q4_0", "Q4_1"), ("Q5_0", "Q5_1"), ("IQ4_XS", "Q4_K"))
            if s in have and a in have and have[a]["error"] > 0
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1, "kind": "formats", "source": self.source, "shape": list(self.shape), "weights": self.weights,
            "threads": self.threads, "rows": self.rows, "asymmetry": self.asymmetry(), "skipped": self.skipped,
            "note": self.note,
        }  # fmt: skip

    def to_pandas(self) -> Any:
        """One row per type."""
        return need("pandas").DataFrame(self.rows)

    _COLUMNS = ("type", "bits_per_weight", "placement", "error", "snr_db", "error_max", "gbs", "rows_per_s", "tps")

    def __repr__(self) -> str:
        head = f"{self.source}, {self.shape[0]} x {self.shape[1]}"
        if any(r.get("gbs") for r in self.rows):
            head += f"; tps for {self.weights:.3g} weights, {self.threads} threads"
        lines = [head, table(self.rows, self._COLUMNS)]
        if self.note:
            lines.append(self.note)
        lines += [f"{t} left out: {why}" for t, why in self.skipped.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        note = f"<p>{self.note}</p>" if self.note else ""
        return f"<p>{self.source}</p>{html_table(self.rows, self._COLUMNS)}{note}"

    def plot(self, ax: Optional[Axes] = None) -> Axes:
        """Signal to noise against bits per weight; the size of a point is the speed, where it was measured."""
        a = axes(ax)
        rows = sorted((r for r in self.rows if r["snr_db"] is not None), key=lambda r: r["snr_db"])
        fast = max((r.get("tps") or 0 for r in rows), default=0)
        for placement in dict.fromkeys(r["placement"] for r in rows):
            own = [r for r in rows if r["placement"] == placement]
            sizes = [20 + 180 * r["tps"] / fast if fast and r.get("tps") else 40 for r in own]
            a.scatter(
                [r["bits_per_weight"] for r in own], [r["snr_db"] for r in own], s=sizes, alpha=0.6, label=placement
            )
        a.set_xscale("log", base=2)
        ticks = [2, 3, 4, 6, 8, 16]
        a.set_xticks(ticks, [str(t) for t in ticks])
        a.set_xlim(1.8, 26)
        size = f"\nnumbers and areas: tokens/s of {self.weights:.3g} weights on {self.threads} threads" if fast else ""
        a.set(xlabel="bits per weight", ylabel="signal to noise, dB")
        a.set_title(f"{self.source}, n = {self.shape[0] * self.shape[1]} weights{size}", fontsize=9)
        names = [f"{r['type']} ({r['tps']:.3g})" if r.get("tps") else r["type"] for r in rows]
        label_points(a, [(r["bits_per_weight"], r["snr_db"], name) for r, name in zip(rows, names)])
        a.legend(title="placement", fontsize=8)
        return a


@checked_keywords
def formats(
    weights: Union[str, Any] = "normal",
    *,
    types: Optional[Sequence[str]] = None,
    importance: Optional[np.ndarray] = None,
    rows: int = 256,
    cols: int = 4096,
    speed: bool = True,
    threads: Optional[int] = None,
    model_weights: float = 1e9,
    seed: int = 0,
) -> Formats:
    """The same weights in every type: error, bits and speed side by side.

    weights     a Tensor of a file, a float array (rows, cols), or a distribution: "normal", "laplace", "uniform",
                "skewed", of `rows` x `cols` values
    types       default: all that the library writes; those whose blocks do not fit the columns are left out and said so
    importance  weights of the columns, used for quantizing and for error_weighted
    rows        at most so many rows of a tensor are taken, spread over it
    speed       measures multiplication of rows of this length in each type (some seconds); threads: default the free
                big cores
    model_weights  the size of model that tps speaks of
    """
    at_least(1, rows=rows, cols=cols, threads=threads)
    at_least(0, seed=seed)
    note = None
    if isinstance(weights, str):
        x, source = sample(weights, (rows, cols), seed), f"{weights} distribution"
    elif isinstance(weights, np.ndarray):
        x, source = np.ascontiguousarray(weights, np.float32), "array"
        if x.ndim != 2 or not x.size:
            raise ValueError(f"an array of weights has the shape (rows, cols), not {x.shape}")
    else:
        n = int(np.prod(weights.shape[:-1]))
        x = weights.dequantize(rows=np.unique(np.linspace(0, n - 1, min(rows, n)).astype(int)))
        source = f"{weights.name} ({weights.type})"
        if weights.type not in FLOATS:
            note = (
                f"these weights are {weights.type}'s levels already: types with levels like its own, "
                f"{weights.type} first, err less here than on the original floats"
            )
    chosen = [check_type(t) for t in types] if types else [t for t in TYPES if t != "F32"]
    fit = [t for t in chosen if x.shape[1] % _core._type_info(t)[1] == 0]
    skipped = {t: f"rows of {x.shape[1]} are no multiple of its blocks" for t in chosen if t not in fit}
    threads = int(_core._cpus()["default_threads"]) if threads is None else threads
    speeds = rates(fit, x.shape[1], threads=threads) if speed and fit else {}
    table_rows = []
    for t in fit:
        _, block, size = _core._type_info(t)
        row: dict[str, Any] = {"type": t, "bits_per_weight": 8 * size / block, "placement": PLACEMENT[t]}
        row.update(errors(x, t, importance))
        if t in speeds:
            row.update(speeds[t])
            row["tps"] = speeds[t]["gbs"] * 1e9 / (model_weights * size / block)
        table_rows.append(row)
    table_rows.sort(key=lambda r: (-r["bits_per_weight"], r["error"]))
    return Formats(source, (x.shape[0], x.shape[1]), table_rows, model_weights, threads, skipped, note)
