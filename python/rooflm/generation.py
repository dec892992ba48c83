# SPDX-License-Identifier: Apache-2.0
"""A running generation: pieces of text as they come, and afterwards what was generated, why it ended, how fast.

Prefill and decode are timed apart and never joined into one figure.
"""

from __future__ import annotations

import html
import time
from typing import TYPE_CHECKING, Any, Iterator, Optional, Sequence, Union

import numpy as np

from rooflm._stepping import sample
from rooflm.overlapping import StepsAhead
from rooflm.tracing import stage

if TYPE_CHECKING:
    from rooflm.drafting import Draft
    from rooflm.session import Session

NOTHING = np.zeros(0, np.int32)


class Generation:
    """Iterate for pieces of text; a piece never splits a character.

    Nothing is computed before the first piece is asked for. Without iterating, asking for a result (`text`, `ids`,
    `stop_reason`, a time) runs everything; once iteration has begun, results show what is there so far.

    stop_reason   "eos", "stop" (a stop string), "length" (max_tokens), "context" (the session is full),
                  "interrupted" (Ctrl-C or an error); None while running
    ids           generated ids, without the end-of-text id
    prompt_ids    what was evaluated before the first of them
    ttft_s        from the call to the first id: tokenizing, prefill, sampling
    prefill_tps   prompt tokens per second of their evaluation
    decode_tps    (n - 1) / (time of the last id - time of the first); None with fewer than 2 ids
    token_times_s when each id was there, counted from the start of the evaluation

    With overlap, the step after each id runs while its text is made and the caller uses it (see rooflm.overlapping):
    hidden_s      seconds of evaluations that passed meanwhile; 0.0 without overlap
    n_ahead       evaluations that were run ahead and used
    n_taken_back  evaluations that were run ahead and taken back, because the text ended or the caller went another way

    With a draft (see rooflm.drafting) a piece may hold several tokens, and there are also
    n_proposed    ids that the draft proposed
    n_accepted    of these, ids that the sampler drew
    n_passes      evaluations behind the prompt's
    """

    def __init__(
        self,
        session: Session,
        prompt_ids: np.ndarray,
        *,
        max_tokens: int,
        sampler: Any,
        stop: Sequence[str],
        tokenize_s: float,
        draft: Optional[Draft] = None,
        n_draft: int = 0,
        overlap: Union[bool, str] = False,
    ) -> None:
        self._session = session
        self.sampler = sampler
        self._stop = tuple(stop)
        self._max_tokens = max_tokens
        self.prompt_ids = prompt_ids
        self.tokenize_s = tokenize_s
        self._ids: list[int] = []
        self._pieces: list[str] = []
        self._times: list[float] = []
        self._prefill_s: Optional[float] = None
        self._stop_reason: Optional[str] = None
        self._begun = False
        self.draft = draft
        self._n_draft = n_draft
        self._n_proposed = self._n_accepted = self._n_passes = 0
        self._steps = StepsAhead(session, overlap) if overlap else None
        self._pieces_to_come = self._run()

    # ---- iteration ----

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self._begun = True
        piece = next(self._pieces_to_come)
        self._pieces.append(piece)
        return piece

    def run(self) -> Generation:
        """Runs to the end and returns itself."""
        if not self._begun:
            self._steps = None  # there is no caller's code to overlap with, and the detokenizer alone is too short
        for _ in self:
            pass
        return self

    def _run(self) -> Iterator[str]:
        session, sampler = self._session, self.sampler
        tokenizer = session.model.tokenizer
        ends = frozenset(tokenizer.eog_ids)
        decoder = tokenizer.decoder(continues=True)
        seen = [*map(int, session.tokens), *session._pending, *map(int, self.prompt_ids)]
        held = ""  # text that may turn out to be the beginning of a stop string
        # rows: logits behind `base` tokens and behind each of the ids proposed, of which `at` have been accepted
        proposed: list[int] = []
        base = at = 0
        failure: Optional[Exception] = None  # of the step begun ahead
        try:
            start = time.perf_counter()
            with stage(session, "first_token"):
                rows = [session._evaluate(self.prompt_ids)]
            base = session.n_past
            self._prefill_s = time.perf_counter() - start
            if not self._max_tokens:
                self._stop_reason = "length"
            while not self._stop_reason:
                with stage(session, "sample"):
                    token = sample(sampler, rows[at], seen)
                self._times.append(time.perf_counter() - start)
                if token in ends:
                    self._stop_reason = "eos"
                    session._keep(base + at)
                    break
                self._ids.append(token)
                seen.append(token)
                session._pending.append(token)
                accepted = at < len(proposed) and token == proposed[at] and len(self._ids) < self._max_tokens
                if not accepted:
                    session._keep(base + at)
                    failure = self._begin_next(seen)
                with stage(session, "postprocess"):
                    held += decoder.feed(token)
                    cut = self._find_stop(held)
                    ready = len(held) - self._unsure(held)
                if cut is not None:
                    session._keep(base + at)
                    held = held[:cut]
                    decoder.flush()
                    self._stop_reason = "stop"
                    break
                if accepted:
                    session._pending.clear()  # it has been evaluated
                    self._n_accepted += 1
                    at += 1
                    continue
                if ready:
                    with stage(session, "render"):
                        yield held[:ready]
                    held = held[ready:]
                if len(self._ids) >= self._max_tokens:
                    self._stop_reason = "length"
                elif not session.room:
                    self._stop_reason = "context"
                elif failure is not None:
                    raise failure
                else:
                    proposed, rows = self._next_rows(seen, rows[at])
                    self._n_proposed += len(proposed)
                    self._n_passes += 1
                    base, at = session.n_past - len(proposed), 0
        except GeneratorExit:  # at a yield, where the session holds what it should; it may have gone on since
            self._stop_reason = "interrupted"
            raise
        except BaseException:
            self._stop_reason = "interrupted"
            if proposed:
                session._keep(base + at)
            raise
        finally:
            if self._steps is not None:
                self._steps.end()
        if self._stop_reason != "stop":
            held += decoder.flush()
        if held:
            with stage(session, "render"):
                yield held

    def _begin_next(self, seen: list[int]) -> Optional[Exception]:
        """With overlap, begins the step behind the id that was just drawn. What goes wrong is for the next next()."""
        session = self._session
        if self._steps is None or len(self._ids) >= self._max_tokens or not session.room:
            return None
        try:
            self._steps.start(self._propose(seen))
        except Exception as e:
            return e
        return None

    def _next_rows(self, seen: list[int], out: np.ndarray) -> tuple[list[int], list[np.ndarray]]:
        """What was proposed, and logits behind the id drawn last and behind each id proposed."""
        if self._steps is not None:
            rows = self._steps.finish()
            if rows is not None:
                return self._steps.proposed, rows
        session, proposed = self._session, self._propose(seen)
        with stage(session, "decode"):
            if proposed:
                return proposed, list(session._evaluate_ahead(proposed))
            return proposed, [session._evaluate(NOTHING, out=out)]

    def _propose(self, seen: list[int]) -> list[int]:
        if self.draft is None:
            return []
        session = self._session
        room = min(self._n_draft, self._max_tokens - len(self._ids) - 1, session.room - 1)
        # Once a page is evicted, what was evaluated before cannot be taken back: a step must not go so far.
        room = min(room, session._c._step_room - len(session._pending))
        if room < 1:
            return []
        with stage(session, "draft"):
            proposed = [int(t) for t in self.draft.propose(seen, room)][:room]
        return proposed

    def _find_stop(self, text: str) -> Optional[int]:
        places = [p for p in (text.find(s) for s in self._stop) if p >= 0]
        return min(places) if places else None

    def _unsure(self, text: str) -> int:
        """Length of the longest tail of the text that begins a stop string."""
        longest = 0
        for s in self._stop:
            for n in range(min(len(s) - 1, len(text)), longest, -1):
                if s.startswith(text[-n:]):
                    longest = n
                    break
        return longest

    # ---- results ----

    def _results(self) -> Generation:
        return self if self._begun else self.run()

    @property
    def text(self) -> str:
        return "".join(self._results()._pieces)

    @property
    def ids(self) -> list[int]:
        return list(self._results()._ids)

    @property
    def stop_reason(self) -> Optional[str]:
        return self._results()._stop_reason

    @property
    def token_times_s(self) -> list[float]:
        return list(self._results()._times)

    @property
    def ttft_s(self) -> Optional[float]:
        times = self._results()._times
        return self.tokenize_s + times[0] if times else None

    @property
    def prefill_s(self) -> Optional[float]:
        return self._results()._prefill_s

    @property
    def prefill_tps(self) -> Optional[float]:
        seconds = self.prefill_s
        return len(self.prompt_ids) / seconds if seconds else None

    @property
    def decode_tps(self) -> Optional[float]:
        times = self._results()._times
        if len(times) < 2 or times[-1] <= times[0]:
            return None
        return (len(times) - 1) / (times[-1] - times[0])

    @property
    def n_proposed(self) -> int:
        return self._results()._n_proposed

    @property
    def n_accepted(self) -> int:
        return self._results()._n_accepted

    @property
    def n_passes(self) -> int:
        return self._results()._n_passes

    @property
    def hidden_s(self) -> float:
        steps = self._results()._steps
        return steps.hidden_s if steps else 0.0

    @property
    def n_ahead(self) -> int:
        steps = self._results()._steps
        return steps.n_steps if steps else 0

    @property
    def n_taken_back(self) -> int:
        steps = self._results()._steps
        return steps.n_taken_back if steps else 0

    @property
    def tokens_per_pass(self) -> Optional[float]:
        """Ids behind the first for each evaluation behind the prompt's: 1 without a draft."""
        passes = self.n_passes
        return (len(self._times) - 1) / passes if passes else None

    def to_dict(self) -> dict[str, Any]:
        """Record of the whole generation, ready for JSON."""
        self._results()
        return {
            "schema": 1,
            "text": self.text,
            "ids": self.ids,
            "stop_reason": self.stop_reason,
            "sampler": repr(self.sampler),
            "n_prompt": len(self.prompt_ids),
            "n_generated": len(self._ids),
            "tokenize_s": self.tokenize_s,
            "ttft_s": self.ttft_s,
            "prefill_s": self.prefill_s,
            "prefill_tps": self.prefill_tps,
            "decode_tps": self.decode_tps,
            "token_times_s": self.token_times_s,
            "draft": None if self.draft is None else repr(self.draft),
            "n_proposed": self.n_proposed,
            "n_accepted": self.n_accepted,
            "n_passes": self.n_passes,
            "tokens_per_pass": self.tokens_per_pass,
            "n_ahead": self.n_ahead,
            "n_taken_back": self.n_taken_back,
            "hidden_s": self.hidden_s,
        }

    def __repr__(self) -> str:
        if not self._begun:
            return f"<Generation from {len(self.prompt_ids)} tokens, not started: iterate over it, or ask for .text>"
        state = self._stop_reason or "running"
        return f"<Generation {state} after {len(self._ids)} tokens: {self.text[-60:]!r}>"

    def _repr_html_(self) -> str:
        if not self._begun:
            return html.escape(repr(self))
        rows = {
            "stop reason": self._stop_reason or "running",
            "prompt / generated tokens": f"{len(self.prompt_ids)} / {len(self._ids)}",
            "time to first token": _unit(self.ttft_s, "s", 3),
            "prefill": _unit(self.prefill_tps, "tok/s", 1),
            "decode": _unit(self.decode_tps, "tok/s", 1),
        }
        if self.draft is not None:
            rows["draft"] = f"{self._n_accepted} of {self._n_proposed} accepted"
            rows["tokens for a pass"] = _unit(self.tokens_per_pass, "", 2)
        if self.n_ahead:
            rows["hidden behind the caller"] = f"{_unit(self.hidden_s, 's', 3)}, {self.n_ahead} steps run ahead"
        body = "".join(f"<tr><th>{k}</th><td>{v}</td></tr>" for k, v in rows.items())
        return f"<pre style='white-space:pre-wrap'>{html.escape(self.text)}</pre><table>{body}</table>"


def _unit(value: Optional[float], unit: str, digits: int) -> str:
    return "unknown" if value is None else f"{value:.{digits}f} {unit}"
