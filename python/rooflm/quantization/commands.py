# SPDX-License-Identifier: Apache-2.0
"""Commands that compare and explain quantizations: compare, kv-loss, budget, layers, sensitivity, diff, evaluate."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rooflm._arguments import single
from rooflm._optional import plot_to
from rooflm._output import answer, emit, measured_before


def _answer(result: Any, args: argparse.Namespace) -> None:
    answer(result, args)
    plot_to(args.plot, result)


def _text_options(args: argparse.Namespace) -> dict[str, Any]:
    """What every command takes that reads windows of a text."""
    return {
        "ctx": args.ctx,
        "windows": args.windows,
        "n_threads": args.threads,
        "progress": False if args.json else None,
    }


def compare(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    reference: dict[str, Any] = {"model": resolve_model(args.reference)}
    if args.ref_compute:
        reference["compute"] = args.ref_compute
    if args.ref_kv:
        reference["kv"] = args.ref_kv
    compute, kv = single(args.compute.split(",")), single(args.kv.split(","))
    own: dict[str, Any] = {}
    # What was said of the reference alone is not taken over by the models.
    if args.ref_compute and isinstance(compute, str):
        own["compute"] = compute
    if args.ref_kv and isinstance(kv, str):
        own["kv"] = kv
    changed = (("window", args.window), ("evict", args.evict), ("rope_base", args.rope_base))
    own.update({k: v for k, v in changed if v is not None})
    result = rooflm.compare(
        reference,
        [{"model": resolve_model(m), **own} for m in args.models],
        Path(args.text),
        compute=compute,
        kv=kv,
        **_text_options(args),
    )
    _answer(result[0] if len(result) == 1 else result, args)
    return 0


def kv_loss(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    settings: list[dict[str, Any]] = [{"kv": kv} for kv in args.kv]
    settings += [{"evict": evict} for evict in args.evict]
    settings += [{"rank": rank, "recent": args.recent} for rank in args.rank]
    result = rooflm.kv_loss(
        resolve_model(args.model),
        Path(args.text),
        settings or None,
        kv=args.full,
        compute=args.compute,
        repeats=args.repeats,
        **_text_options(args),
    )
    _answer(result, args)
    return 0


def diff(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    result = rooflm.diff_files(
        resolve_model(args.a), resolve_model(args.b), values=not args.types, progress=False if args.json else None
    )
    answer(result, args)
    return 0


def budget(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    result = rooflm.error_budget(
        resolve_model(args.model),
        Path(args.text),
        reference=resolve_model(args.reference) if args.reference else None,
        compute=args.compute,
        kv=args.kv,
        window=args.window,
        by_operation=args.by_operation,
        **_text_options(args),
    )
    _answer(result, args)
    return 0


def sensitivity(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    interrupted = False
    try:
        result = rooflm.sensitivity(
            resolve_model(args.model),
            Path(args.text),
            types=args.types.split(",") if args.types else None,
            tensors=args.tensors.split(","),
            reference=resolve_model(args.reference) if args.reference else None,
            each=not args.kinds,
            budget_s=args.budget,
            imatrix=args.imatrix,
            resume=args.resume,
            out=args.out,
            **_text_options(args),
        )
    except KeyboardInterrupt as e:
        result, interrupted = measured_before(e), True
    _answer(result, args)
    return 130 if interrupted else 0


def evaluate(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    result = rooflm.evaluate(
        [{"model": resolve_model(m)} for m in args.models],
        Path(args.items) if args.items else None,
        domains=args.domains.split(",") if args.domains else None,
        limit=args.limit,
        max_tokens=args.n,
        chat=args.chat,
        compute=args.compute,
        kv=args.kv,
        n_threads=args.threads,
        progress=False if args.json else None,
    )
    if args.json:
        emit(result)
        return 0
    print(result)
    for row in result.side_by_side():
        print(f"\n{row['id']}: {row['prompt']}")
        for name, text in row["texts"].items():
            differs = row["against_first"].get(name, {}).get("first_token")
            print(f"  {name}{'' if differs is None else f' (differs from token {differs} on)'}: {text!r}")
    return 0


def layers(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    result = rooflm.compare_layers(
        {"model": resolve_model(args.a)},
        {"model": resolve_model(args.b), "compute": args.compute, "kv": args.kv},
        Path(args.text),
        limit=args.tokens,
        isolate=not args.no_isolate,
        n_threads=args.threads,
        progress=False if args.json else None,
    )
    _answer(result, args)
    return 0
