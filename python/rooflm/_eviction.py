# SPDX-License-Identifier: Apache-2.0
"""What a cache keeps that evicts: "64+960" is the first 64 positions (the sinks) and at least the latest 960.

Pages have 64 tokens, so both are multiples of that; one page more is what fills up before the oldest goes.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

PAGE = 64


class Kept(NamedTuple):
    sinks: int
    recent: int

    @property
    def n_ctx(self) -> int:
        """Positions of the cache."""
        return self.sinks + self.recent + PAGE

    def held(self, n: int) -> int:
        """Positions that the cache holds, and the last one attends to, n positions into the text."""
        return n - -(-max(n - self.n_ctx, 0) // PAGE) * PAGE

    def __str__(self) -> str:
        return f"{self.sinks}+{self.recent}"


def parse(evict: str) -> Kept:
    """ValueError that shows the way for anything but "SINKS+RECENT" in multiples of a page."""
    if not isinstance(evict, str):
        raise TypeError(f'evict must be a str such as "64+960", not {type(evict).__name__}')
    match = re.fullmatch(r"\s*(\d{1,9})\s*\+\s*(\d{1,9})\s*", evict)
    if not match:
        raise ValueError(f'evict={evict!r}: it is "SINKS+RECENT", such as "64+960" for the first 64 and latest 960')
    sinks, recent = (int(n) for n in match.groups())
    if sinks % PAGE or recent % PAGE or not recent:
        near = Kept(-(-sinks // PAGE) * PAGE, max(-(-recent // PAGE), 1) * PAGE)
        raise ValueError(f"evict={evict!r}: pages have {PAGE} tokens, so keep multiples of that, such as \"{near}\"")
    return Kept(sinks, recent)


def kept_by(evict: Optional[str]) -> Optional[Kept]:
    """The same of an option that may not be given: None then, everything is kept."""
    return None if evict is None else parse(evict)
