# SPDX-License-Identifier: Apache-2.0
"""Sweeps: one thing is varied, and what it does to the speed stands beside what bytes and bandwidth predict.

Each kind is a generator of records (sweep_*.py); here they are collected, so that Ctrl-C keeps what was measured.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence, Union

from rooflm._keywords import at_least, checked_keywords
from rooflm.measuring.recording import PathLike, RecordFile
from rooflm.measuring.results import Results
from rooflm.model import Model

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What each kind shows in its tables, the figure and the setting of its plot, and the arguments it takes.
MEASURED = {
    "context": ("bytes_per_token", "kv_bytes_per_token", "read_gbs", "predicted_tps", "decode_tps", "ceiling_share"),
    "kv": ("kv_bytes", "attention_us", "attention_gbs", "read_gbs", "share"),
    "cache": ("kv_bytes", "attention_us", "attention_gbs", "read_gbs", "cache_misses"),
    "threads": ("prefill_tps", "decode_tps", "read_gbs", "ceiling_tps", "ceiling_share"),
    "kernels": ("time_us", "gbs", "gmacs"),
}
PLOTTED = {
    "context": ("decode_tps", "depth"),
    "kv": ("attention_us", "layout"),
    "cache": ("attention_gbs", "kv_bytes"),
    "threads": ("decode_tps", "threads"),
    "kernels": ("time_us", "kernel"),
}
TAKES = {
    "context": ("depth", "ctx", "kv", "threads", "compute", "gen"),
    "kv": ("kv", "layout", "depth", "threads"),
    "cache": ("kv", "layout", "sizes", "threads"),
    "threads": ("threads", "cpus", "kv", "compute", "gen"),
    "kernels": ("tokens", "threads", "save", "choices"),
}


class Sweep(Results):
    """The records of one sweep: a Results with `kind`, and a plot of what was varied. For "cache", `knee` is where the
    cache no longer fits; for "kernels", `fastest` has the best kernel of each shape."""

    def __init__(self, kind: str, records: Iterable[Mapping[str, Any]]) -> None:
        super().__init__(records, measured=MEASURED[kind], caption=f"sweep of {kind}: medians of the runs")
        self.kind = kind

    def _like(self, records: Iterable[Mapping[str, Any]]) -> Sweep:
        return Sweep(self.kind, records)

    @property
    def knee(self) -> Optional[dict[str, Any]]:
        """Of a "cache" sweep: {kv_bytes, before_gbs, after_gbs, cache}, or None where the speed does not fall."""
        from rooflm.diagnosis.sweep_cache import knee

        self._only("cache", "knee")
        return knee(self.records)

    @property
    def fastest(self) -> list[dict[str, Any]]:
        """Of a "kernels" sweep: per shape and number of tokens the fastest kernel of each kind of activations."""
        from rooflm.diagnosis.sweep_kernels import fastest

        self._only("kernels", "fastest")
        return fastest(self.records)

    def _only(self, kind: str, what: str) -> None:
        if self.kind != kind:
            raise ValueError(f"a sweep of {self.kind!r} has no {what}; sweep({kind!r}) has")

    def plot(self, ax: Optional[Axes] = None, *, y: Optional[str] = None, x: Optional[str] = None) -> Axes:
        """Each run as a dot, the median of each setting, the range of its runs. y, x: another figure or setting."""
        from rooflm.diagnosis import sweep_plots

        if y is None and x is None and self.kind in sweep_plots.OWN:
            return sweep_plots.OWN[self.kind](self, ax)
        return super().plot(ax, y=y or PLOTTED[self.kind][0], x=x or PLOTTED[self.kind][1])

    def to_dict(self) -> dict[str, Any]:
        more: dict[str, Any] = {"kind": f"sweep {self.kind}"}
        if self.kind == "cache":
            more["knee"] = self.knee
        if self.kind == "kernels":
            more["fastest"] = self.fastest
        return {**super().to_dict(), **more}


@checked_keywords
def sweep(
    kind: str,
    model: Union[Model, str, os.PathLike[str], None] = None,
    *,
    depth: Union[None, int, list[int]] = None,
    ctx: Union[None, int, list[int]] = None,
    kv: Union[None, str, list[str]] = None,
    layout: Union[None, str, list[str]] = None,
    sizes: Union[None, int, list[int]] = None,
    threads: Union[None, int, list[int]] = None,
    cpus: Union[None, str, list[str]] = None,
    tokens: Union[None, int, list[int]] = None,
    compute: Optional[str] = None,
    gen: Optional[int] = None,
    save: Optional[bool] = None,
    choices: Optional[PathLike] = None,
    repeats: int = 5,
    seed: int = 0,
    out: Optional[PathLike] = None,
    progress: Optional[Callable[[str], None]] = None,
) -> Sweep:
    """Varies one thing; `kind` says which:

    "context"  depth (tokens in use, default 0, 4096, 16384, 32768 as far as the model goes) and, as an axis of its own,
               ctx (tokens allocated, which must cost nothing), by kv types: bytes, predicted and measured speed of gen
               tokens (default 16)
    "kv"       kv types and layouts of pages ("tile", "token", "head") of a cache of the model's shape (a 3B shape
               without a model) at `depth` tokens (default 4096): time of attention per token beside reading the pages
    "cache"    sizes of a KV cache in bytes (default 64 KB to four times the last cache): where attention slows down;
               cache_misses per token where the system lets them be counted
    "threads"  threads (default 1 to the CPUs allowed) and cpus to pin them to (default not pinned, and each class of
               cores where there are several)
    "kernels"  the kernels of this CPU, and OpenBLAS where it is found, on the shapes of the model's matrices, for
               tokens (default 1 and 64) at once; save=True keeps the fastest for rooflm.kernel_choice() in the file
               `choices` (default in rooflm's cache directory)

    repeats: runs of each setting after one to warm up, in an order drawn from seed. out: a file that takes each record
    as it is measured. Ctrl-C raises KeyboardInterrupt with what was measured as its `.results`.
    """
    from rooflm.diagnosis import sweep_cache, sweep_context, sweep_kernels, sweep_threads

    if kind not in MEASURED:
        raise ValueError(f"kind must be one of {', '.join(MEASURED)}, not {kind!r}")
    at_least(1, sizes=sizes, threads=threads, tokens=tokens, repeats=repeats)
    at_least(0, depth=depth, seed=seed)
    given = {"depth": depth, "ctx": ctx, "kv": kv, "layout": layout, "sizes": sizes, "threads": threads, "cpus": cpus,
             "tokens": tokens, "compute": compute, "gen": gen, "save": save, "choices": choices}  # fmt: skip
    options = {k: v for k, v in given.items() if v is not None}
    for name in options:
        if name not in TAKES[kind]:
            raise TypeError(f"a sweep of {kind!r} takes {', '.join(TAKES[kind])}, not {name!r}")
    if model is None and kind in ("context", "threads", "kernels"):
        raise TypeError(f"a sweep of {kind!r} needs a model")
    loaded = model if model is None or isinstance(model, Model) else Model(model)
    run: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
        "context": sweep_context.records,
        "kv": sweep_cache.layouts,
        "cache": sweep_cache.sizes,
        "threads": sweep_threads.records,
        "kernels": sweep_kernels.records,
    }
    records: list[dict[str, Any]] = []
    file = RecordFile(out, resumable=False) if out is not None else None
    try:
        for r in run[kind](loaded, repeats=repeats, seed=seed, say=progress or (lambda text: None), **options):
            record = {"schema": 1, "kind": "sweep", "sweep": kind, **r, **r["setting"]}
            if file:
                file.append(record)
            records.append(record)
    except KeyboardInterrupt as e:
        e.results = Sweep(kind, sorted(records, key=_order))  # type: ignore[attr-defined]
        raise
    finally:
        if file:
            file.close()
    return Sweep(kind, sorted(records, key=_order))


def _order(record: Mapping[str, Any]) -> list[Any]:
    """Numbers by size, names by letter; runs of one setting stay in the order in which they ran."""
    values = record["setting"].values()
    return [(0, float(v), "") if isinstance(v, (int, float)) else (1, 0.0, str(v)) for v in values]


def as_list(value: Any) -> list[Any]:
    """Only lists sweep; anything else stands for itself."""
    return list(value) if isinstance(value, list) else [value]


def shuffled_runs(jobs: Sequence[Any], repeats: int, seed: int) -> Iterator[tuple[int, Any]]:
    """(repetition, job): all jobs in each repetition, in an order of its own."""
    from rooflm.measuring.bench import shuffled

    for repeat in range(repeats):
        for i in shuffled(len(jobs), seed, repeat):
            yield repeat, jobs[i]
