# SPDX-License-Identifier: Apache-2.0
"""The one convention for text arguments: str is the text itself, os.PathLike a file, an integer array tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Optional, Sequence, Union

import numpy as np

TextOrTokens = Union[str, "os.PathLike[str]", Sequence[int], np.ndarray]


def read_text(path: os.PathLike[str]) -> str:
    """The file as UTF-8 text, line ends as they are."""
    with open(path, encoding="utf-8", newline="") as f:
        try:
            return f.read()
        except UnicodeDecodeError as e:
            bad = e.object[e.start]
            raise ValueError(f"{os.fspath(path)} is not UTF-8 text: byte {e.start} is 0x{bad:02x}") from None


def given_text(value: TextOrTokens) -> Union[str, Sequence[int], np.ndarray]:
    """The text of a file; anything else as it is."""
    return read_text(Path(value)) if isinstance(value, os.PathLike) else value


def as_tokens(
    value: TextOrTokens,
    tokenizer: Callable[[], Any],
    *,
    special: bool = False,
    bos: Optional[bool] = None,
    eos: Optional[bool] = None,
) -> np.ndarray:
    """Token ids as an int32 array. Text is encoded; ids are taken as they are, after a check of kind and range.
    tokenizer: called for text only, so that ids work with models that have none."""
    value = given_text(value)
    if isinstance(value, str):
        return np.asarray(tokenizer().encode(value, special=special, bos=bos, eos=eos), dtype=np.int32)
    if isinstance(value, (bytes, bytearray)):
        raise TypeError("text must be str; decode the bytes first, or pass a pathlib.Path to read a file")
    ids = np.asarray(value)
    if ids.size == 0:
        return np.zeros(0, np.int32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise TypeError(
            "expected str (the text itself), os.PathLike (a file) or a 1-D integer array (tokens), "
            f"not {type(value).__name__} of shape {ids.shape} and dtype {ids.dtype}"
        )
    if int(ids.min()) < 0 or int(ids.max()) > np.iinfo(np.int32).max:
        raise ValueError(f"token ids lie between {ids.min()} and {ids.max()}; they cannot be negative or above 2^31")
    return ids.astype(np.int32)
