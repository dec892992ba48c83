# SPDX-License-Identifier: Apache-2.0
"""Subcommands of the device room: machine, randmem, trace, sensors."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from rooflm._optional import plot_to
from rooflm._output import answer, emit, show, table
from rooflm._progress import end_status_line, status_line
from rooflm.device.sizes import size_text


def machine(args: argparse.Namespace) -> int:
    import rooflm

    facts = rooflm.machine(measure=args.measure, progress=status_line(args.json))
    end_status_line(args.json)
    answer(facts, args)
    plot_to(args.plot, facts)
    return 0


def randmem(args: argparse.Namespace) -> int:
    from rooflm._commands import UsageError
    from rooflm.device.latency import latency_ladder, random_latency

    if args.plot and not args.ladder:
        raise UsageError("--plot draws a ladder: give --ladder, too")
    if args.ladder:
        smallest = max(4096, 2 * args.stride)
        progress = status_line(args.json)
        ladder = latency_ladder(smallest=smallest, largest=args.size, stride=args.stride, progress=progress)
        end_status_line(args.json)
        answer(ladder, args)
        plot_to(args.plot, ladder)
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
    plot_to(args.plot, tr)
    if args.json:
        emit(tr)
        return 0
    for phase in ("prefill", "decode"):
        print(f"{phase}: {tr.effective_tops(phase):.4f} effective TOPS\n{tr.text(phase)}\n")
    roofs = tr.roofs
    peaks = ", ".join(f"{kind} {show(v)}" for kind, v in roofs.gops.items())
    print(f"roofs: {show(roofs.read_gbs)} GB/s, G operations/s: {peaks}; {roofs.threads} threads, {roofs.isa}")
    for doubt in tr.doubts:
        print(f"not reliable: {doubt}")
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
