# SPDX-License-Identifier: Apache-2.0
"""What differs between two files: metadata, types, and the values of each tensor."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Iterator, Optional, Union

import numpy as np

from rooflm import _core
from rooflm._keywords import checked_keywords
from rooflm._optional import axes
from rooflm._output import html_table, plain, table
from rooflm._progress import Progress, ProgressArg
from rooflm.inspecting import type_histogram
from rooflm.quantization.claims import check_claims

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FileArg = Union[str, "os.PathLike[str]", _core.GGUF]
PIECE_BYTES = 16 << 20  # of float32 values looked at together
HISTOGRAM = np.linspace(-4, 4, 65)  # bins of the errors, in units of their root mean square


class Sums:
    """Moments of two tensors and of their difference, over pieces."""

    def __init__(self) -> None:
        self.n = 0
        self.a = np.zeros(4)  # sums of the powers 1 to 4
        self.b = np.zeros(4)
        self.ab = self.ee = self.e1 = 0.0
        self.max_abs = 0.0
        self.ranges = [np.inf, -np.inf, np.inf, -np.inf]

    def add(self, a: np.ndarray, b: np.ndarray) -> None:
        x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
        e = y - x
        for sums, v in ((self.a, x), (self.b, y)):
            square = v * v
            sums += [v.sum(), square.sum(), (square * v).sum(), (square * square).sum()]
        self.n += len(x)
        self.ab += float(x @ y)
        self.ee += float(e @ e)
        self.e1 += float(e.sum())
        self.max_abs = max(self.max_abs, float(np.abs(e).max()))
        r = self.ranges
        x0, x1, y0, y1 = (float(f) for f in (x.min(), x.max(), y.min(), y.max()))
        self.ranges = [min(r[0], x0), max(r[1], x1), min(r[2], y0), max(r[3], y1)]

    def record(self) -> dict[str, Any]:
        size, other = self.a[1], self.b[1]
        relative = float(np.sqrt(self.ee / size)) if size > 0 else (0.0 if self.ee == 0 else None)
        return {
            "relative_error": relative,
            "rms_error": float(np.sqrt(self.ee / self.n)),
            "max_error": self.max_abs,
            "bias": self.e1 / self.n,
            "cosine": float(self.ab / np.sqrt(size * other)) if size > 0 and other > 0 else None,
            "snr_db": float(10 * np.log10(size / self.ee)) if self.ee > 0 and size > 0 else None,
            "a": _moments(self.a, self.n, self.ranges[:2]),
            "b": _moments(self.b, self.n, self.ranges[2:]),
        }


def _moments(sums: np.ndarray, n: int, limits: list[float]) -> dict[str, Any]:
    """Mean, standard deviation, skewness and excess kurtosis from the sums of powers."""
    m1, m2, m3, m4 = sums / n
    variance = max(m2 - m1 * m1, 0.0)
    out: dict[str, Any] = {"mean": float(m1), "std": float(np.sqrt(variance)), "min": limits[0], "max": limits[1]}
    if variance > 0:
        out["skew"] = float((m3 - 3 * m1 * m2 + 2 * m1**3) / variance**1.5)
        out["kurtosis"] = float((m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4) / variance**2 - 3)
    else:
        out["skew"] = out["kurtosis"] = None
    return out


def tensor_error(a: Any, b: Any) -> dict[str, Any]:
    """Error of tensor b against tensor a of the same shape, by rows, so that memory stays bounded.

    relative_error is the root of the sum of squared differences over the sum of squares of a; snr_db is None where
    nothing differs; a and b have the moments of both; `histogram` has the counts of b - a in the bins of HISTOGRAM, in
    units of rms_error."""
    sums, pieces = Sums(), list(_pieces(a))
    for rows in pieces:
        sums.add(a.dequantize(rows), b.dequantize(rows))
    record = sums.record()
    spread = np.sqrt(sums.ee / sums.n)
    counts = np.zeros(len(HISTOGRAM) - 1, np.int64)
    if spread > 0:
        for rows in pieces:
            e = b.dequantize(rows).astype(np.float64).ravel() - a.dequantize(rows).ravel()
            counts += np.histogram(np.clip(e / spread, -4, 4), HISTOGRAM)[0]
    record["histogram"] = counts.tolist() if spread > 0 else None
    return record


def _pieces(t: Any) -> Iterator[Optional[slice]]:
    n_rows = int(np.prod(t.shape[:-1])) if len(t.shape) > 1 else 1
    if len(t.shape) != 2:
        yield None
        return
    step = max(1, PIECE_BYTES // (4 * t.shape[-1]))
    for r in range(0, n_rows, step):
        yield slice(r, min(r + step, n_rows))


COLUMNS = ("tensor", "type_a", "type_b", "relative_error", "max_error", "cosine", "snr_db")


class FileDiff:
    """What diff_files() found. `record` is the JSON object; tensors are its rows."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record

    @property
    def tensors(self) -> list[dict[str, Any]]:
        """Of each tensor that both have: types, whether the bytes are the same, and the errors of tensor_error()."""
        rows: list[dict[str, Any]] = self.record["tensors"]
        return rows

    @property
    def same(self) -> bool:
        """Whether metadata and tensors are the same to the byte."""
        r = self.record
        lists = (r["metadata"]["only_a"], r["metadata"]["only_b"], r["metadata"]["changed"], r["only_a"], r["only_b"])
        return not any(lists) and all(t["same_bytes"] for t in r["tensors"])

    def to_dict(self) -> dict[str, Any]:
        return self.record

    def to_json(self) -> str:
        return json.dumps(plain(self.record), allow_nan=False)

    def to_pandas(self) -> Any:
        """A pandas DataFrame with one row per tensor."""
        from rooflm._optional import need

        rows = [{k: v for k, v in t.items() if k not in ("histogram", "a", "b")} for t in self.tensors]
        return need("pandas").DataFrame(rows)

    def _differing(self) -> list[dict[str, Any]]:
        rows = [t for t in self.tensors if not t["same_bytes"]]
        return sorted(rows, key=lambda t: -(t.get("relative_error") or 0))

    def __repr__(self) -> str:
        r, m = self.record, self.record["metadata"]
        lines = [f"a: {r['a']}", f"b: {r['b']}"]
        for title, keys in (("metadata only in a", m["only_a"]), ("metadata only in b", m["only_b"])):
            if keys:
                lines.append(f"{title}: {', '.join(keys)}")
        lines += [f"metadata {c['key']}: {c['a']} -> {c['b']}" for c in m["changed"]]
        for title, names in (("tensors only in a", r["only_a"]), ("tensors only in b", r["only_b"])):
            if names:
                lines.append(f"{title}: {', '.join(names)}")
        rows = self._differing()
        lines.append(f"{len(rows)} of {len(self.tensors)} common tensors differ" + (", worst first:" if rows else ""))
        if rows:
            lines.append(table(rows[:40], COLUMNS))
        if len(rows) > 40:
            lines.append(f"... and {len(rows) - 40} more; .tensors has all")
        lines += [f"warning: {w}" for side in ("claims_a", "claims_b") for w in r[side]["warnings"]]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_table(self._differing(), COLUMNS)

    def plot(self, ax: Optional[Axes] = None, *, tensor: Optional[str] = None) -> Axes:
        """Relative error of every tensor by layer; with `tensor`, the distribution of the differences in one."""
        a = axes(ax, figsize=(7, 4))
        if tensor is not None:
            row = next((t for t in self.tensors if t["tensor"] == tensor), None)
            if row is None:
                raise ValueError(f"there is no tensor {tensor!r} in both files")
            if not row["histogram"]:
                raise ValueError(f"tensor {tensor!r} does not differ, so there is no distribution")
            a.stairs(row["histogram"], HISTOGRAM * row["rms_error"], fill=True)
            a.set(xlabel="b - a", ylabel="values", title=f"{tensor}: {row['type_a']} to {row['type_b']}")
            return a
        kinds: dict[str, list[tuple[int, float]]] = {}
        for t in self.tensors:
            if t.get("relative_error"):
                layer, kind = split_name(t["tensor"])
                kinds.setdefault(kind, []).append((-1 if layer is None else layer, t["relative_error"]))
        for kind, points in sorted(kinds.items()):
            a.plot(*zip(*sorted(points)), marker=".", label=kind)
        a.set(xlabel="layer (-1: outside the layers)", ylabel="relative error, root of squares")
        a.set_title(f"{os.path.basename(self.record['b'])} against {os.path.basename(self.record['a'])}")
        if kinds:
            a.legend(fontsize="small", ncols=2)
        return a


