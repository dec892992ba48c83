# SPDX-License-Identifier: Apache-2.0
"""A mix of types against Q4_K_M at equal bytes, judged on text that the mix has not seen.

    python bench/mixed_precision.py MODEL TEXT SCRATCH_DIRECTORY [--types Q8_0,Q4_K,...] [--windows 8]

MODEL is the reference (F16 or BF16). The first half of TEXT gives sensitivities and importance, the second half the
verdict. Prints one JSON object: sizes, KL with its 95 % interval of both files, and the paired difference.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import rooflm
from rooflm._output import plain


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("text", type=Path)
    p.add_argument("scratch", type=Path)
    p.add_argument("--types")
    p.add_argument("--windows", type=int, default=8)
    p.add_argument("--ctx", type=int, default=512)
    p.add_argument("--no-imatrix", action="store_true")
    args = p.parse_args()
    text = args.text.read_text(encoding="utf-8")
    seen, held_out = text[: len(text) // 2], text[len(text) // 2 :]
    importance = None if args.no_imatrix else rooflm.imatrix(args.model, seen, chunks=10)
    usual, mixed = args.scratch / "q4_k_m.gguf", args.scratch / "mix.gguf"
    a = rooflm.quantize(args.model, usual, "Q4_K_M", imatrix=importance)
    s = rooflm.sensitivity(args.model, seen, types=["Q4_0"], each=False, ctx=256, windows=4)
    types = args.types.split(",") if args.types else None
    m = rooflm.mix(args.model, size_bytes=a.nbytes, by=s, types=types, imatrix=importance)
    b = rooflm.quantize(args.model, mixed, m, imatrix=importance)
    c = rooflm.compare(args.model, [usual, mixed], held_out, ctx=args.ctx, windows=args.windows)
    records = [x.to_dict() for x in c]
    for path in (usual, mixed):
        path.unlink()
    print(json.dumps(plain({
        "model": Path(args.model).name, "nbytes": [a.nbytes, b.nbytes], "size_ratio": b.nbytes / a.nbytes,
        "kl_mean": [x["kl_mean"] for x in records], "kl_ci95": [x["kl_ci95"] for x in records],
        "paired": c.paired(0, 1),
        "types": [a.types, b.types], "sensitivity": {r["kind"]: r["kl_mean"] for r in s.by_kind()},
    })))  # fmt: skip


main()
