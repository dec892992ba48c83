# SPDX-License-Identifier: Apache-2.0
"""Importance matrices: for each weight matrix, how large its input columns are over a text. Sums of squares and how
many rows went into them, so that two of them can be added; the files are llama.cpp's."""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np

from rooflm import _core
from rooflm._gguf_write import Writer
from rooflm._keywords import at_least, checked_keywords
from rooflm._output import html_table, table
from rooflm._progress import Progress, ProgressArg
from rooflm._text import TextOrTokens
from rooflm.quantization.recipes import LAYER, layer_of, part_of

SUMS, COUNTS = ".in_sum2", ".counts"


@dataclass
class Entry:
    """Of one weight matrix (experts: of each matrix of the stack). sums (experts, columns): sums over tokens of the
    squares of its input; counts (experts,): tokens that went in."""

    sums: np.ndarray
    counts: np.ndarray

    def mean_squares(self) -> np.ndarray:
        """(experts, columns); ones where an expert saw no token: it must not look unimportant."""
        counts = self.counts[:, None]
        return np.where(counts > 0, self.sums / np.maximum(counts, 1e-30), 1.0)

    def split(self, experts: int) -> Entry:
        """The same with its columns dealt to so many experts."""
        if len(self.sums) == experts:
            return self
        return Entry(self.sums.reshape(experts, -1), np.repeat(self.counts, experts))


@dataclass(repr=False)
class IMatrix:
    """Entries by tensor name; chunks of chunk_size tokens were read, from datasets."""

    entries: dict[str, Entry]
    chunks: int = 0
    chunk_size: int = 512
    datasets: list[str] = field(default_factory=list)

    def importance(self) -> dict[str, np.ndarray]:
        """{tensor: float32 (columns,), or (experts, columns)}: what rooflm.quantize takes."""
        means = {name: e.mean_squares().astype(np.float32) for name, e in self.entries.items()}
        return {name: m[0] if len(m) == 1 else m for name, m in means.items()}

    def __add__(self, other: IMatrix) -> IMatrix:
        """Both together. A tensor that only one has is taken over; other shapes are a ValueError."""
        entries = {name: Entry(e.sums.copy(), e.counts.copy()) for name, e in self.entries.items()}
        for name, e in other.entries.items():
            if name not in entries:
                entries[name] = Entry(e.sums.copy(), e.counts.copy())
                continue
            mine = entries[name]
            few, many = sorted((len(mine.sums), len(e.sums)))
            if few == 1 and mine.sums.size == e.sums.size:  # one of the older form, which does not tell experts apart
                mine = entries[name] = mine.split(many)
                e = e.split(many)
            if mine.sums.shape != e.sums.shape:
                raise ValueError(f"{name} has {mine.sums.shape} columns in one and {e.sums.shape} in the other")
            mine.sums += e.sums
            mine.counts += e.counts
        datasets = [*self.datasets, *(d for d in other.datasets if d not in self.datasets)]
        return IMatrix(entries, self.chunks + other.chunks, self.chunk_size, datasets)

    def statistics(self) -> list[dict[str, Any]]:
        """One row per tensor, by layer: mean, least, most and standard deviation of the columns' mean squares, the
        share of columns that are used at all (over 1e-5), the share that the largest hundredth holds, the entropy of
        the distribution over columns as a share of its maximum, and the cosine with the same matrix of the layer
        before."""
        means = {n: e.mean_squares().mean(0) for n, e in self.entries.items()}
        rows = []
        for name, e in sorted(self.entries.items(), key=lambda entry: layer_of(entry[0])):
            m = means[name]
            total, layer = float(m.sum()), LAYER.match(name)
            p = m / total if total > 0 else np.full(len(m), 1 / len(m))
            entropy = float(-(p[p > 0] * np.log(p[p > 0])).sum() / math.log(len(m))) if len(m) > 1 else 0.0
            top = max(1, len(m) // 100)
            before = means.get(name.replace(f"blk.{layer[1]}.", f"blk.{int(layer[1]) - 1}.", 1)) if layer else None
            rows.append({
                "tensor": name, "layer": int(layer[1]) if layer else None, "part": part_of(name), "columns": len(m),
                "tokens": float(e.counts.sum()), "mean": float(m.mean()), "min": float(m.min()), "max": float(m.max()),
                "std": float(m.std()), "active": float((m > 1e-5).mean()),
                "top_hundredth": float(np.sort(p)[-top:].sum()), "entropy": entropy,
                "cosine_before": _cosine(m, before),
            })  # fmt: skip
        return rows

    def to_pandas(self) -> Any:
        """The statistics, one row per tensor."""
        from rooflm._optional import need

        return need("pandas").DataFrame(self.statistics())

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1, "kind": "imatrix", "chunks": self.chunks, "chunk_size": self.chunk_size,
            "datasets": self.datasets, "tensors": self.statistics(),
        }  # fmt: skip

    def __repr__(self) -> str:
        source = f" from {', '.join(self.datasets)}" if self.datasets else ""
        return f"<IMatrix of {len(self.entries)} tensors, {self.chunks} chunks of {self.chunk_size} tokens{source}>"

    _COLUMNS = ("tensor", "columns", "tokens", "mean", "max", "top_hundredth", "entropy", "cosine_before")

    def table(self) -> str:
        return table(self.statistics(), self._COLUMNS)

    def _repr_html_(self) -> str:
        return f"<p>{self!r}</p>".replace("<IMatrix", "&lt;IMatrix") + html_table(self.statistics(), self._COLUMNS)

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes llama.cpp's GGUF form, the file appearing when it is whole."""
        with Writer(path) as w:
            w.key("general.type", "str", "imatrix")
            w.key("imatrix.datasets", "[str]", self.datasets)
            w.key("imatrix.chunk_count", "u32", self.chunks)
            w.key("imatrix.chunk_size", "u32", self.chunk_size)
            names = sorted(self.entries)
            for name in names:
                e = self.entries[name]
                w.declare(name + SUMS, "F32", e.sums.shape)
                w.declare(name + COUNTS, "F32", (len(e.counts), 1))
            for name in names:
                w.write(np.ascontiguousarray(self.entries[name].sums, np.float32))
                w.write(np.ascontiguousarray(self.entries[name].counts, np.float32))

    @classmethod
    def load(cls, path: Union[str, os.PathLike[str]]) -> IMatrix:
        """Reads llama.cpp's GGUF form, or its older .dat; FormatError where the file is neither or damaged."""
        with open(path, "rb") as f:
            magic = f.read(4)
        return _load_gguf(path) if magic == b"GGUF" else _load_dat(Path(path))


