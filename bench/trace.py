# SPDX-License-Identifier: Apache-2.0
"""What tracing costs: tokens decoded with a trace and without one, in turns.

    python bench/trace.py smollm2 --rounds 40

Each round decodes the same tokens at the same positions twice, once traced, in random order; the figure is the median
of the ratios of rounds, with a 95 % interval from the binomial distribution of the order statistics.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import rooflm
from rooflm.fetching import resolve_model


def decode(session: rooflm.Session, tokens: int) -> float:
    session.rewind(64)
    start = time.perf_counter()
    for i in range(tokens):
        session.eval([i + 7])
    return time.perf_counter() - start


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model")
    p.add_argument("--threads", type=int)
    p.add_argument("--rounds", type=int, default=40)
    p.add_argument("--tokens", type=int, default=16, help="of one side of a round")
    args = p.parse_args()
    model = rooflm.Model(resolve_model(args.model))
    ratios, plain_s = [], []
    with model.session(n_ctx=64 + args.tokens, n_threads=args.threads) as session:
        session.eval(list(range(3, 67)))
        decode(session, args.tokens)
        events = 0
        for _ in range(args.rounds):
            seconds = {}
            for traced in random.sample((True, False), 2):
                if traced:
                    with session.trace() as trace:
                        seconds[True] = decode(session, args.tokens)
                    events = len(trace.events) // args.tokens
                else:
                    seconds[False] = decode(session, args.tokens)
            ratios.append(seconds[True] / seconds[False])
            plain_s.append(seconds[False] / args.tokens)
        threads = session.n_threads
    ratios.sort()
    n = len(ratios)
    half = 0.98 * n**0.5  # ranks of the interval: n/2 +- 1.96 sqrt(n)/2
    low, high = ratios[max(0, int(n / 2 - half))], ratios[min(n - 1, int(n / 2 + half))]
    median_ms = 1e3 * statistics.median(plain_s)
    print(f"{model.gguf.path}, {threads} threads, {events} events per token, {median_ms:.3f} ms per token")
    print(f"traced / untraced {statistics.median(ratios):.4f}, 95 % interval [{low:.4f}, {high:.4f}], n = {n} rounds")


if __name__ == "__main__":
    main()
