# SPDX-License-Identifier: Apache-2.0
"""Writes a model in other types. Tensors go through in pieces, so that memory stays small; the new file appears under
its name when it is whole and on the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Union

import numpy as np

from rooflm import _core
from rooflm._gguf_write import Writer, require_directory
from rooflm._keywords import at_least, checked_keywords
from rooflm._output import html_table, megabytes, table
from rooflm._progress import Progress, ProgressArg
from rooflm.quantization import recipes
from rooflm.quantization.imatrix import ImportanceArg, as_importance

PIECE = 1 << 22  # values of float32 held at once: 16 MB
VOCABULARY = "tokenizer.ggml.tokens"

# Importance of the columns of each tensor: (columns,), or (experts, columns) for a stack of experts.
Importance = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Plan:
    """One tensor: what it is, what was asked for, what it gets and why that is something else."""

    tensor: str
    shape: tuple[int, ...]
    source: str  # type
    asked: str
    given: str
    why: Optional[str]
    nbytes: int


@dataclass
class Quantized:
    """What was written. rows: one dict per tensor with tensor, shape, source (type), asked, given, why (None where it
    got what was asked), bits_per_weight, nbytes, error (root of the squared error over that of the squares, against
    the source; None where nothing was quantized), importance (whether columns were weighted)."""

    path: str
    source: str
    recipe: str
    rows: list[dict[str, Any]] = field(repr=False)
    nbytes: int
    source_nbytes: int
    files: list[str]
    seconds: float
    weights: int  # that were quantized
    threads: int

    @property
    def bits_per_weight(self) -> float:
        """Of all tensors together: what the file really holds."""
        values = sum(int(np.prod(r["shape"])) for r in self.rows)
        return float(8 * sum(r["nbytes"] for r in self.rows) / values)

    @property
    def fallbacks(self) -> list[dict[str, Any]]:
        """Rows of tensors that got another type than was asked for."""
        return [r for r in self.rows if r["given"] != r["asked"]]

    @property
    def types(self) -> dict[str, int]:
        """Tensors by type, the most frequent first."""
        return dict(Counter(r["given"] for r in self.rows).most_common())

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1, "kind": "quantize", "path": self.path, "source": self.source, "recipe": self.recipe,
            "nbytes": self.nbytes, "source_nbytes": self.source_nbytes, "files": self.files,
            "bits_per_weight": self.bits_per_weight, "types": self.types, "fallbacks": len(self.fallbacks),
            "time_s": self.seconds, "weights": self.weights, "threads": self.threads, "tensors": self.rows,
        }  # fmt: skip

    def to_pandas(self) -> Any:
        """One row per tensor."""
        from rooflm._optional import need

        return need("pandas").DataFrame(self.rows)

    def _summary(self) -> str:
        text = (
            f"{self.path}: {self.recipe}, {megabytes(self.nbytes)} from {megabytes(self.source_nbytes)}, "
            f"{self.bits_per_weight:.3f} bits per weight; " + ", ".join(f"{n} {t}" for t, n in self.types.items())
        )
        if self.fallbacks:
            n = len(self.fallbacks)
            text += f"; {n} tensor{'s' if n > 1 else ''} did not get the type asked for"
        return text

    _COLUMNS = ("tensor", "shape", "source", "asked", "given", "bits_per_weight", "error", "why")

    def _table_rows(self) -> list[dict[str, Any]]:
        return [{**r, "shape": " x ".join(map(str, r["shape"]))} for r in self.rows]

    def __repr__(self) -> str:
        return self._summary()

    def table(self) -> str:
        """Every tensor as text."""
        return table(self._table_rows(), self._COLUMNS)

    def _repr_html_(self) -> str:
        return f"<p>{self._summary()}</p>" + html_table(self._table_rows(), self._COLUMNS)


def plan(source: _core.GGUF, wanted: Mapping[str, str]) -> list[Plan]:
    """What each tensor of the source will get. Tensors that `wanted` does not name keep their type."""
    out = []
    for name, t in source.tensors.items():
        asked = wanted.get(name, t.type)
        given = asked if asked == t.type else recipes.fitting(asked, t.shape[-1])
        why = None
        if given != asked:
            block = _core._type_info(asked)[1]
            why = f"rows of {t.shape[-1]} are no multiple of {asked}'s blocks of {block}"
        if given == t.type:
            nbytes = t.nbytes
        else:
            _, block, size = _core._type_info(given)
            nbytes = int(np.prod(t.shape)) // block * size
        out.append(Plan(name, t.shape, t.type, asked, given, why, nbytes))
    return out


def _matrices(t: Any) -> Iterator[tuple[int, int, int]]:
    """(expert, first row, end) of pieces that lie within one expert and hold at most PIECE values."""
    rows = t.shape[-2] if len(t.shape) > 1 else 1
    experts = int(np.prod(t.shape[:-2])) if len(t.shape) > 2 else 1
    step = max(1, PIECE // t.shape[-1])
    for e in range(experts):
        for r in range(0, rows, step):
            yield e, e * rows + r, e * rows + min(r + step, rows)


def weights_for(name: str, t: Any, importance: Optional[Importance]) -> Optional[np.ndarray]:
    """(experts, columns) float32, or None where the importance does not know the tensor."""
    if importance is None or name not in importance:
        return None
    v = np.ascontiguousarray(importance[name], np.float32)
    experts = int(np.prod(t.shape[:-2])) if len(t.shape) > 2 else 1
    if v.ndim == 1:  # the older form of the file writes experts one after the other and does not say how many
        v = v.reshape(experts if len(v) == experts * t.shape[-1] else 1, -1)
    if v.shape != (experts, t.shape[-1]) and v.shape != (1, t.shape[-1]):
        raise ValueError(
            f"the importance of {name} has the shape {tuple(importance[name].shape)}, the tensor needs "
            f"{(t.shape[-1],) if experts == 1 else (experts, t.shape[-1])}"
        )
    return np.broadcast_to(v, (experts, t.shape[-1]))


def _bad_tensor(name: str, message: str) -> _core.FormatError:
    e = _core.FormatError(f"tensor {name}: {message}")
    e.tensor = name
    return e


class _Encoder:
    """Pieces of one tensor in its new type, with buffers that all tensors share."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._x = np.empty(0, np.float32)

    def _pieces(self, t: Any) -> Iterator[tuple[int, int, np.ndarray]]:
        """(expert, first row, values) of each piece; the next one takes the place of the values."""
        n = t.shape[-1]
        for expert, r0, r1 in _matrices(t):
            size = (r1 - r0) * n
            if len(self._x) < size:
                self._x = np.empty(size, np.float32)
            x = self._x[:size].reshape(r1 - r0, n)
            if len(t.shape) == 1:
                x[0] = t.dequantize(threads=self.threads)
            else:
                t.dequantize(rows=slice(r0, r1), out=x, threads=self.threads)
            yield expert, r0, x

    def check(self, p: Plan, t: Any) -> None:
        """A tensor that is copied must hold numbers, too."""
        for _, r0, x in self._pieces(t):
            if not np.isfinite(x).all():
                raise self._located(p, x, r0, "a value is not finite")

    def encode(self, p: Plan, t: Any, weights: Optional[np.ndarray]) -> Iterator[tuple[np.ndarray, float, float]]:
        """(blocks, sum of squared errors, sum of squares) of each piece."""
        for expert, r0, x in self._pieces(t):
            errors = np.zeros((len(x), 2))
            w = None if weights is None else np.ascontiguousarray(weights[expert])
            try:
                raw = _core.quantize_rows(x, p.given, w, threads=self.threads, errors=errors)
            except ValueError as e:
                raise self._located(p, x, r0, str(e)) from None
            yield raw, float(errors[:, 0].sum()), float(errors[:, 1].sum())

    @staticmethod
    def _located(p: Plan, x: np.ndarray, first: int, why: str) -> _core.FormatError:
        bad = np.argwhere(~np.isfinite(x))
        if len(bad):
            row, col = (int(v) for v in bad[0])
            kind = "NaN" if np.isnan(x[row, col]) else "an infinity"
            return _bad_tensor(p.tensor, f"row {first + row} has {kind} in column {col}; nothing was written")
        return _bad_tensor(p.tensor, f"rows {first} to {first + len(x) - 1} as {p.given}: {why}; nothing was written")


