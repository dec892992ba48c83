# SPDX-License-Identifier: Apache-2.0
"""How far the distributions of a model are from those of a reference, on the same text, in one process.

The text is cut as rooflm.perplexity cuts it: windows of `ctx` tokens without overlap, BOS in front where the vocabulary
asks for it, the second half of each scored. For every scored position

    KL(reference || model) = sum over the vocabulary of p (ln p - ln q)    nats, in float64 from float32 logits

Tokens of one text are correlated, so intervals come from the means of the windows (Student's t, 95 %), and differences
are taken within each window before that (paired). Fewer than MIN_WINDOWS windows give figures and no verdict.
"""

from __future__ import annotations

import html
import json
import math
import time
import warnings
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Optional, Sequence, Union

import numpy as np

from rooflm import stats
from rooflm._keywords import checked_keywords
from rooflm._optional import axes
from rooflm._output import html_table, plain, table
from rooflm._progress import Progress, ProgressArg
from rooflm._text import TextOrTokens
from rooflm.measuring.grid import settings_of
from rooflm.quantization.settings import (
    DEFAULTS,
    Candidate,
    Opener,
    Setting,
    Windows,
    check_vocabulary,
    stream,
    windows_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIN_WINDOWS = 20  # for a verdict
WARN_KL = 0.1  # nats: what a changed RoPE base, window or eviction may cost before a warning says so


def mean_interval(values: np.ndarray) -> Optional[list[float]]:
    """95 % interval of the mean of window means; None with one window."""
    interval = stats.t_interval([float(v) for v in values])
    return None if interval is None else [interval[0], interval[1]]


def positive_interval(values: np.ndarray, most: float = math.inf) -> Optional[list[float]]:
    """The same for what lies between 0 and `most`: a KL, or a share."""
    interval = mean_interval(values)
    return None if interval is None else [max(interval[0], 0.0), min(interval[1], most)]


class Contrast:
    """One model or setting against the reference. Arrays are (windows, scored positions):

    kl               KL(reference || model), nats
    logp_ref, logp   log-probability of the token that follows, nats
    top1             whether both have the same likeliest token
    top5             share of the five likeliest tokens that both have
    """

    def __init__(
        self, reference: Setting, setting: Setting, windows: Windows, arrays: Mapping[str, np.ndarray], seconds: float
    ) -> None:
        self.reference, self.setting, self.windows, self.seconds = reference, setting, windows, seconds
        self.kl = arrays["kl"]
        self.logp_ref, self.logp = arrays["logp"], arrays["logq"]
        self.top1 = arrays["top_p"] == arrays["top_q"]
        self.top5 = arrays["shared"] / min(5, setting.model.n_vocab)
        self.name = setting.label(reference)
        self.warnings: list[str] = self._measured_warnings()

    @property
    def dp(self) -> np.ndarray:
        """Change of the probability of the token that follows, from -1 to 1."""
        return np.asarray(np.exp(self.logp) - np.exp(self.logp_ref))

    def _measured_warnings(self) -> list[str]:
        kl = float(self.kl.mean())
        if kl < WARN_KL:
            return []
        changed = {k: v for k, v in self.setting.changed(self.reference.options).items() if v is not None}
        return [
            f"{key}={changed[key]} instead of the file's own: with it the mean KL to the reference is {kl:.3g} nats, "
            f"perplexity {math.exp(-float(self.logp.mean())):.4g} for {math.exp(-float(self.logp_ref.mean())):.4g}"
            for key in ("rope_base", "window", "evict")
            if key in changed
        ]

    def verdict(self) -> Optional[str]:
        """In words whether perplexity differs; None below MIN_WINDOWS windows."""
        if len(self.windows) < MIN_WINDOWS:
            return None
        interval = mean_interval((self.logp_ref - self.logp).mean(axis=1))
        assert interval is not None
        if interval[0] > 0:
            return "worse than the reference on this text"
        if interval[1] < 0:
            return "better than the reference on this text"
        return "no difference in perplexity that this text can show"

    def per_window(self) -> list[dict[str, Any]]:
        """One record per window: kl_mean, ppl_ref, ppl, top1, dp_rms."""
        return [
            {
                "window": i,
                "kl_mean": float(self.kl[i].mean()),
                "ppl_ref": math.exp(-float(self.logp_ref[i].mean())),
                "ppl": math.exp(-float(self.logp[i].mean())),
                "top1": float(self.top1[i].mean()),
                "dp_rms": float(np.sqrt((self.dp[i] ** 2).mean())),
            }
            for i in range(len(self.windows))
        ]

    @checked_keywords
    def per_position(self, bins: int = 16) -> list[dict[str, Any]]:
        """KL by position in the window, in bins: first and last position, kl_mean, kl_ci95 over windows, top1."""
        rows = []
        for part in np.array_split(np.arange(self.windows.scored), min(bins, self.windows.scored)):
            kl = self.kl[:, part]
            rows.append(
                {
                    "position": [int(self.windows.start + part[0]), int(self.windows.start + part[-1])],
                    "kl_mean": float(kl.mean()),
                    "kl_ci95": positive_interval(kl.mean(axis=1)),
                    "top1": float(self.top1[:, part].mean()),
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The record, without the single tokens."""
        nll_ref, nll = -self.logp_ref.mean(axis=1), -self.logp.mean(axis=1)
        change = nll - nll_ref
        ci_ref, ci, ci_change = (mean_interval(v) for v in (nll_ref, nll, change))
        dp, kl = self.dp, self.kl
        mean, se = stats.mean_and_se([float(v) for v in nll])
        mean_ref, se_ref = stats.mean_and_se([float(v) for v in nll_ref])

        def exponents(interval: Optional[list[float]]) -> Optional[list[float]]:
            return None if interval is None else [math.exp(v) for v in interval]

        return {
            "schema": 1,
            "reference": self.reference.file,
            "reference_settings": dict(self.reference.options),
            "model": self.setting.file,
            "name": self.name,
            "settings": dict(self.setting.options),
            **self.windows.record(),
            "ppl_ref": math.exp(mean_ref),
            "ppl_ref_ci95": exponents(ci_ref),
            "nll_ref": mean_ref,
            "nll_ref_se": se_ref,
            "ppl": math.exp(mean),
            "ppl_ci95": exponents(ci),
            "nll": mean,
            "nll_se": se,
            "ppl_ratio": math.exp(float(change.mean())),
            "ppl_ratio_ci95": exponents(ci_change),
            "kl_mean": float(kl.mean()),
            "kl_ci95": positive_interval(kl.mean(axis=1)),
            "kl_median": float(np.median(kl)),
            **{f"kl_p{str(p).replace('.', '_')}": float(np.percentile(kl, p)) for p in (1, 5, 10, 90, 95, 99, 99.9)},
            "kl_max": float(kl.max()),
            "dp_mean": float(dp.mean()),
            "dp_mean_ci95": mean_interval(dp.mean(axis=1)),
            "dp_rms": float(np.sqrt((dp**2).mean())),
            **{f"dp_p{p}": float(np.percentile(dp, p)) for p in (1, 5, 25, 50, 75, 95, 99)},
            "top1": float(self.top1.mean()),
            "top1_ci95": positive_interval(self.top1.mean(axis=1), most=1.0),
            "top5": float(self.top5.mean()),
            "per_window": self.per_window(),
            "per_position": self.per_position(),
            "verdict": self.verdict(),
            "warnings": list(self.warnings),
            "seconds": self.seconds,
        }

    def to_json(self) -> str:
        return json.dumps(plain(self.to_dict()), allow_nan=False)

    def _rows(self) -> list[dict[str, Any]]:
        d = self.to_dict()

        def with_interval(key: str, ci: str, digits: int = 4) -> str:
            text = f"{d[key]:.{digits}g}"
            return text if d[ci] is None else f"{text}  [{d[ci][0]:.{digits}g}, {d[ci][1]:.{digits}g}]"

        return [
            {"": "perplexity of the reference", "value": with_interval("ppl_ref", "ppl_ref_ci95", 6)},
            {"": "perplexity", "value": with_interval("ppl", "ppl_ci95", 6)},
            {"": "ratio, paired", "value": with_interval("ppl_ratio", "ppl_ratio_ci95", 6)},
            {"": "KL mean, nats", "value": with_interval("kl_mean", "kl_ci95")},
            {
                "": "KL median, 99 %, maximum",
                "value": f"{d['kl_median']:.4g}, {d['kl_p99']:.4g}, {d['kl_max']:.4g}",
            },
            {"": "right token's probability, RMS change", "value": f"{d['dp_rms']:.4g}"},
            {"": "same likeliest token", "value": with_interval("top1", "top1_ci95")},
            {"": "of the five likeliest in both", "value": f"{d['top5']:.4g}"},
        ]

    def _head(self) -> str:
        w = self.windows
        return (
            f"{self.name} against {self.reference.file} ({_options(self.reference.options)}); {len(w)} windows of "
            f"{w.ctx} tokens, {len(w) * w.scored} scored; [95 % interval of the window means]"
        )

    def _foot(self) -> str:
        words = self.verdict() or f"no verdict: {len(self.windows)} windows, {MIN_WINDOWS} are needed"
        return "\n".join([words, *(f"warning: {w}" for w in self.warnings)])

    def __repr__(self) -> str:
        return f"{self._head()}\n{table(self._rows(), ('', 'value'))}\n{self._foot()}"

    def _repr_html_(self) -> str:
        head, foot = html.escape(self._head()), html.escape(self._foot())
        return f"<p>{head}</p>{html_table(self._rows(), ('', 'value'))}<p>{foot}</p>"

    def plot(self, ax: Optional[Axes] = None, *, by: str = "position") -> Axes:
        """KL by "position" in the window or by "window" with 95 % intervals, or its "distribution" over tokens."""
        if by not in ("position", "window", "distribution"):
            raise ValueError(f"by={by!r}: it must be 'position', 'window' or 'distribution'")
        a = axes(ax, figsize=(7, 4))
        n = f"{len(self.windows)} windows, {self.kl.size} tokens"
        if by == "distribution":
            kl = np.sort(self.kl.ravel())
            a.plot(kl, 1 - np.arange(len(kl)) / len(kl))
            a.set(xscale="symlog" if kl[-1] <= 0 else "log", yscale="log")
            a.set(xlabel="KL(reference || model) of a token, nats", ylabel="share of tokens above")
            a.set_title(f"{self.name}\n{n}")
            return a
        if by == "position":
            rows = self.per_position()
            x = [sum(r["position"]) / 2 for r in rows]
            a.set_xlabel("position in the window, tokens")
        else:
            rows = [{"kl_mean": r["kl_mean"], "kl_ci95": None} for r in self.per_window()]
            x = [float(i) for i in range(len(rows))]
            a.set_xlabel("window")
            a.locator_params(axis="x", integer=True)
        errors = [[r["kl_mean"] - r["kl_ci95"][0], r["kl_ci95"][1] - r["kl_mean"]] for r in rows if r["kl_ci95"]]
        y = [r["kl_mean"] for r in rows]
        a.errorbar(x, y, yerr=np.transpose(errors) if errors else None, fmt="o", capsize=3)
        a.set_ylabel("mean KL(reference || model), nats")
        a.set_title(f"{self.name}\n{n}" + ("; bars: 95 % interval over windows" if errors else ""))
        a.set_ylim(bottom=0)
        return a


def _options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in options.items() if v != DEFAULTS[k] or k in ("compute", "kv"))


COLUMNS = ("name", "ppl", "ratio", "KL mean", "KL 95 %", "KL median", "KL max", "dp rms", "top1", "top5")


class Comparison(Sequence[Contrast]):
    """Several models or settings against one reference: a sequence of Contrast."""

    def __init__(self, contrasts: Sequence[Contrast]) -> None:
        self.contrasts = list(contrasts)

    def __getitem__(self, i: Any) -> Any:
        return self.contrasts[i]

    def __len__(self) -> int:
        return len(self.contrasts)

    def __iter__(self) -> Iterator[Contrast]:
        return iter(self.contrasts)

    def to_dict(self) -> dict[str, Any]:
        return {"schema": 1, "records": [c.to_dict() for c in self.contrasts]}

    def to_json(self) -> str:
        return json.dumps(plain(self.to_dict()), allow_nan=False)

    def to_pandas(self) -> Any:
        """A pandas DataFrame with one row per model or setting."""
        from rooflm._optional import need

        rows = [c.to_dict() for c in self.contrasts]
        return need("pandas").DataFrame([{k: v for k, v in r.items() if not k.startswith("per_")} for r in rows])

    @checked_keywords
    def paired(self, a: int = 0, b: int = 1) -> dict[str, Any]:
        """Contrast b less contrast a, window by window: change of the mean KL and of nll, with 95 % intervals."""
        x, y = self.contrasts[a], self.contrasts[b]
        kl, nll = (y.kl - x.kl).mean(axis=1), (x.logp - y.logp).mean(axis=1)
        return {
            "a": x.name,
            "b": y.name,
            "kl_change": float(kl.mean()),
            "kl_change_ci95": mean_interval(kl),
            "nll_change": float(nll.mean()),
            "nll_change_ci95": mean_interval(nll),
            "windows": len(kl),
            "enough": len(kl) >= MIN_WINDOWS,
        }

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for c in self.contrasts:
            d = c.to_dict()
            interval = "-" if d["kl_ci95"] is None else f"[{d['kl_ci95'][0]:.3g}, {d['kl_ci95'][1]:.3g}]"
            rows.append(
                {
                    "name": c.name,
                    "ppl": d["ppl"],
                    "ratio": f"{d['ppl_ratio']:.4f}",
                    "KL mean": d["kl_mean"],
                    "KL 95 %": interval,
                    "KL median": d["kl_median"],
                    "KL max": d["kl_max"],
                    "dp rms": d["dp_rms"],
                    "top1": d["top1"],
                    "top5": d["top5"],
                }
            )
        return rows

    def _head(self) -> str:
        c = self.contrasts[0]
        w = c.windows
        return (
            f"against {c.reference.file} ({_options(c.reference.options)}), perplexity "
            f"{math.exp(-float(c.logp_ref.mean())):.5g}; {len(w)} windows of {w.ctx} tokens, {c.kl.size} scored; KL in "
            "nats, with 95 % intervals of the window means"
        )

    def _notes(self) -> list[str]:
        return [f"warning: {c.name}: {w}" for c in self.contrasts for w in c.warnings]

    def __repr__(self) -> str:
        if len(self.contrasts) == 1:
            return repr(self.contrasts[0])
        return "\n".join([self._head(), table(self._rows(), COLUMNS), *self._notes()])

    def _repr_html_(self) -> str:
        if len(self.contrasts) == 1:
            return self.contrasts[0]._repr_html_()
        notes = "".join(f"<p>{html.escape(n)}</p>" for n in self._notes())
        return f"<p>{html.escape(self._head())}</p>{html_table(self._rows(), COLUMNS)}{notes}"

    def plot(self, ax: Optional[Axes] = None) -> Axes:
        """Mean KL of each with its 95 % interval over windows."""
        a = axes(ax, figsize=(7, 1.5 + 0.4 * len(self)))
        for i, c in enumerate(self.contrasts):
            mean, interval = float(c.kl.mean()), positive_interval(c.kl.mean(axis=1))
            error = None if interval is None else [[mean - interval[0]], [interval[1] - mean]]
            a.barh(i, mean, xerr=error, capsize=3)
        a.set_yticks(range(len(self)), [c.name for c in self.contrasts])
        a.invert_yaxis()
        a.set_xlabel("mean KL(reference || model), nats")
        c = self.contrasts[0]
        n = f"{len(c.windows)} windows, {c.kl.size} tokens"
        a.set_title(f"against {c.reference.file}\n{n}; bars: 95 % interval of window means")
        return a


@checked_keywords
def compare(
    reference: Candidate,
    models: Union[None, Candidate, Sequence[Candidate]] = None,
    text: TextOrTokens = "",
    *,
    ctx: int = 512,
    windows: Optional[int] = None,
    compute: Any = "int16",
    kv: Union[str, list[str]] = "f32",
    kernel: Union[None, str, list[Optional[str]]] = None,
    window: Union[None, int, list[Optional[int]]] = None,
    evict: Union[None, str, list[Optional[str]]] = None,
    rope_base: Union[None, float, list[Optional[float]]] = None,
    isa: Union[None, str, list[Optional[str]]] = None,
    n_threads: Optional[int] = None,
    progress: ProgressArg = None,
) -> Comparison:
    """Compares models or settings with a reference on a text; see this module's docstring for what is measured.

        rooflm.compare("f16.gguf", ["q4.gguf", "q8.gguf"], Path("text.txt"))
        rooflm.compare("m.gguf", None, Path("text.txt"), kv=["f32", "f16", "q8_0"])
        rooflm.compare({"model": "m.gguf", "compute": "f32"}, [{"compute": "int8"}, {"rope_base": 1e4}], text)

    reference  a Model, a path, or a dict with "model" and options of the session
    models     one or a list of the same; a dict without "model" takes the reference's. None: the reference itself,
               under the settings below
    text       str is the text itself, os.PathLike a file, an integer array tokens
    ctx        tokens per window; windows: how many from the start, default all that fit. More than there are, or a text
               shorter than one window, is a ValueError
    compute, kv, kernel, window, evict, rope_base, isa
               as in Model.session(), for the reference and the models alike, so that a model against itself gives a
               KL of exactly 0. A list sweeps: every model runs under each value, and the reference under the first
    progress   None shows a bar where tqdm is installed and somebody can see it; a function gets lines of text

    Logits are never written to disk: those of the reference are held for at most 128 MB of positions at a time.
    A changed RoPE base, a window or eviction that costs more than WARN_KL nats gives a UserWarning with what it costs.
    """
    sweeps = {
        "compute": compute,
        "kv": kv,
        "kernel": kernel,
        "window": window,
        "evict": evict,
        "rope_base": rope_base,
        "isa": isa,
    }
    combinations = list(settings_of(sweeps, function="compare"))
    opener = Opener()
    base = Setting(_first_model(reference, opener), {**DEFAULTS, **combinations[0]})
    ref = opener.setting(reference, base, "compare")
    given: Sequence[Candidate]
    if models is None:
        given = [{}]
    elif isinstance(models, (list, tuple)):
        given = models
    else:
        given = [models]  # type: ignore[list-item]
    if not given:
        raise ValueError("models=[] leaves nothing to compare")
    candidates = []
    for combination in combinations:
        base = Setting(ref.model, {**ref.options, **combination} if len(combinations) > 1 else dict(ref.options))
        candidates += [opener.setting(c, base, "compare") for c in given]
    return measure(ref, candidates, text, ctx=ctx, windows=windows, n_threads=n_threads, progress=progress)


def _first_model(reference: Candidate, opener: Opener) -> Any:
    if isinstance(reference, Mapping):
        if "model" not in reference:
            raise ValueError('the reference needs a "model": a path or a rooflm.Model')
        return opener.model(reference["model"])
    return opener.model(reference)


def measure(
    reference: Setting,
    candidates: Sequence[Setting],
    text: TextOrTokens,
    *,
    ctx: int,
    windows: Optional[int],
    n_threads: Optional[int] = None,
    progress: ProgressArg = None,
) -> Comparison:
    """What compare() does once it knows the settings."""
    for c in candidates:
        check_vocabulary(reference.model, c.model)
    cut = windows_of(reference.model, text, ctx, windows, "compare")
    sessions = []
    bar = Progress(len(cut), progress)
    begin = time.perf_counter()
    try:
        for s in (reference, *candidates):
            sessions.append(s.session(n_ctx=ctx, n_threads=n_threads))

        def before(i: int) -> None:
            bar.show(f"window {i + 1} of {len(cut)}")
            if i:
                bar.step()

        arrays = stream(sessions[0], sessions[1:], cut, before)
    finally:
        bar.close()
        for session in sessions:
            session.close()
    seconds = time.perf_counter() - begin
    contrasts = [Contrast(reference, c, cut, a, seconds) for c, a in zip(candidates, arrays)]
    for contrast in contrasts:
        for found in contrast.warnings:
            warnings.warn(f"{contrast.name}: {found}", UserWarning, stacklevel=4)
    return Comparison(contrasts)
