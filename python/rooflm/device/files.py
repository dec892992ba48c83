# SPDX-License-Identifier: Apache-2.0
"""Small files of /proc and /sys below a root. What cannot be read is None, and the reason can be asked for."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Optional, Union


def _natural(name: str) -> list[Union[int, str]]:
    """cpu2 before cpu10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


class Files:
    """Reads below `root`, which tests replace by the tree of another machine."""

    def __init__(self, root: Union[str, os.PathLike[str]] = "/") -> None:
        self.root = Path(root)
        self._prefix = os.path.join(os.fspath(self.root), "")

    @property
    def here(self) -> bool:
        """True when these are the files of the running machine."""
        return self.root == Path("/")

    def read(self, path: str) -> tuple[Optional[str], Optional[str]]:
        """The text and None, or None and why not."""
        try:
            with open(self._prefix + path, "rb", buffering=0) as f:
                return f.read().decode("utf-8", "replace").strip("\0\n "), None
        except OSError as e:
            return None, f"/{path}: {e.strerror or e}"

    def text(self, path: str) -> Optional[str]:
        return self.read(path)[0]

    def integer(self, path: str) -> Optional[int]:
        return to_integer(self.text(path))

    def fields(self, path: str, sep: str = ":") -> list[tuple[str, str]]:
        """Lines `key<sep>value` of a file, in order; no lines when it cannot be read."""
        lines = (self.text(path) or "").splitlines()
        return [(k.strip(), v.strip()) for k, s, v in (line.partition(sep) for line in lines) if s]

    def kilobytes(self, path: str, key: str) -> Optional[int]:
        """Bytes of a line such as `MemAvailable: 123 kB`."""
        for name, value in self.fields(path):
            if name == key:
                number = to_integer(value.partition(" ")[0])
                return None if number is None else number * 1024
        return None

    def names(self, path: str) -> list[str]:
        """What a directory holds, cpu2 before cpu10; nothing when it cannot be listed."""
        try:
            return sorted(os.listdir(self._prefix + path), key=_natural)
        except OSError:
            return []


def to_integer(text: Optional[str]) -> Optional[int]:
    try:
        return int(text or "")
    except ValueError:
        return None
