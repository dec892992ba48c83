# SPDX-License-Identifier: Apache-2.0
"""Speed beside the ceiling: prefill and decode timed apart, and the best read of the same bytes around each run.

What a token must read is counted from the file: each weight matrix once (of stacked experts the chosen ones, of the
input embedding one row, a tied output matrix once) and the keys and values of the positions it attends to.
"""

from __future__ import annotations

import html
import itertools
import json
import os
import statistics
import time
from typing import Any, Callable, Iterator, Optional, Sequence, Union

import numpy as np

from rooflm import _core
from rooflm._keywords import checked_keywords
from rooflm._output import html_table, plain, table
from rooflm.model import Model, Session

# Bytes of one value of the cache; q8_0 has a float32 scale for 32 values.
KV_VALUE_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 1.0 + 4.0 / 32.0}


def kv_bytes_per_token(model: Model, kv: str, n_attended: float) -> float:
    """Bytes of keys and values read for one token that attends to n_attended positions, its own included. A layer with
    a sliding window attends to at most the window."""
    hp = model.hparams
    k_type, _, v_type = kv.partition("/")
    per_value_k, per_value_v = KV_VALUE_BYTES[k_type], KV_VALUE_BYTES[v_type or k_type]
    total = 0.0
    for heads, sliding in zip(hp["n_head_kv"], hp["sliding"]):
        positions = min(n_attended, hp["window"]) if sliding and hp["window"] else n_attended
        total += positions * heads * (hp["head_dim_k"] * per_value_k + hp["head_dim_v"] * per_value_v)
    return total


def bytes_per_token(model: Model, *, kv: str = "f16", n_attended: float = 1) -> float:
    """Bytes one token must read: the weights and the keys and values of n_attended positions."""
    return float(model.weight_bytes_per_token) + kv_bytes_per_token(model, kv, n_attended)


class Bench:
    """Records of a benchmark, one per repetition; prints as a table of medians, one row per setting."""

    def __init__(self, records: list[dict[str, Any]], machine: Optional[dict[str, Any]] = None) -> None:
        self.records = records
        self.machine = machine

    def summary(self) -> list[dict[str, Any]]:
        """Medians over the repetitions of each setting; no outlier is dropped."""
        rows = []
        for setting, group in itertools.groupby(self.records, key=lambda r: r["setting"]):
            records = list(group)
            row = dict(setting)
            for key in MEASURED:
                values = [r[key] for r in records if r[key] is not None]
                row[key] = statistics.median(values) if values else None
            row["repeats"] = len(records)
            rows.append(row)
        return rows

    def to_dict(self) -> dict[str, Any]:
        return {"schema": 1, "records": self.records, "summary": self.summary(), "machine": self.machine}

    def to_json(self) -> str:
        return json.dumps(plain(self.to_dict()), allow_nan=False)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    def __repr__(self) -> str:
        return table(self.summary(), COLUMNS)

    def _repr_html_(self) -> str:
        caption = html.escape("medians; ceiling: the best read of the same bytes, before and after each repetition")
        return f"<p>{caption}</p>{html_table(self.summary(), COLUMNS)}"


MEASURED = (
    "prefill_tps",
    "decode_tps",
    "ttft_ms",
    "bytes_per_token",
    "read_gbs",
    "ceiling_tps",
    "ceiling_share",
)
COLUMNS = ("prompt", "gen", "depth", "kv", "compute", "threads", *MEASURED)


def _sweep(**axes: Any) -> Iterator[dict[str, Any]]:
    """The product of all lists; anything else stands for itself."""
    lists = [v if isinstance(v, list) else [v] for v in axes.values()]
    for values in itertools.product(*lists):
        yield dict(zip(axes, values))


