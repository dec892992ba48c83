# SPDX-License-Identifier: Apache-2.0
"""What machine(measure=True) does to the machine: bandwidth, copies, latency, peaks, clock."""

from __future__ import annotations

import datetime
import time
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from rooflm import _core
from rooflm._keywords import checked_keywords
from rooflm.device.latency import capped_size, latency_ladder, pages_text, stride_ladder
from rooflm.device.sizes import size_text

LADDER_BYTES = 1 << 30
COUNTS = {
    None: "bytes read",
    "plain": "bytes read plus bytes written, as STREAM; the caches read the target as well, which is not counted",
    "stream": "bytes read plus bytes written, as STREAM; stores go around the caches",
}


@checked_keywords
def memory_bandwidth(
    size: int,
    *,
    threads: Optional[int] = None,
    huge: bool = True,
    copy: Optional[str] = None,
    passes: int = 5,
    repeat: int = 1,
    cpus: Union[None, str, Sequence[int]] = None,
    kernel: Optional[str] = None,
) -> dict[str, Any]:
    """Bandwidth over `size` bytes of fresh memory, in GB/s (1e9 bytes/s): the median of `passes`, by the fastest of all
    read kernels, or by the one named.

    copy: None reads; "plain" copies one half onto the other through the caches, "stream" with stores around them.
    huge: asks for transparent huge pages, or against them. threads: default those of this machine. repeat: times that
    one pass goes over the memory, each thread over its own part: for what fits a cache.

    Returns a record: gbs, size_bytes, threads, pages, kernel, passes_s and counts, which says what the bytes are.
    """
    r = _core.memory_bandwidth(size, threads=threads, huge=huge, copy=copy, passes=passes, repeat=repeat, cpus=cpus,
                               kernel=kernel)  # fmt: skip
    pages = pages_text(size, huge, r["huge_bytes"])
    return {"schema": 1, "gbs": r["gbs"], "size_bytes": size, "threads": r["threads"], "pages": pages,
            "kernel": r["kernel"], "passes_s": r["passes_s"], "counts": COUNTS[copy]}  # fmt: skip


def measure(m: Mapping[str, Any], progress: Optional[Callable[[str], None]]) -> dict[str, Any]:
    """The whole record for machine(); m: its facts."""

    def say(text: str) -> None:
        if progress:
            progress(text)

    start = time.monotonic()
    most = m["default_threads"]
    last = max((c["size_bytes"] for c in m["caches"]), default=32 << 20)
    # Four times the last cache, so that it cannot hold a good part.
    size, _ = capped_size(max(256 << 20, 4 * last))
    read = []
    for huge in (True, False):
        for n in sorted({1, *(n for n in (2, 4, 8, 16, 32, 64) if n < most), most}):
            say(f"read {size_text(size)}, {n} thread(s), {'huge' if huge else 'small'} pages")
            read.append({"where": "memory", **memory_bandwidth(size, threads=n, huge=huge)})
    for c in m["caches"]:
        if c["type"] != "Instruction":
            part = c["size_bytes"] // 2
            say(f"read L{c['level']}")
            r = memory_bandwidth(part, threads=1, repeat=max(2, (64 << 20) // part))
            read.append({"where": f"L{c['level']}", **r})
    copies = []
    for how in ("plain", "stream"):
        say(f"copy, {how}")
        copies.append({"how": how, **memory_bandwidth(size, threads=most, copy=how)})
    say("peaks of arithmetic")
    peaks = []
    for n in sorted({1, most}):
        for (isa, kind), made in _core._peaks(0.02, n).items():
            peaks.append({"isa": isa, "kind": kind, "threads": n, "gops": 2e-9 * made})
    clock = _core.core_clock(5.0)
    ladder = latency_ladder(largest=LADDER_BYTES, progress=progress)
    strides = stride_ladder(size=min(64 << 20, size), progress=progress)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "took_s": time.monotonic() - start,
        "read": read,
        "copy": copies,
        "latency": ladder.to_dict(),
        "strides": strides.to_dict(),
        "peak": peaks,
        "clock_ghz": clock,
    }
