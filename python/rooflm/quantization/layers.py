# SPDX-License-Identifier: Apache-2.0
"""Two models or settings in lock step, layer by layer: how far their activations are apart, where an error is born, and
how it grows on its way to the output."""

from __future__ import annotations

import fnmatch
import html
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Optional

import numpy as np

from rooflm import _core
from rooflm._keywords import at_least, checked_keywords
from rooflm._labels import plain_log
from rooflm._optional import axes
from rooflm._output import html_table, plain, table
from rooflm._progress import Progress, ProgressArg
from rooflm._text import TextOrTokens, as_tokens
from rooflm.model import Model
from rooflm.session import Session
from rooflm.quantization.diff import split_name
from rooflm.quantization.settings import DEFAULTS, Candidate, Opener, Setting, check_vocabulary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CHUNK = 64  # tokens evaluated together in both, whose taps are held at once


class TapError:
    """Sums over the values of one tap."""

    def __init__(self) -> None:
        self.aa = self.bb = self.ab = self.ee = 0.0
        self.most = 0.0

    def add(self, a: np.ndarray, b: np.ndarray) -> None:
        x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
        e = y - x
        self.aa += float(x @ x)
        self.bb += float(y @ y)
        self.ab += float(x @ y)
        self.ee += float(e @ e)
        self.most = max(self.most, float(np.abs(e).max()))

    def record(self) -> dict[str, Any]:
        return {
            "relative_error": float(np.sqrt(self.ee / self.aa)) if self.aa > 0 else None,
            "cosine": float(self.ab / np.sqrt(self.aa * self.bb)) if self.aa > 0 and self.bb > 0 else None,
            "snr_db": float(10 * np.log10(self.aa / self.ee)) if self.ee > 0 and self.aa > 0 else None,
            "max_error": self.most,
        }


@dataclass
class Step:
    """What a session says of a chunk of tokens: arrays by tap, and logits."""

    taps: dict[str, np.ndarray]
    logits: np.ndarray


def _steps(s: Session, ids: np.ndarray, taps: list[str]) -> Iterator[Step]:
    for at in range(0, len(ids), CHUNK):
        with s.capture(*taps) as arrays:
            logits = s.eval(ids[at : at + CHUNK], logits="all")
            assert logits is not None
            yield Step(dict(arrays), logits)


def _lock_step(a: Iterable[Step], b: Iterable[Step], taps: list[str]) -> dict[str, Any]:
    """Errors of b's taps against a's, and the mean KL of what both say, over the same tokens in the same chunks."""
    sums = {t: TapError() for t in taps}
    kl = []
    for x, y in zip(a, b):
        for t in taps:
            sums[t].add(x.taps[t], y.taps[t])
        kl.append(_core._contrast_rows(x.logits, y.logits, np.zeros(len(x.logits), np.int32))["kl"])
    return {"taps": {t: s.record() for t, s in sums.items()}, "kl_mean": float(np.concatenate(kl).mean())}


COLUMNS = ("tap", "relative error", "cosine", "SNR dB", "max error")
BORN = ("layer", "born", "arrives", "growth", "KL")
ALONE = "each layer changed alone: its error at its own output, and at the final norm"


