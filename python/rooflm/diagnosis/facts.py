# SPDX-License-Identifier: Apache-2.0
"""The facts a diagnosis rests on, gathered once: the file, how it was loaded, what ran where, and what it could reach.

A dict in JSON's types, so that facts of another machine can be judged here, and tests can make them up.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any, Callable, Optional, Sequence, Union

import numpy as np

from rooflm import _core
from rooflm._kernels import TIERS, kernels
from rooflm.device.machine import machine
from rooflm._pages import resident_share
from rooflm.device.files import Files
from rooflm.device.sampler import Sampler
from rooflm.diagnosis.system import Waiting, busiest, frequencies, swap_state
from rooflm.diagnosis.token_time import kernel_limit, traced_tokens
from rooflm.measuring.ceilings import kv_bytes_per_token, read_arrays
from rooflm.model import Model
from rooflm.session import Session
from rooflm.quantization.claims import check_claims

Say = Callable[[str], None]
TRIAL_TOKENS = 12  # of a run with one setting put back to its default
OF_THE_MACHINE = ("cpu", "classes", "n_cpus", "allowed_cpus", "default_threads", "default_threads_reason",
                  "default_cpus", "memory_bytes")  # fmt: skip
LEAST_SECONDS = 0.4  # of decoding watched: the system counts in hundredths of a second


def gather(
    model: Union[Model, str, os.PathLike[str]],
    *,
    threads: Optional[int],
    cpus: Union[None, str, Sequence[int]],
    kernel: Optional[str],
    isa: Optional[str],
    compute: str,
    kv: str,
    load: str,
    depth: int,
    prompt: int,
    gen: int,
    root: str,
    progress: Optional[Say],
) -> dict[str, Any]:
    """Loads, runs and watches the model as asked; then repeats a short run with each unusual setting put back."""
    say = progress or (lambda text: None)
    given = isinstance(model, Model)
    path = os.fspath(model.gguf.path if isinstance(model, Model) else model)
    before = resident_share(path)  # first of all: everything later reads the file
    facts: dict[str, Any] = {"schema": 1, "path": path}
    say("loading")
    start = time.perf_counter()
    loaded = model if isinstance(model, Model) else Model(model, load=load)
    open_s = time.perf_counter() - start
    said = check_claims(loaded.gguf)
    facts["file"] = {k: said[k] for k in ("claims", "bits_per_weight", "bits_per_weight_layers", "types")}
    facts["file"]["file_bytes"] = loaded.gguf.nbytes
    facts["settings"] = {
        "threads": threads, "cpus": cpus, "kernel": kernel, "isa": isa, "compute": compute, "kv": kv, "load": load,
        "depth": depth, "prompt": prompt, "gen": gen,
    }  # fmt: skip
    options: dict[str, Any] = {"n_threads": threads, "cpus": cpus, "kernel": kernel, "isa": isa, "compute": compute}
    n_ctx = depth + prompt + gen
    with loaded.session(n_ctx=n_ctx, kv=kv, **options) as session:
        ids = np.random.default_rng(0).integers(0, loaded.n_vocab, depth + prompt, dtype=np.int32)
        say("first tokens")
        first_s = _timed_eval(session, ids[:prompt])
        session.rewind(0)
        again_s = _timed_eval(session, ids[:prompt])
        say(f"{depth} tokens of context" if depth else "decoding")
        if depth:
            _timed_eval(session, ids[prompt:])
        files, here = Files(root), machine(root=root)
        ceiling_before = _read_gbs(session)
        waiting = Waiting(files)
        with Sampler(root=root) as sampler:
            times = _decode(session, gen)
        facts["system"] = {
            **_watched(sampler),
            **waiting.shares(session.n_threads),
            "running": busiest(files),
        }
        session.rewind(depth + prompt)
        facts["token"] = {**traced_tokens(session, gen), "kernels": kernel_limit(session)}
        read = max(ceiling_before, _read_gbs(session))
        facts["speed"] = _speed(session, times, prompt / again_s, read, depth + prompt + (gen + 1) / 2)
        facts["ran"] = _ran(session)
    facts["load"] = {
        "mapped": loaded.gguf.mapped,
        "resident_share": before,
        "open_s": None if given else open_s,
        "open_mapped_s": None if given or loaded.gguf.mapped else _open_mapped_s(path),
        "first_s": first_s,
        "again_s": again_s,
    }
    facts["machine"] = {"quota": here.cgroup["quota"], **{k: here[k] for k in OF_THE_MACHINE}}
    facts["frequency"] = frequencies(files, facts["ran"]["ran_on"] or here.allowed_cpus)
    facts["memory"] = swap_state(files)
    facts["tried"] = _trials(loaded, options, kv, ids[:prompt], say)
    return facts


def _ran(session: Session) -> dict[str, Any]:
    placement = session.placement
    return {
        "threads": session.n_threads,
        "reason": placement["reason"],
        "pinned": placement["cpus"],
        "ran_on": sorted({c for c in placement["ran_on"] if c >= 0}),
        "isa": session.isa,
        "compute": session.compute,
        "kv": session.kv_type,
        "kernels": kernels_of(session),
    }


def _speed(session: Session, times: list[float], prefill_tps: float, read: float, attended: float) -> dict[str, Any]:
    """Decode beside its ceiling: read GB/s over the bytes of a token that attends to so many positions."""
    weights = float(session.model.weight_bytes_per_token)
    kv_bytes = kv_bytes_per_token(session.model, session.kv_type, attended)
    decode_tps, ceiling_tps = 1 / statistics.median(times), read * 1e9 / (weights + kv_bytes)
    return {
        "decode_tps": decode_tps,
        "prefill_tps": prefill_tps,
        "token_times_s": times,
        "weight_bytes_per_token": weights,
        "kv_bytes_per_token": kv_bytes,
        "bytes_per_token": weights + kv_bytes,
        "read_gbs": read,
        "ceiling_tps": ceiling_tps,
        "share": decode_tps / ceiling_tps,
    }


def _watched(sampler: Sampler) -> dict[str, Any]:
    """Of the sampler's summary what the rules judge."""
    seen = sampler.summary()
    keys = ("duration_s", "others_busy", "steal", "major_faults", "swapped_bytes", "temperature_c", "clock_ghz",
            "throttled", "throttled_by", "quota_throttled_s", "unavailable")  # fmt: skip
    return {k: seen[k] for k in keys}


