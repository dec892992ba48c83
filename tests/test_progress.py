# SPDX-License-Identifier: Apache-2.0
"""Progress bars: as few drawings as are seen, no warning of theirs, and a plain line where tqdm is not installed."""

from __future__ import annotations

import io
import sys
import types
import warnings

import pytest

from rooflm import _progress
from rooflm._progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal_of(monkeypatch):
    """Within the test: pytest sets its own standard error behind fixtures."""
    t = Terminal()
    monkeypatch.setattr(sys, "stderr", t)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    return t


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets."""
    now = [100.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    return now


class Bar:
    made: list[Bar] = []

    def __init__(self, **options):
        self.shown, self.steps, self.closed = [], 0, False
        Bar.made.append(self)

    def set_description(self, text):
        self.shown.append(text)

    def update(self):
        self.steps += 1

    def close(self):
        self.closed = True


def tqdm_that_warns(monkeypatch):
    """As tqdm in a notebook without ipywidgets: it warns when it is imported, and when a bar is made."""

    class Auto(types.ModuleType):
        @property
        def tqdm(self):
            warnings.warn("IProgress not found", UserWarning, stacklevel=2)
            return Bar

    Bar.made.clear()
    package = types.ModuleType("tqdm")
    package.auto = Auto("tqdm.auto")
    monkeypatch.setitem(sys.modules, "tqdm", package)
    monkeypatch.setitem(sys.modules, "tqdm.auto", package.auto)


def without_tqdm(monkeypatch):
    for name in ("tqdm", "tqdm.auto"):
        monkeypatch.setitem(sys.modules, name, None)


def test_fast_steps_are_drawn_ten_times_a_second_at_most(monkeypatch, clock):
    tqdm_that_warns(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = Progress(1000, True)
    for i in range(1000):
        p.show(f"step {i}")
        p.step()
        clock[0] += 0.001
    p.close()
    (bar,) = Bar.made
    assert bar.steps == 1000 and bar.closed
    assert 9 <= len(bar.shown) <= 11 and bar.shown[0] == "step 0", "the first is shown at once"


def test_slow_steps_are_all_drawn(monkeypatch, clock):
    tqdm_that_warns(monkeypatch)
    p = Progress(5, True)
    for i in range(5):
        p.show(f"step {i}")
        clock[0] += 3
    assert Bar.made[0].shown == [f"step {i}" for i in range(5)]


def test_without_tqdm_a_line_of_the_terminal_is_overwritten_and_cleared(monkeypatch, clock):
    terminal = terminal_of(monkeypatch)
    without_tqdm(monkeypatch)
    p = Progress(2)
    p.show("window 1 of 2")
    clock[0] += 1
    p.show("window 2 of 2")
    assert "window 1 of 2" in terminal.getvalue() and terminal.getvalue().endswith("\r\x1b[Kwindow 2 of 2")
    p.close()
    assert terminal.getvalue().endswith("\r\x1b[K") and "\n" not in terminal.getvalue()


def test_nothing_is_shown_where_nobody_sees_it_or_wants_it(monkeypatch):
    terminal = terminal_of(monkeypatch)
    without_tqdm(monkeypatch)
    quiet = Progress(2, False)
    quiet.show("window 1 of 2")
    quiet.close()
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    unseen = Progress(2)
    unseen.show("window 1 of 2")
    unseen.close()
    assert terminal.getvalue() == ""


def test_a_function_gets_every_line(clock):
    lines = []
    p = Progress(3, lines.append)
    for i in range(3):
        p.show(f"{i}")
        p.step()
    p.close()
    assert lines == ["0", "1", "2"]
