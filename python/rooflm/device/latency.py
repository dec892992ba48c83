# SPDX-License-Identifier: Apache-2.0
"""How long one access to memory takes when it waits for the last one: single walks, and ladders over working sets and
strides."""

from __future__ import annotations

import os
import statistics
from html import escape
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

from rooflm import _core
from rooflm._keywords import at_least, checked_keywords, whole
from rooflm._labels import plain_log
from rooflm._optional import axes, need
from rooflm._output import html_table, table
from rooflm.device.files import Files
from rooflm.device.sizes import size_text

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

SCHEMA = 1
STRIDES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)


@checked_keywords
def random_latency(
    size: int,
    *,
    stride: int = 64,
    iters: int = 1_000_000,
    huge: bool = True,
    random: bool = True,
    seed: int = 0,
) -> dict[str, Any]:
    """Walks a cycle of dependent loads through `size` bytes of fresh memory, one node every `stride` bytes (a multiple
    of 8), for `iters` steps after up to one round of warming up.

    random: one random cycle through all nodes (from `seed`), else each node leads to the next one. huge: asks for
    transparent huge pages, or against them; what was got is in the result.

    Returns a record: ns (the median over five equal stretches of the walk), ns_range [least, greatest stretch],
    size_bytes, stride_bytes, iters, order, nodes, pages ("huge", "small", or "small (huge refused)") and page_bytes.
    A stride of 4096 touches a page with each step and so measures the TLB as well, and its nodes compete for few sets
    of each cache. ValueError for sizes below two strides; MemoryError for more than the memory that is available.
    """
    at_least(0, seed=seed)
    r = _core.random_latency(size, stride, iters, huge=huge, random=random, seed=seed)
    got_huge = r["huge_bytes"] >= 0.9 * size
    return {
        "schema": SCHEMA,
        "size_bytes": size,
        "stride_bytes": stride,
        "iters": iters,
        "order": "random" if random else "sequential",
        "ns": statistics.median(r["parts_ns"]),
        "ns_range": [min(r["parts_ns"]), max(r["parts_ns"])],
        "nodes": r["nodes"],
        "pages": pages_text(size, huge, r["huge_bytes"]),
        "page_bytes": _huge_page_bytes() if got_huge else _page_bytes(),
    }


