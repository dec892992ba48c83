# SPDX-License-Identifier: Apache-2.0
"""What the commands of this room do."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Optional, Union

from rooflm._arguments import single
from rooflm._optional import plot_to
from rooflm._output import answer, emit, measured_before, megabytes


def bench(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    interrupted = False
    try:
        result = rooflm.bench(
            single([resolve_model(m) for m in args.model]),
            **{k: single(getattr(args, k)) for k in ("prompt", "gen", "depth", "threads", "kv", "compute", "load")},
            evict=single(args.evict),
            kernel=args.kernel,
            cpus=args.cpus,
            blas=args.blas,
            repeats=args.repeats,
            seed=args.seed,
            cooldown=_cooldown(args.cooldown),
            out=args.out,
            resume=args.resume,
            full_hash=args.full_hash,
            progress=False if args.json else None,
        )
    except KeyboardInterrupt as e:
        result, interrupted = measured_before(e), True
    if args.json:
        emit(result)
    else:
        rows = result.summary()
        print(result if len(rows) > 3 else "\n".join(speed_lines(row) for row in rows))
    if interrupted:
        print(f"rooflm: interrupted after {len(result)} runs", file=sys.stderr)
        return 130
    return 0


def bytes(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    model = resolve_model(args.model)
    answer(rooflm.bytes_per_token(model, n_ctx=args.depth + 1, kv=args.kv, evict=args.evict), args)
    return 0


def forecast(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    model = resolve_model(args.model)
    options = {"kv": args.kv, "evict": args.evict, "threads": args.threads, "load": args.load}
    answer(rooflm.forecast(model, n_ctx=args.ctx, **options), args)
    return 0


def load(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model
    from rooflm.measuring.loading import STATES, WAYS

    interrupted = False
    try:
        result = rooflm.load_times(
            resolve_model(args.model),
            ways=args.ways or WAYS,
            states=args.states or STATES,
            threads=args.threads,
            repeats=args.repeats,
            progress=False if args.json else None,
        )
    except KeyboardInterrupt as e:
        result, interrupted = measured_before(e), True
    answer(result, args)
    return 130 if interrupted else 0


def explain(args: argparse.Namespace) -> int:
    import rooflm

    result = rooflm.explain(args.a, args.b)
    answer(result, args)
    plot_to(args.plot, result)
    return 0


def whatif(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    result = rooflm.whatif(resolve_model(args.model), bandwidth=args.bandwidth, depth=args.depth, kv=args.kv)
    answer(result, args)
    return 0


def _cooldown(text: Optional[str]) -> Union[None, float, str]:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def speed_lines(row: dict[str, Any]) -> str:
    """The figures of one setting, each with its unit; prefill and decode apart."""

    def number(key: str, digits: int = 1) -> str:
        return "-" if row[key] is None else f"{row[key]:.{digits}f}"

    kept = f"evict {row['evict']}, " if row.get("evict") else ""
    lines = [
        f"{row['model']}: prompt {row['prompt']}, generated {row['gen']}, depth {row['depth']}, kv {row['kv']}, {kept}"
        f"compute {row['compute']}, {row['threads']} threads, {row['repeats']} repetitions (medians)",
        f"  prefill          {number('prefill_tps')} tok/s",
        f"  first token      {number('ttft_ms')} ms",
        f"  decode           {number('decode_tps')} tok/s",
        f"  bytes per token  {megabytes(row['bytes_per_token'])}",
        f"  read bandwidth   {number('read_gbs')} GB/s of the same bytes, the better of before and after",
        f"  ceiling          {number('ceiling_tps')} tok/s",
    ]
    if row["ceiling_share"] is not None:
        lines.append(f"  share            {100 * row['ceiling_share']:.0f} % of the ceiling")
    return "\n".join(lines)
