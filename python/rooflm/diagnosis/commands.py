# SPDX-License-Identifier: Apache-2.0
"""The commands of this room: doctor, health, soak, sweep, tune."""

from __future__ import annotations

import argparse
from typing import Any

from rooflm._optional import plot_to
from rooflm._output import answer, emit, measured_before
from rooflm._progress import end_status_line, status_line


def doctor(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    found = rooflm.doctor(
        resolve_model(args.model), threads=args.threads, cpus=args.cpus, kernel=args.kernel, isa=args.isa,
        compute=args.compute, kv=args.kv, load=args.load, depth=args.depth, gen=args.gen,
        progress=status_line(args.json),
    )  # fmt: skip
    end_status_line(args.json)
    if args.json:
        emit(found)
    elif args.all:
        print(*filter(None, (found.summary(), found.where_time_goes(), found.to_table())), sep="\n")
    else:
        print(found)
    return 0


def health(args: argparse.Namespace) -> int:
    import rooflm

    result = rooflm.health(
        size=args.size, threads=args.threads, history=False if args.no_history else args.history or True,
        keep=args.keep, progress=status_line(args.json),
    )  # fmt: skip
    end_status_line(args.json)
    if args.json:
        emit(result)
    else:
        print(result if args.curve else result.line())
    plot_to(args.plot, result)
    return 1 if result.verdict["verdict"] == "regression" else 0


def soak(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    interrupted = False
    try:
        result = rooflm.soak(
            resolve_model(args.model), minutes=args.minutes, threads=args.threads, kv=args.kv, gen=args.gen,
            out=args.out, progress=status_line(args.json),
        )  # fmt: skip
    except KeyboardInterrupt as e:  # what was seen is worth more than the rest
        result, interrupted = measured_before(e), True
    end_status_line(args.json)
    answer(result, args)
    plot_to(args.plot, result)
    return 130 if interrupted else 1 if result.leaks else 0


def sweep(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm._commands import UsageError
    from rooflm.diagnosis.sweeps import TAKES
    from rooflm.fetching import resolve_model

    known = ("depth", "ctx", "kv", "layout", "sizes", "threads", "cpus", "tokens", "save", "choices")
    options: dict[str, Any] = {k: getattr(args, k) or None for k in known}
    for name, value in options.items():
        if value is not None and name not in TAKES[args.kind]:
            raise UsageError(f"--{name} is not of {args.kind}, which takes {', '.join(TAKES[args.kind])}")
    if args.model is None and args.kind not in ("kv", "cache"):
        raise UsageError(f"{args.kind} needs a model")
    if options["threads"] and args.kind != "threads":
        if len(options["threads"]) > 1:
            raise UsageError(f"{args.kind} takes one number of --threads; rooflm sweep threads varies it")
        options["threads"] = options["threads"][0]
    interrupted = False
    try:
        result = rooflm.sweep(
            args.kind, resolve_model(args.model) if args.model else None, **options, repeats=args.repeats, out=args.out,
            progress=status_line(args.json),
        )  # fmt: skip
    except KeyboardInterrupt as e:
        result, interrupted = measured_before(e), True
    end_status_line(args.json)
    answer(result, args)
    if not args.json and args.kind == "cache" and result.knee:
        k = result.knee
        print(f"knee at {k['kv_bytes'] / 1e6:.1f} MB: {k['before_gbs']:.1f} to {k['after_gbs']:.1f} GB/s; the "
              f"nearest cache is {k['cache'] or 'not known'}")  # fmt: skip
    if len(result):
        plot_to(args.plot, result)
    return 130 if interrupted else 0


def tune(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    result = rooflm.tune(
        resolve_model(args.model), threads=args.threads, cpus=args.cpus, kernel=args.kernel, isa=args.isa,
        compute=args.compute, kv=args.kv, load=args.load, depth=args.depth, context=args.context, files=args.file,
        repeats=args.repeats, progress=status_line(args.json),
    )  # fmt: skip
    end_status_line(args.json)
    answer(result, args)
    plot_to(args.plot, result)
    return 0