def _shards(plans: list[Plan], dst: Path, split: Optional[int]) -> list[tuple[Path, list[Plan]]]:
    """Files and their tensors: one file, or parts of at most `split` bytes of weights."""
    if split is None:
        return [(dst, plans)]
    parts: list[list[Plan]] = [[]]
    size = 0
    for p in plans:
        if parts[-1] and size + p.nbytes > split:
            parts.append([])
            size = 0
        parts[-1].append(p)
        size += p.nbytes
    stem = dst.name[: -len(".gguf")] if dst.name.endswith(".gguf") else dst.name
    return [(dst.with_name(f"{stem}-{i + 1:05d}-of-{len(parts):05d}.gguf"), part) for i, part in enumerate(parts)]


def _check_files(source: _core.GGUF, shards: list[tuple[Path, list[Plan]]], need_vocabulary: bool) -> None:
    for path, _ in shards:
        for own in source.shards:
            if path.exists() and os.path.samefile(path, own):
                raise ValueError(f"{path} is the source itself: write to another name and rename it afterwards")
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "the destination is a directory", str(path))
        require_directory(path)
    if need_vocabulary and VOCABULARY not in source.metadata:
        e = _core.FormatError(
            f"{source.path} has no vocabulary ({VOCABULARY}), so the new file could not run; "
            "vocabulary=False (--no-vocabulary) writes it all the same"
        )
        e.key = VOCABULARY
        raise e
    total = sum(p.nbytes for _, plans in shards for p in plans)
    free = shutil.disk_usage(shards[0][0].parent).free
    if total > free:
        raise OSError(errno.ENOSPC, f"{megabytes(total)} are needed, {megabytes(free)} are free", str(shards[0][0]))


