# SPDX-License-Identifier: Apache-2.0
"""Commands that make quantizations: quantize, imatrix, formats."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from rooflm._optional import plot_to
from rooflm._output import answer, emit


def _recipe(args: argparse.Namespace) -> Any:
    """A name, or patterns from a JSON file and from --tensor, the latter first."""
    from rooflm._commands import UsageError

    recipe: Any = args.recipe or "Q4_K_M"
    if recipe.endswith(".json") or os.path.sep in recipe:
        recipe = json.loads(Path(recipe).read_text(encoding="utf-8"))
        if not isinstance(recipe, dict) or not all(isinstance(v, str) for v in recipe.values()):
            raise UsageError(f"{args.recipe} must hold one JSON object of patterns and types")
    if not args.tensor:
        return recipe
    pairs = [p.partition("=") for p in args.tensor]
    for p, equals, _ in pairs:
        if not equals:
            raise UsageError(f"--tensor takes PATTERN=TYPE, not {p!r}")
    own = {p: t for p, _, t in pairs}
    return {**own, "base": recipe} if isinstance(recipe, str) else {**own, **recipe}


def _mix(args: argparse.Namespace, src: Any) -> Any:
    """A recipe for a target."""
    import rooflm
    from rooflm._commands import UsageError

    if args.tensor or args.recipe:
        given = "--tensor" if args.tensor else "--recipe"
        raise UsageError(f"{given} does not go with a target, which mixes types itself")
    by = json.loads(Path(args.by).read_text(encoding="utf-8")) if args.by else None
    return rooflm.mix(
        src,
        size_bytes=args.size,
        bits=args.bits,
        speed_tps=args.speed,
        by=by,
        imatrix=args.imatrix,
        threads=args.threads,
    )


def quantize(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm._commands import UsageError
    from rooflm.fetching import resolve_model

    src = resolve_model(args.src)
    if args.dst == args.src:  # a fetched name as well, which would from then on mean the new file
        raise UsageError(f"{args.dst} is the source itself: give the file to write another name")
    if args.type is not None and args.recipe is not None:
        raise UsageError(f"one recipe is enough: {args.type}, or --recipe {args.recipe}")
    args.recipe = args.recipe or args.type
    mixed = None
    if any(target is not None for target in (args.size, args.bits, args.speed)):
        mixed = _mix(args, src)
    result = rooflm.quantize(
        src,
        args.dst,
        mixed or _recipe(args),
        imatrix=args.imatrix,
        strict=args.strict,
        threads=args.threads,
        progress=False if args.json else None,
        split=args.split,
        vocabulary=not args.no_vocabulary,
    )
    if args.json:
        emit({**result.to_dict(), "mix": mixed.to_dict() if mixed else None})
        return 0
    if mixed:
        print(mixed)
    if args.tensors:
        print(result.table())
    print(result)
    for why, rows in _grouped(result.fallbacks).items():
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        print(f"  {rows[0]['tensor']}{more}: {rows[0]['given']} instead of {rows[0]['asked']}, {why}")
    return 0


def _grouped(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["why"], []).append(row)
    return groups


def imatrix(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm._commands import UsageError
    from rooflm._gguf_write import require_directory
    from rooflm.fetching import resolve_model

    if args.out:  # before the text is run
        require_directory(args.out)
    if args.text:
        result = rooflm.imatrix(
            resolve_model(args.model),
            Path(args.text),
            ctx=args.ctx,
            chunks=args.chunks,
            compute=args.compute,
            n_threads=args.threads,
            progress=False if args.json else None,
        )
    else:
        if not Path(args.model).exists():
            raise UsageError("without --text, the first argument is the file of an importance matrix")
        result = rooflm.IMatrix.load(args.model)
    for other in args.add:
        result = result + rooflm.IMatrix.load(other)
    if args.out:
        result.save(args.out)
    if args.json:
        emit({**result.to_dict(), "path": args.out})
    else:
        print(result.table())
        print(result)
    return 0


def formats(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm._commands import UsageError
    from rooflm.fetching import resolve_model

    what: Any = args.distribution
    if args.model:
        tensors = rooflm.GGUF(resolve_model(args.model)).tensors
        name = args.tensor or next((n for n in tensors if n.endswith("ffn_down.weight")), "ffn_down.weight")
        if name not in tensors:
            raise UsageError(f"{args.model} has no tensor {name}")
        what = tensors[name]
    result = rooflm.formats(
        what, cols=args.cols, speed=not args.no_speed, threads=args.threads, model_weights=args.weights
    )
    answer(result, args)
    plot_to(args.plot, result)
    return 0
