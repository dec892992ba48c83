# SPDX-License-Identifier: Apache-2.0
"""One run of a benchmark: prefill, first token and decode timed apart, between two readings of the ceiling."""

from __future__ import annotations

import os
import time
from typing import Any, Optional

import numpy as np

from rooflm import _core
from rooflm.measuring.ceilings import kv_bytes_per_token, needed_bytes, read_gbs, roof_name
from rooflm.measuring.token_times import token_statistics
from rooflm.model import Model, Session


def run_once(
    model: Model, s: dict[str, Any], *, seed: int, caches: list[dict[str, Any]], measure: bool = True
) -> Optional[dict[str, Any]]:
    """Figures of one run of setting s; without measure it only warms up."""
    total = s["depth"] + s["prompt"] + s["gen"]
    with model.session(
        n_ctx=total,
        kv=s["kv"],
        compute=s["compute"],
        n_threads=s["threads"],
        kernel=s["kernel"],
        cpus=s["cpus"],
        blas=s["blas"],
    ) as session:
        ids = np.random.default_rng(seed).integers(0, model.n_vocab, s["depth"] + s["prompt"], dtype=np.int32)
        for at in range(0, s["depth"], session.n_batch):
            session.eval(ids[at : min(at + session.n_batch, s["depth"])], logits="none")
        if not measure:
            time_tokens(session, ids[s["depth"] :], min(s["gen"], 8))
            return None
        clock, suspended = [_core.core_clock(2.0)], _suspended_s()
        reads = [read_gbs(session, s["cpus"])]
        times, prefill_s = time_tokens(session, ids[s["depth"] :], s["gen"])
        reads.append(read_gbs(session, s["cpus"]))
        clock.append(_core.core_clock(2.0))
        # Generated token i attends to everything before it and to itself; the first came with the prompt.
        attended = s["depth"] + s["prompt"] + (s["gen"] + 1) / 2
        needed = needed_bytes(model, kv=session.kv_type, n_attended=attended)
        read = max(reads)
        decode = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else None
        ceiling = read * 1e9 / needed
        return {
            "prefill_tps": s["prompt"] / prefill_s,
            "decode_tps": decode,
            "ttft_ms": 1e3 * times[0],
            "bytes_per_token": needed,
            "weight_bytes_per_token": model.weight_bytes_per_token,
            "kv_bytes_per_token": kv_bytes_per_token(model, session.kv_type, attended),
            "read_gbs": read,
            "read_gbs_before": reads[0],
            "read_gbs_after": reads[1],
            "used_gbs": decode * needed / 1e9 if decode else None,
            "roof": roof_name(needed, session.n_threads, caches),
            "ceiling_tps": ceiling,
            "ceiling_share": decode / ceiling if decode else None,
            **token_statistics(times),
            "clock_ghz_before": clock[0],
            "clock_ghz_after": clock[1],
            "suspended_s": None if suspended is None else (_suspended_s() or 0.0) - suspended,
            "isa": session.isa,
            "kernels": kernel_summary(session, s["prompt"]),
            "token_times_s": times,
            "resolved": {
                "threads": session.n_threads,
                "kv": session.kv_type,
                "compute": session.compute,
                "n_ctx": session.n_ctx,
                "n_batch": session.n_batch,
                "blas": session.blas,
                "placement": session.placement,
                "mapped": model.gguf.mapped,
                "kv_nbytes": session.kv_nbytes,
                "scratch_nbytes": session.scratch_nbytes,
            },
        }


def _suspended_s() -> Optional[float]:
    """Seconds this machine has slept since it started: the boot-time clock counts them, the monotonic does not."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


def time_tokens(session: Session, prompt: np.ndarray, gen: int) -> tuple[list[float], float]:
    """Times at which each generated id was there, counted from the start of the prompt, and the prompt's own time."""
    greedy = _core.Sampler.greedy()
    start = time.perf_counter()
    logits = session.eval(prompt)
    prefill_s = time.perf_counter() - start
    one = np.zeros(1, np.int32)
    times = []
    for i in range(gen):
        one[0] = greedy.sample(logits)
        times.append(time.perf_counter() - start)
        if i + 1 < gen:
            logits = session.eval(one, out=logits)
    return times, prefill_s


def kernel_summary(session: Session, n_prompt: int) -> dict[str, dict[str, list[str]]]:
    """By phase and operation, the kernels that run (more than one where layers have different types)."""
    out: dict[str, dict[str, list[str]]] = {}
    for phase, n in (("decode", 1), ("prefill", min(n_prompt, session.n_batch))):
        ops: dict[str, list[str]] = {}
        for row in session.kernels(n):
            names = ops.setdefault(row["op"], [])
            if row["kernel"] not in names:
                names.append(row["kernel"])
        out[phase] = ops
    return out


def model_name(model: Model) -> str:
    return os.path.basename(str(model.gguf.path))
