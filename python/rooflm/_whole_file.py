# SPDX-License-Identifier: Apache-2.0
"""Text files that are there whole or not at all."""

from __future__ import annotations

import os
from typing import Union


def write_whole(path: Union[str, os.PathLike[str]], text: str) -> None:
    """Writes UTF-8 text to a temporary name beside path, syncs it, and puts it in place of what was there."""
    fresh = f"{os.fspath(path)}.{os.getpid()}"
    try:
        with open(fresh, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.replace(fresh, path)
    finally:
        if os.path.exists(fresh):
            os.unlink(fresh)
