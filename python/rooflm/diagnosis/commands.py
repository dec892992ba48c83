# SPDX-License-Identifier: Apache-2.0
"""The commands of this room: doctor."""

from __future__ import annotations

import argparse
import sys
from typing import Callable, Optional

from rooflm._output import emit


def _progress(args: argparse.Namespace) -> Optional[Callable[[str], None]]:
    """Shows what is being done on a line of the terminal that the result overwrites."""
    if args.json or not sys.stderr.isatty():
        return None
    return lambda text: print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _clear(args: argparse.Namespace) -> None:
    if _progress(args):
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def doctor(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    found = rooflm.doctor(
        resolve_model(args.model), threads=args.threads, cpus=args.cpus, kernel=args.kernel, isa=args.isa,
        compute=args.compute, kv=args.kv, load=args.load, depth=args.depth, gen=args.gen, progress=_progress(args),
    )  # fmt: skip
    _clear(args)
    if args.json:
        emit(found)
    else:
        print(f"{found.summary()}\n{found.to_table()}" if args.all else found)
    return 0
