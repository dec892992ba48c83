# SPDX-License-Identifier: Apache-2.0
"""Progress of long work: a bar where tqdm is installed and somebody can see it, else a line on the terminal, or lines
to a function."""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any, Callable, Optional, Union

ProgressArg = Union[None, bool, Callable[[str], None]]


REDRAW_S = 0.1  # a bar is drawn no more often: each drawing in a notebook is a message that its file keeps


class Progress:
    """Steps of known number. progress: None shows a bar on a terminal or in a notebook if tqdm is installed (without it
    a line on the terminal), True wherever, False nothing; a function is called with a line of text before each step."""

    def __init__(self, total: int, progress: ProgressArg = None) -> None:
        self._say = progress if callable(progress) else None
        self._bar: Any = None
        self._line = False
        self._drawn = 0.0
        if self._say is None and progress is not False and (progress or _is_seen()):
            self._bar = _tqdm_bar(total)
            self._line = self._bar is None and status_line(quiet=False) is not None

    def show(self, text: str) -> None:
        if self._say:
            self._say(text)
            return
        now = time.monotonic()
        if now - self._drawn < REDRAW_S:
            return
        if self._bar is not None:
            self._bar.set_description(text)
        elif self._line:
            _overwrite(text)
        self._drawn = now

    def step(self) -> None:
        if self._bar is not None:
            self._bar.update()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._line:
            _overwrite("")


def _tqdm_bar(total: int) -> Any:
    """A bar of tqdm, None where it is not installed."""
    try:
        with warnings.catch_warnings():
            # Without ipywidgets it warns and draws text instead, which is all that is wanted of it.
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm

            return tqdm(total=total, leave=False)
    except ImportError:
        return None


def status_line(quiet: bool) -> Optional[Callable[[str], None]]:
    """Shows what is being done on a line of the terminal that end_status_line() clears; None where nobody sees it."""
    return None if quiet or not sys.stderr.isatty() else _overwrite


def end_status_line(quiet: bool) -> None:
    if status_line(quiet):
        _overwrite("")


def _overwrite(text: str) -> None:
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _is_seen() -> bool:
    return "ipykernel" in sys.modules or (hasattr(sys.stderr, "isatty") and sys.stderr.isatty())
