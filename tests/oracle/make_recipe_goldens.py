# SPDX-License-Identifier: Apache-2.0
"""Records which types llama.cpp's own quantizer gives to the tensors of the real models: the histogram by kind of
tensor in tests/golden/recipe_types.json. Types depend on names and on the length of rows, so each matrix is cut to
its first rows. Run with a Python that has llama-cpp-python and rooflm:

    python tests/oracle/make_recipe_goldens.py SCRATCH_DIRECTORY smollm2=FILE gemma3=FILE
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections import Counter
from pathlib import Path

import llama_cpp

import rooflm
from rooflm._gguf_write import Writer

FTYPES = {
    "F16": 1, "BF16": 32, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q8_0": 7, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12,
    "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30,
}  # fmt: skip


ROWS = 8


def cut(path: str, out: Path) -> None:
    """The file with F16 matrices of 8 rows."""
    with rooflm.GGUF(path) as g, Writer(out) as w:
        w.copy_keys(g)
        kinds = {
            n: ("F16", (ROWS, t.shape[-1])) if len(t.shape) > 1 else (t.type, t.shape) for n, t in g.tensors.items()
        }
        for name, (kind, shape) in kinds.items():
            w.declare(name, kind, shape)
        for name, (kind, _) in kinds.items():
            t = g.tensors[name]
            w.write(t.dequantize(rows=slice(0, ROWS)).astype("<f2") if kind == "F16" else t.raw)


def main() -> None:
    scratch, source = (Path(sys.argv[1]) / n for n in ("recipe.gguf", "cut.gguf"))
    out: dict[str, dict[str, dict[str, int]]] = {}
    for model, path in (a.split("=", 1) for a in sys.argv[2:]):
        out[model] = {}
        cut(path, source)
        for recipe, ftype in FTYPES.items():
            params = llama_cpp.llama_model_quantize_default_params()
            params.ftype, params.nthread = ftype, 2
            failed = llama_cpp.llama_model_quantize(str(source).encode(), str(scratch).encode(), ctypes.byref(params))
            assert not failed, (model, recipe)
            counts = Counter()
            with rooflm.GGUF(scratch) as g:
                for name, t in g.tensors.items():
                    counts[f"{re.sub('blk[.][0-9]+[.]', '', name)} {t.type}"] += 1
            out[model][recipe] = dict(sorted(counts.items()))
            scratch.unlink()
    golden = Path(__file__).parents[1] / "golden" / "recipe_types.json"
    golden.write_text(json.dumps(out, indent=0) + "\n")


main()
