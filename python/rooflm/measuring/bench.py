# SPDX-License-Identifier: Apache-2.0
"""Speed beside the ceiling: a grid of settings, repeated in random interleaved order, each run recorded at once."""

from __future__ import annotations

import os
import random
from typing import Any, Callable, Optional, Sequence, Union

from rooflm._keywords import checked_keywords
from rooflm.measuring.ceilings import kv_value_bytes
from rooflm.measuring.grid import ZipGrid, settings_of
from rooflm.measuring.recording import PathLike, RecordFile, record_line
from rooflm.measuring.results import SCHEMA, Results
from rooflm.measuring.run import model_name, run_once
from rooflm.model import Model

ModelArg = Union[Model, str, "os.PathLike[str]"]


@checked_keywords
def bench(
    models: Union[ModelArg, list[ModelArg]],
    *,
    prompt: Union[int, list[int]] = 512,
    gen: Union[int, list[int]] = 64,
    depth: Union[int, list[int]] = 0,
    kv: Union[str, list[str]] = "f16",
    compute: Union[str, list[str]] = "auto",
    threads: Union[None, int, list[int]] = None,
    kernel: Union[None, str, list[str]] = None,
    cpus: Union[None, str, Sequence[int]] = None,
    load: Union[str, list[str]] = "auto",
    blas: Union[None, str, list[str]] = None,
    grid: Optional[ZipGrid] = None,
    repeats: int = 10,
    seed: int = 0,
    out: Optional[PathLike] = None,
    resume: bool = False,
    progress: Optional[Callable[[str], None]] = None,
) -> Results:
    """Prefill and decode speed of models beside their ceiling. Lists sweep, several lists give their product.

    models       a path or Model, or a list of them
    prompt, gen  tokens evaluated at once, and one by one behind them (greedily chosen)
    depth        tokens of context that are there before the prompt
    kv, compute, threads, kernel, cpus, blas  as in Model.session(); load as in Model()
    grid         rooflm.zip_grid(...): axes that advance together instead of giving their product
    repeats      measured repetitions after a short warm-up of each setting that is not kept; in each repetition the
                 settings run in an order drawn from seed (default 0), which also draws the prompt's ids
    out          file that takes each record as it is measured, one line of JSON; resume=True goes on with a file that
                 exists, leaving out the runs that it has

    Each record has prefill_tps, decode_tps ((gen - 1) / time between the first and the last), ttft_ms (prefill and one
    choice; tokenizing is not in it, prompts are random ids), bytes_per_token (the mean over the generated tokens),
    read_gbs (the better of the reads of the same bytes before and after, with the same threads), ceiling_tps =
    read_gbs / bytes_per_token, ceiling_share, isa and kernels by operation, and the times of all tokens.

    Ctrl-C raises KeyboardInterrupt with what was measured as its `.results`.
    """
    if repeats < 1:
        raise ValueError(f"repeats={repeats}: at least one repetition must be measured")
    axes = {
        "model": models,
        "prompt": prompt,
        "gen": gen,
        "depth": depth,
        "kv": kv,
        "compute": compute,
        "threads": threads,
        "kernel": kernel,
        "cpus": cpus if cpus is None or isinstance(cpus, str) else ",".join(str(c) for c in cpus),
        "load": load,
        "blas": blas,
    }
    settings = list(settings_of(axes, grid))
    for s in settings:
        check_setting(s)
    loaded = Models()
    runs = [(repeat, i) for repeat in range(repeats) for i in shuffled(len(settings), seed, repeat)]
    file = RecordFile(out, resume=resume) if out is not None else None
    records: list[dict[str, Any]] = []
    try:
        asked = [loaded.asked(s) for s in settings]
        if file:
            records.extend(file.records)
        done = {record_line({"asked": r.get("asked"), "repeat": r.get("repeat")}) for r in records}
        todo = [(n, i) for n, i in runs if record_line({"asked": asked[i], "repeat": n}) not in done]
        caches = machine_facts()["caches"]
        warmed: set[int] = set()
        for k, (repeat, i) in enumerate(todo):
            s, model = settings[i], loaded.model(settings[i])
            if i not in warmed:
                if progress:
                    progress(f"warm-up, setting {i + 1} of {len(settings)}")
                run_once(model, s, seed=seed, caches=caches, measure=False)
                warmed.add(i)
            if progress:
                where = f"setting {i + 1} of {len(settings)}, repetition {repeat + 1} of {repeats}"
                progress(f"run {k + 1} of {len(todo)}: {where}")
            figures = run_once(model, s, seed=seed, caches=caches)
            assert figures is not None
            resolved = figures["resolved"]
            setting = {
                **s,
                "model": model_name(model),
                **{k: resolved[k] for k in ("threads", "kv", "compute")},
            }
            record = {
                "schema": SCHEMA,
                "kind": "bench",
                "setting": setting,
                "repeat": repeat,
                "order": len(records),
                **setting,
                "file_bytes": model.gguf.nbytes,
                **figures,
                "asked": asked[i],
            }
            if file:
                file.append(record)
            records.append(record)
    except KeyboardInterrupt as e:
        e.results = Results(records)  # type: ignore[attr-defined]
        raise
    finally:
        if file:
            file.close()
    return Results(in_order(records))


def check_setting(s: dict[str, Any]) -> None:
    for name in ("prompt", "gen", "depth"):
        if not hasattr(s[name], "__index__"):
            raise TypeError(f"{name} must be an integer or a list of integers, not {type(s[name]).__name__}")
    if s["prompt"] < 1 or s["gen"] < 1 or s["depth"] < 0:
        raise ValueError(f"prompt={s['prompt']} and gen={s['gen']} must be positive, depth={s['depth']} at least 0")
    kv_value_bytes(s["kv"])


def shuffled(n: int, seed: int, repeat: int) -> list[int]:
    order = list(range(n))
    random.Random(f"{seed}/{repeat}").shuffle(order)
    return order


def in_order(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By setting, then repetition; `order` keeps the order in which they ran."""
    first: dict[str, int] = {}
    for r in records:
        first.setdefault(record_line(r["setting"]), len(first))
    return sorted(records, key=lambda r: (first[record_line(r["setting"])], r["repeat"]))


def machine_facts() -> dict[str, Any]:
    from rooflm import machine

    return dict(machine())


class Models:
    """Models opened once for all their settings."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Model] = {}

    def model(self, s: dict[str, Any]) -> Model:
        given = s["model"]
        if isinstance(given, Model):
            return given
        key = (os.fspath(given), s["load"])
        if key not in self._open:
            self._open[key] = Model(given, load=s["load"])
        return self._open[key]

    def asked(self, s: dict[str, Any]) -> dict[str, Any]:
        """What identifies a run when a file is resumed: the setting as given, the model by name and size."""
        model = self.model(s)
        return {**s, "model": model_name(model), "file_bytes": model.gguf.nbytes}
