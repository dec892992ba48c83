# SPDX-License-Identifier: Apache-2.0
"""Context: tokens in use cost the reading of their keys and values, tokens allocated must cost nothing."""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable, Iterator, Optional, Union

import numpy as np

from rooflm._keywords import at_least
from rooflm.diagnosis.sweeps import as_list, shuffled_runs
from rooflm.measuring.ceilings import kv_bytes_per_token, read_gbs
from rooflm.model import Model
from rooflm.session import Session

DEPTHS = (0, 4096, 16384, 32768)
SHORT = 16  # tokens in use while the allocated context varies


def records(
    model: Model,
    *,
    repeats: int,
    seed: int,
    say: Callable[[str], None],
    depth: Union[None, int, list[int]] = None,
    ctx: Union[None, int, list[int]] = None,
    kv: Union[str, list[str]] = "f16",
    threads: Optional[int] = None,
    compute: str = "auto",
    gen: int = 16,
) -> Iterator[dict[str, Any]]:
    room = model.n_ctx_train or max(DEPTHS)
    depths = as_list(depth) if depth is not None else [d for d in DEPTHS if d + gen + SHORT <= room]
    allocated = as_list(ctx) if ctx is not None else [c for c in DEPTHS[1:] if c <= room]
    at_least(2, gen=gen)
    at_least(SHORT + gen, ctx=allocated)
    options: dict[str, Any] = {"n_threads": threads, "compute": compute}
    base = SHORT + min(depths)
    for cache in as_list(kv):
        filled = _Filled(model, [SHORT + d for d in depths], gen, {**options, "kv": cache}, say)
        jobs = [("in use", SHORT + d, SHORT + d + gen) for d in depths if SHORT + d != base]
        jobs += [("allocated", SHORT, c) for c in allocated]
        for repeat in range(repeats):
            # The shortest context first: what the others are predicted from, in the same minute.
            first = _measure(model, filled, "in use", base, base + gen, gen, repeat)
            yield {**first, "predicted_tps": first["decode_tps"]}
            for _, job in shuffled_runs(jobs, 1, seed + repeat):
                axis, n, n_ctx = job
                say(f"{cache}: {n if axis == 'in use' else n_ctx} {axis}, repetition {repeat + 1} of {repeats}")
                r = _measure(model, filled, axis, n, n_ctx, gen, repeat)
                yield {**r, "predicted_tps": first["decode_tps"] * first["bytes_per_token"] / r["bytes_per_token"]}


class _Filled:
    """Sessions that hold each depth, made once: forks of the deepest one, cut back. Where sliding windows have
    forgotten what lies further back, a session of its own is filled each time."""

    def __init__(
        self, model: Model, depths: list[int], gen: int, options: dict[str, Any], say: Callable[[str], None]
    ) -> None:
        self.model, self.options = model, options
        self.deepest: Optional[Session] = None
        if not model.hparams["window"]:
            say(f"filling {max(depths)} tokens, {options['kv']}")
            self.deepest = self._fill(max(depths), max(depths) + gen)

    def _fill(self, n: int, n_ctx: int) -> Session:
        session = self.model.session(n_ctx=n_ctx, **self.options)
        ids = np.random.default_rng(0).integers(0, self.model.n_vocab, n, dtype=np.int32)
        for at in range(0, n, session.n_batch):
            session.eval(ids[at : at + session.n_batch], logits="none")
        return session

    def at(self, n: int, n_ctx: int) -> Session:
        if self.deepest is None or n_ctx != self.deepest.n_ctx and n == SHORT:
            return self._fill(n, n_ctx)
        session = self.deepest.fork()
        session.rewind(n)
        return session


def _measure(
    model: Model, filled: _Filled, axis: str, n: int, n_ctx: int, gen: int, repeat: int
) -> dict[str, Any]:
    with filled.at(n, n_ctx) as session:
        one, logits, times = np.ones(1, np.int32), None, []
        logits = session.eval(one)
        read = read_gbs(session)
        for _ in range(gen - 1):
            start = time.perf_counter()
            logits = session.eval(one, out=logits)
            times.append(time.perf_counter() - start)
        read = max(read, read_gbs(session))
        kv_bytes = kv_bytes_per_token(model, session.kv_type, n + (gen + 2) / 2)
        needed = float(model.weight_bytes_per_token) + kv_bytes
        decode = 1 / statistics.median(times)
        allocated = n_ctx if axis == "allocated" else None
        setting = {"axis": axis, "kv": session.kv_type, "depth": n - SHORT, "ctx": allocated}
        return {
            "setting": {**setting, "threads": session.n_threads},
            "repeat": repeat,
            "kv_nbytes": session.kv_nbytes,
            "kv_bytes_per_token": kv_bytes,
            "bytes_per_token": needed,
            "read_gbs": read,
            "decode_tps": decode,
            "ceiling_tps": read * 1e9 / needed,
            "ceiling_share": decode * needed / (read * 1e9),
            "token_times_s": times,
        }
