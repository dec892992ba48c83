# SPDX-License-Identifier: Apache-2.0
"""Perplexity, by a stated convention.

The text is encoded once and cut into windows of `ctx` tokens that do not overlap; what is left over is not scored.
Each window starts from an empty cache. Where the vocabulary asks for BOS, it replaces the first token of each window.
Positions ctx/2 to ctx - 2 are scored on the token that follows them, so each window gives ctx - ctx/2 - 1 scores, and
every scored token has seen at least half a window.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import warnings
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Union

import numpy as np

from rooflm import _core, stats
from rooflm._keywords import at_least, checked_keywords
from rooflm._output import html_table
from rooflm._text import TextOrTokens, as_tokens
from rooflm.model import Model
from rooflm.session import Session

MIN_CTX = 4


@dataclass
class Perplexity:
    """ppl = exp(nll); nll is the mean negative log-likelihood per scored token in nats.

    nll_se and ppl_interval come from the window means, because tokens of one text are correlated (None with one
    window). stderr is the naive error of ppl over tokens, as llama.cpp prints it, for comparison only.
    """

    ppl: float
    nll: float
    nll_se: Optional[float]
    stderr: Optional[float]
    ppl_interval: Optional[list[float]]
    windows: int
    windows_available: int
    tokens: int
    text_tokens: int
    ctx: int
    scored_per_window: int
    bos: bool
    compute: str
    kv: str
    n_threads: int
    seconds: float
    model: str
    schema: int = 1
    token_nll: np.ndarray = field(repr=False, default_factory=lambda: np.zeros((0, 0)))

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single tokens (token_nll, windows x scored_per_window)."""
        return {k: v for k, v in self.__dict__.items() if k != "token_nll"}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False)

    def __str__(self) -> str:
        text = f"perplexity {self.ppl:.4f}"
        if self.ppl_interval:
            text += f", 95 % interval [{self.ppl_interval[0]:.4f}, {self.ppl_interval[1]:.4f}] from window means"
        if self.stderr is not None:
            text += f" (naive stderr {self.stderr:.4f})"
        text += f"; {self.windows} windows of {self.ctx} tokens, {self.tokens} scored"
        return f"{text}; compute {self.compute}, kv {self.kv}"

    def _repr_html_(self) -> str:
        return html_table([{"figure": k, "value": v} for k, v in self.to_dict().items()], ("figure", "value"))


def cut_windows(tokens: np.ndarray, ctx: int, bos_id: Optional[int]) -> np.ndarray:
    """(windows, ctx) ids; BOS, where there is one, in place of the first token of each."""
    n = len(tokens) // ctx
    out = tokens[: n * ctx].reshape(n, ctx).copy()
    if bos_id is not None:
        out[:, 0] = bos_id
    return out


def window_nll(session: Session, window: np.ndarray) -> np.ndarray:
    """Negative log-likelihoods of the scored tokens of one window, float64."""
    session.rewind(0)
    return -session.logprobs(window, start=len(window) // 2).logprobs


@checked_keywords
def perplexity(
    model: Union[Model, Session, str, os.PathLike[str]],
    text: TextOrTokens,
    *,
    ctx: int = 512,
    windows: Optional[int] = None,
    compute: str = "int8",
    kv: str = "f16",
    n_threads: Optional[int] = None,
    progress: Optional[Callable[[int, int], None]] = None,
) -> Perplexity:
    """Perplexity of a text; the convention is that of this module's docstring.

    model     a Model, a path to one, or a Session (whose own compute, kv and threads are used, and whose content
              is lost)
    text      str is the text, os.PathLike a file, an integer array tokens
    ctx       tokens per window; windows: how many from the start, default all that fit
    progress  called with (windows done, windows)

    A text shorter than one window is a ValueError that says how many tokens it has. Asking for more windows than the
    text has scores those there are, with a FallbackWarning.
    """
    if ctx < MIN_CTX:
        raise ValueError(f"ctx={ctx}: a window needs at least {MIN_CTX} tokens, so that one can be scored")
    at_least(1, windows=windows)
    with contextlib.ExitStack() as stack:
        if isinstance(model, Session):
            session = model
            if session.n_ctx < ctx:
                raise ValueError(f"the session holds {session.n_ctx} positions, a window needs {ctx}")
        else:
            loaded = model if isinstance(model, Model) else Model(model)
            session = stack.enter_context(
                loaded.session(n_ctx=ctx, kv=kv, n_threads=n_threads, n_batch=min(ctx, 512), compute=compute)
            )
        return _measure(session, text, ctx, windows, progress)


def _measure(
    session: Session,
    text: TextOrTokens,
    ctx: int,
    windows: Optional[int],
    progress: Optional[Callable[[int, int], None]],
) -> Perplexity:
    tokenizer = session.model.tokenizer
    bos_id = tokenizer.bos_id if tokenizer.add_bos else None
    ids = as_tokens(text, lambda: tokenizer)
    cut = cut_windows(ids, ctx, bos_id)
    available = len(cut)
    if available == 0:
        raise ValueError(
            f"perplexity needs at least one window of {ctx} tokens, the text has {len(ids)}; "
            "pass a longer text or a smaller ctx"
        )
    if windows is not None and windows > available:
        warnings.warn(
            f"{windows} windows of {ctx} tokens were asked for, the text of {len(ids)} tokens has {available}",
            _core.FallbackWarning,
            stacklevel=4,
        )
    cut = cut[:windows]
    start = time.perf_counter()
    rows = []
    for i, window in enumerate(cut):
        rows.append(window_nll(session, window))
        if progress:
            progress(i + 1, len(cut))
    nll = np.stack(rows)
    means = [float(m) for m in nll.mean(axis=1)]
    mean, se = stats.mean_and_se(means)
    interval = stats.t_interval(means)
    ppl = math.exp(mean)
    return Perplexity(
        ppl=ppl,
        nll=mean,
        nll_se=se,
        stderr=ppl * float(nll.std()) / math.sqrt(nll.size - 1) if nll.size > 1 else None,
        # A perplexity below 1 cannot be, whatever the t distribution says of a few windows.
        ppl_interval=[math.exp(max(interval[0], 0.0)), math.exp(interval[1])] if interval else None,
        windows=len(cut),
        windows_available=available,
        tokens=nll.size,
        text_tokens=len(ids),
        ctx=ctx,
        scored_per_window=nll.shape[1],
        bos=bos_id is not None,
        compute=session.compute,
        kv=session.kv_type,
        n_threads=session.n_threads,
        seconds=time.perf_counter() - start,
        model=os.path.basename(session.model.gguf.path),
        token_nll=nll,
    )
