# SPDX-License-Identifier: Apache-2.0
"""Subcommands about speed and the machine: kernels, machine, demo, synth."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

import numpy as np

from rooflm import _core
from rooflm._output import emit, show, table

DEMO_PROMPT = "Memory bandwidth decides how fast a language model answers, because"
DEMO_PREFILL = 256  # tokens of the measured prompt
DEMO_SHAPE = "smollm2"  # of the synthetic model that stands in without a network


def kernels(args: argparse.Namespace) -> int:
    import rooflm

    every = rooflm.kernels()
    rows = every if args.all else every.select(chosen=True)
    if args.json:
        emit({"schema": 1, "isa": every.isa, "kernels": [asdict(k) for k in rows]})
    else:
        print(repr(rows))
        if not args.all:
            print(f"\n{len(rows)} chosen of {len(every)} kernels; --all shows the others and why")
    return 0


def demo(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import FetchError
    from rooflm.measuring.commands import speed_lines

    synthetic = False
    try:
        path = rooflm.fetch("smollm2", progress=not args.json)
    except FetchError as e:
        if e.reason not in ("network", "pip"):
            raise
        print(f"rooflm: {e}\nrooflm: using a synthetic model of its shape: the text means nothing", file=sys.stderr)
        path, synthetic = _synthetic_demo_model(), True
    model = rooflm.Model(path)
    with model.session(n_ctx=1024, n_threads=args.threads) as session:
        if not args.json:
            print(f"{model}\n\n{DEMO_PROMPT}", end="", flush=True)
        generation = session.generate(DEMO_PROMPT, max_tokens=args.n)
        for piece in generation:
            if not args.json:
                print(piece, end="", flush=True)
        threads, isa = session.n_threads, session.isa
        agreement = exact_path_agreement(model, [*generation.prompt_ids, *generation.ids], threads)
    result = rooflm.bench(model, prompt=DEMO_PREFILL, gen=max(args.n, 2), threads=threads, repeats=3, progress=False)
    row = result.summary()[0]
    record = {
        "schema": 1,
        "model": str(path),
        "synthetic": synthetic,
        "text": generation.text,
        "ids": generation.ids,
        "isa": isa,
        "threads": threads,
        **{k: row[k] for k in ("prefill_tps", "decode_tps", "ttft_ms", "bytes_per_token", "read_gbs", "ceiling_tps")},
        "ceiling_share": row["ceiling_share"],
        "agreement": agreement,
    }
    if args.json:
        emit(record)
        return 0
    print(f"\n\n{speed_lines(row)}")
    print(
        f"  exact path       top choice equal at {agreement['top1_equal']} of {agreement['positions']} positions, "
        f"mean KL(exact || {agreement['compute']}) {agreement['kl_mean']:.1e} nats"
    )
    print(f"  kernels          {isa}; `rooflm kernels` lists them")
    return 0


def _synthetic_demo_model() -> Path:
    import rooflm
    from rooflm.fetching import cache_dir

    path = cache_dir() / "synthetic-smollm2.gguf"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        rooflm.synth(fresh, size=DEMO_SHAPE, type="Q4_1")
        os.replace(fresh, path)
    return path


def exact_path_agreement(model: Any, ids: list[int], threads: Optional[int], compute: str = "auto") -> dict[str, Any]:
    """The quantized path beside compute="f32" on the same tokens: how often the top choice agrees, and the mean
    KL(exact || quantized) in nats."""
    logits = {}
    for way, kv in (("f32", "f32"), (compute, "f16")):
        with model.session(n_ctx=len(ids), compute=way, kv=kv, n_threads=threads) as s:
            logits[way] = s.eval(ids, logits="all")
    rows = _core._contrast_rows(logits["f32"], logits[compute], np.zeros(len(ids), np.int32))
    return {
        "compute": compute,
        "positions": len(ids),
        "top1_equal": int((rows["top_p"] == rows["top_q"]).sum()),
        "kl_mean": float(rows["kl"].mean()),
        "kl_max": float(rows["kl"].max()),
    }


def synth(args: argparse.Namespace) -> int:
    import rooflm

    record = rooflm.synth(
        Path(args.out),
        arch=args.arch,
        size=args.size,
        type=args.type,
        seed=args.seed,
        width=args.width,
        layers=args.layers,
        heads=args.heads,
        kv_heads=args.kv_heads,
        ffn=args.ffn,
        vocab=int(args.vocab) if args.vocab and args.vocab.isdigit() else args.vocab,
        context=args.context,
    )
    if args.json:
        emit(record)
    else:
        print(table([{"": k, "value": show(v)} for k, v in record.items()], ("", "value")))
    return 0
