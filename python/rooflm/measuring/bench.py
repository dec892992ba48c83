# SPDX-License-Identifier: Apache-2.0
"""Speed beside the ceiling: a grid of settings, repeated in random interleaved order, each run recorded at once."""

from __future__ import annotations

import os
import random
import time
import uuid
from typing import Any, Optional, Sequence, Union

from rooflm import _eviction
from rooflm._keywords import at_least, checked_keywords, whole
from rooflm._output import plain
from rooflm._progress import Progress, ProgressArg
from rooflm.measuring.ceilings import kv_value_bytes
from rooflm.measuring.cooling import Cooldown, check_cooldown, cool_down
from rooflm.measuring.grid import ZipGrid, settings_of
from rooflm.measuring.manifest import build_manifest, engine_manifest, machine_manifest, model_manifest
from rooflm.measuring.recording import PathLike, RecordFile, record_line
from rooflm.measuring.results import SCHEMA, Results
from rooflm.measuring.run import run_once, warm_up
from rooflm.measuring.sizes import ModelArg
from rooflm.model import Model

# Arguments whose default is a choice that users should see when they left it alone.
DEFAULTS = {
    "prompt": 512,
    "gen": 64,
    "depth": 0,
    "kv": "f16",
    "evict": None,
    "compute": "auto",
    "threads": None,
    "kernel": None,
    "cpus": None,
    "load": "auto",
    "blas": None,
}


