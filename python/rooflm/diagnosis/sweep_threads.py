# SPDX-License-Identifier: Apache-2.0
"""Number of threads and the cores they are pinned to."""

from __future__ import annotations

import os
from typing import Any, Callable, Iterator, Optional, Union

from rooflm.device.machine import machine
from rooflm.device.sampler import cpu_numbers
from rooflm.diagnosis.sweeps import as_list, shuffled_runs
from rooflm.measuring.run import run_once
from rooflm.model import Model

PROMPT = 64


def records(
    model: Model,
    *,
    repeats: int,
    seed: int,
    say: Callable[[str], None],
    threads: Union[None, int, list[int]] = None,
    cpus: Union[None, str, list[str]] = None,
    kv: str = "f16",
    compute: str = "auto",
    gen: int = 16,
) -> Iterator[dict[str, Any]]:
    here = machine()
    counts = as_list(threads) if threads is not None else list(range(1, len(here.allowed_cpus) + 1))
    places: list[Optional[str]] = as_list(cpus) if cpus is not None else [None]
    if cpus is None and len(here.classes) > 1:
        places += [",".join(map(str, c["cpus"])) for c in here.classes]
    jobs = [
        {"prompt": PROMPT, "gen": gen, "depth": 0, "kv": kv, "evict": None, "compute": compute, "threads": n,
         "kernel": None, "cpus": place, "load": "auto", "blas": None}
        for place in places
        for n in counts
        if place is None or n <= len(cpu_numbers(place))
    ]  # fmt: skip
    if not jobs:
        raise ValueError(f"threads={counts} are more than the CPUs of cpus={places}")
    for s in jobs:  # a warm-up of the file's pages and of each team of threads
        run_once(model, {**s, "gen": 2}, seed=seed, caches=here.caches)
    for repeat, s in shuffled_runs(jobs, repeats, seed):
        say(f"{s['threads']} threads on {s['cpus'] or 'any CPU'}, repetition {repeat + 1} of {repeats}")
        figures = run_once(model, s, seed=seed, caches=here.caches)
        setting = {k: s[k] for k in ("threads", "cpus", "kv", "compute")}
        yield {"setting": setting, "model": os.path.basename(str(model.gguf.path)), "repeat": repeat, **figures}
