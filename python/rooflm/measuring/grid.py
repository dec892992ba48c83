# SPDX-License-Identifier: Apache-2.0
"""The settings of a sweep: only lists sweep, several lists give their product unless they are zipped."""

from __future__ import annotations

import itertools
from typing import Any, Iterator, Mapping, Sequence

from rooflm._keywords import unknown_keyword


class ZipGrid:
    """Axes that advance together; made by zip_grid()."""

    def __init__(self, axes: Mapping[str, Sequence[Any]]) -> None:
        self.axes = {k: list(v) for k, v in axes.items()}

    def __len__(self) -> int:
        return len(next(iter(self.axes.values())))

    def __repr__(self) -> str:
        return f"zip_grid({', '.join(f'{k}={v!r}' for k, v in self.axes.items())})"


def zip_grid(**axes: Sequence[Any]) -> ZipGrid:
    """Lists of equal length that are taken together, for bench(grid=zip_grid(prompt=[64, 512], gen=[64, 16])).
    Lists of other arguments still give their product with it. ValueError when the lengths differ."""
    lengths = {k: len(v) for k, v in axes.items()}
    if not axes or len(set(lengths.values())) != 1:
        raise ValueError(f"zip_grid needs lists of one length, not {lengths}")
    if not next(iter(lengths.values())):
        raise ValueError("zip_grid needs lists with at least one value")
    return ZipGrid(axes)


def settings_of(axes: Mapping[str, Any], grid: Any = None, *, function: str = "bench") -> Iterator[dict[str, Any]]:
    """Every setting: the product of all lists among the axes, times the rows of a zip_grid."""
    lists = {k: v if isinstance(v, list) else [v] for k, v in axes.items()}
    for name, values in lists.items():
        if not values:
            raise ValueError(f"{name}=[] leaves nothing to run")
    rows: list[dict[str, Any]] = [{}]
    if grid is not None:
        if not isinstance(grid, ZipGrid):
            raise TypeError(f"grid must come from rooflm.zip_grid(), not {type(grid).__name__}")
        for name in grid.axes:
            if name not in axes:
                raise unknown_keyword(function, name, axes)
            lists.pop(name, None)
        rows = [dict(zip(grid.axes, values)) for values in zip(*grid.axes.values())]
    for combination in itertools.product(*lists.values()):
        chosen = dict(zip(lists, combination))
        for row in rows:
            yield {k: row[k] if k in row else chosen[k] for k in axes}
