# SPDX-License-Identifier: Apache-2.0
"""Attention against the read bandwidth of the same bytes: decode by KV type and ISA, and prompts in G FMA/s.

    python bench/attention.py [--threads 2] [--context 8192] [--layers 30] [--heads 9] [--kv-heads 3] [--dim 64]
                              [--kv f16,q8_0] [--isa avx2,avx512] [--prompt 512,2048] [--json FILE]

Each round runs every setting once, the ceiling (reading the same pages with the same threads) before and after it;
shares are medians of the pairs within a round.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics

import numpy as np

from rooflm import KVCache
from rooflm._core import _attention_kernels, _attention_time, read_bandwidth


def filled(args, kv: str, layers: int, context: int, layout: str = "tile") -> KVCache:
    rng = np.random.default_rng(1)
    cache = KVCache(layers, n_head_kv=args.kv_heads, head_dim=args.dim, n_ctx=context, kv=kv, layout=layout)
    step = 1024
    for start in range(0, context, step):
        n = min(step, context - start)
        x = rng.standard_normal((n, args.kv_heads, args.dim), dtype=np.float32)
        both = np.broadcast_to(x, (layers, *x.shape))
        cache.append(both, both)
    return cache


def read_gbs(args, cache: KVCache) -> float:
    """The best pass: a disturbed one is no ceiling."""
    r = read_bandwidth([], kv=cache, threads=args.threads, passes=3)
    return r["bytes"] / min(r["passes_s"]) / 1e9


def decode(args) -> list[dict]:
    rng = np.random.default_rng(2)
    q = rng.standard_normal((1, args.heads, args.dim), dtype=np.float32)
    # A fork, with the same pages, for each tier: a cache keeps the kernels of the first that reads it, and the others
    # look them up each time.
    caches = {}
    for kv in args.kv.split(","):
        for layout in args.layout.split(","):
            cache = filled(args, kv, args.layers, args.context, layout)
            caches.update({(kv, layout, isa): cache.fork() for isa in args.isa.split(",")})
    found: dict = {s: {"s": [], "read": []} for s in caches}
    for _ in range(args.rounds):
        for (kv, layout, isa), cache in caches.items():
            before = read_gbs(args, cache)
            took = statistics.median(_attention_time(q, cache, args.threads, 3, isa))
            after = read_gbs(args, cache)
            found[kv, layout, isa]["s"].append(took)
            found[kv, layout, isa]["read"].append(max(before, after))
    rows = []
    for (kv, layout, isa), f in found.items():
        cache = caches[kv, layout, isa]
        share = statistics.median(cache.nbytes / s / 1e9 / r for r, s in zip(f["read"], f["s"]))
        took, read = statistics.median(f["s"]), statistics.median(f["read"])
        rows.append(
            {
                "case": "decode",
                "kv": kv,
                "layout": layout,
                "isa": isa,
                "context": args.context,
                "layers": args.layers,
                "bytes": cache.nbytes,
                "seconds": took,
                "read_gbs": cache.nbytes / took / 1e9,
                "ceiling_gbs": read,
                "ceiling_share": share,
                "kernels": _attention_kernels(cache, 1, isa),
            }
        )
        r = rows[-1]
        print(
            f"decode {kv:10s} {layout:5s} {isa:7s} {r['bytes'] / 1e6:6.1f} MB {took * 1e3:7.2f} ms "
            f"{r['read_gbs']:5.1f} GB/s, ceiling {r['ceiling_gbs']:5.1f}, share {share:.0%}"
        )
    return rows


def prompts(args) -> list[dict]:
    rng = np.random.default_rng(3)
    rows = []
    for n in (int(x) for x in args.prompt.split(",") if x):
        q = rng.standard_normal((n, args.heads, args.dim), dtype=np.float32)
        for kv in args.kv.split(","):
            cache = filled(args, kv, 1, n)
            for isa in args.isa.split(","):
                took = statistics.median(_attention_time(q, cache, args.threads, 3, isa))
                fma = n * (n + 1) / 2 * args.heads * 2 * args.dim
                rows.append(
                    {
                        "case": "prompt",
                        "kv": kv,
                        "isa": isa,
                        "tokens": n,
                        "seconds": took,
                        "gfma": fma / took / 1e9,
                        "kernels": _attention_kernels(cache, n, isa),
                    }
                )
                print(
                    f"prompt {kv:10s} {isa:7s} {n:5d} tok {took * 1e3:8.2f} ms a layer, {fma / took / 1e9:.1f} GFMA/s"
                )
    return rows


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("threads", 2),
        ("context", 8192),
        ("layers", 30),
        ("heads", 9),
        ("kv-heads", 3),
        ("dim", 64),
        ("rounds", 5),
    ):
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--kv", default="f16,q8_0")
    p.add_argument("--layout", default="tile")
    p.add_argument("--isa", default="avx2,avx512")
    p.add_argument("--prompt", default="512,2048")
    p.add_argument("--json")
    args = p.parse_args()
    rows = decode(args) + prompts(args)
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"machine": platform.platform(), "records": rows}, f, indent=1)


if __name__ == "__main__":
    main()
