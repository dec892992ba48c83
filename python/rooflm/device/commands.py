# SPDX-License-Identifier: Apache-2.0
"""Subcommands of the device room: machine, randmem, trace, sensors."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any, Callable, Optional

from rooflm._output import emit, show, table
from rooflm.device.sizes import size_text


def _progress(args: argparse.Namespace) -> Optional[Callable[[str], None]]:
    if args.json or not sys.stderr.isatty():
        return None
    return lambda text: print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _end_of_progress(args: argparse.Namespace) -> None:
    if _progress(args):
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _save(ax: Any, path: str) -> None:
    from rooflm._optional import need

    ax.figure.savefig(path, dpi=120)
    need("matplotlib.pyplot").close(ax.figure)


def machine(args: argparse.Namespace) -> int:
    import rooflm

    facts = rooflm.machine(measure=args.measure, progress=_progress(args))
    _end_of_progress(args)
    if args.json:
        emit(facts)
    else:
        print(facts)
    if args.plot:
        _save(facts.plot(), args.plot)
    return 0


def randmem(args: argparse.Namespace) -> int:
    from rooflm._commands import UsageError
    from rooflm.device.latency import latency_ladder, random_latency

    if args.plot and not args.ladder:
        raise UsageError("--plot draws a ladder: give --ladder, too")
    if args.ladder:
        smallest = max(4096, 2 * args.stride)
        ladder = latency_ladder(smallest=smallest, largest=args.size, stride=args.stride, progress=_progress(args))
        _end_of_progress(args)
        if args.json:
            emit(ladder)
        else:
            print(ladder)
        if args.plot:
            _save(ladder.plot(), args.plot)
        return 0
    walks = [
        random_latency(args.size, stride=args.stride, iters=args.iter, huge=huge, random=random, seed=args.seed)
        for huge in (True, False)
        for random in (True, False)
    ]
    if args.json:
        emit({"schema": 1, "walks": walks})
        return 0
    rows = [
        {"order": w["order"], "pages": f"{w['pages']}, {size_text(w['page_bytes'])}", "ns": w["ns"],
         "least": w["ns_range"][0], "greatest": w["ns_range"][1]}
        for w in walks
    ]  # fmt: skip
    print(f"{size_text(args.size)}, stride {size_text(args.stride)}, {args.iter} steps, {walks[0]['nodes']} nodes")
    print(table(rows, ("order", "pages", "ns", "least", "greatest")))
    return 0


def trace(args: argparse.Namespace) -> int:
    import numpy as np

    import rooflm
    from rooflm.fetching import resolve_model

    model = rooflm.Model(resolve_model(args.model))
    ids = np.random.default_rng(0).integers(0, model.n_vocab, args.prompt + args.gen, dtype=np.int32)
    options = {"kv": args.kv, "compute": args.compute, "n_threads": args.threads}
    with model.session(n_ctx=len(ids), **options) as session:
        session.eval(ids[: args.prompt])  # brings the weights in
        session.rewind(0)
        with session.trace() as tr:
            session.eval(ids[: args.prompt])
            for i in range(args.prompt, len(ids)):
                session.eval(ids[i : i + 1])
    if args.chrome:
        tr.to_chrome(args.chrome)
    if args.plot:
        _save(tr.plot(), args.plot)
    if args.json:
        emit(tr)
        return 0
    for phase in ("prefill", "decode"):
        print(f"{phase}: {tr.effective_tops(phase):.4f} effective TOPS\n{tr.text(phase)}\n")
    roofs = tr.roofs
    peaks = ", ".join(f"{kind} {show(v)}" for kind, v in roofs.gops.items())
    print(f"roofs: {show(roofs.read_gbs)} GB/s, G operations/s: {peaks}; {roofs.threads} threads, {roofs.isa}")
    return 0


def sensors(args: argparse.Namespace) -> int:
    from rooflm.device.sensors import Sensors

    found = Sensors()
    if args.json:
        reading = found.read()
        emit({"schema": 1, **asdict(reading), "processor_c": found.temperature(reading),
              "unavailable": found.unavailable})  # fmt: skip
    else:
        print(found)
    return 0
