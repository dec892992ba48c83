# SPDX-License-Identifier: Apache-2.0
"""Records which types llama.cpp's own quantizer gives to the tensors of the real models: the histogram by kind of
tensor in tests/golden/recipe_types.json. Run with a Python that has llama-cpp-python and gguf:

    python tests/oracle/make_recipe_goldens.py SCRATCH_DIRECTORY smollm2=F16_FILE gemma3=F16_FILE
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections import Counter
from pathlib import Path

import gguf
import llama_cpp

FTYPES = {
    "F16": 1, "BF16": 32, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q8_0": 7, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12,
    "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30,
}  # fmt: skip


def main() -> None:
    scratch = Path(sys.argv[1]) / "recipe.gguf"
    out: dict[str, dict[str, dict[str, int]]] = {}
    for model, path in (a.split("=", 1) for a in sys.argv[2:]):
        out[model] = {}
        for recipe, ftype in FTYPES.items():
            params = llama_cpp.llama_model_quantize_default_params()
            params.ftype, params.nthread = ftype, 2
            failed = llama_cpp.llama_model_quantize(path.encode(), str(scratch).encode(), ctypes.byref(params))
            assert not failed, (model, recipe)
            counts = Counter()
            for t in gguf.GGUFReader(scratch).tensors:
                counts[f"{re.sub('blk[.][0-9]+[.]', '', t.name)} {t.tensor_type.name}"] += 1
            out[model][recipe] = dict(sorted(counts.items()))
            scratch.unlink()
    golden = Path(__file__).parents[1] / "golden" / "recipe_types.json"
    golden.write_text(json.dumps(out, indent=0) + "\n")


main()
