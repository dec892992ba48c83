# SPDX-License-Identifier: Apache-2.0
"""Reading pictures in tests: what their axes, titles and legends say. Not a test by itself.

    ax = drawn(results.plot)
    says(ax, x=r"depth \\(tokens\\)", y=r"tokens/s", n=True, interval=True)

With ROOFLM_PLOTS=DIR each picture is saved there, to be looked at.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from unittest import mock

import pytest


@contextlib.contextmanager
def no_traces():
    """Fails when the code inside shows a window or leaves style settings changed; closes its figures."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    before = dict(matplotlib.rcParams)
    with mock.patch.object(plt, "show", side_effect=AssertionError("show() was called")):
        yield
    changed = {k for k, v in matplotlib.rcParams.items() if v != before[k]}
    assert not changed, f"rcParams changed: {changed}"
    plt.close("all")


def drawn(plot, *args, **options):
    """The Axes that plot(...) gives: its own when none are handed in, and exactly the ones that are."""
    with no_traces():
        from matplotlib import pyplot as plt
        from matplotlib.axes import Axes

        given = plt.subplots()[1]
        assert plot(*args, ax=given, **options) is given
        ax = plot(*args, **options)
        assert isinstance(ax, Axes) and ax is not given
        ax.figure.canvas.draw()
        if os.environ.get("ROOFLM_PLOTS"):
            title = re.sub(r"\W+", "_", f"{ax.get_title()} {ax.get_xlabel()} {ax.get_ylabel()}")[:150]
            ax.figure.savefig(Path(os.environ["ROOFLM_PLOTS"]) / f"{title}.png", dpi=80, bbox_inches="tight")
    return ax


def words(ax) -> str:
    """Every text in the picture, one per line."""
    legend = ax.get_legend()
    parts = [ax.get_title(), ax.get_xlabel(), ax.get_ylabel()]
    parts += [t.get_text() for t in (*ax.get_xticklabels(), *ax.get_yticklabels(), *ax.texts)]
    parts += [t.get_text() for t in (legend.get_texts() if legend else ())]
    parts += [legend.get_title().get_text()] if legend else []
    return "\n".join(p for p in parts if p)


def says(ax, *, x=None, y=None, title=None, n=True, interval=True) -> None:
    """x, y, title: patterns that must be found there. n: the picture says how many runs or tokens a figure rests on;
    interval: it says what its bars or bands are."""
    for pattern, text in ((x, ax.get_xlabel()), (y, ax.get_ylabel()), (title, ax.get_title())):
        if pattern is not None:
            assert re.search(pattern, text), f"{pattern!r} is not in {text!r}"
    if n:
        assert re.search(r"\bn\s*=\s*\d", words(ax)), f"no n = in {words(ax)!r}"
    if interval:
        assert re.search(r"interval|p5|percentile|quartile|range|MAD", words(ax)), f"no interval in {words(ax)!r}"
