# SPDX-License-Identifier: Apache-2.0
"""Commands that make quantizations: quantize, imatrix."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from rooflm._output import emit


def _recipe(args: argparse.Namespace) -> Any:
    """A name, or patterns from a JSON file and from --tensor, the latter first."""
    from rooflm._commands import UsageError

    recipe: Any = args.recipe
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


def quantize(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    result = rooflm.quantize(
        resolve_model(args.src),
        args.dst,
        _recipe(args),
        imatrix=args.imatrix,
        strict=args.strict,
        threads=args.threads,
        progress=False if args.json else None,
        split=args.split,
        vocabulary=not args.no_vocabulary,
    )
    if args.json:
        emit(result.to_dict())
        return 0
    if args.tensors:
        print(result.table())
    print(result)
    for row in result.fallbacks:
        print(f"  {row['tensor']}: {row['given']} instead of {row['asked']}: {row['why']}")
    return 0


def imatrix(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm._commands import UsageError
    from rooflm.fetching import resolve_model

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
