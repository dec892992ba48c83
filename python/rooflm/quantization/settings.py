# SPDX-License-Identifier: Apache-2.0
"""What is compared: a model file under settings of the session. Files are opened once, whoever names them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np

from rooflm import _core
from rooflm._keywords import at_least, unknown_keyword
from rooflm._text import TextOrTokens, as_tokens
from rooflm.model import Model
from rooflm.session import Session
from rooflm.quality import MIN_CTX, cut_windows

ModelArg = Union[Model, str, "os.PathLike[str]"]
# A model, or a dict with "model" (default the reference's), "name" and options of the session.
Candidate = Union[ModelArg, Mapping[str, Any]]

# Options of a session that change its numbers. Comparing defaults to a path whose own error is below 1e-6 nats on
# SmolLM2, so that what differs between two files is their weights.
DEFAULTS: dict[str, Any] = {
    "compute": "int16",
    "kv": "f32",
    "kernel": None,
    "window": None,
    "evict": None,
    "rope_base": None,
    "isa": None,
    "layout": "tile",
    "blas": None,
}


@dataclass
class Setting:
    """A model and how it is computed. options: those of DEFAULTS, all of them."""

    model: Model
    options: dict[str, Any] = field(default_factory=lambda: dict(DEFAULTS))
    name: Optional[str] = None

    @property
    def file(self) -> str:
        return os.path.basename(str(self.model.gguf.path))

    def session(self, *, n_ctx: int, n_threads: Optional[int] = None) -> Session:
        return self.model.session(n_ctx=n_ctx, n_batch=min(n_ctx, 512), n_threads=n_threads, **self.options)

    def changed(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """Options that differ from base."""
        return {k: v for k, v in self.options.items() if v != base.get(k)}

    def label(self, reference: Setting) -> str:
        """Its name, or the file and what differs from the reference."""
        if self.name:
            return self.name
        changed = ", ".join(f"{k} {v}" for k, v in self.changed(reference.options).items())
        if self.model is reference.model:
            return changed or "the reference itself"
        return f"{self.file}, {changed}" if changed else self.file


class Opener:
    """Models by path, each opened once."""

    def __init__(self) -> None:
        self._open: dict[str, Model] = {}

    def model(self, value: ModelArg) -> Model:
        if isinstance(value, Model):
            return value
        if not isinstance(value, (str, os.PathLike)):
            raise TypeError(f"a model is a rooflm.Model or a path, not {type(value).__name__}")
        path = os.path.realpath(os.fspath(value))
        if path not in self._open:
            self._open[path] = Model(value)
        return self._open[path]

    def setting(self, value: Candidate, base: Setting, function: str) -> Setting:
        """A candidate, with base's model and options where it says nothing else."""
        if not isinstance(value, Mapping):
            return Setting(self.model(value), dict(base.options))
        options = dict(base.options)
        for key, v in value.items():
            if key in ("model", "name"):
                continue
            if key not in options:
                raise unknown_keyword(f"{function}: a setting", key, ["model", "name", *options])
            options[key] = v
        model = self.model(value["model"]) if "model" in value else base.model
        return Setting(model, options, value.get("name"))


def check_vocabulary(reference: Model, other: Model) -> None:
    """ValueError unless both give ids the same meaning."""
    if reference is other:
        return
    if reference.n_vocab != other.n_vocab:
        raise ValueError(
            f"{reference.gguf.path} has logits for {reference.n_vocab} tokens and {other.gguf.path} for "
            f"{other.n_vocab}: only models with the same vocabulary can be compared"
        )
    key = "tokenizer.ggml.tokens"
    a, b = (m.gguf.metadata.get(key) for m in (reference, other))
    if a is not None and b is not None and list(a) != list(b):
        raise ValueError(
            f"{reference.gguf.path} and {other.gguf.path} have vocabularies of the same size with other tokens: "
            "they cannot be compared"
        )


