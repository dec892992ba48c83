# SPDX-License-Identifier: Apache-2.0
"""Faults planted for real under a model, and whether the doctor names each of them first; and clean runs.

    python bench/faults.py smollm2 --clean 20

Real are a file of F16 under a Q4 name, a file dropped from the page cache, one read into private memory, spinning
neighbours, a long context, the reference kernels, too many threads and too few, and, where the system swaps, weights
that are pushed into swap while they are used. Little cores and a capped clock are those of another machine's /sys.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, ContextManager, Iterator

import rooflm
from rooflm._output import table
from rooflm._pages import drop_pages
from rooflm.device.files import Files
from rooflm.fetching import resolve_model
from rooflm.measuring.ceilings import read_arrays

MADV_PAGEOUT = 21
Options = dict[str, Any]
Plant = Callable[[Path, Path], ContextManager[Options]]  # (model, scratch directory) -> what doctor() gets beside it


@contextmanager
def f16_under_a_q4_name(model: Path, scratch: Path) -> Iterator[Options]:
    path = scratch / "model-q4_k_m.gguf"
    rooflm.quantize(model, path, {"*": "F16"}, progress=False)
    path.read_bytes()
    try:
        yield {"model": path}
    finally:
        path.unlink()


@contextmanager
def cold_file(model: Path, scratch: Path) -> Iterator[Options]:
    path = scratch / model.name  # nobody else has mapped this copy
    shutil.copy(model, path)
    left = drop_pages(path)
    if left is None or left > 0.5:
        print(f"the file did not become cold: {left} resident", file=sys.stderr)
    try:
        yield {"model": path}
    finally:
        path.unlink()


@contextmanager
def busy_neighbour(model: Path, scratch: Path) -> Iterator[Options]:
    spin = [sys.executable, "-c", "while True: pass"]
    neighbours = [subprocess.Popen(spin) for _ in rooflm.machine().allowed_cpus]
    try:
        yield {}
    finally:
        for p in neighbours:
            p.kill()
            p.wait()


@contextmanager
def swap(model: Path, scratch: Path) -> Iterator[Options]:
    """Pushes the copied weights out while they are used: each token waits for the disk."""
    loaded, stop, libc = rooflm.Model(model, load="copy"), threading.Event(), ctypes.CDLL(None)
    page = os.sysconf("SC_PAGE_SIZE")

    def push() -> None:
        while not stop.wait(0.1):
            for a in read_arrays(loaded):
                first = -(-a.ctypes.data // page) * page
                n = (a.ctypes.data + a.nbytes - first) // page * page
                if n > 0:
                    libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(n), MADV_PAGEOUT)

    thread = threading.Thread(target=push)
    thread.start()
    try:
        yield {"model": loaded, "gen": 4}
    finally:
        stop.set()
        thread.join()


def given(**options: Any) -> Plant:
    @contextmanager
    def plant(model: Path, scratch: Path) -> Iterator[Options]:
        yield options

    return plant


def other_machine(max_khz: int, limit_khz: int, big: int = 0) -> Plant:
    """CPUs with this clock and limit, beside so many that are twice as fast."""

    @contextmanager
    def plant(model: Path, scratch: Path) -> Iterator[Options]:
        root, cpus = scratch / "root", rooflm.machine().allowed_cpus
        here = max(cpus) + 1
        online = root / "sys/devices/system/cpu/online"
        online.parent.mkdir(parents=True, exist_ok=True)
        online.write_text(f"0-{here + big - 1}\n")
        for cpu in range(here + big):
            faster = 1 + (cpu >= here)
            clocks = root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
            clocks.mkdir(parents=True)
            (clocks / "cpuinfo_max_freq").write_text(f"{max_khz * faster}\n")
            (clocks / "scaling_max_freq").write_text(f"{limit_khz * faster}\n")
            (clocks.parent / "cpu_capacity").write_text(f"{512 * faster}\n")
        try:
            yield {"root": str(root), "cpus": cpus}
        finally:
            shutil.rmtree(root)

    return plant


def faults(depth: int) -> dict[str, tuple[str, bool, Plant]]:
    """Name -> cause, planted for real, how."""
    return {
        "F16 under a Q4 name": ("file claim", True, f16_under_a_q4_name),
        "cold file": ("loading", True, cold_file),
        "buffered load": ("loading", True, given(load="copy")),
        "busy neighbour": ("background", True, busy_neighbour),
        "long depth": ("context", True, given(depth=depth, kv="f32")),
        "reference kernel": ("kernel", True, given(isa="ref", gen=8)),
        "too many threads": ("threads", True, given(threads=8)),
        "too few threads": ("threads", True, given(threads=1)),
        "swap": ("swap", True, swap),
        "little cores": ("cores", False, other_machine(1_800_000, 1_800_000, big=2)),
        "capped frequency": ("frequency", False, other_machine(3_000_000, 1_200_000)),
    }


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model")
    p.add_argument("--clean", type=int, default=0, metavar="N", help="also so many runs without a fault")
    p.add_argument("--only", action="append", choices=faults(0), metavar="FAULT", help="repeatable; default all")
    p.add_argument("--depth", type=int, default=6000, help="of the long context (default 6000)")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    model = Path(resolve_model(args.model))
    planted = faults(args.depth)
    rows, clean = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.only or planted:
            cause, real, plant = planted[name]
            if name == "swap" and not Files().kilobytes("proc/meminfo", "SwapTotal"):
                rows.append({"fault": name, "real": real, "expected": cause, "first": "no swap here"})
                continue
            model.read_bytes()  # warm, whatever the fault before did
            with plant(model, Path(scratch)) as options:
                d = rooflm.doctor(options.pop("model", model), **options)
            first = d.findings[0]
            rows.append(
                {"fault": name, "real": real, "expected": cause, "first": d.named[0] if d.named else "none",
                 "costs": first.factor, "share": d.share, "named": ", ".join(d.named), "evidence": first.evidence}
            )  # fmt: skip
    for _ in range(args.clean):
        d = rooflm.doctor(model)
        bound = d.token_time["bound"] if d.token_time else None
        clean.append({"named": ", ".join(d.named), "share": d.share, "read_gbs": d.facts["speed"]["read_gbs"],
                      "verdict": d.verdict, "bound": bound})  # fmt: skip
    if args.json:
        print(json.dumps({"model": str(model), "faults": rows, "clean": clean}))
        return
    if rows:
        print(table(rows, ("fault", "real", "expected", "first", "costs", "share", "named")))
    if clean:
        print(table(clean, ("named", "share", "read_gbs", "verdict", "bound")))


if __name__ == "__main__":
    main()
