# SPDX-License-Identifier: Apache-2.0
"""Which pages of a file are in memory, and making the next read of a file a cold one, without root."""

from __future__ import annotations

import os
from typing import Optional, Union

from rooflm import _core


def resident_share(path: Union[str, os.PathLike[str]]) -> Optional[float]:
    """The share of the file that is in memory now, from 0 to 1. None where the system does not tell: it says the truth
    only about files that the user owns or may write, and only where mapping is allowed."""
    os.stat(path)  # a file that is not there is an error
    try:
        return _core._file_resident(path)
    except OSError:
        return None


def drop_pages(path: Union[str, os.PathLike[str]]) -> Optional[float]:
    """Asks the system to forget the file's pages and returns the share that stayed, as resident_share() sees it. Pages
    that some process has mapped stay; so do all pages of tmpfs."""
    with open(path, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return resident_share(path)