@dataclass
class Windows:
    """Windows of a text by the convention of rooflm.perplexity, and what a record says about them."""

    ids: np.ndarray  # (windows, ctx)
    available: int
    text_tokens: int
    bos: bool
    source: str

    @property
    def ctx(self) -> int:
        return int(self.ids.shape[1])

    @property
    def start(self) -> int:
        """First position whose following token is scored."""
        return self.ctx // 2

    @property
    def scored(self) -> int:
        """Scores of each window."""
        return self.ctx - self.start - 1

    def __len__(self) -> int:
        return len(self.ids)

    def record(self) -> dict[str, Any]:
        return {
            "text": self.source,
            "text_tokens": self.text_tokens,
            "ctx": self.ctx,
            "windows": len(self.ids),
            "windows_available": self.available,
            "overlap": 0,
            "bos": self.bos,
            "scored_positions": [self.start, self.ctx - 2],
            "tokens": len(self.ids) * self.scored,
        }


def windows_of(model: Model, text: TextOrTokens, ctx: int, windows: Optional[int], function: str) -> Windows:
    """The text cut into windows; a ValueError that says how many tokens there are when none or too few fit."""
    if ctx < MIN_CTX:
        raise ValueError(f"ctx={ctx}: a window needs at least {MIN_CTX} tokens, so that one can be scored")
    at_least(1, windows=windows)
    # Of a model that only takes ids nobody asks for a tokenizer; it has no BOS to put in, either.
    has_vocabulary = model.gguf.metadata.get("tokenizer.ggml.tokens") is not None
    tokenizer = model.tokenizer if has_vocabulary else None
    bos_id = tokenizer.bos_id if tokenizer is not None and tokenizer.add_bos else None
    ids = as_tokens(text, lambda: model.tokenizer)
    cut = cut_windows(ids, ctx, bos_id)
    if windows is not None and windows > len(cut):
        raise ValueError(
            f"{function}: {windows} windows of {ctx} tokens were asked for, the text of {len(ids)} tokens has "
            f"{len(cut)}"
        )
    if not len(cut):
        raise ValueError(
            f"{function} needs at least one window of {ctx} tokens, the text has {len(ids)}; pass a longer text or a "
            "smaller ctx"
        )
    source = "a text" if isinstance(text, str) else os.fspath(text) if isinstance(text, os.PathLike) else "token ids"
    return Windows(cut[:windows], len(cut), len(ids), bos_id is not None, source)


REFERENCE_BYTES = 128 << 20  # of reference logits held at once


def stream(
    reference: Session, others: Sequence[Session], windows: Windows, before: Any = None, halfway: Any = None
) -> list[dict[str, np.ndarray]]:
    """The reference's distributions against those of each other session: per session the arrays of
    _core._contrast_rows as (windows, scored).

    Logits of the reference are held for as many positions as REFERENCE_BYTES allows, at least one block, and nothing is
    written anywhere. All sessions see the same batches. before(i): called before window i; halfway(): when all sessions
    hold what is not scored.
    """
    rows = max(16, REFERENCE_BYTES // (4 * reference.model.n_vocab))
    parts: list[list[dict[str, np.ndarray]]] = [[] for _ in others]
    for i, window in enumerate(windows.ids):
        if before is not None:
            before(i)
        for s in (reference, *others):
            s.rewind(0)
        done, start = 0, windows.start
        if halfway is not None:
            for s in (reference, *others):
                s.eval(window[:start], logits="none")
            halfway()
            done = start
        while start < windows.ctx - 1:
            end = min(start + rows, windows.ctx - 1)
            piece, first = window[done:end], start - done
            logits = reference.eval(piece, logits=slice(first, end - done))
            for s, part in zip(others, parts):
                part.append(s._c._contrast(piece, logits, window[start + 1 : end + 1], first))
            done = start = end
    shape = (len(windows), windows.scored)
    joined = [{k: np.concatenate([p[k] for p in part]).reshape(shape) for k in part[0]} for part in parts]
    for s, arrays in zip(others, joined):
        check_finite(arrays, s, windows)
    return joined


def check_finite(arrays: Mapping[str, np.ndarray], session: Session, windows: Windows) -> None:
    bad = np.argwhere(~np.isfinite(arrays["kl"]))
    if len(bad):
        window, position = (int(v) for v in bad[0])
        raise _core.Error(
            f"logits of {session.model.gguf.path} (compute {session.compute}, kv {session.kv_type}) or of the "
            f"reference are not finite in window {window} at position {windows.start + position}"
        )
