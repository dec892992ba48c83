# SPDX-License-Identifier: Apache-2.0
"""What each tensor may be made of: one tensor's type is swapped in memory, all else stays, and the KL is measured.

Kinds (q, k, v, o, gate, up, down, embedding, output) are measured as a whole first, all their tensors swapped at once,
then tensor after tensor in an order that covers the depth of the model early, so that a time budget cuts off detail and
no part of the model.
"""

from __future__ import annotations

import errno
import fnmatch
import html
import json
import os
import time
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Optional, Sequence, Union

import numpy as np

from rooflm import _core
from rooflm._gguf_write import require_directory
from rooflm._keywords import checked_keywords
from rooflm._optional import axes
from rooflm._output import html_table, plain, table
from rooflm._progress import Progress, ProgressArg
from rooflm._text import TextOrTokens
from rooflm._whole_file import write_whole
from rooflm.model import Model
from rooflm.session import Session
from rooflm.quantization import earlier_swaps
from rooflm.quantization.claims import type_bits
from rooflm.quantization.compare import WARN_KL, positive_interval
from rooflm.quantization.diff import split_name
from rooflm.quantization.earlier_swaps import Earlier
from rooflm.quantization.imatrix import ImportanceArg, as_importance
from rooflm.quantization.losses import kind_of
from rooflm.quantization.quantize import weights_for
from rooflm.quantization.settings import DEFAULTS, ModelArg, Opener, Setting, Windows, check_finite, windows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What can be swapped, in the order it is measured in.
ORDER = ("q", "k", "v", "qkv", "o", "gate", "up", "down", "router", "embedding", "output")
MOST_LOGITS = 1 << 30  # bytes of reference logits, which are kept for all runs

Replacements = dict[str, tuple[str, np.ndarray]]


class Swap:
    """Tensors of one kind, or one tensor, as another type."""

    def __init__(self, kind: str, tensors: list[str], type: Optional[str], whole: bool) -> None:
        self.kind, self.tensors, self.type, self.whole = kind, tensors, type, whole

    @property
    def name(self) -> str:
        return f"all of {self.kind}" if self.whole else self.tensors[0]

    @property
    def title(self) -> str:
        return f"{self.name} as {self.type}" if self.type else self.name

    @property
    def key(self) -> tuple[Any, ...]:
        return (None if self.whole else self.tensors[0], tuple(self.tensors), self.type)

    @staticmethod
    def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
        """The key of the swap that a row is of."""
        return (row["tensor"], tuple(row["tensors"]), None if row["as_is"] else row["type"])


class Source:
    """The tensors of the reference, and what stands in for them."""

    def __init__(self, reference: Model, other: Optional[Model], importance: Any, n_threads: int) -> None:
        self.reference, self.other, self.n_threads = reference, other, n_threads
        self.importance = importance or {}
        self.tied = bool(reference.hparams["tied_output"])
        self.names = [n for n, t in reference.gguf.tensors.items() if len(t.shape) > 1 and kind_of(n) in ORDER]
        if self.tied:
            self.names.append("output.weight")

    def own(self, name: str) -> Any:
        tensors = self.reference.gguf.tensors
        return tensors["token_embd.weight" if self.tied and name == "output.weight" else name]

    def other_tensor(self, name: str) -> Any:
        assert self.other is not None
        tensors = self.other.gguf.tensors
        return tensors[name] if name in tensors else tensors["token_embd.weight"]

    def quantized(self, name: str, type: Optional[str]) -> tuple[str, np.ndarray]:
        """(type, blocks) of a tensor; type None takes what the other file has."""
        if type is None:
            t = self.other_tensor(name)
            return t.type, t.raw
        t = self.own(name)
        values = t.dequantize().reshape(-1, *t.shape[-2:])  # experts apart: each has an importance of its own
        weights = weights_for(t.name, t, self.importance)
        parts = [
            _core.quantize_rows(v, type, None if weights is None else weights[i], threads=self.n_threads)
            for i, v in enumerate(values)
        ]
        return type, np.concatenate(parts).ravel()

    def replacements(self, swap: Swap) -> Replacements:
        out = {name: self.quantized(name, swap.type) for name in swap.tensors}
        if self.tied and "token_embd.weight" in out and "output.weight" not in out:
            own = self.own("output.weight")  # the output matrix stays what it was
            out["output.weight"] = (own.type, own.raw)
        return out

    def why_not(self, name: str, type: Optional[str]) -> Optional[str]:
        if type is None:
            return None
        block = _core._type_info(type)[1]
        cols = self.own(name).shape[-1]
        return f"rows of {cols} values are no multiple of {block}" if cols % block else None


