# SPDX-License-Identifier: Apache-2.0
"""The KV cache alone: attention over caches of one shape in every type and layout, and over caches of growing size,
each beside reading the same pages and nothing else."""

from __future__ import annotations

import math
import statistics
from typing import Any, Callable, Iterator, Optional, Sequence, Union

import numpy as np

from rooflm import _core
from rooflm.device.machine import machine
from rooflm.diagnosis.sweeps import as_list, shuffled_runs
from rooflm.model import Model

SHAPE = {"n_layer": 28, "n_head": 24, "n_head_kv": 8, "dim_k": 128, "dim_v": 128}  # of a 3B model
LAYOUTS = ("tile", "token", "head")
LEAST = 64 << 10  # bytes of the smallest cache
MOST = 512 << 20
LAST_CACHE = 32 << 20  # where the system does not show caches
FALL = 0.85  # of the speed before, below which a fall is a knee
MISSES = ("llc_load_misses", "cache_misses")  # the first that can be counted
WALKS = 5  # timed walks of attention in one run


def _shape(model: Optional[Model]) -> dict[str, int]:
    """Heads of the first layer that attends to everything: where layers differ, it stands for all."""
    if model is None:
        return dict(SHAPE)
    hp = model.hparams
    i = next((i for i, sliding in enumerate(hp["sliding"]) if not sliding), 0)
    return {"n_layer": hp["n_layer"], "n_head": hp["n_head"][i], "n_head_kv": hp["n_head_kv"][i],
            "dim_k": hp["head_dim_k"], "dim_v": hp["head_dim_v"]}  # fmt: skip