@checked_keywords
def bench(
    models: Union[ModelArg, list[ModelArg]],
    *,
    prompt: Union[int, list[int]] = 512,
    gen: Union[int, list[int]] = 64,
    depth: Union[int, list[int]] = 0,
    kv: Union[str, list[str]] = "f16",
    evict: Union[None, str, list[Optional[str]]] = None,
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
    cooldown: Cooldown = None,
    full_hash: bool = False,
    progress: ProgressArg = None,
) -> Results:
    """Prefill and decode speed of models beside their ceiling. Lists sweep, several lists give their product.

    models       a path or Model, or a list of them
    prompt, gen  tokens evaluated at once, and one by one behind them (greedily chosen)
    depth        tokens of context that are there before the prompt
    kv, evict, compute, threads, kernel, cpus, blas  as in Model.session(); load as in Model()
    grid         rooflm.zip_grid(...): axes that advance together instead of giving their product
    repeats      measured repetitions after a short warm-up of each setting that is not kept; in each repetition the
                 settings run in an order drawn from seed (default 0), which also draws the prompt's ids
    out          file that takes each record as it is measured, one line of JSON; resume=True goes on with a file that
                 exists, leaving out the runs that it has
    cooldown     a pause before each measured run: seconds, or until the processor is as cool as "50C", at most 10
                 minutes (default None: no pause)
    full_hash    hash the whole file for the manifest instead of samples of each tensor
    progress     None: a bar on a terminal or in a notebook, where tqdm is installed; False, True, or a function that
                 takes lines of text

    Each record has prefill_tps, decode_tps ((gen - 1) / time between the first and the last), ttft_ms (prefill and one
    choice; tokenizing is not in it, prompts are random ids), bytes_per_token (the mean over the generated tokens; with
    evict of the positions that are kept),
    read_gbs (the better of the reads of the same bytes before and after, with the same threads), ceiling_tps =
    read_gbs / bytes_per_token, ceiling_share, roof (the cache that the working set fits, or "memory"), isa, kernels by
    operation, sensors (temperature, clocks, load of others, throttling during the run), fallbacks, the figures of
    rooflm.measuring.token_times with the times of all tokens, and the manifest.

    Ctrl-C raises KeyboardInterrupt with what was measured as its `.results`.
    """
    at_least(1, repeats=repeats)
    at_least(0, seed=seed)
    axes = {
        "model": models,
        "prompt": prompt,
        "gen": gen,
        "depth": depth,
        "kv": kv,
        "evict": evict,
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
    check_cooldown(cooldown)
    if resume and out is None:
        raise ValueError("resume goes on with a file of records: out= must name it")
    loaded = Models(full_hash)
    runs = [(repeat, i) for repeat in range(repeats) for i in shuffled(len(settings), seed, repeat)]
    file = RecordFile(out, resume=resume) if out is not None else None
    records: list[dict[str, Any]] = []
    asked: list[dict[str, Any]] = []
    try:
        asked = [{**s, "seed": seed, **loaded.identity(s)} for s in settings]
        if file:
            records.extend(file.records)
        done = {record_line({"asked": r.get("asked"), "repeat": r.get("repeat")}) for r in records}
        todo = [(n, i) for n, i in runs if record_line({"asked": asked[i], "repeat": n}) not in done]
        about = About(defaults=[k for k, v in DEFAULTS.items() if axes[k] == v and not (grid and k in grid.axes)])
        bar = Progress(len(todo), progress)
        warmed: set[int] = set()
        try:
            for k, (repeat, i) in enumerate(todo):
                s, model = settings[i], loaded.model(settings[i])
                where = f"setting {i + 1} of {len(settings)}"
                if i not in warmed:
                    bar.show(f"warm-up, {where}")
                    warm_up(model, s, seed=seed)
                    warmed.add(i)
                rest = None
                if cooldown is not None:
                    bar.show(f"cooling down, {where}")
                    rest = cool_down(cooldown)
                bar.show(f"run {k + 1} of {len(todo)}: {where}, repetition {repeat + 1} of {repeats}")
                record = about.record(model, s, loaded.manifest(s), run_once(model, s, seed=seed, caches=about.caches))
                record = plain({**record, "repeat": repeat, "order": len(records), "cooldown": rest, "asked": asked[i]})
                if file:
                    file.append(record)
                records.append(record)
                bar.step()
        finally:
            bar.close()
    except KeyboardInterrupt as e:
        e.results = Results(in_order(records, asked))  # type: ignore[attr-defined]
        raise
    finally:
        if file:
            file.close()
    return Results(in_order(records, asked))


def check_setting(s: dict[str, Any]) -> None:
    """Also of what came through a zip_grid, which no decorator sees."""
    for name in ("prompt", "gen", "depth"):
        s[name] = whole(name, s[name])
    at_least(1, prompt=s["prompt"], gen=s["gen"])
    at_least(0, depth=s["depth"])
    kv_value_bytes(s["kv"])
    if s["evict"] is not None:
        s["evict"] = str(_eviction.parse(s["evict"]))


def shuffled(n: int, seed: int, repeat: int) -> list[int]:
    order = list(range(n))
    random.Random(f"{seed}/{repeat}").shuffle(order)
    return order


def in_order(records: list[dict[str, Any]], asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By setting as asked for, then repetition; `order` keeps the order in which they ran."""
    place = {record_line(a): i for i, a in enumerate(asked)}
    return sorted(records, key=lambda r: (place.get(record_line(r.get("asked") or {}), len(place)), r.get("repeat", 0)))


class About:
    """What all runs of one bench share: machine, build, and the number that says they were measured together."""

    def __init__(self, defaults: list[str]) -> None:
        import rooflm

        facts = rooflm.machine()
        self.caches = facts["caches"]
        self.machine = machine_manifest(facts)
        self.build = build_manifest()
        self.defaults = defaults
        self.block = uuid.uuid4().hex[:16]

    def record(
        self, model: Model, s: dict[str, Any], model_facts: dict[str, Any], figures: dict[str, Any]
    ) -> dict[str, Any]:
        resolved = figures.pop("resolved")
        setting = {**s, "model": model_facts["file"], **{k: resolved[k] for k in ("threads", "kv", "compute")}}
        return {
            "schema": SCHEMA,
            "kind": "bench",
            "block": self.block,
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "setting": setting,
            **setting,
            "file_bytes": model_facts["file_bytes"],
            **figures,
            "manifest": {
                "schema": SCHEMA,
                "model": model_facts,
                "engine": engine_manifest(figures, resolved, s),
                "placement": resolved["placement"],
                "machine": self.machine,
                "build": self.build,
                "defaults": self.defaults,
            },
        }


class Models:
    """Models opened once for all their settings."""

    def __init__(self, full_hash: bool) -> None:
        self._full_hash = full_hash
        self._open: dict[tuple[str, str], Model] = {}
        self._facts: dict[tuple[Any, ...], dict[str, Any]] = {}

    def model(self, s: dict[str, Any]) -> Model:
        given = s["model"]
        if isinstance(given, Model):
            return given
        key = (os.fspath(given), s["load"])
        if key not in self._open:
            self._open[key] = Model(given, load=s["load"])
        return self._open[key]

    def manifest(self, s: dict[str, Any]) -> dict[str, Any]:
        model = self.model(s)
        key = tuple(model.gguf.shards)
        if key not in self._facts:
            self._facts[key] = model_manifest(model.gguf, full_hash=self._full_hash)
        return {**self._facts[key], "replaced": dict(model.replaced) or None}

    def identity(self, s: dict[str, Any]) -> dict[str, Any]:
        """What a run is known by when a file of records is gone on with."""
        facts = self.manifest(s)
        return {"model": facts["sha256"], **({"replaced": facts["replaced"]} if facts["replaced"] else {})}
