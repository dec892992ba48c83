# SPDX-License-Identifier: Apache-2.0
"""Decode of several sequences in one step against one: tokens per second of all together, in turns.

    python bench/batch.py MODEL --threads 2 --sequences 1,2,4,8 --steps 24 --repeats 5
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import rooflm


def speed(batch, sequences, steps: int) -> float:
    """Tokens per second of all sequences over `steps` steps of one token each."""
    start = time.perf_counter()
    for i in range(steps):
        batch.eval(sequences, [[100 + i]] * len(sequences))
    return steps * len(sequences) / (time.perf_counter() - start)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--threads", type=int, default=None)
    p.add_argument("--sequences", default="1,2,4,8")
    p.add_argument("--steps", type=int, default=24)
    p.add_argument("--prompt", type=int, default=32)
    p.add_argument("--compute", default="auto")
    p.add_argument("--repeats", type=int, default=5)
    a = p.parse_args()
    counts = [int(n) for n in a.sequences.split(",")]
    model = rooflm.Model(a.model)
    n_ctx = a.prompt + a.steps * (a.repeats + 1) + 1
    prompt = np.random.default_rng(0).integers(0, model.n_vocab, a.prompt, dtype=np.int32)
    with model.batch(n_ctx=n_ctx, n_threads=a.threads, compute=a.compute) as batch:
        groups = {}
        for n in counts:
            groups[n] = [batch.join(prompt, max_tokens=1) for _ in range(n)]
            for s in groups[n]:
                batch.eval([s], [prompt])
            speed(batch, groups[n], a.steps)
        rates: dict[int, list[float]] = {n: [] for n in counts}
        for _ in range(a.repeats):
            for n in counts:
                rates[n].append(speed(batch, groups[n], a.steps))
        one = statistics.median(rates[counts[0]])
        for n in counts:
            median = statistics.median(rates[n])
            print(f"{n:3d} sequences {median:8.1f} tok/s   {median / one:5.2f} x   {median / n:7.1f} per sequence")


if __name__ == "__main__":
    main()
