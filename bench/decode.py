# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode of models beside their ceilings: context depths, KV types, compute paths.

    python bench/decode.py MODEL [MODEL ...] --threads 2 --depth 0,4096 --kv f16,q8_0 --json out.json

The settings of one model take turns (repetition by repetition), and each repetition reads the model's own bytes with
the best read kernel before and after itself: compare shares of the ceiling, not tokens per second of different runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import rooflm


def listed(kind):
    """'a,b' as a list of kind."""
    return lambda text: [kind(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+", help="GGUF files")
    p.add_argument("--threads", type=listed(int), default=None)
    p.add_argument("--prompt", type=listed(int), default=[512])
    p.add_argument("--gen", type=listed(int), default=[64])
    p.add_argument("--depth", type=listed(int), default=[0])
    p.add_argument("--kv", type=listed(str), default=["f16"])
    p.add_argument("--compute", type=listed(str), default=["auto"])
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--json", type=Path, help="write all records, with the machine in them")
    return p.parse_args()


def main() -> None:
    a = arguments()
    machine = rooflm.machine()
    print(machine)
    results = []
    for path in a.models:
        result = rooflm.bench(
            path,
            threads=a.threads,
            prompt=a.prompt,
            gen=a.gen,
            depth=a.depth,
            kv=a.kv,
            compute=a.compute,
            repeats=a.repeats,
            progress=lambda text: print(f"\r{text}   ", end="", file=sys.stderr, flush=True),
        )
        print(f"\r{path}, {result.records[0]['isa']}")
        print(result)
        results.append(result.to_dict())
    if a.json:
        a.json.write_text(json.dumps({"schema": 1, "machine": machine.to_dict(), "results": results}))


if __name__ == "__main__":
    main()
