# SPDX-License-Identifier: Apache-2.0
"""Speed of the quantizer on one core, each type with and without importance, and a whole file from F16.

    python bench/quantize.py [--file] [--isa avx2]

Million weights per second; the best of three rounds in which the types take turns. The error column is the largest of
ours over llama.cpp's on the values of tests/golden/quant_errors.json that need no model. --file writes a synthetic F16
model of 0.3 billion weights and quantizes it by Q4_K_S on one thread: reading, Q4_K and writing together.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import rooflm
from rooflm import _core
from rooflm._output import table

TESTS = Path(__file__).parents[1] / "tests"


def error_ratio(kind: str) -> float:
    sys.path.insert(0, str(TESTS))
    from peer_ggml import restore
    from quant_cases import ROWS, importance, values, weighted_error

    theirs = json.loads((TESTS / "golden" / "quant_errors.json").read_text())["made"][kind]
    x, w = values(ROWS, 1024), importance(1024)
    ours = [weighted_error(x, restore(_core.quantize_rows(x, kind, i), kind, 1024), kind, i) for i in (None, w)]
    return max(a / b for a, b in zip(ours, theirs))


def whole_file() -> None:
    with tempfile.TemporaryDirectory() as d:
        source = Path(d) / "f16.gguf"
        shape = {"width": 2048, "layers": 5, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 4096}
        rooflm.synth(source, type="F16", size="custom", **shape)
        r = rooflm.quantize(source, Path(d) / "q.gguf", "Q4_K_S", threads=1, progress=False)
        print(f"{r!r}\n{r.weights / r.seconds / 1e6:.1f} million weights/s on one thread, the file synced")


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--isa")
    p.add_argument("--file", action="store_true")
    args = p.parse_args()
    x = np.random.default_rng(0).standard_normal((512, 2048)).astype(np.float32)
    w = np.random.default_rng(1).random(2048).astype(np.float32)
    kinds = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
    best: dict[tuple[str, bool], float] = {}
    for _ in range(3):
        for kind in kinds:
            for i in (None, w):
                start = time.thread_time()
                _core.quantize_rows(x, kind, i, isa=args.isa)
                speed = x.size / (time.thread_time() - start) / 1e6
                best[kind, i is not None] = max(best.get((kind, i is not None), 0.0), speed)
    rows = [
        {"type": k, "Mw/s": best[k, False], "with importance": best[k, True], "error": error_ratio(k)} for k in kinds
    ]
    print(table(rows, ("type", "Mw/s", "with importance", "error")))
    if args.file:
        whole_file()


main()