class LayerComparison:
    """What compare_layers() measured.

    rows  per tap: tap, layer, op, relative_error, cosine, snr_db, max_error
    born  per layer that was changed alone: error_born at its own output, error_arrives at the final norm, growth (their
          ratio), kl_mean. None when it was not measured, and born_why says why
    """

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.record["taps"]
        return rows

    @property
    def born(self) -> Optional[list[dict[str, Any]]]:
        rows: Optional[list[dict[str, Any]]] = self.record["born"]
        return rows

    def to_dict(self) -> dict[str, Any]:
        return self.record

    def to_json(self) -> str:
        return json.dumps(plain(self.record), allow_nan=False)

    def to_pandas(self) -> Any:
        """A pandas DataFrame with one row per tap."""
        from rooflm._optional import need

        return need("pandas").DataFrame(self.rows)

    def by_op(self, op: str = "resid_post") -> list[dict[str, Any]]:
        """Rows of one operation by layer, such as "resid_post", "attn_out", "ffn_act"."""
        rows = [r for r in self.rows if r["op"] == op]
        if not rows:
            raise ValueError(
                f"op={op!r} was not tapped; there are {', '.join(dict.fromkeys(r['op'] for r in self.rows))}"
            )
        return rows

    def _used(self) -> str:
        r = self.record
        every = r["tokens"] == r["text_tokens"]
        return f"{r['tokens']} tokens" if every else f"the first {r['tokens']} of {r['text_tokens']} tokens"

    def _tap_rows(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {
                "tap": r["tap"],
                "relative error": r["relative_error"],
                "cosine": r["cosine"],
                "SNR dB": r["snr_db"],
                "max error": r["max_error"],
            }
            for r in rows
        ]

    def _born_rows(self) -> list[dict[str, Any]]:
        return [
            {
                "layer": r["layer"],
                "born": r["error_born"],
                "arrives": r["error_arrives"],
                "growth": r["growth"],
                "KL": r["kl_mean"],
            }
            for r in self.born or []
        ]

    def _head(self) -> str:
        r = self.record
        return f"{r['b']} against {r['a']}, {self._used()}, mean KL {r['kl_mean']:.3g} nats"

    def __repr__(self) -> str:
        lines = [
            self._head(),
            table(self._tap_rows([t for t in self.rows if t["op"] in SHOWN] or self.rows), COLUMNS),
        ]
        if self.born:
            lines += [
                ALONE,
                table(self._born_rows(), BORN),
            ]
        elif self.record["born_why"]:
            lines.append(f"errors of single layers: {self.record['born_why']}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        taps = f"<p>{html.escape(self._head())}</p>{html_table(self._tap_rows(self.rows), COLUMNS)}"
        return f"{taps}<p>{ALONE}</p>{html_table(self._born_rows(), BORN)}" if self.born else taps

    def plot(self, ax: Optional[Axes] = None, *, op: str = "resid_post") -> Axes:
        """Relative error of one operation by layer, and what each layer adds by itself where that was measured."""
        a = axes(ax, figsize=(7, 4))
        rows = self.by_op(op)
        points = [(-1 if r["layer"] is None else r["layer"], r["relative_error"]) for r in rows if r["relative_error"]]
        if points:
            a.plot(*zip(*points), marker="o", label=f"{op}, all layers changed")
        born = [r for r in self.born or [] if r["error_born"]]
        if born:
            a.bar(
                [r["layer"] for r in born], [r["error_born"] for r in born], alpha=0.4, label="born in this layer alone"
            )
            arrives = [(r["layer"], r["error_arrives"]) for r in born if r["error_arrives"]]
            if arrives:
                a.plot(*zip(*arrives), "x", color="tab:red", label="that error at the final norm")
        if points or born:
            plain_log(a, "y")
            a.locator_params(axis="x", integer=True)
            a.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)  # below the picture
        a.set(xlabel="layer", ylabel="relative error, root of squares")
        r = self.record
        a.set_title(f"{r['b']} against {r['a']}\n{self._used()}, mean KL {r['kl_mean']:.3g} nats")
        return a


SHOWN = ("embed", "resid_post", "final_norm")


@checked_keywords
def compare_layers(
    a: Candidate,
    b: Candidate,
    tokens: TextOrTokens,
    *,
    limit: int = 128,
    taps: str = "*",
    isolate: bool = True,
    compute: str = "f32",
    kv: str = "f32",
    n_threads: Optional[int] = None,
    progress: ProgressArg = None,
) -> LayerComparison:
    """Evaluates the same tokens in two models or settings and compares every tap of both.

        rooflm.compare_layers("f16.gguf", "q4.gguf", "Some text to look at.")
        rooflm.compare_layers({"model": "m.gguf"}, {"compute": "int8"}, text)

    a, b         as in rooflm.compare(): errors are those of b against a. Both run on the exact path unless they say
                 otherwise
    tokens       a text, a file or ids
    limit        how many of the tokens are used, from the first
    taps         a pattern over Model.taps(); attention weights are left out unless it names them
    isolate      then change one layer alone at a time, its tensors and its compute, all else as in a: where an error is
                 born, and what is left of it at the end. Costs an evaluation of the tokens for each layer, and
                 memory for one logit of each token and id
    compute, kv  of both, where they say nothing else

    relative_error is the root of the sum of squared differences over the sum of squares in a; snr_db its square in
    decibels (None where nothing differs); cosine that of all values of the tap as one vector.
    """
    opener = Opener()
    base = Setting(_model_of(a, opener), {**DEFAULTS, "compute": compute, "kv": kv})
    first = opener.setting(a, base, "compare_layers")
    second = opener.setting(b, Setting(first.model, dict(base.options)), "compare_layers")
    check_vocabulary(first.model, second.model)
    at_least(1, limit=limit)
    every = as_tokens(tokens, lambda: first.model.tokenizer)
    ids = every[:limit]
    if not len(ids):
        raise ValueError("compare_layers needs at least one token")
    names = _common_taps(first.model, second.model, taps)
    with (
        first.session(n_ctx=len(ids), n_threads=n_threads) as x,
        second.session(n_ctx=len(ids), n_threads=n_threads) as y,
    ):
        whole = _lock_step(_steps(x, ids, names), _steps(y, ids, names), names)
        born, why = None, None if isolate else "not asked for"
        if isolate:
            why = _why_not_isolated(first, second)
            if why is None:
                x.rewind(0)
                outputs = [f"blk.{i}.resid_post" for i in range(first.model.n_layer)]
                golden = list(_steps(x, ids, [*outputs, "final_norm"]))
                born = _isolate(first, second, golden, ids, n_threads, progress)
    rows = []
    for tap, errors in whole["taps"].items():
        layer, op = split_name(tap)
        rows.append({"tap": tap, "layer": layer, "op": op, **errors})
    return LayerComparison(
        {
            "schema": 1,
            "a": first.file,
            "b": second.label(first),
            "a_settings": first.options,
            "b_settings": second.options,
            "tokens": len(ids),
            "text_tokens": len(every),
            "kl_mean": whole["kl_mean"],
            "taps": rows,
            "born": born,
            "born_why": why,
        }
    )


