# SPDX-License-Identifier: Apache-2.0
"""Steps run ahead: the next token's evaluation begins as soon as its input is drawn, and goes on while the text is made
and the caller's code runs.

The extension evaluates on a thread of its own that never takes the GIL, and keeps the result apart: until it is fetched
the session shows nothing of it, and whatever changes the session first (an evaluation, rewind(), load()) forgets it.

Handing a step over and fetching it takes some 0.1 ms (bench/overlap.py), which a caller who does nothing would pay for
nothing: "auto" runs steps ahead when one of the last pieces kept the caller for longer than that.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Deque, Optional, Sequence, Union

import numpy as np

from rooflm._stepping import whole_or_undone
from rooflm.tracing import TAKEN_BACK, Span

if TYPE_CHECKING:
    from rooflm.session import Session


WORTH_NS = 100_000
REMEMBERED = 16  # pieces: output comes in bursts


class StepsAhead:
    """The steps of one generation.

    n_steps       that were run ahead and used
    n_taken_back  that were run ahead and not used: the text ended, or the caller stopped or used the session otherwise
    time_s        of the steps used
    hidden_s      of it, the part before the generation came to wait for it
    proposed      what the draft proposed for the step that is running
    """

    def __init__(self, session: Session, overlap: Union[bool, str]) -> None:
        self._session = session
        self._always = overlap is True
        self._between_ns: Deque[int] = deque(maxlen=REMEMBERED)  # from start() to finish()
        self._started_ns = 0
        self._number: Optional[int] = None  # of the step that is running
        self._last = 0
        # Logits of the last step begun, and of the one before: a sampler may have kept those for the caller to look at.
        self._logits: Optional[np.ndarray] = None
        self._before: Optional[np.ndarray] = None
        self.proposed: list[int] = []
        self.n_steps = self.n_taken_back = 0
        self.time_s = self.hidden_s = 0.0
        _all.add(self)

    def start(self, proposed: Sequence[int]) -> None:
        """Begins to evaluate what was sampled and the proposed ids behind it, where that leaves no trace: not while
        anything is captured, and not when a sliding window or a cache that evicts would give up a page."""
        self._started_ns = time.monotonic_ns()
        if not self._always and max(self._between_ns, default=0) < WORTH_NS:
            return
        session = self._session
        ids = np.array([*session._pending, *proposed], np.int32)
        n_rows = 1 + len(proposed)
        out = self._before if self._before is not None and len(self._before) == n_rows else None
        with _forking:
            begun = session._c._ahead_start(ids, len(ids) - n_rows, out)
        if begun is not None:
            self._number, logits = begun
            self._last, self.proposed = self._number, list(proposed)
            self._before, self._logits = self._logits, logits

    def finish(self) -> Optional[list[np.ndarray]]:
        """Waits for the step and makes it part of the session; the logits of its rows. None when none was begun, or
        it was forgotten because the session was used otherwise meanwhile."""
        came_ns = time.monotonic_ns()
        self._between_ns.append(came_ns - self._started_ns)
        if self._number is None:
            return None
        number, self._number = self._number, None
        session = self._session
        try:
            with whole_or_undone((session._c, session)):
                times = session._c._ahead_finish(number)
                if times is not None:
                    session._pending = []
        except BaseException:
            self._number = number  # interrupted while it runs, maybe: to be taken back
            raise
        if times is None:
            self.n_taken_back += 1
            self._before, self._logits = self._logits, self._before
            return None
        self.n_steps += 1
        self.time_s += (times[1] - times[0]) * 1e-9
        self.hidden_s += self._record("decode", times, came_ns) * 1e-9
        assert self._logits is not None
        return list(self._logits)

    def end(self) -> None:
        """Takes back the step that is running, if any, and ends the thread."""
        number, self._number = self._number, None
        _all.discard(self)
        if self._last and self._session._open is not None:
            came_ns = time.monotonic_ns()
            times = self._session._c._ahead_take_back(self._last)
            if times is not None and number is not None:
                self.n_taken_back += 1
                self._record(TAKEN_BACK, times, came_ns)

    def _record(self, name: str, times: tuple[int, int], came_ns: int) -> int:
        """Nanoseconds of the step that passed while something else ran; into the trace, if there is one."""
        hidden = min(max(came_ns - times[0], 0), times[1] - times[0])
        tracer = self._session._tracer
        if tracer is not None:
            tracer.spans.append(Span(name, *times, stage=True, ahead=True, hidden_ns=hidden))
        return hidden


_all: weakref.WeakSet[StepsAhead] = weakref.WeakSet()
_forking = threading.RLock()  # while it is held no step begins, or no process is forked


def _before_fork() -> None:
    """A child has no thread but its own, and locks as they were: none may be held by a step."""
    _forking.acquire()
    for steps in list(_all):
        if steps._session._open is not None:
            steps._session._c._ahead_pause()


os.register_at_fork(before=_before_fork, after_in_parent=_forking.release, after_in_child=_forking.release)
