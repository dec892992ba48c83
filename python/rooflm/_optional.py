# SPDX-License-Identifier: Apache-2.0
"""Libraries that only some functions need: imported when used, and a clear error where they are missing."""

from __future__ import annotations

import errno
import importlib
import os
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def need(module: str, extra: str = "plot") -> Any:
    """The module; an ImportError that says how to get it when it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name != module.partition(".")[0]:
            raise
        raise ImportError(f"this needs {e.name}: pip install 'rooflm[{extra}]' or pip install {e.name}") from None


def save_picture(ax: Axes, path: str) -> None:
    """The figure of these axes as a file, and gone."""
    figure: Any = ax.figure
    figure.savefig(path, dpi=120)
    need("matplotlib.pyplot").close(figure)


def require_picture(path: Optional[str]) -> None:
    """Checks, if there is a path, that a picture can be drawn and written there: before a long measurement."""
    if path is None:
        return
    need("matplotlib")
    kinds = need("matplotlib.figure").Figure().canvas.get_supported_filetypes()
    kind = os.path.splitext(path)[1][1:].lower()
    if kind and kind not in kinds:
        raise ValueError(f"{path}: a picture ends in one of {', '.join('.' + k for k in sorted(kinds))}")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, f"there is no directory {folder}", path)
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise PermissionError(errno.EACCES, "cannot be written", path)


def plot_to(path: Optional[str], result: Any) -> None:
    """Draws a result into a file, if there is a path. For after the result was printed: a file that cannot be written
    must not cost a long measurement."""
    if path:
        save_picture(result.plot(), path)


def axes(ax: Optional[Axes], **figure: Any) -> Axes:
    """The axes given, or new ones in a figure of their own made with these settings. rcParams stay as they are."""
    if ax is not None:
        return ax
    _, fresh = need("matplotlib.pyplot").subplots(layout="constrained", **figure)
    fresh_axes: Axes = fresh
    return fresh_axes
