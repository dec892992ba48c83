# SPDX-License-Identifier: Apache-2.0
"""One loading in a process of its own, which prints its figures as JSON: python -m rooflm.measuring.load_run PATH WAY.

A process of its own has no page of the file mapped and no memory to reuse, so that faults and times are those of a
program that starts.
"""

from __future__ import annotations

import json
import mmap
import resource
import sys
import time
from typing import Any, Optional

import numpy as np

from rooflm import _core
from rooflm._output import plain
from rooflm.measuring.ceilings import read_arrays
from rooflm.measuring.forecasting import process_memory
from rooflm.model import Model

STEP = 16 << 20


def load_once(path: str, way: str, threads: Optional[int]) -> dict[str, Any]:
    """way: "mmap", "copy" (into huge pages where the system gives them), or "buffered" (into small pages)."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    figures = _buffered(path) if way == "buffered" else _model(path, way, threads)
    keep = figures.pop("keep")
    after = resource.getrusage(resource.RUSAGE_SELF)
    arrays = keep if isinstance(keep, list) else read_arrays(keep)
    memory = process_memory() or {}
    return {
        **figures,
        "ready_s": figures["open_s"] + (figures["first_token_s"] or 0.0),
        "major_faults": after.ru_majflt - before.ru_majflt,
        "minor_faults": after.ru_minflt - before.ru_minflt,
        "total_s": time.perf_counter() - start,
        "anonymous_bytes": memory.get("anonymous_bytes"),
        "file_bytes_resident": memory.get("file_bytes"),
        "read_gbs": _core.read_bandwidth(arrays, threads=threads, passes=5)["gbs"],
    }


def _model(path: str, way: str, threads: Optional[int]) -> dict[str, Any]:
    start = time.perf_counter()
    model = Model(path, load=way)
    session = model.session(n_ctx=64, n_threads=threads)
    times = [time.perf_counter()]
    for _ in range(2):  # the first one touches every weight
        session.eval(np.zeros(1, np.int32))
        times.append(time.perf_counter())
    return {
        "open_s": times[0] - start,
        "first_token_s": times[1] - times[0],
        "second_token_s": times[2] - times[1],
        "first_touch_s": max(0.0, (times[1] - times[0]) - (times[2] - times[1])),
        "keep": model,
    }


def _buffered(path: str) -> dict[str, Any]:
    """read() into anonymous memory in small pages: what a program without mmap does."""
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as f:
        size = f.seek(0, 2)
        f.seek(0)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # not shared, the default
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        view = memoryview(memory)
        at = 0
        while at < size:
            got = f.readinto(view[at : at + STEP])
            if not got:
                raise OSError(f"{path} became shorter while it was read")
            at += got
    opened = time.perf_counter() - start
    return {
        "open_s": opened,
        "first_token_s": None,
        "second_token_s": None,
        "first_touch_s": None,
        "keep": [np.frombuffer(memory, np.uint8)],
    }


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    print(json.dumps(plain(load_once(wanted["path"], wanted["way"], wanted["threads"])), allow_nan=False))
