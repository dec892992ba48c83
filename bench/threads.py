# SPDX-License-Identifier: Apache-2.0
"""What a thread pool loses when it has more threads than CPUs, or shares a CPU with a busy process.

    python bench/threads.py                    the pool alone: a walk shaped like a small model's decode, in C
    python bench/threads.py --model MODEL      real decode

Rounds are interleaved (all settings once, then again), the figures are medians of the rounds' ratios to n threads on n
CPUs. Needs an otherwise idle machine: the load average is printed and recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUSY = "while True: pass"
GOALS = {"twice the threads": 0.70, "beside one busy process": 0.45}


def build_driver(folder: str) -> str:
    out = os.path.join(folder, "driver")
    sources = ["tests/c/threads_driver.c", "csrc/base/threads.c", "csrc/base/clock.c", "csrc/base/status.c"]
    cc = os.environ.get("CC", "cc").split()
    subprocess.run(
        [*cc, "-std=gnu11", "-O3", "-Icsrc", "-I.", *sources, "-o", out, "-pthread"], cwd=ROOT, check=True
    )
    return out


def pool_rate(driver: str, threads: int, seconds: float) -> float:
    run = subprocess.run(
        [driver, "bench", str(threads), str(seconds)], capture_output=True, text=True, check=True
    )
    return float(run.stdout)


class Decoder:
    """Tokens per second of greedy decode, one session per thread count."""

    def __init__(self, path: str):
        import rooflm

        self.model = rooflm.Model(path)
        self.sessions: dict[int, object] = {}

    def rate(self, threads: int, seconds: float) -> float:
        s = self.sessions.get(threads)
        if s is None:
            s = self.sessions[threads] = self.model.session(n_ctx=2048, n_threads=threads)
        if s.n_past == 0 or s.n_past > 1500:  # type: ignore[attr-defined]
            s.rewind(0)  # type: ignore[attr-defined]
            s.eval([1, 2, 3, 4])  # type: ignore[attr-defined]
        t0, n = time.perf_counter(), 0
        while True:
            s.eval([100 + n % 50])  # type: ignore[attr-defined]
            n += 1
            spent = time.perf_counter() - t0
            if spent >= seconds:
                return n / spent


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--seconds", type=float, default=1.0)
    p.add_argument("--json", metavar="FILE")
    args = p.parse_args()
    n = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    rows: dict[str, list[float]] = {k: [] for k in ("as many threads as CPUs", *GOALS)}
    with tempfile.TemporaryDirectory() as folder:
        if args.model:
            rate = Decoder(args.model).rate
        else:
            driver = build_driver(folder)

            def rate(threads: int, seconds: float) -> float:
                return pool_rate(driver, threads, seconds)

        for _ in range(args.rounds):
            rows["as many threads as CPUs"].append(rate(n, args.seconds))
            rows["twice the threads"].append(rate(2 * n, args.seconds))
            busy = subprocess.Popen([sys.executable, "-c", BUSY])
            try:
                time.sleep(0.1)
                rows["beside one busy process"].append(rate(n, args.seconds))
            finally:
                busy.kill()
                busy.wait()
    base = rows["as many threads as CPUs"]
    print(f"{n} CPUs, load average {load:.2f} before, {args.rounds} rounds of {args.seconds} s, "
          f"{'decode tokens' if args.model else 'walks'} per second")  # fmt: skip
    record = {"schema": 1, "cpus": n, "load_before": load, "model": args.model, "rows": []}
    for name, rates in rows.items():
        share = statistics.median(r / b for r, b in zip(rates, base))
        goal = GOALS.get(name)
        verdict = "" if goal is None else f"   goal {goal:.0%}: {'reached' if share >= goal else 'MISSED'}"
        print(f"{name:26}{statistics.median(rates):9.1f}  {share:6.1%}{verdict}")
        record["rows"].append({"name": name, "rates": rates, "share": share, "goal": goal})
    if args.json:
        Path(args.json).write_text(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
