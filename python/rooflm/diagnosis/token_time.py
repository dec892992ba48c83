# SPDX-License-Identifier: Apache-2.0
"""Where the time of a decoded token goes: reading weights, arithmetic beyond that, attention, and the rest.

A gap to the memory's ceiling is no fault where memory is faster than the cores' arithmetic, or where a small model
spends its time between the matrices. So the kernels are timed in the caches as well, where no memory slows them down,
and a few tokens are traced.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional, Sequence

import numpy as np

from rooflm._costs import MATRICES
from rooflm._rates import rows_in_cache
from rooflm.session import Session

# Parts of a token's time in words; see account().
LABELS = {
    "reading": "reading weights",
    "arithmetic": "arithmetic beyond that",
    "unhidden": "not overlapped, or waiting",
    "attention": "attention",
    "others": "other operations",
    "outside": "outside",
}
SECONDS = 2e-3  # of one timing: long enough that all threads run at once
TURNS = 4


def traced_tokens(session: Session, n: int) -> dict[str, Any]:
    """Mean seconds of n decoded tokens: in their matrices, in attention, in other operations, outside of all."""
    one, logits = np.zeros(1, np.int32), None
    with session.trace() as trace:
        for _ in range(n):
            logits = session.eval(one, out=logits)
    ns = {"matrices": 0, "attention": 0, "others": 0}
    for e in trace.events:
        ns["matrices" if e.op in MATRICES else e.op if e.op in ns else "others"] += e.end_ns - e.start_ns
    whole = trace.events[-1].end_ns - trace.events[0].start_ns
    out = {f"{name}_s": t * 1e-9 / n for name, t in ns.items()}
    # Between the last event of a token and the first of the next; the last token has no next one.
    return {**out, "outside_s": max(0, whole - sum(ns.values())) * 1e-9 / max(1, n - 1), "tokens": n}


def kernel_limit(session: Session) -> Optional[dict[str, Any]]:
    """{"token_s", "gbs", "kernels"}: the time that the matrices of a token take out of a cache, all threads at once,
    the rate of bytes this is, and GB/s by kernel, type and width. None where a kernel cannot be timed alone."""
    hp, cpus = session.model.hparams, session.placement["cpus"]
    nbytes: dict[tuple[str, str, int], float] = {}
    for op in session.kernels(1):
        used = hp["n_expert_used"] / op["experts"] if op["experts"] > 1 else 1.0
        key = op["kernel"], op["type"], op["columns"]
        nbytes[key] = nbytes.get(key, 0.0) + op["nbytes"] * used
    rows: list[dict[str, Any]] = []
    for (kernel, type, columns), n in nbytes.items():
        try:
            gbs = team_gbs(kernel, type, columns, session.n_threads, cpus)
        except ValueError:  # not a kernel of rows
            return None
        rows.append({"kernel": kernel, "type": type, "columns": columns, "bytes": n, "gbs": gbs})
    seconds = 1e-9 * sum(r["bytes"] / r["gbs"] for r in rows)
    return {"token_s": seconds, "gbs": sum(nbytes.values()) / seconds * 1e-9, "kernels": rows}


def team_gbs(kernel: str, type: str, columns: int, threads: int, cpus: Sequence[int]) -> float:
    """Best GB/s of several short runs of a rows kernel for one token, on so many threads at once (pinned to these CPUs
    if there are any), each with weights of its own in its cache."""
    start = threading.Barrier(threads)

    def one(i: int) -> list[float]:
        if cpus:
            os.sched_setaffinity(0, {cpus[i % len(cpus)]})  # of this thread, which ends with the pool
        run, nbytes = rows_in_cache(type, columns)
        try:
            once = min(run(kernel, 1) for _ in range(3))
        except ValueError:
            start.abort()
            raise
        repeats = max(1, int(SECONDS / max(once, 1e-9)))
        rates: list[float] = []
        for _ in range(TURNS):
            start.wait()
            rates.append(1e-9 * nbytes * repeats / run(kernel, repeats))
        return rates

    with ThreadPoolExecutor(threads) as pool:
        turns = zip(*pool.map(one, range(threads)))
        return max(float(sum(rates)) for rates in turns)


def account(facts: dict[str, Any]) -> Optional[dict[str, Any]]:
    """The parts of a traced token's time, in seconds, which add up to `token_s`; None in facts that lack them.

    reading      the weights, at the roof that was measured
    arithmetic   what the kernels take beyond that, even out of a cache
    unhidden     the rest of the matrices' time: waits at barriers, reads and arithmetic that did not overlap, a memory
                 that was slower than its roof at that moment
    attention, others (norms, RoPE, activations), outside (between two evaluations)
    `bound` is "arithmetic" where the kernels out of a cache are slower than memory, else "memory"; None where the
    slower of the two explains less than half of the time that a token took.
    """
    token = facts.get("token")
    if not token or not token["kernels"]:
        return None
    speed, matrices, in_cache = facts["speed"], token["matrices_s"], token["kernels"]["token_s"]
    weights_s = speed["weight_bytes_per_token"] / (speed["read_gbs"] * 1e9)
    reading = min(matrices, weights_s)
    arithmetic = min(matrices, max(in_cache, weights_s)) - reading
    parts: dict[str, float] = {
        "reading": reading,
        "arithmetic": arithmetic,
        "unhidden": matrices - reading - arithmetic,
        "attention": token["attention_s"],
        "others": token["others_s"],
        "outside": token["outside_s"],
    }
    bound = "arithmetic" if in_cache > weights_s else "memory"
    return {
        "token_s": sum(parts.values()),
        "parts": parts,
        "bound": bound if max(in_cache, weights_s) * speed["decode_tps"] >= 0.5 else None,
        "kernels_gbs": token["kernels"]["gbs"],
        "memory_gbs": speed["read_gbs"],
    }
