# SPDX-License-Identifier: Apache-2.0
"""Which pages of a file are in memory, and making the next read of a file a cold one, without root."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Optional, Union

import numpy as np

_PART = 1 << 30  # bytes asked about in one call: a byte of the answer stands for a page


def resident_share(path: Union[str, os.PathLike[str]]) -> Optional[float]:
    """The share of the file that is in memory now, from 0 to 1. None where the system does not tell: it says the truth
    only about files that the user owns or may write."""
    if not (os.stat(path).st_uid == os.geteuid() or os.access(path, os.W_OK)):
        return None
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (OSError, AttributeError):
        return None
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    with open(path, "rb") as f:
        size = os.fstat(f.fileno()).st_size
        if not size:
            return None
        with mmap.mmap(f.fileno(), size, prot=mmap.PROT_READ) as m:
            here = np.frombuffer(m, np.uint8)
            try:
                return _resident(mincore, here.ctypes.data, size)
            finally:
                del here  # an mmap with views does not close


def _resident(mincore: object, base: int, size: int) -> Optional[float]:
    pages = 0
    for at in range(0, size, _PART):
        part = min(_PART, size - at)
        flags = np.empty(-(-part // mmap.PAGESIZE), np.uint8)
        if mincore(base + at, part, flags.ctypes.data) != 0:  # type: ignore[operator]
            return None
        pages += int((flags & 1).sum())
    return pages / -(-size // mmap.PAGESIZE)


def drop_pages(path: Union[str, os.PathLike[str]]) -> Optional[float]:
    """Asks the system to forget the file's pages and returns the share that stayed, as resident_share() sees it. Pages
    that some process has mapped stay; so do all pages of tmpfs."""
    with open(path, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return resident_share(path)