class Ladder:
    """Walks over a range of sizes or strides; prints as a table, plots as a ladder. `capped` says why the largest size
    is below the one asked for, None when it is not."""

    def __init__(self, records: list[dict[str, Any]], by: str, capped: Optional[str]) -> None:
        self.records = records
        self.by = by  #: "size_bytes" or "stride_bytes"
        self.capped = capped

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "by": self.by, "capped": self.capped, "records": self.records}

    def to_pandas(self) -> pandas.DataFrame:
        """One row per walk."""
        return need("pandas").DataFrame(self.records)

    def _table(self) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
        columns = list(dict.fromkeys(_line_of(r) for r in self.records))
        rows: dict[int, dict[str, Any]] = {}
        for r in self.records:
            row = rows.setdefault(r[self.by], {self.by.partition("_")[0]: size_text(r[self.by])})
            row[f"{_line_of(r)} ns"] = r["ns"]
        return [rows[k] for k in sorted(rows)], (self.by.partition("_")[0], *(f"{c} ns" for c in columns))

    def __repr__(self) -> str:
        return table(*self._table()) + (f"\n{self.capped}" if self.capped else "")

    def _repr_html_(self) -> str:
        return html_table(*self._table()) + (f"<p>{escape(self.capped)}</p>" if self.capped else "")

    def plot(self, ax: Optional[Axes] = None) -> Axes:
        """Nanoseconds per access over size or stride, with the range of the five stretches of each walk."""
        ax = axes(ax, figsize=(8, 4.5))
        for line in dict.fromkeys(_line_of(r) for r in self.records):
            rows = [r for r in self.records if _line_of(r) == line]
            x, y = [r[self.by] for r in rows], [r["ns"] for r in rows]
            below, above = zip(*((r["ns"] - r["ns_range"][0], r["ns_range"][1] - r["ns"]) for r in rows))
            ax.errorbar(x, y, yerr=[below, above], marker="o", ms=3, lw=1, capsize=2, label=line)
        ax.set_xscale("log", base=2)
        plain_log(ax, "y")
        ticks = sorted({r[self.by] for r in self.records})
        ticks = ticks[:: 1 + len(ticks) // 9]
        ax.set_xticks(ticks, [size_text(t) for t in ticks], fontsize="small")
        what = "working set" if self.by == "size_bytes" else "stride"
        other = "stride_bytes" if self.by == "size_bytes" else "size_bytes"
        fixed = sorted({r[other] for r in self.records})
        ax.set(xlabel=f"{what} (bytes)", ylabel="ns per access")
        ax.set_title(
            f"Latency of dependent loads over the {what}, {other.partition('_')[0]} {size_text(fixed[0])}\n"
            f"median and range of n = 5 stretches of each walk",
            fontsize="medium",
        )
        ax.legend(fontsize="small")
        return ax


@checked_keywords
def latency_ladder(
    *,
    smallest: int = 4 << 10,
    largest: int = 1 << 30,
    stride: int = 64,
    orders: Sequence[str] = ("random", "sequential"),
    pages: Sequence[str] = ("huge", "small"),
    progress: Optional[Callable[[str], None]] = None,
) -> Ladder:
    """Latency over working sets from `smallest` to `largest` bytes (default 4 KB to 1 GB), each twice the last, capped
    at half of the memory available. Some ten seconds for the whole ladder."""
    _check(orders, ("random", "sequential"), "orders")
    _check(pages, ("huge", "small"), "pages")
    at_least(8, stride=stride)
    if not 2 * stride <= smallest <= largest:
        raise ValueError(f"smallest={smallest} must be at least two strides of {stride} and at most largest={largest}")
    top, capped = capped_size(largest)
    sizes = [smallest]
    while sizes[-1] * 2 <= top:
        sizes.append(sizes[-1] * 2)
    records = []
    for kind in pages:
        for order in orders:
            for size in sizes:
                if kind == "huge" and size < _huge_page_bytes() and "small" in pages:
                    continue  # no huge page fits: the small ones tell
                if progress:
                    progress(f"latency, {order}, {kind} pages, {size_text(size)}")
                # One round at least while that is cheap: what the walk has not met yet is not in the cache either.
                iters = max(200_000, min(size // stride, 1_000_000))
                records.append(random_latency(size, stride=stride, iters=iters, huge=kind == "huge",
                                              random=order == "random"))  # fmt: skip
    return Ladder(records, "size_bytes", capped)


@checked_keywords
def stride_ladder(
    *,
    size: int = 64 << 20,
    strides: Sequence[int] = STRIDES,
    orders: Sequence[str] = ("random", "sequential"),
    huge: bool = True,
    progress: Optional[Callable[[str], None]] = None,
) -> Ladder:
    """Latency over the distance between nodes, within one working set of `size` bytes (default 64 MB, capped at half of
    the memory available)."""
    strides = [whole("strides", n) for n in strides]
    at_least(8, strides=strides)
    _check(orders, ("random", "sequential"), "orders")
    top, capped = capped_size(size)
    records = []
    for order in orders:
        for stride in strides:
            if progress:
                progress(f"latency, {order}, stride {size_text(stride)}")
            iters = max(100_000, min(top // stride, 1_000_000))
            records.append(random_latency(top, stride=stride, iters=iters, huge=huge, random=order == "random"))
    return Ladder(records, "stride_bytes", capped)


def capped_size(wanted: int) -> tuple[int, Optional[str]]:
    """The size to measure with, at most half of the memory available to this process, and a sentence when it is less
    than what is wanted."""
    available = Files().kilobytes("proc/meminfo", "MemAvailable")
    limits = [n for n in (available, _core._cpus("/")["memory_limit_bytes"]) if n]
    if not limits or wanted <= min(limits) // 2:
        return wanted, None
    top = min(limits) // 2 // 4096 * 4096
    return top, f"capped at {size_text(top)}, half of the memory available, instead of {size_text(wanted)}"


def _line_of(r: dict[str, Any]) -> str:
    return f"{r['order']}, {r['pages']} pages of {size_text(r['page_bytes'])}"


def pages_text(size: int, huge: bool, huge_bytes: int) -> str:
    """The kind of pages that was got; refused only where a huge page would have fitted."""
    if huge_bytes >= 0.9 * size:
        return "huge"
    return "small (huge refused)" if huge and size >= _huge_page_bytes() else "small"


def _check(values: Sequence[str], known: Sequence[str], name: str) -> None:
    for v in values:
        if v not in known:
            raise ValueError(f"{name}: {v!r} is none of {', '.join(known)}")


def _page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE")


def _huge_page_bytes() -> int:
    return Files().integer("sys/kernel/mm/transparent_hugepage/hpage_pmd_size") or 2 << 20