def _filled(shape: dict[str, int], n: int, kv: str, layout: str) -> _core.KVCache:
    """A cache of n random tokens; appended in pieces, so that the floats of few are there at once."""
    heads = {k: shape[k] for k in ("n_head_kv", "dim_k", "dim_v")}
    cache = _core.KVCache(shape["n_layer"], n_ctx=n, kv=kv, layout=layout, **heads)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    piece = max(64, (8 << 20) // (4 * shape["n_layer"] * shape["n_head_kv"] * shape["dim_k"]))
    for at in range(0, n, piece):
        m = min(piece, n - at)
        lead = (shape["n_layer"],) if shape["n_layer"] > 1 else ()
        k, v = (rng.standard_normal((*lead, m, shape["n_head_kv"], shape[d]), np.float32) for d in ("dim_k", "dim_v"))
        cache.append(k, v)
    return cache


def _walk(cache: _core.KVCache, shape: dict[str, int], threads: int, count: bool = False) -> dict[str, Any]:
    """One token's attention over all layers, and reading the same pages, interleaved."""
    q = np.random.default_rng(1).standard_normal((1, shape["n_head"], shape["dim_k"]), np.float32)
    nbytes = cache.nbytes_per_token * cache.length
    # Short walks are repeated until they are longer than a clock and a barrier.
    walks = max(WALKS, min(2000, (16 << 20) // max(nbytes, 1)))
    misses: dict[str, Any] = {}
    if count:
        from rooflm.device.counters import Counters

        with Counters() as counters:
            times = _core._attention_time(q, cache, threads, walks)
        event = next((e for e in MISSES if counters.value(e) is not None), None)
        value = counters.value(event) if event else None
        misses["cache_misses"] = value / (walks + 1) if value is not None else None  # one walk warms up
        misses["cache_misses_event"] = event
        misses["cache_misses_why"] = None if event else f"not available: {counters.unavailable.get(MISSES[0])}"
    else:
        times = _core._attention_time(q, cache, threads, walks)
    took = statistics.median(times)
    gbs = nbytes / took / 1e9
    read = _core.read_bandwidth([], kv=cache, threads=threads, passes=WALKS, repeat=max(walks // WALKS, 1))["gbs"]
    k, v = _core._attention_kernels(cache, 1)[:2]
    return {
        "kv_bytes": nbytes,
        "attention_us": took * 1e6,
        "attention_gbs": gbs,
        "read_gbs": read,
        "share": gbs / read,
        "kernels": [k, v],
        **misses,
    }


def layouts(
    model: Optional[Model],
    *,
    repeats: int,
    seed: int,
    say: Callable[[str], None],
    kv: Union[str, list[str], None] = None,
    layout: Union[str, list[str], None] = None,
    depth: Union[int, list[int]] = 4096,
    threads: Optional[int] = None,
) -> Iterator[dict[str, Any]]:
    shape, used = _shape(model), threads or machine().default_threads
    kinds = as_list(kv) if kv is not None else ["f16", "q8_0"]
    orders = as_list(layout) if layout is not None else list(LAYOUTS)
    for n in as_list(depth):
        jobs = []
        for kind in kinds:
            for order in orders:
                say(f"filling {kind}, {order}, {n} tokens")
                setting = {"kv": kind, "layout": order, "depth": n, "threads": used, **shape}
                jobs.append((setting, _filled(shape, n, kind, order)))
        for repeat, (setting, cache) in shuffled_runs(jobs, repeats, seed):
            say(f"{setting['kv']}, {setting['layout']}, repetition {repeat + 1} of {repeats}")
            yield {"setting": setting, "repeat": repeat, **_walk(cache, shape, used)}


def default_sizes(caches: Sequence[dict[str, Any]], available: Optional[int]) -> list[int]:
    """Powers of two from 64 KB to four times the last cache, at most a quarter of the memory available."""
    last = max((c["size_bytes"] for c in caches), default=LAST_CACHE)
    most = min(4 * last, MOST, (available or MOST * 4) // 4)
    return [LEAST << i for i in range(max(1, int(math.log2(max(most, LEAST) / LEAST)) + 1))]


def sizes(
    model: Optional[Model],
    *,
    repeats: int,
    seed: int,
    say: Callable[[str], None],
    sizes: Union[None, int, list[int]] = None,
    kv: Union[str, list[str]] = "q8_0",
    layout: Union[str, list[str]] = "tile",
    threads: Optional[int] = None,
) -> Iterator[dict[str, Any]]:
    here = machine()
    shape, used = {**_shape(model), "n_layer": 1}, threads or here.default_threads
    caches = [c for c in here.caches if c["type"] != "Instruction"]
    wanted = as_list(sizes) if sizes is not None else default_sizes(caches, here.memory_available_bytes)
    jobs = []
    for kind in as_list(kv):
        for order in as_list(layout):
            per_token = _filled(shape, 1, kind, order).nbytes_per_token
            for size in wanted:
                n = max(1, round(size / per_token))
                say(f"filling {kind}, {order}, {size >> 10} KB")
                setting = {"kv": kind, "layout": order, "size_bytes": size, "threads": used}
                jobs.append((setting, n, _filled(shape, n, kind, order)))
    for repeat, (setting, n, cache) in shuffled_runs(jobs, repeats, seed):
        say(f"{setting['size_bytes'] >> 10} KB, repetition {repeat + 1} of {repeats}")
        figures = _walk(cache, shape, used, count=True)
        yield {"setting": setting, "repeat": repeat, "depth": n, **figures, "caches": caches}


def knee(records: Sequence[dict[str, Any]]) -> Optional[dict[str, Any]]:
    """Where speed falls for good: the split of the sizes into two stretches of constant speed (in logarithms) that fits
    best, if the second is below FALL of the first; with the cache whose size is nearest. A change point."""
    by_size: dict[float, list[float]] = {}
    for r in records:
        by_size.setdefault(r["kv_bytes"], []).append(r["attention_gbs"])
    points = sorted((size, statistics.median(v)) for size, v in by_size.items())
    # The smallest caches are bound by the barrier, not by bytes: the search begins at the fastest size.
    points = points[max(range(len(points)), key=lambda i: points[i][1]) :] if points else []
    if len(points) < 3:
        return None
    logs = [math.log(v) for _, v in points]

    def rest(part: list[float]) -> float:
        mean = statistics.fmean(part)
        return sum((v - mean) ** 2 for v in part)

    cut = min(range(1, len(logs)), key=lambda i: rest(logs[:i]) + rest(logs[i:]))
    before, after = (statistics.median(v for _, v in part) for part in (points[:cut], points[cut:]))
    if after >= FALL * before:
        return None
    edge = math.sqrt(points[cut - 1][0] * points[cut][0])
    caches = records[0].get("caches") or []
    threads = records[0]["setting"]["threads"]

    def whole(c: dict[str, Any]) -> int:
        copies = max(1, min(int(c["count"]), int(threads)))
        return int(c["size_bytes"]) * copies

    near = min(caches, key=lambda c: abs(math.log(whole(c) / edge)), default=None)
    return {
        "kv_bytes": edge,
        "last_fast_bytes": points[cut - 1][0],
        "first_slow_bytes": points[cut][0],
        "before_gbs": before,
        "after_gbs": after,
        "cache": f"L{near['level']}" if near else None,
        "cache_bytes": whole(near) if near else None,
    }
