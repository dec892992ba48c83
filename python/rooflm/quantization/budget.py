# SPDX-License-Identifier: Apache-2.0
"""Where the loss of a quantization comes from.

What users call the loss is several errors at once: the weights of the file, the activations that the kernels
quantize, the KV cache, and what else was traded for speed. Each is measured alone, against the exact path of the
reference (float32 activations and cache), and the whole is measured again with each left out. KL does not add up: what
the whole has beyond the sum of the single errors is the interaction, a bar of its own that may be negative.

Floats are multiplied without quantizing activations. So where the reference is a file of floats, the error of the
activations alone is measured on the weights of the file in use, against their own exact path.
"""

from __future__ import annotations

import html
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from rooflm._keywords import checked_keywords
from rooflm._optional import axes
from rooflm._output import html_table, plain, table
from rooflm._progress import Progress, ProgressArg
from rooflm._text import TextOrTokens
from rooflm.quantization.compare import MIN_WINDOWS, mean_interval, positive_interval
from rooflm.quantization.settings import (
    DEFAULTS,
    ModelArg,
    Opener,
    Setting,
    Windows,
    check_finite,
    check_vocabulary,
    stream,
    windows_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rooflm.model import Model

# Groups of operations that share an input, by the names of Session.kernels().
OPERATIONS = {
    "head": ("output",),
    "qkv": ("attn_q", "attn_k", "attn_v"),
    "attention out": ("attn_output",),
    "gate and up": ("ffn_gate", "ffn_up", "ffn_gate_exps", "ffn_up_exps", "ffn_gate_shexp", "ffn_up_shexp"),
    "down": ("ffn_down", "ffn_down_exps", "ffn_down_shexp"),
}
QUERY_POSITIONS = 64  # at the end of each window, decoded in steps small enough to read the cache as it is stored
QUERY_STEP = 8


@dataclass(frozen=True)
class Source:
    """One error: its name, and what it does to a setting that is exact so far."""

    name: str
    apply: Callable[[Setting], Setting]
    of_activations: bool = False


def _with(setting: Setting, **options: Any) -> Setting:
    return Setting(setting.model, {**setting.options, **options})


def _operations_of(model: Model) -> set[str]:
    with model.session(n_ctx=1, n_batch=1) as s:
        return {str(row["op"]) for row in s.kernels()}


def _activation_source(group: str, names: list[str], compute: str) -> Source:
    def apply(s: Setting) -> Setting:
        had = s.options["compute"]
        rules = dict(had) if isinstance(had, dict) else {"*": had}
        return _with(s, compute={**rules, **{n: compute for n in names}})

    return Source(group, apply, True)


def sources_of(
    reference: Model, model: Model, compute: str, kv: str, options: dict[str, Any], by_operation: bool
) -> list[Source]:
    """The errors that these settings commit."""
    found = []
    if model is not reference:
        found.append(Source("weights", lambda s: Setting(model, dict(s.options))))
    if compute != "f32" and by_operation:
        have = _operations_of(model)
        for group, names in OPERATIONS.items():
            present = [n for n in names if n in have]
            if present:
                found.append(_activation_source(group, present, compute))
    elif compute != "f32":
        found.append(Source("activations", lambda s: _with(s, compute=compute), True))
    k, _, v = kv.partition("/")
    v = v or k
    if by_operation and (k, v) != ("f32", "f32"):
        if k != "f32":
            found.append(Source("K", lambda s: _with(s, kv=f"{k}/{s.options['kv'].rpartition('/')[2]}")))
        if v != "f32":
            found.append(Source("V", lambda s: _with(s, kv=f"{s.options['kv'].partition('/')[0]}/{v}")))
    elif (k, v) != ("f32", "f32"):
        found.append(Source("KV cache", lambda s: _with(s, kv=kv)))
    for name, label in (("window", "attention window"), ("rope_base", "RoPE base")):
        if options[name] is not None:
            found.append(Source(label, lambda s, n=name: _with(s, **{n: options[n]})))  # type: ignore[misc]
    return found


COLUMNS = ("source", "KL alone", "95 % interval", "left out of the whole", "95 % interval of that")


class ErrorBudget:
    """What error_budget() measured. kl: {name: (windows,) mean KL of each window}, under "whole", the name of each
    source, and "without NAME". on_model: sources whose error alone is that on the weights of the file in use."""

    def __init__(
        self, head: dict[str, Any], windows: Windows, names: list[str], kl: dict[str, np.ndarray], on_model: list[str]
    ) -> None:
        self.head, self.windows, self.names, self.kl, self.on_model = head, windows, names, kl, on_model

    @property
    def interaction(self) -> np.ndarray:
        """Per window, the whole less the sum of the sources alone."""
        return np.asarray(self.kl["whole"] - np.sum([self.kl[n] for n in self.names], axis=0))

    def sources(self) -> list[dict[str, Any]]:
        """Per source: kl_alone, on the weights of the "reference" or the "model" (alone_on), and kl_left_out (of the
        whole without it; None when not measured), with intervals."""
        rows = []
        for name in [*self.names, *(n for n in ("query",) if n in self.kl)]:
            without = self.kl.get(f"without {name}")
            rows.append(
                {
                    "source": name,
                    "alone_on": "model" if name in self.on_model else "reference",
                    "kl_alone": float(self.kl[name].mean()),
                    "kl_alone_ci95": positive_interval(self.kl[name]),
                    "kl_left_out": None if without is None else float(without.mean()),
                    "kl_left_out_ci95": None if without is None else positive_interval(without),
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1,
            **self.head,
            **self.windows.record(),
            "sources": self.sources(),
            "kl_whole": float(self.kl["whole"].mean()),
            "kl_whole_ci95": positive_interval(self.kl["whole"]),
            "interaction": float(self.interaction.mean()),
            "interaction_ci95": mean_interval(self.interaction),
            "enough_windows": len(self.windows) >= MIN_WINDOWS,
        }

    def to_json(self) -> str:
        return json.dumps(plain(self.to_dict()), allow_nan=False)

    def _rows(self) -> list[dict[str, Any]]:
        def interval(ci: Optional[list[float]]) -> str:
            return "-" if ci is None else f"[{ci[0]:.2g}, {ci[1]:.2g}]"

        rows: list[dict[str, Any]] = [
            {
                "source": r["source"] + (" (decode only)" if r["source"] == "query" else ""),
                "KL alone": r["kl_alone"],
                "95 % interval": interval(r["kl_alone_ci95"]),
                "left out of the whole": r["kl_left_out"],
                "95 % interval of that": interval(r["kl_left_out_ci95"]),
            }
            for r in self.sources()
        ]
        d = self.to_dict()
        rows.append(
            {"source": "interaction", "KL alone": d["interaction"], "95 % interval": interval(d["interaction_ci95"])}
        )
        rows.append({"source": "whole", "KL alone": d["kl_whole"], "95 % interval": interval(d["kl_whole_ci95"])})
        return rows

    def _title(self) -> str:
        h, w = self.head, self.windows
        return (
            f"{h['model']} (compute {h['compute']}, kv {h['kv']}) against {h['reference']} on the exact path; "
            f"{len(w)} windows of {w.ctx} tokens, KL in nats"
        )

    def _note(self) -> str:
        if not self.on_model:
            return ""
        return (
            f"{', '.join(self.on_model)} alone: on the weights of {self.head['model']}, as those of "
            f"{self.head['reference']} are multiplied as floats"
        )

    def __repr__(self) -> str:
        return f"{self._title()}\n{table(self._rows(), COLUMNS)}\n{self._note()}".rstrip()

    def _repr_html_(self) -> str:
        title, note = html.escape(self._title()), html.escape(self._note())
        return f"<p>{title}</p>{html_table(self._rows(), COLUMNS)}<p>{note}</p>"

    def plot(self, ax: Optional[Axes] = None) -> Axes:
        """A bar for each source alone, the interaction, and the whole, with 95 % intervals over windows; diamonds show
        what the whole loses when the source is left out."""
        a = axes(ax, figsize=(7, 2 + 0.35 * len(self.names)))
        d = self.to_dict()
        bars = [(r["source"], r["kl_alone"], r["kl_alone_ci95"], r["kl_left_out"]) for r in d["sources"]]
        bars.append(("interaction", d["interaction"], d["interaction_ci95"], None))
        bars.append(("whole", d["kl_whole"], d["kl_whole_ci95"], None))
        labelled = False
        for i, (_, mean, ci, left_out) in enumerate(bars):
            error = None if ci is None else [[max(mean - ci[0], 0)], [max(ci[1] - mean, 0)]]
            a.barh(i, mean, xerr=error, capsize=3, color="tab:gray" if i >= len(bars) - 2 else "tab:blue")
            if left_out is not None:
                saved = d["kl_whole"] - left_out
                a.plot(saved, i, "D", color="tab:orange", label=None if labelled else "less KL of the whole without it")
                labelled = True
        a.set_yticks(range(len(bars)), [b[0] for b in bars])
        a.invert_yaxis()
        a.axvline(0, color="black", linewidth=0.8)
        a.set_xlabel("mean KL(exact reference || setting), nats")
        n = f"{len(self.windows)} windows of {self.windows.ctx} tokens"
        a.set_title(f"{d['model']}, compute {d['compute']}, kv {d['kv']}\n{n}; 95 % intervals")
        if labelled:
            a.legend(fontsize="small")
        return a


@checked_keywords
def error_budget(
    model: ModelArg,
    text: TextOrTokens,
    *,
    reference: Optional[ModelArg] = None,
    compute: str = "auto",
    kv: str = "f16",
    window: Optional[int] = None,
    rope_base: Optional[float] = None,
    by_operation: bool = False,
    left_out: bool = True,
    ctx: int = 512,
    windows: Optional[int] = None,
    n_threads: Optional[int] = None,
    progress: ProgressArg = None,
) -> ErrorBudget:
    """Splits the loss of a file under a setting into its sources; see this module's docstring.

        rooflm.error_budget("q4.gguf", Path("text.txt"), reference="f16.gguf", kv="q8_0", windows=20).plot()

    model         the file in use; reference: the file it was made from (None: its own weights count as right)
    compute, kv, window, rope_base
                  the setting in use, as in Model.session(); what is exact there ("f32", None) is no source
    by_operation  activations by head, QKV, attention out, gate and up, down; K and V apart; and where K is q8_0 the
                  query, which is rounded in decoding alone and so stands outside the whole
    left_out      also measure the whole without each source
    ctx, windows  as in rooflm.compare()

    KL is that of KL(exact reference || setting) in nats, as the mean over windows with a 95 % interval.
    ValueError when the setting is exact and the file its own reference: then there is no error to split.
    """
    opener = Opener()
    used = opener.model(model)
    ref = used if reference is None else opener.model(reference)
    check_vocabulary(ref, used)
    sources = sources_of(ref, used, compute, kv, {"window": window, "rope_base": rope_base}, by_operation)
    if not sources:
        raise ValueError(
            "compute 'f32' and kv 'f32' on the reference's own weights is the exact path: nothing to split"
        )
    exact = Setting(ref, {**DEFAULTS, "compute": "f32", "kv": "f32"})
    names = [s.name for s in sources]
    # Each set of sources is measured once: with two, "without one" is the other alone.
    wanted: dict[str, frozenset[str]] = {"whole": frozenset(names)}
    on_model: list[str] = []
    if used is not ref:
        of_exact = _kernels(exact)
        on_model = [s.name for s in sources if s.of_activations and _kernels(s.apply(exact)) == of_exact]
    wanted.update({n: frozenset([n]) for n in names})
    if left_out:
        wanted.update({f"without {n}": frozenset(names) - {n} for n in names})
    sets = list(dict.fromkeys(s for n, s in wanted.items() if s and n not in on_model))
    cut = windows_of(ref, text, ctx, windows, "error_budget")
    start = time.perf_counter()
    measured = _measure(exact, [_apply(exact, sources, s) for s in sets], cut, n_threads, progress)
    by_set = {frozenset(): np.zeros(len(cut)), **dict(zip(sets, measured))}
    alone: dict[str, np.ndarray] = {}
    if on_model:
        own = Setting(used, dict(exact.options))
        settings = [s.apply(own) for s in sources if s.name in on_model]
        alone = dict(zip(on_model, _measure(own, settings, cut, n_threads, progress)))
    kl = {name: alone[name] if name in alone else by_set[s] for name, s in wanted.items()}
    if by_operation and kv.partition("/")[0] == "q8_0":
        kl["query"] = query_kl(ref, cut, n_threads)
    head = {
        "model": Setting(used).file,
        "reference": exact.file,
        "compute": compute,
        "kv": kv,
        "window": window,
        "rope_base": rope_base,
        "seconds": time.perf_counter() - start,
    }
    return ErrorBudget(head, cut, names, kl, on_model)


def _kernels(setting: Setting) -> list[str]:
    """What multiplies each matrix of a prompt."""
    with setting.session(n_ctx=64) as s:
        return [row["kernel"] for row in s.kernels(64)]


def _apply(exact: Setting, sources: list[Source], on: frozenset[str]) -> Setting:
    setting = exact
    for s in sources:
        if s.name in on:
            setting = s.apply(setting)
    return setting


def _measure(
    exact: Setting, settings: list[Setting], cut: Windows, n_threads: Optional[int], progress: ProgressArg
) -> list[np.ndarray]:
    """Mean KL of each window, of each setting."""
    sessions = []
    bar = Progress(len(cut), progress)

    def before(i: int) -> None:
        bar.show(f"window {i + 1} of {len(cut)}, {len(settings)} settings")
        if i:
            bar.step()

    try:
        for s in (exact, *settings):
            sessions.append(s.session(n_ctx=cut.ctx, n_threads=n_threads))
        return [a["kl"].mean(axis=1) for a in stream(sessions[0], sessions[1:], cut, before)]
    finally:
        bar.close()
        for session in sessions:
            session.close()


def query_kl(model: Model, cut: Windows, n_threads: Optional[int] = None) -> np.ndarray:
    """What rounding the query costs, per window: a q8_0 K cache read by small steps, which round q to int16, against
    the same cache read by a large one, which does not. The last QUERY_POSITIONS positions of each window are scored."""
    n = min(QUERY_POSITIONS, cut.ctx - 1)
    at = cut.ctx - 1 - n
    shape: dict[str, Any] = {"n_ctx": cut.ctx, "n_threads": n_threads, "compute": "f32", "kv": "q8_0/f32"}
    out = []
    with model.session(**shape) as large, model.session(**shape) as small:
        for window in cut.ids:
            for s in (large, small):
                s.rewind(0)
                if at:
                    s.eval(window[:at], logits="none")
            logits = large.eval(window[at : at + n], logits="all")
            assert logits is not None
            parts = []
            for i in range(0, n, QUERY_STEP):
                piece = window[at + i : at + min(i + QUERY_STEP, n)]
                following = window[at + i + 1 : at + i + 1 + len(piece)]
                parts.append(small._c._contrast(piece, logits[i : i + len(piece)], following, 0)["kl"])
            kl = np.concatenate(parts)
            check_finite({"kl": kl[None]}, small, cut)
            out.append(float(kl.mean()))
    return np.array(out)
