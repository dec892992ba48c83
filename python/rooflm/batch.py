# SPDX-License-Identifier: Apache-2.0
"""Several sequences computed in one step: every weight is read once for all of them.

    with model.batch(n_ctx=2048) as batch:
        a = batch.join("Once upon a time", max_tokens=64)
        b = batch.join("In the beginning", max_tokens=64)
        batch.run()
    print(a.text, b.text)

Sequences join and leave at any step and have lengths of their own; one that starts `like` another shares the full
KV pages of what that one holds. Logits are those of separate sessions, to the bit, when the same kernels run: the
kernel follows the number of tokens of the step, see Session.kernels(n_tokens).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Sequence, Union

import numpy as np

from rooflm import _core
from rooflm._closing import Closing
from rooflm._keywords import at_least, checked_keywords
from rooflm._stepping import sample, whole_or_undone
from rooflm._text import TextOrTokens, as_tokens

if TYPE_CHECKING:
    from rooflm.model import Model


class BatchSequence:
    """One sequence of a Batch: its text so far, and why it ended.

    stop_reason  "eos", "length" (max_tokens), "context" (n_ctx reached), "left", "interrupted" (its sampler failed);
                 None while running
    """

    def __init__(self, batch: Batch, core: _core.Session, pending: np.ndarray, max_tokens: int, sampler: Any) -> None:
        self._batch = batch
        self._core: Optional[_core.Session] = core
        self._pending = pending  # not evaluated yet
        self._history = [int(t) for t in core.tokens] + [int(t) for t in pending]
        self.ids: list[int] = []
        self.max_tokens = max_tokens
        self.sampler = sampler
        self.stop_reason: Optional[str] = None

    @property
    def n_past(self) -> int:
        """Tokens in the cache."""
        return 0 if self._core is None else self._core.n_past

    @property
    def text(self) -> str:
        """What was generated, decoded as one."""
        return str(self._batch.model.tokenizer.decode(self.ids))

    def __repr__(self) -> str:
        state = self.stop_reason or "running"
        return f"<BatchSequence {self.n_past} tokens, {len(self.ids)} generated, {state}>"

    def _advance(self, logits: np.ndarray, ends: frozenset[int]) -> None:
        token = sample(self.sampler, logits, self._history)
        if token in ends:
            self.stop_reason = "eos"
            return
        self.ids.append(token)
        self._history.append(token)
        self._pending = np.array([token], np.int32)
        if len(self.ids) >= self.max_tokens:
            self.stop_reason = "length"
        elif self._core is not None and not self._core.room:
            self.stop_reason = "context"


class Batch(Closing):
    """Sequences that share weights, scratch memory and steps. Made by Model.batch(); a context manager."""

    def __init__(self, model: Model, options: dict[str, Any]) -> None:
        self.model = model
        self._root = model.session(**options)  # stays empty; every sequence is a fork of it
        self.n_ctx = self._root.n_ctx
        self.n_batch = self._root.n_batch
        self.sequences: list[BatchSequence] = []

    def close(self) -> None:
        """Frees all caches; what was generated stays readable."""
        for s in list(self.sequences):
            self.leave(s)
        self._root.close()

    @property
    def running(self) -> list[BatchSequence]:
        """Sequences that have not ended."""
        return [s for s in self.sequences if s.stop_reason is None]

    @checked_keywords
    def join(
        self,
        prompt: TextOrTokens,
        *,
        max_tokens: int = 64,
        sampler: Any = None,
        like: Optional[BatchSequence] = None,
        special: bool = False,
    ) -> BatchSequence:
        """Adds a sequence; its prompt is evaluated in the coming steps.

        prompt      str is the text itself, os.PathLike a file, an integer array tokens
        max_tokens  most tokens to generate
        sampler     default: greedy
        like        a sequence of this batch whose cache the new one starts from; full pages are shared
        special     parse special tokens in the prompt
        """
        source = self._root._c if like is None else like._core
        if source is None:
            raise ValueError("`like` has left the batch: its cache is gone")
        core = source.fork()
        ids = as_tokens(prompt, lambda: self.model.tokenizer, special=special, bos=None if like is None else False)
        if like is not None:
            ids = np.concatenate([like._pending, ids]).astype(np.int32)
        if not len(ids):
            raise ValueError("the prompt is empty")
        if len(ids) > core.room:
            e = _core.ContextFull(
                f"the prompt needs {core.n_past + len(ids)} positions, and n_ctx is {self.n_ctx}; make the batch with "
                "a larger n_ctx"
            )
            e.n_ctx, e.needed = self.n_ctx, core.n_past + len(ids)
            raise e
        if sampler is not None and not hasattr(sampler, "sample"):
            raise TypeError(f"sampler must be a rooflm.Sampler or have its sample(), not {type(sampler).__name__}")
        at_least(1, max_tokens=max_tokens)
        sequence = BatchSequence(self, core, ids, max_tokens, _core.Sampler.greedy() if sampler is None else sampler)
        self.sequences.append(sequence)
        return sequence

    def leave(self, sequence: BatchSequence) -> None:
        """Takes a sequence out and frees its cache (pages it shares stay with the others)."""
        self.sequences.remove(sequence)
        sequence.stop_reason = sequence.stop_reason or "left"
        if sequence._core is not None:
            sequence._core.close()
            sequence._core = None

    def step(self) -> list[BatchSequence]:
        """One step for all running sequences, prompts in pieces of what room n_batch leaves. Returns those that got
        a token. Decoding sequences come first, so that a long prompt never holds them up."""
        chosen: list[BatchSequence] = []
        parts: list[np.ndarray] = []
        room = self.n_batch
        for s in sorted(self.running, key=lambda s: len(s._pending) > 1):
            step_room = s._core._step_room if s._core is not None else 0
            take = min(len(s._pending), room, step_room)
            if take:
                chosen.append(s)
                parts.append(s._pending[:take])
                room -= take
        if not chosen:
            return []
        ends = frozenset(self.model.tokenizer.eog_ids)
        advanced = []
        with whole_or_undone(*[(s._core, s) for s in chosen if s._core is not None]):
            logits = self.eval(chosen, parts)
            for s, part in zip(chosen, parts):
                s._pending = s._pending[len(part) :]
        failed: Optional[Exception] = None
        try:
            for s, row in zip(chosen, logits):
                if len(s._pending):
                    continue
                try:
                    s._advance(row, ends)
                    advanced.append(s)
                except Exception as e:  # of one sampler: the others go on
                    failed = failed or e
        finally:  # who got no token has lost its logits, and nothing is left to evaluate
            for s in chosen:
                if not len(s._pending) and s.stop_reason is None:
                    s.stop_reason = "interrupted"
        if failed is not None:
            raise failed
        return advanced

    def run(self) -> list[BatchSequence]:
        """Steps until every sequence has ended; all of them."""
        while self.running:
            self.step()
        return self.sequences

    def eval(
        self, sequences: Sequence[BatchSequence], tokens: Sequence[Union[Sequence[int], np.ndarray]]
    ) -> np.ndarray:
        """Appends tokens[i] to sequences[i], all in one step; logits of the last token of each, float32
        (sequences, n_vocab). At most n_batch tokens together. On an error no sequence has changed."""
        cores = [s._core for s in sequences]
        if any(c is None for c in cores):
            raise ValueError("a sequence that has left the batch cannot be evaluated")
        return _core.Session._step_many(cores, list(tokens))

    def __repr__(self) -> str:
        return f"<Batch of {len(self.sequences)} sequences, {len(self.running)} running, n_ctx {self.n_ctx}>"