def _cosine(a: np.ndarray, b: Optional[np.ndarray]) -> Optional[float]:
    if b is None or len(a) != len(b):
        return None
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm > 0 else None


def _bad(path: Any, message: str, tensor: Optional[str] = None) -> _core.FormatError:
    e = _core.FormatError(f"{os.fspath(path)}: {message}")
    e.tensor = tensor
    return e


def _check(path: Any, name: str, e: Entry) -> Entry:
    if not np.isfinite(e.sums).all() or (e.sums < 0).any() or not np.isfinite(e.counts).all() or (e.counts < 0).any():
        raise _bad(path, f"the importance of {name} holds values that are negative or not finite", name)
    return e


def _load_gguf(path: Any) -> IMatrix:
    entries = {}
    with _core.GGUF(path, load="copy") as g:
        if g.metadata.get("general.type") != "imatrix":
            raise _bad(path, "this GGUF file is no importance matrix (general.type is not 'imatrix')")
        for name, t in g.tensors.items():
            if not name.endswith(SUMS):
                continue
            tensor = name[: -len(SUMS)]
            counts = g.tensors.get(tensor + COUNTS)
            if counts is None:
                raise _bad(path, f"{tensor} has sums and no counts", tensor)
            sums = t.dequantize().astype(np.float64)
            sums = sums.reshape(-1, sums.shape[-1])
            n = counts.dequantize().astype(np.float64).reshape(-1)
            if len(n) != len(sums):
                raise _bad(path, f"{tensor} has {len(sums)} sums and {len(n)} counts", tensor)
            entries[tensor] = _check(path, tensor, Entry(sums, n))
        if not entries:
            raise _bad(path, "no tensor has sums of squares")
        chunks, size = (int(g.metadata.get(f"imatrix.chunk_{k}", 0)) for k in ("count", "size"))
        datasets = [str(d) for d in g.metadata.get("imatrix.datasets", [])]
    return IMatrix(entries, chunks, size or 512, datasets)


