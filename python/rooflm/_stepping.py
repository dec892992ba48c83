# SPDX-License-Identifier: Apache-2.0
"""What single sessions and batches share of a step."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Sequence

import numpy as np

from rooflm import _core


@contextmanager
def whole_or_undone(*steps: tuple[_core.Session, Any]) -> Iterator[None]:
    """Around an evaluation and what is noted of it, for pairs of a session and whoever has its `_pending` ids: Ctrl-C
    may come when the one has ended and the other has not begun. Then both are as they were before."""
    before = [(core, owner, core.n_past, owner._pending[:]) for core, owner in steps]
    try:
        yield
    except _core.SessionBusy:
        raise  # what has changed is the work of another thread
    except BaseException:
        for core, owner, n_past, pending in before:
            try:
                more = core.n_past - n_past
            except ValueError:  # closed meanwhile
                continue
            if more > 0:
                try:
                    core.rewind(n_past)
                except ValueError:  # pages are gone: what was evaluated stays so
                    pending = pending[more:]
            owner._pending = pending
        raise


def sample(sampler: Any, logits: np.ndarray, history: Sequence[int]) -> int:
    """The sampler's choice. A list of ids costs time to hand over: it is given only where a penalty looks at it."""
    if getattr(sampler, "repeat_penalty", None) == 1.0:
        token = int(sampler.sample(logits))
    else:
        last = getattr(sampler, "repeat_last_n", -1)
        token = int(sampler.sample(logits, history[-last:] if last > 0 else history))
    if not 0 <= token < len(logits):
        raise ValueError(f"sample() returned {token}: ids are 0 to {len(logits) - 1}")
    return token
