# SPDX-License-Identifier: Apache-2.0
"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Union


def replaceable(path: Union[str, os.PathLike[str]]) -> Path:
    """Where a new file may take the place of the one that a user named: a link is followed, so that it stays a link;
    OSError for a device, a pipe or a directory, which the new file would do away with."""
    real = Path(os.path.realpath(path))
    if real.exists() and not real.is_file():
        code = errno.EISDIR if real.is_dir() else errno.EINVAL
        raise OSError(code, "not a regular file, which a new one could replace", os.fspath(path))
    return real


def write_whole(path: Union[str, os.PathLike[str]], text: str) -> None:
    """Writes UTF-8 text to a temporary name beside path, syncs it, and puts it in place of what was there."""
    target = replaceable(path)
    fresh = f"{target}.{os.getpid()}"
    try:
        with open(fresh, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.replace(fresh, target)
    finally:
        if os.path.exists(fresh):
            os.unlink(fresh)