def _spread(n: int) -> Iterator[int]:
    """0 .. n - 1 so that any beginning of the order covers the range evenly: ends, middle, quarters, ..."""
    seen: set[int] = set()
    step = n - 1
    while len(seen) < n:
        for i in range(0, n, max(step, 1)):
            if i not in seen:
                seen.add(i)
                yield i
        step //= 2


COLUMNS = ("tensor", "kind", "layer", "type", "bits", "KL mean", "KL 95 %", "saved MB", "KL per MB saved")


class Sensitivity:
    """What sensitivity() measured. rows: one record per swap, with tensor (None for a whole kind), tensors (all that
    were swapped), kind, layer, type, as_is (the blocks are those of the file, not made from the reference's values),
    bits_per_weight, nbytes and nbytes_before, kl_mean, kl_ci95, and `why_not` where a type does not fit the rows."""

    def __init__(self, head: dict[str, Any], windows: Windows, rows: list[dict[str, Any]], left: list[str]) -> None:
        self.head, self.windows, self.rows = head, windows, rows
        self.not_measured = left  #: swaps that the time budget or an interrupt left out

    def by_kind(self) -> list[dict[str, Any]]:
        """Rows of whole kinds, costliest first."""
        return self._sorted([r for r in self.rows if r["tensor"] is None])

    def by_tensor(self) -> list[dict[str, Any]]:
        """Rows of single tensors, costliest first."""
        return self._sorted([r for r in self.rows if r["tensor"] is not None])

    @staticmethod
    def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(rows, key=lambda r: -1.0 if r["kl_mean"] is None else r["kl_mean"], reverse=True)

    @property
    def warnings(self) -> list[str]:
        """Swaps whose measured KL is above WARN_KL, costliest first."""
        return [
            f"{r['tensor'] or 'all of ' + r['kind']} as {r['type']} costs a mean KL of {r['kl_mean']:.3g} nats"
            for r in self._sorted(self.rows)
            if r["kl_mean"] is not None and r["kl_mean"] > WARN_KL
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1,
            **self.head,
            **self.windows.record(),
            "kinds": self.by_kind(),
            "tensors": self.by_tensor(),
            "not_measured": self.not_measured,
            "warnings": self.warnings,
        }

    def to_json(self) -> str:
        return json.dumps(plain(self.to_dict()), allow_nan=False)

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the record as JSON, in place of what the file held: for sensitivity(resume=) and mix(by=)."""
        write_whole(path, self.to_json() + "\n")

    def to_pandas(self) -> Any:
        """A pandas DataFrame with one row per swap."""
        from rooflm._optional import need

        return need("pandas").DataFrame(self.rows)

    def _table_rows(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        out = []
        for r in rows:
            saved = (r["nbytes_before"] - r["nbytes"]) / 1e6 if r["nbytes"] is not None else None
            ci = r["kl_ci95"]
            out.append(
                {
                    "tensor": r["tensor"] or "all",
                    "kind": r["kind"],
                    "layer": r["layer"],
                    "type": r["type"],
                    "bits": r["bits_per_weight"],
                    "KL mean": r["kl_mean"],
                    "KL 95 %": "-" if ci is None else f"[{ci[0]:.2g}, {ci[1]:.2g}]",
                    "saved MB": saved,
                    "KL per MB saved": r["kl_mean"] / saved
                    if saved and saved > 0 and r["kl_mean"] is not None
                    else None,
                }
            )
        return out

    def _refused(self) -> list[str]:
        """A line for each type and reason, with the kinds that could not be swapped."""
        found: dict[tuple[str, str], dict[str, None]] = {}
        for r in self.rows:
            if r["why_not"]:
                found.setdefault((r["type"], r["why_not"]), {})[r["kind"]] = None
        return [f"{type} does not fit {', '.join(kinds)}: {why}" for (type, why), kinds in found.items()]

    def _why_left(self) -> str:
        budget = self.head["budget_s"]
        why = "interrupted" if self.head["interrupted"] else f"the time budget of {budget:g} s ended"
        return f"{len(self.not_measured)} swaps not measured: {why}"

    def _head(self) -> str:
        w = self.windows
        return (
            f"swaps in {self.head['reference']}; {len(w)} windows of {w.ctx} tokens, {len(w) * w.scored} scored; KL in "
            "nats with 95 % intervals of the window means, costliest first"
        )

    def __repr__(self) -> str:
        kinds, tensors = ([r for r in rows if not r["why_not"]] for rows in (self.by_kind(), self.by_tensor()))
        lines = [self._head(), table(self._table_rows(kinds + tensors[:20]), COLUMNS), *self._refused()]
        if self.not_measured:
            lines.append(f"{self._why_left()}; resume= goes on")
        return "\n".join([*lines, *(f"warning: {t}" for t in self.warnings[:10])])

    def _repr_html_(self) -> str:
        rows = [r for r in self.by_kind() + self.by_tensor() if not r["why_not"]]
        notes = [*self._refused(), *([self._why_left()] if self.not_measured else [])]
        after = "".join(f"<p>{html.escape(t)}</p>" for t in notes)
        return f"<p>{html.escape(self._head())}</p>{html_table(self._table_rows(rows), COLUMNS)}{after}"

    def plot(self, ax: Optional[Axes] = None, *, type: Optional[str] = None) -> Axes:
        """Mean KL of each tensor by layer and kind for one type (default the first measured); dashed lines are whole
        kinds."""
        a = axes(ax, figsize=(9, 4.5))
        types = list(dict.fromkeys(r["type"] for r in self.rows if r["kl_mean"] is not None))
        if type is not None and type not in types:
            raise ValueError(f"type={type!r} was not measured, only {', '.join(types)}")
        chosen = type or (types[0] if types else None)
        rows = [r for r in self.rows if r["type"] == chosen and r["kl_mean"]]
        for i, kind in enumerate(k for k in ORDER if any(r["kind"] == k for r in rows)):
            color = f"C{i % 10}"
            points = sorted((r for r in rows if r["kind"] == kind and r["layer"] is not None), key=lambda r: r["layer"])
            if points:
                x, y = ([r[k] for r in points] for k in ("layer", "kl_mean"))
                a.plot(x, y, marker=".", color=color, label=kind)
                if all(r["kl_ci95"] for r in points):
                    a.vlines(x, *zip(*(r["kl_ci95"] for r in points)), color=color, linewidth=0.8, alpha=0.4)
            for r in rows:
                if r["kind"] == kind and r["layer"] is None:
                    a.axhline(r["kl_mean"], color=color, linestyle="--", linewidth=0.8, label=None if points else kind)
        if rows:
            a.set_yscale("log")
            a.set_ylim(bottom=min(r["kl_mean"] for r in rows) / 3)  # an interval may reach down to 0
            a.locator_params(axis="x", integer=True)
            a.legend(fontsize="small", ncols=2, loc="center left", bbox_to_anchor=(1, 0.5))
        a.set(xlabel="layer", ylabel="mean KL(reference || swapped), nats")
        n = f"{len(self.windows)} windows of {self.windows.ctx}"
        bars = "bars: 95 % interval of the window means; " if len(self.windows) > 1 else ""
        a.set_title(
            f"{self.head['reference']}, one tensor as {chosen}; {n}\n{bars}dashed: all tensors of a kind at once",
            fontsize="medium",
        )
        return a


@checked_keywords
def sensitivity(
    model: ModelArg,
    text: TextOrTokens,
    *,
    types: Union[None, str, Sequence[str]] = None,
    tensors: Union[str, Sequence[str]] = "*",
    reference: Optional[ModelArg] = None,
    each: bool = True,
    kinds: bool = True,
    ctx: int = 256,
    windows: Optional[int] = 4,
    compute: str = "int16",
    kv: str = "f32",
    budget_s: Optional[float] = None,
    imatrix: ImportanceArg = None,
    resume: Earlier = None,
    out: Union[None, str, os.PathLike[str]] = None,
    n_threads: Optional[int] = None,
    progress: ProgressArg = None,
) -> Sensitivity:
    """Swaps the type of one tensor at a time and measures KL(reference || swapped) on a text.

        rooflm.sensitivity("f16.gguf", text, types=["Q4_K", "Q2_K"])  # quantized in memory
        rooflm.sensitivity("q4.gguf", text, reference="f16.gguf")     # the file's own tensors, one by one

    model       the file; with `reference` and without `types`, its tensors are put into the reference as they are
    types       types to quantize to, from the reference's values. A type whose blocks do not fit the rows of a tensor
                is not replaced by another: the row says so in `why_not`
    tensors     patterns as in fnmatch over names of tensors; "output.weight" exists here also where it is tied
    each, kinds measure single tensors, and whole kinds
    ctx, windows, compute, kv
                as in rooflm.compare(), with less text because there are many runs; reference logits stay in memory
    budget_s    no swap begins after so many seconds; kinds come first. What was left out is in .not_measured
    imatrix     importance of columns for quantizing to `types`, as rooflm.quantize takes it
    resume      an earlier result, its record, or a file of it (`out`, .save(), `--json`): its rows are kept and not
                measured again, also those of other types and tensors. ValueError that names the difference unless
                it is of the same reference, text, windows, compute, kv and imatrix
    out         file that takes the record after every swap; one that exists is refused unless it is what `resume` names

    Ctrl-C raises KeyboardInterrupt with what was measured as its `.results`.
    """
    if not (each or kinds):
        raise ValueError("each=False and kinds=False leave nothing to measure")
    opener = Opener()
    file = opener.model(model)
    ref = file if reference is None else opener.model(reference)
    for m in (file, ref):
        if m.replaced:
            raise ValueError(
                f"{m.gguf.path} has tensors replaced in memory ({next(iter(m.replaced))}), and swaps start from its "
                "file: write one with them (rooflm.quantize) or open it without replace="
            )
    wanted: list[Optional[str]] = [types] if isinstance(types, str) else list(types or [])
    if not wanted:
        if ref is file:
            raise ValueError(
                "types= says what to swap to; without it, reference= must be the file this one was made from"
            )
        wanted = [None]
    for t in wanted:
        if t is not None:
            _core._type_info(t)  # an unknown name is an error before anything runs
    probe = Setting(ref, {**DEFAULTS, "compute": compute, "kv": kv})
    base = probe.session(n_ctx=ctx, n_threads=n_threads)
    importance, _ = as_importance(imatrix)
    source = Source(ref, file if ref is not file else None, importance, base.n_threads)
    patterns = [tensors] if isinstance(tensors, str) else list(tensors)
    names = [n for n in source.names if any(fnmatch.fnmatchcase(n, p) for p in patterns)]
    if not names:
        raise ValueError(f"no matrix matches {patterns}; there are such as {', '.join(source.names[:3])}")
    cut = windows_of(ref, text, ctx, windows, "sensitivity")
    _check_memory(cut, ref.n_vocab)
    as_is = wanted == [None]
    head = {
        "reference": probe.file,
        "model": Setting(file).file,
        "compute": compute,
        "kv": kv,
        **earlier_swaps.hashes(ref.gguf, file.gguf if as_is else None, cut, None if as_is else importance),
        "budget_s": budget_s,
        "interrupted": False,
        "seconds": 0.0,
    }
    rows = []
    if resume is not None:
        record = earlier_swaps.read_record(resume)
        earlier_swaps.check_same(record, {**head, **cut.record()})
        rows = [dict(r) for r in earlier_swaps.rows_of(record) or ()]
        head["seconds"] = float(record.get("seconds", 0.0))
    _check_out(out, resume)
    known = {Swap.key_of(r) for r in rows}
    todo = [s for s in _swaps(names, wanted, each, kinds) if s.key not in known]
    result = Sensitivity(head, cut, rows, [s.title for s in todo])
    _measure(result, todo, source, probe, base, out, progress)
    return result


def _check_memory(cut: Windows, n_vocab: int) -> None:
    nbytes = len(cut) * cut.scored * n_vocab * 4
    if nbytes > MOST_LOGITS:
        raise ValueError(
            f"{len(cut)} windows of {cut.ctx} tokens keep {nbytes / 1e9:.1f} GB of reference logits, at most "
            f"{MOST_LOGITS / 1e9:.1f}: fewer windows or a smaller ctx"
        )


def _check_out(out: Union[None, str, os.PathLike[str]], resume: Earlier) -> None:
    """Before anything runs: a file of hours of work is not written over by accident."""
    if out is None:
        return
    require_directory(out)
    if not os.path.exists(out):
        return
    if not (isinstance(resume, (str, os.PathLike)) and os.path.samefile(out, resume)):
        raise FileExistsError(
            errno.EEXIST, "exists already: resume= with its name goes on, or choose another name", os.fspath(out)
        )


def _measure(
    result: Sensitivity,
    todo: list[Swap],
    source: Source,
    probe: Setting,
    base: Session,
    out: Union[None, str, os.PathLike[str]],
    progress: ProgressArg,
) -> None:
    """Measures swap after swap into the result, until its budget ends."""
    head, cut = result.head, result.windows
    start, before, budget_s = time.perf_counter(), head["seconds"], head["budget_s"]
    bar = Progress(len(todo), progress)
    try:
        with base:
            logits = [_reference_logits(base, w, cut) for w in cut.ids] if todo else []
        for swap in todo:
            if budget_s is not None and time.perf_counter() - start > budget_s:
                break
            bar.show(f"{swap.name} {swap.type or ''}")
            result.rows.append(_row(swap, source, probe, cut, logits))
            result.not_measured.pop(0)
            head["seconds"] = before + time.perf_counter() - start
            bar.step()
            if out is not None:
                result.save(out)
    except KeyboardInterrupt as e:
        head["interrupted"] = True
        e.results = result  # type: ignore[attr-defined]
        raise
    finally:
        bar.close()
        if out is not None:
            result.save(out)


def _swaps(names: list[str], types: Sequence[Optional[str]], each: bool, kinds: bool) -> Iterator[Swap]:
    groups: dict[str, list[str]] = {}
    for n in sorted(names, key=lambda name: split_name(name)[0] or 0):  # files may have 10 behind 1
        groups.setdefault(kind_of(n), []).append(n)
    ordered = [(k, groups[k]) for k in ORDER if k in groups]
    if kinds or not each:
        for t in types:
            for kind, members in ordered:
                yield Swap(kind, members, t, len(members) > 1 or not each)
    if not each:
        return
    if kinds:  # one matrix of a kind is measured already
        ordered = [(kind, members) for kind, members in ordered if len(members) > 1]
    longest = max((len(members) for _, members in ordered), default=0)
    for i in _spread(longest):
        for t in types:
            for kind, members in ordered:
                if i < len(members):
                    yield Swap(kind, [members[i]], t, False)


def _reference_logits(session: Any, window: np.ndarray, cut: Windows) -> np.ndarray:
    session.rewind(0)
    return np.asarray(session.eval(window[:-1], logits=slice(cut.start, cut.ctx - 1)))


def _row(swap: Swap, source: Source, probe: Setting, cut: Windows, logits: list[np.ndarray]) -> dict[str, Any]:
    own = [source.own(n) for n in swap.tensors]
    layer = None if swap.whole else split_name(swap.tensors[0])[0]
    row: dict[str, Any] = {
        "tensor": None if swap.whole else swap.tensors[0],
        "tensors": list(swap.tensors),
        "kind": swap.kind,
        "layer": layer,
        "type": swap.type,
        "as_is": swap.type is None,
        "bits_per_weight": type_bits(swap.type) if swap.type else None,
        "nbytes_before": sum(int(t.nbytes) for t in own),
        "nbytes": None,
        "kl_mean": None,
        "kl_ci95": None,
        "why_not": next(filter(None, (source.why_not(n, swap.type) for n in swap.tensors)), None),
    }
    if row["why_not"] is not None:
        return row
    replaced = source.replacements(swap)
    if swap.type is None:
        row["type"] = "/".join(dict.fromkeys(replaced[n][0] for n in swap.tensors))
    row["nbytes"] = sum(int(replaced[n][1].nbytes) for n in swap.tensors)
    values = sum(int(np.prod(t.shape)) for t in own)
    row["bits_per_weight"] = 8.0 * row["nbytes"] / values
    swapped = Setting(Model(source.reference.gguf, replace=replaced), probe.options)
    kl = []
    with swapped.session(n_ctx=cut.ctx, n_threads=source.n_threads) as s:
        for window, reference in zip(cut.ids, logits):
            s.rewind(0)
            kl.append(s._c._contrast(window[:-1], reference, window[cut.start + 1 :], cut.start)["kl"])
        arrays = {"kl": np.stack(kl)}
        check_finite(arrays, s, cut)
    row["kl_mean"] = float(arrays["kl"].mean())
    row["kl_ci95"] = positive_interval(arrays["kl"].mean(axis=1))
    return row
