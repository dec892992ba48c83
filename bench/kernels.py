# SPDX-License-Identifier: Apache-2.0
"""Speed of each kernel in the table beside what the machine could have done.

    python bench/kernels.py rows                         every rows kernel that runs here
    python bench/kernels.py tile --tokens 24,128,512     every tile kernel, on every type it can multiply
    python bench/kernels.py rows --type Q4_K --act int8 --isa avx512 --tokens 1,2,4,8 --json out.json

rows: GB/s of weight bytes, one thread, for matrices that lie in the second-level cache, in the third and in memory,
beside the best read of the very same bytes taken in turns with it, and the clock of the core measured in the same
turns (a chain of dependent adds). A share above 1 is possible: kernels prefetch, plain reads do not.

tile: G multiply-adds/s, one thread, unpacking the weights included and packing the activations not, beside the peak
of the ISA for the width of the activations (loops of independent multiply-adds on registers), taken in turns. The
int8 peak of AVX2 is that of vpmaddubsw + vpmaddwd + vpaddd; kernels that add in 16 bits first may come near it.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from pathlib import Path

import numpy as np
import rooflm
from rooflm import _core

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from blocks import ALL, random_rows


def best_and_median(values: list[float]) -> tuple[float, float]:
    return max(values), statistics.median(values)


def rows_record(k, place: str, size: int, cols: int, tokens: int, turns: int, rng: np.random.Generator) -> dict:
    """One kernel on one size; kernel, read and clock are taken in turns."""
    block = ALL[k.type][0]
    cols = cols // block * block
    unique = random_rows(rng, k.type, 64, cols)
    n = max(1, size // unique.shape[1])
    raw = np.ascontiguousarray(np.resize(unique, (n, unique.shape[1])))
    x = rng.normal(size=(tokens, cols)).astype(np.float32)
    out = np.empty((tokens, n), np.float32)
    once = _core._rows(k.name, raw, raw.shape[1], n, x, out)
    repeats = max(1, int(2e-3 / max(once, 1e-9)))
    speed, read, clock = [], [], []
    for _ in range(turns):
        clock.append(_core.core_clock(0.3))
        read.append(_core.read_bandwidth([raw], threads=1, passes=2, repeat=repeats)["gbs"])
        seconds = _core._rows(k.name, raw, raw.shape[1], n, x, out, repeats)
        speed.append(raw.nbytes * repeats / seconds / 1e9)
    best, median = best_and_median(speed)
    read_best, read_median = best_and_median(read)
    return {
        "kernel": k.name,
        "type": k.type,
        "act": k.act,
        "isa": k.isa,
        "place": place,
        "matrix_bytes": raw.nbytes,
        "rows": n,
        "cols": cols,
        "tokens": tokens,
        "gbs": best,
        "gbs_median": median,
        "gbs_samples": speed,
        "read_gbs": read_best,
        "read_gbs_median": read_median,
        "share_of_read": best / read_best,
        "gmacs": best / raw.nbytes * n * cols * tokens,
        "clock_ghz": max(clock),
        "gbs_at_3_7_ghz": best * 3.7 / max(clock),
    }


def bench_rows(args: argparse.Namespace) -> list[dict]:
    rng = np.random.default_rng(0)
    sizes = {"L2": args.l2, "L3": args.l3, "DRAM": args.dram}
    chosen = [
        k
        for k in rooflm.kernels().select(family="rows", available=True)
        if (not args.type or k.type in args.type)
        and (not args.act or k.act in args.act)
        and (not args.isa or k.isa in args.isa)
    ]
    records = []
    print(f"{'kernel':<28}{'place':<6}{'tok':>4}{'GB/s':>8}{'median':>8}{'read':>8}{'share':>7}{'GHz':>6}{'at 3.7':>8}")
    for place in args.places:
        for k in chosen:
            for tokens in args.tokens:
                r = rows_record(k, place, sizes[place] << 10, args.cols, tokens, args.turns, rng)
                records.append(r)
                print(
                    f"{k.name:<28}{place:<6}{tokens:>4}{r['gbs']:>8.1f}{r['gbs_median']:>8.1f}{r['read_gbs']:>8.1f}"
                    f"{r['share_of_read']:>7.2f}{r['clock_ghz']:>6.2f}{r['gbs_at_3_7_ghz']:>8.1f}",
                    flush=True,
                )
    return records


def tile_pairs(args: argparse.Namespace) -> list[tuple]:
    """(unpack or dequantizer, multiply) of every type and runnable tier, as the engine would pair them."""
    pairs = []
    for isa in args.isa or sorted({k.isa for k in rooflm.kernels() if k.available and k.isa != "ref"}):
        table = rooflm.kernels(isa=isa)
        for m in table.select(family="tile_mul", chosen=True):
            family = "dequant" if m.act == "f32" else "tile_unpack"
            for u in table.select(family=family, chosen=True):
                fits = m.act == "f32" or m.layout == u.layout
                if (
                    m.isa == isa
                    and fits
                    and (not args.type or u.type in args.type)
                    and (not args.act or m.act in args.act)
                ):
                    pairs.append((u, m))
    return pairs


def tile_record(u, m, rows: int, cols: int, tokens: int, turns: int, rng: np.random.Generator) -> dict:
    cols = cols // ALL[u.type][0] * ALL[u.type][0]
    raw = random_rows(rng, u.type, rows, cols)
    x = rng.normal(size=(tokens, cols)).astype(np.float32)
    out = np.empty((tokens, rows), np.float32)
    made = rows * cols * tokens / 1e9
    repeats = max(1, int(1e-3 / max(_core._tile(u.name, m.name, raw, u.type, x, out), 1e-9)))
    speed, peak = [], []
    for _ in range(turns):
        peak.append(_core._peaks(0.001)[(m.isa, m.act)] / 1e9)
        speed.append(made * repeats / _core._tile(u.name, m.name, raw, u.type, x, out, repeats))
    best, median = best_and_median(speed)
    return {
        "kernel": m.name,
        "unpack": u.name,
        "type": u.type,
        "act": m.act,
        "isa": m.isa,
        "rows": rows,
        "cols": cols,
        "tokens": tokens,
        "gmacs": best,
        "gmacs_median": median,
        "gmacs_samples": speed,
        "peak_gmacs": max(peak),
        "share_of_peak": best / max(peak),
    }


def bench_tile(args: argparse.Namespace) -> list[dict]:
    rng = np.random.default_rng(0)
    records = []
    print(f"{'type':<8}{'kernel':<34}{'tok':>5}{'G/s':>8}{'median':>8}{'peak':>8}{'share':>7}")
    for u, m in tile_pairs(args):
        for tokens in args.tokens:
            r = tile_record(u, m, args.rows, args.cols, tokens, args.turns, rng)
            records.append(r)
            print(
                f"{u.type:<8}{m.name:<34}{tokens:>5}{r['gmacs']:>8.1f}{r['gmacs_median']:>8.1f}{r['peak_gmacs']:>8.1f}"
                f"{r['share_of_peak']:>7.2f}",
                flush=True,
            )
    return records


def machine() -> dict:
    model = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "CPU part")):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {
        "cpu": model,
        "arch": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "rooflm": rooflm.__version__,
        "tiers": sorted({k.isa for k in rooflm.kernels() if k.available}),
    }


def names(text: str) -> list[str]:
    return [t for t in text.split(",") if t]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(dest="part", required=True)
    rows = sub.add_parser("rows", help="weight rows times 1 to 8 tokens")
    rows.add_argument("--type", type=names, help="comma-separated weight types (default: all)")
    rows.add_argument("--act", type=names, help="int8, int16, f32")
    rows.add_argument("--isa", type=names, help="tiers")
    rows.add_argument("--tokens", type=lambda t: [int(v) for v in t.split(",")], default=[1])
    rows.add_argument("--places", type=names, default=["L2"], help="of L2, L3, DRAM (default: L2)")
    rows.add_argument("--cols", type=int, default=2048)
    rows.add_argument("--turns", type=int, default=12)
    for place, kb in (("l2", 384), ("l3", 8 << 10), ("dram", 256 << 10)):
        rows.add_argument(f"--{place}", type=int, default=kb, help=f"KB of a matrix in {place.upper()} ({kb})")
    rows.set_defaults(run=bench_rows)
    tile = sub.add_parser("tile", help="unpacked tiles times all tokens of a prompt")
    tile.add_argument("--type", type=names, help="comma-separated weight types (default: all)")
    tile.add_argument("--act", type=names, help="int8, int16, f32")
    tile.add_argument("--isa", type=names, help="tiers")
    tile.add_argument("--tokens", type=lambda t: [int(v) for v in t.split(",")], default=[512])
    tile.add_argument("--rows", type=int, default=256)
    tile.add_argument("--cols", type=int, default=2048)
    tile.add_argument("--turns", type=int, default=40)
    tile.set_defaults(run=bench_tile)
    for part in (rows, tile):
        part.add_argument("--json", help="write the records to this file")
    args = p.parse_args()
    records = args.run(args)
    if args.json:
        text = json.dumps({"schema": 1, "machine": machine(), "records": records}, indent=1)
        Path(args.json).write_text(text)


if __name__ == "__main__":
    main()
