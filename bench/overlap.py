# SPDX-License-Identifier: Apache-2.0
"""What running the next step beside the caller's code gains and costs.

    python bench/overlap.py smollm2 --threads 2 --callers none,wait:2,work:2,wait:20,work:20 --repeats 8

For each caller the same text is streamed with overlap="auto" (--overlap on: True) and overlap=False in turns. A caller
is what happens for each piece: none; wait:MS sleeps, as a terminal, a socket or a pause does; work:MS computes in
Python for so long and keeps the GIL. With --busy a second Python thread computes all the while: it takes a core, and
the GIL for 5 ms at a time. Per token: medians of the runs, the median ratio of neighbouring runs with the lowest and
highest, and the share of the evaluations that was hidden. begin_us and end_us are what handing a step over and fetching
it take beside the step.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
from typing import Callable

import rooflm
from rooflm.fetching import resolve_model


def caller(name: str) -> Callable[[str], None]:
    kind, _, ms = name.partition(":")
    seconds = float(ms or 0) / 1e3

    def work(piece: str) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            piece.split()

    def wait(piece: str) -> None:
        time.sleep(seconds)

    known = {"none": lambda piece: None, "wait": wait, "work": work}
    if kind not in known:
        raise SystemExit(f"{name}: a caller is none, wait:MS or work:MS")
    return known[kind]


def stream(
    session: rooflm.Session, use: Callable[[str], None], tokens: int, overlap: bool | str
) -> tuple[float, float]:
    """Seconds per token of one streamed text, and the share of its evaluations that was hidden."""
    session.rewind(0)
    generation = session.generate("Once upon a time", max_tokens=tokens, overlap=overlap)
    for piece in generation:
        use(piece)
    times = generation.token_times_s
    steps = generation._steps
    share = steps.hidden_s / steps.time_s if steps and steps.time_s else 0.0
    return (times[-1] - times[0]) / (len(times) - 1), share


def hand_over_us(session: rooflm.Session, steps: int = 60) -> tuple[float, float]:
    """Median microseconds until a step begins, and from its end until its logits are there, when nobody does anything
    meanwhile."""
    session.rewind(0)
    session.eval("Once upon a time", logits="none")
    begin, end = [], []
    for _ in range(steps):
        called = time.monotonic_ns()
        begun = session._c._ahead_start([7], 0)
        assert begun is not None
        times = session._c._ahead_finish(begun[0])
        assert times is not None
        begin.append((times[0] - called) / 1e3)
        end.append((time.monotonic_ns() - times[1]) / 1e3)
    session._c._ahead_pause()
    return statistics.median(begin), statistics.median(end)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model")
    p.add_argument("--threads", type=int)
    p.add_argument("--callers", default="none,wait:2,work:2,wait:20,work:20")
    p.add_argument("--tokens", type=int, default=32, help="of one text")
    p.add_argument("--repeats", type=int, default=8)
    p.add_argument("--busy", action="store_true", help="a second Python thread computes meanwhile")
    p.add_argument("--overlap", choices=("auto", "on"), default="auto")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    session = rooflm.Model(resolve_model(args.model)).session(n_ctx=1024, n_threads=args.threads)
    done = threading.Event()

    def busy() -> None:
        while not done.is_set():
            sum(range(1000))

    if args.busy:
        threading.Thread(target=busy, daemon=True).start()
    wanted = "auto" if args.overlap == "auto" else True
    begin_us, end_us = hand_over_us(session)
    rows = []
    for name in args.callers.split(","):
        use = caller(name)
        stream(session, use, 4, wanted)
        found: dict[bool, list[float]] = {True: [], False: []}
        shares = []
        for _ in range(args.repeats):
            for overlap in random.sample((True, False), 2):
                seconds, share = stream(session, use, args.tokens, wanted if overlap else False)
                found[overlap].append(seconds)
                shares += [share] if overlap else []
        with_ms, without_ms = (1e3 * statistics.median(found[k]) for k in (True, False))
        ratios = sorted(b / a for a, b in zip(found[True], found[False]))
        rows.append(
            {"caller": name, "overlap_ms": with_ms, "sequential_ms": without_ms, "ratio": statistics.median(ratios),
             "ratio_lowest": ratios[0], "ratio_highest": ratios[-1], "hidden_share": statistics.median(shares)}
        )  # fmt: skip
    done.set()
    facts = {"model": args.model, "threads": session.n_threads, "tokens": args.tokens, "overlap": args.overlap,
             "busy": args.busy, "repeats": args.repeats, "begin_us": round(begin_us),
             "end_us": round(end_us)}  # fmt: skip
    if args.json:
        print(json.dumps({**facts, "rows": rows}))
        return
    print(", ".join(f"{k} {v}" for k, v in facts.items()))
    print("caller    overlap ms  sequential ms  faster [all runs]      hidden")
    for r in rows:
        ratio = f"{r['ratio']:.3f} [{r['ratio_lowest']:.3f}, {r['ratio_highest']:.3f}]"
        print(f"{r['caller']:9} {r['overlap_ms']:10.3f} {r['sequential_ms']:14.3f}  {ratio} {r['hidden_share']:8.2f}")


if __name__ == "__main__":
    main()