def _timed_eval(session: Session, ids: np.ndarray) -> float:
    start = time.perf_counter()
    for at in range(0, len(ids), session.n_batch):
        session.eval(ids[at : at + session.n_batch], logits="last" if at + session.n_batch >= len(ids) else "none")
    return time.perf_counter() - start


def _decode(session: Session, gen: int) -> list[float]:
    """Seconds of each token, in rounds of gen tokens from the same depth until LEAST_SECONDS have been watched."""
    one, logits, depth = np.zeros(1, np.int32), None, session.n_past
    times: list[float] = []
    first = time.perf_counter()
    while not times or time.perf_counter() - first < LEAST_SECONDS:
        session.rewind(depth)
        for i in range(gen):
            one[0] = i % session.model.n_vocab
            start = time.perf_counter()
            logits = session.eval(one, out=logits)
            times.append(time.perf_counter() - start)
    return times


def _read_gbs(session: Session) -> float:
    """The roof of this machine, not of the chosen settings: the bytes of a token with its default threads."""
    return float(_core.read_bandwidth(read_arrays(session.model), kv=session._c, passes=7)["gbs"])


def _open_mapped_s(path: str) -> Optional[float]:
    start = time.perf_counter()
    try:
        Model(path, load="mmap").gguf.close()
    except (OSError, _core.Error):  # refused: then there is nothing to compare with
        return None
    return time.perf_counter() - start


def kernels_of(session: Session) -> list[dict[str, Any]]:
    """Each kernel that decodes, with the best tier that this CPU could run in its place."""
    table = kernels(isa=_core._isa()["available"][-1], kernels=())
    by_name = {k.name: k for k in table}
    rows: dict[str, dict[str, Any]] = {}
    for op in session.kernels(1):
        name = op["kernel"]
        if name not in rows:
            tiers = [op["isa"]]
            if name in by_name:
                own = by_name[name]
                like = table.select(family=own.family, type=own.type, act=own.act, layout=own.layout, available=True)
                tiers += [k.isa for k in like]
            best = max((t for t in tiers if t in TIERS), key=TIERS.index, default=op["isa"])
            rows[name] = {"kernel": name, "isa": op["isa"], "best_isa": best, "ops": 0}
        rows[name]["ops"] += 1
    return list(rows.values())


def _trials(model: Model, options: dict[str, Any], kv: str, prompt: np.ndarray, say: Say) -> dict[str, Any]:
    """Speed with one group of settings put back to its defaults: evidence for what that setting costs, which no
    estimate can give. Nothing runs for settings that are defaults already."""
    groups = {"threads": ("n_threads", "cpus"), "kernel": ("kernel", "isa"), "compute": ("compute",)}
    out: dict[str, Any] = {}
    for name, keys in groups.items():
        usual = {k: "auto" if k == "compute" else None for k in keys}
        if all(options[k] == usual[k] for k in keys):
            continue
        say(f"the same with default {name}")
        rates = []
        for changed in ({}, usual):
            with model.session(n_ctx=len(prompt) + TRIAL_TOKENS, kv=kv, **{**options, **changed}) as s:
                _timed_eval(s, prompt)
                times = [_timed_eval(s, np.zeros(1, np.int32)) for _ in range(TRIAL_TOKENS)]
                rates.append(1 / statistics.median(times))
        out[name] = {"given_tps": rates[0], "default_tps": rates[1], "default": usual}
    return out
