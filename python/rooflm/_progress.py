# SPDX-License-Identifier: Apache-2.0
"""Progress of long work: a bar where tqdm is installed and somebody can see it, or lines to a function."""

from __future__ import annotations

import sys
from typing import Any, Callable, Optional, Union

ProgressArg = Union[None, bool, Callable[[str], None]]


class Progress:
    """Steps of known number. progress: None shows a bar on a terminal or in a notebook if tqdm is installed, True
    wherever, False nothing; a function is called with a line of text before each step."""

    def __init__(self, total: int, progress: ProgressArg = None) -> None:
        self._say = progress if callable(progress) else None
        self._bar: Any = None
        if self._say is None and progress is not False and (progress or _is_seen()):
            try:
                from tqdm.auto import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=total, leave=False)

    def show(self, text: str) -> None:
        if self._say:
            self._say(text)
        elif self._bar is not None:
            self._bar.set_description(text)

    def step(self) -> None:
        if self._bar is not None:
            self._bar.update()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


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