def _model_of(value: Candidate, opener: Opener) -> Model:
    if isinstance(value, (str, os.PathLike, Model)):
        return opener.model(value)
    if "model" not in value:
        raise ValueError('a needs a "model": a path or a rooflm.Model')
    return opener.model(value["model"])


def _common_taps(a: Model, b: Model, pattern: str) -> list[str]:

    shapes_a, shapes_b = ({t["name"]: t["shape"] for t in m.taps()} for m in (a, b))
    names = [n for n in shapes_a if shapes_b.get(n) == shapes_a[n] and fnmatch.fnmatchcase(n, pattern)]
    if "attn_weights" not in pattern:
        names = [n for n in names if not n.endswith("attn_weights")]
    if not names:
        raise ValueError(f"taps={pattern!r} matches nothing that both models have; Model.taps() lists them")
    return names


def _why_not_isolated(a: Setting, b: Setting) -> Optional[str]:
    if a.model.n_layer != b.model.n_layer:
        return f"the models have {a.model.n_layer} and {b.model.n_layer} layers"
    other = [k for k in b.changed(a.options) if k != "compute"]
    if other:
        return f"{', '.join(other)} cannot be changed in one layer alone"
    return None


def _rules(compute: Any) -> dict[str, str]:
    return dict(compute) if isinstance(compute, dict) else {"*": compute}


def _rules_of_layer(compute: Any, prefix: str) -> dict[str, str]:
    """The same choice, of one layer's operations alone."""
    rules = _rules(compute)
    if any(k.startswith("blk.") for k in rules):
        return {k: v for k, v in rules.items() if k.startswith(prefix)}
    return {prefix + k: v for k, v in rules.items() if k != "output"}


def _isolated(a: Setting, b: Setting) -> Iterator[tuple[int, Setting]]:
    """For each layer, a with the tensors and the compute that b has there."""
    own, theirs = a.model.gguf.tensors, b.model.gguf.tensors
    for i in range(a.model.n_layer):
        prefix = f"blk.{i}."
        model = a.model
        if a.model is not b.model:
            swapped = {n: t for n, t in theirs.items() if n.startswith(prefix) and n in own}
            model = Model(a.model.gguf, replace=swapped)
        options = dict(a.options)
        if a.options["compute"] != b.options["compute"]:
            options["compute"] = {**_rules(a.options["compute"]), **_rules_of_layer(b.options["compute"], prefix)}
        yield i, Setting(model, options)


def _isolate(
    a: Setting, b: Setting, golden: list[Step], ids: np.ndarray, n_threads: Optional[int], progress: ProgressArg
) -> list[dict[str, Any]]:
    """Each layer alone against what the reference said, which is evaluated once."""
    rows = []
    bar = Progress(a.model.n_layer, progress)
    try:
        for layer, setting in _isolated(a, b):
            bar.show(f"layer {layer} alone")
            at = f"blk.{layer}.resid_post"
            taps = [at, "final_norm"]
            with setting.session(n_ctx=len(ids), n_threads=n_threads) as s:
                found = _lock_step(golden, _steps(s, ids, taps), taps)
            born, arrives = (found["taps"][t]["relative_error"] for t in taps)
            rows.append(
                {
                    "layer": layer,
                    "error_born": born,
                    "error_arrives": arrives,
                    "growth": arrives / born if born and arrives is not None else None,
                    "kl_mean": found["kl_mean"],
                }
            )
            bar.step()
    finally:
        bar.close()
    return rows
