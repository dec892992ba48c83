# SPDX-License-Identifier: Apache-2.0
"""One run of a benchmark: prefill, first token and decode timed apart, between two readings of the ceiling."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from rooflm import _core, _eviction
from rooflm.device.sampler import Sampler
from rooflm.measuring.ceilings import kv_bytes_per_token, needed_bytes, read_gbs, roof_name
from rooflm.measuring.token_times import token_statistics
from rooflm.model import Model
from rooflm.session import Session


def warm_up(model: Model, s: dict[str, Any], *, seed: int) -> None:
    """The setting's own prompt and a few tokens, not measured: pages of the file, threads, clocks."""
    with open_session(model, s) as session:
        time_tokens(session, draw_ids(model, s, seed)[s["depth"] :], min(s["gen"], 8))


def open_session(model: Model, s: dict[str, Any]) -> Session:
    return model.session(
        n_ctx=s["depth"] + s["prompt"] + s["gen"] if s["evict"] is None else None,
        kv=s["kv"],
        evict=s["evict"],
        compute=s["compute"],
        n_threads=s["threads"],
        kernel=s["kernel"],
        cpus=s["cpus"],
        blas=s["blas"],
    )


def draw_ids(model: Model, s: dict[str, Any], seed: int) -> np.ndarray:
    n = s["depth"] + s["prompt"]
    ids: np.ndarray = np.random.default_rng(seed).integers(0, model.n_vocab, n, dtype=np.int32)
    return ids


def run_once(model: Model, s: dict[str, Any], *, seed: int, caches: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of one run of setting s."""
    with open_session(model, s) as session:
        ids = draw_ids(model, s, seed)
        for at in range(0, s["depth"], session.n_batch):
            session.eval(ids[at : min(at + session.n_batch, s["depth"])], logits="none")
        reads = [read_gbs(session, s["cpus"])]
        with Sampler(cpus=s["cpus"]) as sampler:
            times, prefill_s = time_tokens(session, ids[s["depth"] :], s["gen"])
        placement = session.placement
        reads.append(read_gbs(session, s["cpus"]))
        # Generated token i attends to everything before it that is kept and to itself; the first came with the prompt.
        kept = _eviction.kept_by(s["evict"])
        first = s["depth"] + s["prompt"] + 1
        attended = statistics.fmean(kept.held(n) if kept else n for n in range(first, first + s["gen"]))
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
            "sensors": sampler.summary(),
            "isa": session.isa,
            "kernels": kernel_summary(session, s["prompt"]),
            "token_times_s": times,
            "fallbacks": fallbacks(session, s, placement),
            "resolved": {
                "threads": session.n_threads,
                "kv": session.kv_type,
                "compute": session.compute,
                "n_ctx": session.n_ctx,
                "n_batch": session.n_batch,
                "blas": session.blas,
                "placement": placement,
                "mapped": model.gguf.mapped,
                "kv_nbytes": session.kv_nbytes,
                "scratch_nbytes": session.scratch_nbytes,
            },
        }


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
    hp = session.model.hparams
    out: dict[str, dict[str, list[str]]] = {}
    for phase, n in (("decode", 1), ("prefill", min(n_prompt, session.n_batch))):
        ops: dict[str, list[str]] = {}
        for row in session.kernels(n):
            names = ops.setdefault(row["op"], [])
            if row["kernel"] not in names:
                names.append(row["kernel"])
        # Which kernels attention takes follows from the types of the cache and the shape of a head.
        cache = _core.KVCache(
            n_head_kv=hp["n_head_kv"][0], dim_k=hp["head_dim_k"], dim_v=hp["head_dim_v"], n_ctx=64, kv=session.kv_type
        )
        ops["attention"] = _core._attention_kernels(cache, n, session.isa)
        out[phase] = ops
    return out


def fallbacks(session: Session, s: dict[str, Any], placement: dict[str, Any]) -> list[str]:
    """What was asked for, or is best, and did not happen."""
    out = []
    gguf = session.model.gguf
    if s["load"] != "copy" and not gguf.mapped:
        out.append("the file could not be mapped and was copied into memory")
    slow = {f"{o['type']} ({o['op']})" for o in session.kernels(1) if o["isa"] == "ref" and o["type"] != "F32"}
    if slow and session.isa != "ref":
        out.append(f"no fast kernel for {', '.join(sorted(slow))}: the reference ran")
    for thread, (_, why) in enumerate(_core._last_threads()):
        if why:
            out.append(f"thread {thread} could not be pinned: {why}")
    pinned = placement["cpus"]
    if pinned and set(placement["ran_on"]) - set(pinned):
        out.append(f"ran on CPUs {placement['ran_on']}, not on {pinned}")
    return out

