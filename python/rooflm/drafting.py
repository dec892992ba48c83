# SPDX-License-Identifier: Apache-2.0
"""Guesses at the tokens to come, checked together: several tokens for one read of the weights.

    with model.session(compute="int8") as s:
        g = s.generate(prompt, draft=rooflm.PromptLookup())
        print(g.text, g.tokens_per_pass)

Decode waits for memory, and one pass over the weights for five tokens takes less than five passes. A draft proposes the
next few tokens, the model evaluates them in one pass, and the sampler draws at each position from the model's own
logits, as it would without a draft. As long as it draws what was proposed, the next logits are there already; what was
proposed beyond is forgotten. So a draft changes the speed and never the text, as long as one token and several are
computed alike: see docs/session.md, with what it gains. (Leviathan et al. 2023, "Fast Inference from Transformers via
Speculative Decoding", accept with a probability that needs the draft's own; here the sampler itself decides, which
keeps its random numbers.)

A draft is any object with propose(tokens, n): at most n ids that may follow the ids given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Sequence

import numpy as np

from rooflm._keywords import checked_keywords

if TYPE_CHECKING:
    from rooflm.session import Session


class Draft(Protocol):
    """What generate(draft=) takes."""

    def propose(self, tokens: Sequence[int], n: int) -> Sequence[int]:
        """At most n ids that may follow; fewer or none where there is no good guess."""
        ...


class PromptLookup:
    """Proposes what followed the last time the same tokens occurred, in the prompt or in the answer.

    Needs no second model. It pays where the answer repeats its prompt: summaries, corrections, code, tables.
    longest   tokens that are looked for at first; then one fewer, down to `shortest`
    """

    @checked_keywords
    def __init__(self, *, longest: int = 3, shortest: int = 2) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"shortest={shortest} and longest={longest}: 1 <= shortest <= longest is needed")
        self.longest, self.shortest = longest, shortest
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # the place behind the last occurrence of these tokens

    def propose(self, tokens: Sequence[int], n: int) -> Sequence[int]:
        ids = list(tokens)
        if ids[: len(self._tokens)] != self._tokens:  # another text
            self._tokens, self._after = [], {}
        for end in range(len(self._tokens), len(ids)):
            for size in range(self.shortest, min(self.longest, end) + 1):
                self._after[tuple(ids[end - size : end])] = end
        self._tokens = ids
        for size in range(self.longest, self.shortest - 1, -1):
            place = self._after.get(tuple(ids[-size:]))
            if place is not None:
                return ids[place : place + n]
        return []

    def __repr__(self) -> str:
        return f"PromptLookup(longest={self.longest}, shortest={self.shortest})"


class DraftModel:
    """Proposes what a smaller model with the same vocabulary takes for likeliest.

    session   of the smaller model; it follows the text by itself and is the caller's to close
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._checked: Any = None  # the tokenizer whose ids were last found to be ours

    def check(self, tokenizer: Any) -> None:
        """ValueError where the two models' ids mean different things."""
        own = self.session.model.tokenizer
        if tokenizer is self._checked:
            return
        if own.n_vocab != tokenizer.n_vocab:
            raise ValueError(
                f"the draft's vocabulary has {own.n_vocab} tokens, the model's {tokenizer.n_vocab}: a draft needs a "
                "model of the same family"
            )
        for i in range(own.n_vocab):
            if own.piece(i) != tokenizer.piece(i):
                raise ValueError(
                    f"id {i} is {own.piece(i)!r} to the draft and {tokenizer.piece(i)!r} to the model: a draft needs "
                    "the same vocabulary"
                )
        self._checked = tokenizer

    def propose(self, tokens: Sequence[int], n: int) -> Sequence[int]:
        session, ids = self.session, np.asarray(tokens, np.int32)
        n = min(n, session.room + session.n_past - len(ids) + 1)  # the last id proposed is not evaluated
        if n < 1:
            return []
        guesses: list[int] = []
        coming = ids[session._back_to(session._in_common(ids)) :]
        while len(guesses) < n:
            logits = session.eval(coming)
            assert logits is not None
            guesses.append(int(logits.argmax()))
            coming = np.array(guesses[-1:], np.int32)
        return guesses

    def __repr__(self) -> str:
        return f"DraftModel({self.session!r})"