def _load_dat(path: Path) -> IMatrix:
    """int32 entries, each: length and name, calls, number of values, mean squares times calls; then the chunks and the
    data set. How many tokens a call had is not in it: 512 are assumed, which ratios do not depend on. Nor is the
    number of experts, whose columns follow each other: they stay one row until a tensor says how many there are."""
    raw, at = path.read_bytes(), 0

    def number() -> int:
        nonlocal at
        if at + 4 > len(raw):
            raise _bad(path, f"is no importance matrix, or cut short at byte {at}")
        at += 4
        return int(struct.unpack_from("<i", raw, at - 4)[0])

    def take(n: int) -> bytes:
        nonlocal at
        if n < 0 or at + n > len(raw):
            raise _bad(path, f"is no importance matrix, or cut short at byte {at}")
        at += n
        return raw[at - n : at]

    n, entries, size = number(), {}, 512
    if n < 1 or n > len(raw) // 12:
        raise _bad(path, "is neither a GGUF file nor an importance matrix")
    for _ in range(n):
        name = take(number()).decode("utf-8", "replace")
        calls, values = number(), number()
        if calls < 0 or values < 1:
            raise _bad(path, f"{name} has {calls} calls and {values} values", name)
        v = np.frombuffer(take(4 * values), "<f4").astype(np.float64)
        entries[name] = _check(path, name, Entry(v[None] * size, np.array([float(calls * size)])))
    chunks, datasets = 0, []
    if at < len(raw):
        chunks = number()
        if at < len(raw):
            datasets = [take(number()).decode("utf-8", "replace")]
    return IMatrix(entries, chunks, size, datasets)


ImportanceArg = Union[None, IMatrix, str, "os.PathLike[str]", Mapping[str, np.ndarray]]


def as_importance(value: ImportanceArg) -> tuple[Optional[Mapping[str, np.ndarray]], dict[str, tuple[str, Any]]]:
    """(importance by tensor, the keys that tell a quantized file's reader of it)."""
    if value is None:
        return None, {}
    name = ""
    if isinstance(value, (str, os.PathLike)):
        name, value = os.path.basename(os.fspath(value)), IMatrix.load(value)
    if isinstance(value, IMatrix):
        importance: Mapping[str, np.ndarray] = value.importance()
        keys = {
            "quantize.imatrix.file": ("str", name or "rooflm.imatrix"),
            "quantize.imatrix.entries_count": ("u32", len(importance)),
            "quantize.imatrix.chunks_count": ("u32", value.chunks),
        }
        if value.datasets:
            keys["quantize.imatrix.dataset"] = ("str", ", ".join(value.datasets))
        return importance, keys
    if isinstance(value, Mapping):
        return value, {"quantize.imatrix.entries_count": ("u32", len(value))}
    raise TypeError(f"imatrix is an IMatrix, a file or a mapping of arrays, not {type(value).__name__}")


@checked_keywords
def imatrix(
    model: Any,
    text: Union[TextOrTokens, Sequence[TextOrTokens]],
    *,
    ctx: int = 512,
    chunks: Optional[int] = None,
    compute: str = "auto",
    n_threads: Optional[int] = None,
    progress: ProgressArg = None,
) -> IMatrix:
    """Runs a text through a model and collects how large the input columns of every weight matrix are.

    model    a rooflm.Model or a path, best in F16 or BF16; Q8_0 serves as well
    text     str is the text, os.PathLike a file, an integer array tokens; cut into windows of `ctx` tokens that do not
             overlap, by the convention of rooflm.perplexity
    chunks   how many windows from the start; default all. Ten windows are plenty to be better than none
    compute  of the session, whose cache is f32: "auto", "int8", "int16", "f32"

    Experts of a mixture are counted apart, with the tokens that each of them saw. The output matrix counts too. Results
    add up: imatrix(m, a) + imatrix(m, b). A text shorter than one window is a ValueError.
    """
    from rooflm.quantization.settings import windows_of
    from rooflm.model import Model

    at_least(1, chunks=chunks)
    m = model if isinstance(model, Model) else Model(model)
    windows = windows_of(m, text, ctx, chunks, "imatrix")  # type: ignore[arg-type]
    session = m.session(n_ctx=ctx, n_batch=min(ctx, 512), n_threads=n_threads, compute=compute, kv="f32")
    bar = Progress(len(windows), progress)
    session._c._collect_inputs(True)
    try:
        for i, window in enumerate(windows.ids):
            bar.show(f"window {i + 1} of {len(windows)}")
            session.rewind(0)
            session.eval(window, logits="none")
            bar.step()
        sums = session._c._take_inputs()
    finally:
        session._c._collect_inputs(False)
        bar.close()
    entries = {name: Entry(s, n.astype(np.float64)) for name, (s, n) in sums.items()}
    source = windows.record()["text"]
    return IMatrix(entries, len(windows), ctx, [str(source)])
