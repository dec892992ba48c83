# SPDX-License-Identifier: Apache-2.0
"""Sizes of memory as people write them: powers of 1024."""

from __future__ import annotations

import re
from typing import Optional

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size_text(n: Optional[float]) -> str:
    if n is None:
        return "unknown"
    for unit in ("T", "G", "M", "K"):
        if n >= UNITS[unit]:
            return f"{n / UNITS[unit]:.4g} {unit}B"
    return f"{n:g} bytes"


def parse_size(text: str) -> int:
    """Bytes of "1G", "64 MB", "4k", "4096"."""
    m = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if not m:
        raise ValueError(f"{text!r} is no size; write 4096, 64K, 512M or 1G (powers of 1024)")
    return int(float(m[1]) * UNITS[m[2].upper()])


parse_size.__name__ = "size"  # argparse shows it: "invalid size value"