@checked_keywords
def bench(
    model: Union[Model, str, os.PathLike[str]],
    *,
    prompt: Union[int, list[int]] = 512,
    gen: Union[int, list[int]] = 64,
    depth: Union[int, list[int]] = 0,
    kv: Union[str, list[str]] = "f16",
    compute: Union[str, list[str]] = "auto",
    threads: Union[None, int, list[int]] = None,
    kernel: Union[None, str, list[str]] = None,
    cpus: Union[None, str, Sequence[int]] = None,
    repeats: int = 3,
    seed: int = 0,
    progress: Optional[Callable[[str], None]] = None,
) -> Bench:
    """Prefill and decode speed of a model beside its ceiling. Lists sweep, several lists give their product.

    prompt, gen  tokens evaluated at once, and one by one behind them (greedily chosen)
    depth        tokens of context that are there before the prompt
    repeats      measured repetitions after one warm-up that is not kept; settings take turns

    Each record has prefill_tps, decode_tps ((gen - 1) / time between the first and the last), ttft_ms (prefill and one
    choice; tokenizing is not in it, prompts are random ids), bytes_per_token (the mean over the generated tokens),
    read_gbs (the better of the reads of the same bytes before and after, with the same threads), ceiling_tps =
    read_gbs / bytes_per_token, ceiling_share, isa and kernels by operation.
    """
    if repeats < 1:
        raise ValueError(f"repeats={repeats}: at least one repetition must be measured")
    loaded = model if isinstance(model, Model) else Model(model)
    settings = list(
        _sweep(prompt=prompt, gen=gen, depth=depth, kv=kv, compute=compute, threads=threads, kernel=kernel)
    )
    for s in settings:
        if s["prompt"] < 1 or s["gen"] < 1 or s["depth"] < 0:
            raise ValueError(f"prompt={s['prompt']} and gen={s['gen']} must be positive, depth={s['depth']} at least 0")
    by_setting: list[list[dict[str, Any]]] = [[] for _ in settings]
    for repeat in range(-1, repeats):  # -1 warms up
        for i, s in enumerate(settings):
            if progress:
                what = "warm-up" if repeat < 0 else f"repetition {repeat + 1} of {repeats}"
                progress(f"{what}, setting {i + 1} of {len(settings)}")
            record = _run_once(loaded, s, cpus, seed, measure=repeat >= 0)
            if repeat >= 0:
                by_setting[i].append({"setting": record.pop("setting"), "repeat": repeat, **record})
    return Bench([r for group in by_setting for r in group])


def _run_once(
    model: Model, s: dict[str, Any], cpus: Union[None, str, Sequence[int]], seed: int, measure: bool
) -> dict[str, Any]:
    total = s["depth"] + s["prompt"] + s["gen"]
    with model.session(
        n_ctx=total, kv=s["kv"], compute=s["compute"], n_threads=s["threads"], kernel=s["kernel"], cpus=cpus
    ) as session:
        ids = np.random.default_rng(seed).integers(0, model.n_vocab, s["depth"] + s["prompt"], dtype=np.int32)
        for at in range(0, s["depth"], session.n_batch):
            session.eval(ids[at : min(at + session.n_batch, s["depth"])], logits="none")
        before = read_gbs(session, cpus) if measure else None
        times, prefill_s = _decode(session, ids[s["depth"] :], s["gen"])
        after = read_gbs(session, cpus) if measure else None
        # Generated token i attends to everything before it and to itself; the first came with the prompt.
        attended = s["depth"] + s["prompt"] + (s["gen"] + 1) / 2
        needed = bytes_per_token(model, kv=session.kv_type, n_attended=attended)
        read = max(before, after) if before is not None and after is not None else None
        decode = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else None
        ceiling = read * 1e9 / needed if read else None
        setting = {**s, "threads": session.n_threads, "kv": session.kv_type, "compute": session.compute}
        return {
            "schema": 1,
            "setting": setting,
            **setting,
            "model": os.path.basename(os.fspath(model.gguf.path)),
            "file_bytes": model.gguf.nbytes,
            "prefill_tps": s["prompt"] / prefill_s,
            "decode_tps": decode,
            "ttft_ms": 1e3 * times[0],
            "bytes_per_token": needed,
            "weight_bytes_per_token": model.weight_bytes_per_token,
            "kv_bytes_per_token": kv_bytes_per_token(model, session.kv_type, attended),
            "read_gbs": read,
            "read_gbs_before": before,
            "read_gbs_after": after,
            "ceiling_tps": ceiling,
            "ceiling_share": decode / ceiling if decode and ceiling else None,
            "isa": session.isa,
            "kernels": kernel_summary(session, s["prompt"]),
            "token_times_s": times,
        }


def read_arrays(model: Model) -> list[np.ndarray]:
    """The bytes that one token reads, as views of the file: each tensor once, the input embedding only where it is the
    output matrix as well, and of stacked experts as many as are chosen."""
    hp, arrays = model.hparams, []
    for name, tensor in model.gguf.tensors.items():
        raw = tensor.raw
        if name == "token_embd.weight" and not hp["tied_output"]:
            continue
        if "_exps." in name and hp["n_expert"]:
            raw = raw[: len(raw) * hp["n_expert_used"] // hp["n_expert"]]
        arrays.append(raw)
    return arrays


def read_gbs(session: Session, cpus: Union[None, str, Sequence[int]] = None, passes: int = 7) -> float:
    """The ceiling in GB/s: the best read kernel over the very bytes of the weights, with the session's threads."""
    arrays = read_arrays(session.model)
    result = _core.read_bandwidth(arrays, threads=session.n_threads, passes=passes, cpus=cpus, isa=session.isa)
    return float(result["gbs"])


def _decode(session: Session, prompt: np.ndarray, gen: int) -> tuple[list[float], float]:
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
