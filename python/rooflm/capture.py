# SPDX-License-Identifier: Apache-2.0
"""Activations of layers as NumPy arrays, gathered while a session evaluates: what Session.capture() gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, Mapping

import numpy as np

from rooflm import _core
from rooflm._keywords import unknown_key
from rooflm._output import html_table, table

if TYPE_CHECKING:
    from rooflm.session import Session


class Capture(Mapping[str, np.ndarray]):
    """What Session.capture() collects: arrays by tap name, one row per token evaluated since it began. Attention
    weights are (tokens, heads, positions), zero beyond each token's own positions."""

    def __init__(self, session: Session, wanted: list[str]) -> None:
        self._session = session
        self._wanted = wanted
        self._arrays: dict[str, np.ndarray] = {}

    def __enter__(self) -> Capture:
        if self._session._capture is not None:
            raise _core.Error("this session is already capturing; use one capture with several patterns")
        self._session._c._set_taps(self._wanted)
        self._session._capture = self
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()

    def _end(self) -> None:
        """Takes what was gathered and stops: when the block ends, or earlier when its session is closed."""
        if self._session._capture is self:
            self._collect()
            self._session._c._set_taps([])
            self._session._capture = None

    def _collect(self) -> None:
        """Moves what the extension has gathered into our arrays."""
        for name, fresh in self._session._c._take_taps().items():
            have = self._arrays.get(name)
            self._arrays[name] = fresh if have is None else np.concatenate(_same_width(have, fresh))

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._wanted:
            raise KeyError(unknown_key("captured tap", name, self._wanted))
        if self._session._capture is self:  # still open: take what is there
            self._collect()
        if name not in self._arrays:
            raise KeyError(f"{name}: nothing was evaluated inside this capture")
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._wanted)

    def __len__(self) -> int:
        return len(self._wanted)

    def _rows(self) -> list[dict[str, Any]]:
        if self._session._capture is self:
            self._collect()
        found = ((name, self._arrays.get(name)) for name in self._wanted)
        return [
            {"tap": name, "shape": None, "nbytes": None}
            if a is None
            else {"tap": name, "shape": " x ".join(map(str, a.shape)), "nbytes": a.nbytes}
            for name, a in found
        ]

    def __repr__(self) -> str:
        return table(self._rows(), ("tap", "shape", "nbytes"))

    def _repr_html_(self) -> str:
        return html_table(self._rows(), ("tap", "shape", "nbytes"))


def _same_width(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both with as many columns as the wider one, filled with zeros (attention weights of a grown context)."""
    width = max(a.shape[-1], b.shape[-1])
    a, b = (np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])]) for x in (a, b))
    return a, b