def _keys(w: Writer, source: _core.GGUF, i: int, n: int, tensors: int, keys: Mapping[str, tuple[str, Any]]) -> None:
    if i == 0:
        w.copy_keys(source)
        for key, (kind, value) in keys.items():
            w.key(key, kind, value)
    if n > 1:
        w.key("split.no", "u16", i)
        w.key("split.count", "u16", n)
        w.key("split.tensors.count", "i32", tensors)


@checked_keywords
def quantize(
    src: Union[str, os.PathLike[str], _core.GGUF],
    dst: Union[str, os.PathLike[str]],
    recipe: recipes.Recipe = "Q4_K_M",
    *,
    imatrix: ImportanceArg = None,
    strict: bool = False,
    threads: Optional[int] = None,
    progress: ProgressArg = None,
    split: Optional[int] = None,
    vocabulary: bool = True,
) -> Quantized:
    """Writes the model `src` to `dst` in the types of a recipe.

    src        a GGUF file (any shard of a split one) in any types, or an open rooflm.GGUF. From a quantized source the
               errors add up: start from F16 or BF16 where there is one
    recipe     a name ("Q4_K_M", "Q8_0", ...; rooflm.quantization.recipes.NAMED), or {pattern: type}: the first pattern
               that meets a tensor's name decides, {"base": "Q4_K_M", "blk.0.*": "Q8_0"} starts from a mixture. Tensors
               that nothing names keep their type, as norms always do
    imatrix    importance of columns: a rooflm.IMatrix, a file of one (GGUF or .dat), or {tensor: array of (columns,)
               or (experts, columns)}
    strict     an Error instead of another type where rows do not divide into a type's blocks
    threads    default: the free big cores of this machine; the file does not depend on it
    split      bytes of weights per file: writes dst-00001-of-0000N.gguf and so on
    vocabulary False allows a source without a vocabulary

    A tensor that already has its type is copied. Every piece goes to a temporary name beside dst; that is synced and
    renamed when it is whole, so that an interrupted run leaves what was there. Returns a Quantized: what each tensor
    got, why, its error and real bits per weight. Raises FormatError (.tensor) for NaN, infinities and scales beyond
    half precision, ValueError where dst is the source, OSError for a full disk.
    """
    begun = time.perf_counter()
    threads = int(_core._cpus()["default_threads"]) if threads is None else threads
    at_least(1, split=split)
    with contextlib.ExitStack() as stack:
        source = src if isinstance(src, _core.GGUF) else stack.enter_context(_core.GGUF(src))
        importance, keys = as_importance(imatrix)
        wanted, title = recipes.resolve(recipe, recipes.shape_of(source), importance is not None)
        plans = plan(source, wanted)
        substituted = [p for p in plans if p.given != p.asked]
        if strict and substituted:
            p = substituted[0]
            raise _core.Error(
                f"{len(substituted)} tensors cannot have the type asked for, such as {p.tensor}: {p.why}; "
                f"strict=False gives it {p.given}"
            )
        shards = _shards(plans, Path(dst), split)
        _check_files(source, shards, vocabulary)
        kind = recipes.file_type(recipe, (p.given for p in plans if recipes.is_quantized_here(p.tensor, p.shape)))
        keys = {"general.quantization_version": ("u32", 2), **keys}
        if kind is not None:
            keys["general.file_type"] = ("u32", kind)
        rows = _write(source, shards, importance, keys, threads, progress, len(plans))
        files = [str(path) for path, _ in shards]
        return Quantized(
            path=str(dst),
            source=source.path,
            recipe=title,
            rows=rows,
            nbytes=sum(os.path.getsize(f) for f in files),
            source_nbytes=source.nbytes,
            files=files,
            seconds=time.perf_counter() - begun,
            weights=sum(int(np.prod(p.shape)) for p in plans if p.given != p.source),
            threads=threads,
        )