def split_name(name: str) -> tuple[Optional[int], str]:
    """(3, "attn_q") of "blk.3.attn_q.weight", (None, "token_embd") outside the layers; of tensors and of taps."""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) > 2 and parts[1].isdigit():
        return int(parts[1]), parts[2]
    return None, parts[0]


def _short(value: Any) -> Any:
    if hasattr(value, "__len__") and not isinstance(value, (str, bytes)) and len(value) > 16:
        return f"{len(value)} values"
    return value if not isinstance(value, str) or len(value) <= 80 else value[:77] + "..."


def _same(a: Any, b: Any) -> bool:
    if hasattr(a, "__len__") and not isinstance(a, (str, bytes)):
        return hasattr(b, "__len__") and len(a) == len(b) and list(a) == list(b)
    return type(a) is type(b) and bool(a == b or a != a and b != b)


@checked_keywords
def diff_files(a: FileArg, b: FileArg, *, values: bool = True, progress: ProgressArg = None) -> FileDiff:
    """Compares two GGUF files: metadata, types of tensors, and with `values` the values of each tensor both have.

    a, b      paths or open files; errors are those of b against a. The order of tensors in a file does not matter
    values    False compares types and bytes alone, which reads less
    progress  as in rooflm.compare()

    The record: schema, a, b, metadata (only_a, only_b, changed with key, a, b), only_a, only_b, tensors (tensor,
    type_a, type_b, shape, same_bytes, and what tensor_error() gives), types_a, types_b (histograms), claims_a, claims_b
    (see check_claims). Tensors without a dequantizer, or of other shapes, have `error_why` instead of errors.
    """
    fa, fb = (f if isinstance(f, _core.GGUF) else _core.GGUF(f) for f in (a, b))
    ma, mb = dict(fa.metadata.items()), dict(fb.metadata.items())
    changed = [{"key": k, "a": _short(ma[k]), "b": _short(mb[k])} for k in ma if k in mb and not _same(ma[k], mb[k])]
    ta, tb = fa.tensors, fb.tensors
    common = [n for n in ta if n in tb]
    bar = Progress(len(common), progress)
    rows = []
    try:
        for name in common:
            bar.show(name)
            rows.append(_tensor_row(name, ta[name], tb[name], values))
            bar.step()
    finally:
        bar.close()
    return FileDiff(
        {
            "schema": 1,
            "a": os.fspath(fa.path),
            "b": os.fspath(fb.path),
            "metadata": {
                "only_a": [k for k in ma if k not in mb],
                "only_b": [k for k in mb if k not in ma],
                "changed": changed,
            },
            "only_a": [n for n in ta if n not in tb],
            "only_b": [n for n in tb if n not in ta],
            "tensors": rows,
            "types_a": type_histogram(ta),
            "types_b": type_histogram(tb),
            "claims_a": check_claims(fa),
            "claims_b": check_claims(fb),
        }
    )


def _tensor_row(name: str, a: Any, b: Any, values: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"tensor": name, "type_a": a.type, "type_b": b.type, "shape": list(a.shape)}
    row["same_bytes"] = a.type == b.type and a.shape == b.shape and bool(np.array_equal(a.raw, b.raw))
    if not values:
        return row
    if a.shape != b.shape:
        row["error_why"] = f"shapes differ: {a.shape} and {b.shape}"
        return row
    try:
        row.update(tensor_error(a, b))
    except (_core.Error, ValueError, TypeError) as e:
        row["error_why"] = str(e)
    return row
