# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode of models beside their ceilings: context depths, KV types, compute paths.

    python bench/decode.py MODEL [MODEL ...] --threads 2 --depth 0,4096 --kv f16,q8_0 --json out.json
    python bench/decode.py MODEL --runs --at-most 35 --drift 0.1

The settings of one model take turns (repetition by repetition), and each repetition reads the model's own bytes with
the best read kernel before and after itself: compare shares of the ceiling, not tokens per second of different runs.

--runs prints every run with both of its reads. A run whose reads differ by more than --drift tells nothing of its
share, and one whose ceiling is above --at-most is not of the memory that is asked about: both are printed, with the
reason, and left out of the medians below them. They stay in the JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
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
    p.add_argument("--runs", action="store_true", help="every run, and medians of those that count")
    p.add_argument("--at-most", type=float, default=float("inf"), metavar="GBS", help="ceiling of runs that count")
    p.add_argument("--drift", type=float, default=0.1, help="of the two reads of a run that counts (0.1)")
    p.add_argument("--json", type=Path, help="write all records, with the machine in them")
    return p.parse_args()


def left_out(r: dict, at_most: float, drift: float) -> str:
    """Why a run does not count, "" if it does."""
    low, high = sorted((r["read_gbs_before"], r["read_gbs_after"]))
    if high > at_most:
        return f"above {at_most:g} GB/s"
    return f"reads differ by {high / low - 1:.0%}" if high > low * (1 + drift) else ""


def print_runs(records: list[dict], at_most: float, drift: float) -> None:
    swept = ("compute", "kv", "depth", "threads")
    print(f"{'compute':<9}{'kv':<10}{'depth':>6}{'thr':>4}{'tok/s':>8}{'before':>8}{'after':>8}{'share':>7}  GB/s")
    counted: dict[tuple, list[dict]] = {}
    for r in records:
        key = tuple(r[k] for k in swept)
        why = left_out(r, at_most, drift)
        counted.setdefault(key, []).extend([] if why else [r])
        print(
            f"{key[0]:<9}{key[1]:<10}{key[2]:>6}{key[3]:>4}{r['decode_tps']:>8.1f}"
            f"{r['read_gbs_before']:>8.1f}{r['read_gbs_after']:>8.1f}{r['ceiling_share']:>7.2f}  {why}"
        )
    for key, runs in counted.items():
        shares = [r["ceiling_share"] for r in runs]
        figures = f"{statistics.median(shares):.3f}, {min(shares):.2f} to {max(shares):.2f}" if runs else "none"
        print(f"{', '.join(f'{k} {v}' for k, v in zip(swept, key))}: median share {figures}; n = {len(runs)}")


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
        if a.runs:
            print_runs(result.records, a.at_most, a.drift)
        else:
            print(result)
        results.append(result.to_dict())
    if a.json:
        a.json.write_text(json.dumps({"schema": 1, "machine": machine.to_dict(), "results": results}))


if __name__ == "__main__":
    main()