def _write(
    source: _core.GGUF,
    shards: list[tuple[Path, list[Plan]]],
    importance: Optional[Importance],
    keys: Mapping[str, tuple[str, Any]],
    threads: int,
    progress: ProgressArg,
    n_tensors: int,
) -> list[dict[str, Any]]:
    rows = []
    encoder = _Encoder(threads)
    bar = Progress(n_tensors, progress)
    with contextlib.ExitStack() as stack:
        # All shards are renamed at the end, the first one last: without it no shard can be opened.
        writers = [stack.enter_context(Writer(path, source.alignment)) for path, _ in shards]
        for i, (w, (_, plans)) in enumerate(zip(writers, shards)):
            _keys(w, source, i, len(shards), n_tensors, keys)
            for p in plans:
                w.declare(p.tensor, p.given, p.shape)
            for p in plans:
                bar.show(f"{p.tensor} {p.source} to {p.given}")
                rows.append(_one_tensor(w, source, p, importance, encoder))
                bar.step()
    bar.close()
    return rows


def _one_tensor(
    w: Writer, source: _core.GGUF, p: Plan, importance: Optional[Importance], encoder: _Encoder
) -> dict[str, Any]:
    t = source.tensors[p.tensor]
    error = None
    weights = None
    if p.given == p.source:
        if p.source in recipes.TYPES:  # others, of integers or codebooks, are copied unseen
            encoder.check(p, t)
        w.write(t.raw)
    else:
        weights = weights_for(p.tensor, t, importance)
        err = total = 0.0
        for raw, e, s in encoder.encode(p, t, weights):
            w.write(raw)
            err += e
            total += s
        error = float(np.sqrt(err / total)) if total > 0 else 0.0
    return {
        "tensor": p.tensor, "shape": list(p.shape), "source": p.source, "asked": p.asked, "given": p.given,
        "why": p.why, "bits_per_weight": 8 * p.nbytes / int(np.prod(p.shape)), "nbytes": p.nbytes, "error": error,
        "importance": weights is not None,
    }  # fmt: skip
