# SPDX-License-Identifier: Apache-2.0
"""Words beside the points of a picture, none over another or over a point; plain numbers on logarithmic axes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Iterator, Sequence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Box = tuple[float, float, float, float]  # left, bottom, right, top in points (1/72 inch)
SIZE = 7.0  # of the letters, in points
POINT = 4.0  # half the width of a marker
ANGLES = (0, 180, 30, -30, 150, -150, 60, -60, 120, -120)  # degrees in the order they are tried
DISTANCES = (8, 16, 26, 38, 52)


def from_zero(ax: Axes) -> None:
    """The y axis from 0, with room above the highest point, which nearly equal values else push to the edge."""
    ax.set_ylim(0, 1.05 * ax.get_ylim()[1])


def label_points(ax: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Writes each text as near its (x, y) as there is room, with a thin line to it where it is further away. Scales and
    limits of the axes must be set before."""
    scale = 72 / ax.figure.dpi
    places = [tuple(float(v) * scale for v in ax.transData.transform((x, y))) for x, y, _ in points]
    taken: list[Box] = [(x - POINT, y - POINT, x + POINT, y + POINT) for x, y in places]
    for (x, y, text), place in zip(points, places):
        dx, dy, box = next(
            (c for c in _candidates(place, text) if not any(_overlap(c[2], other) for other in taken)),
            next(_candidates(place, text)),
        )
        taken.append(box)
        far = math.hypot(dx, dy) > DISTANCES[0] + 1
        ax.annotate(
            text, (x, y), xytext=(dx, dy), textcoords="offset points", fontsize=SIZE, va="center",
            ha="left" if dx > 0 else "right", arrowprops={"arrowstyle": "-", "lw": 0.4} if far else None,
        )  # fmt: skip


def plain_log(ax: Axes, axis: str) -> None:
    """A logarithmic "x" or "y" axis whose ticks read 0.2, 5, 200; powers of ten say little over less than a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set(**{f"{axis}scale": "log"})
    one = getattr(ax, f"{axis}axis")
    one.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    one.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    one.set_minor_formatter(NullFormatter())


def _candidates(place: tuple[float, ...], text: str) -> Iterator[tuple[float, float, Box]]:
    """(offset to the right, upwards, box of the text), the nearest first."""
    width, half = 0.62 * SIZE * len(text), 0.6 * SIZE
    for distance in DISTANCES:
        for angle in ANGLES:
            dx, dy = distance * math.cos(math.radians(angle)), distance * math.sin(math.radians(angle))
            x, y = place[0] + dx, place[1] + dy
            left = x if dx > 0 else x - width
            yield dx, dy, (left, y - half, left + width, y + half)


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
