# SPDX-License-Identifier: Apache-2.0
"""Records the errors of llama.cpp's quantizers in tests/golden/quant_errors.json.

    PYTHONPATH=python:tests python tests/oracle/make_quant_goldens.py LIBGGML_BASE SMOLLM2 GEMMA3

LIBGGML_BASE: libggml-base.so of llama.cpp, such as the one in the package llama-cpp-python.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from peer_ggml import Ggml
from quant_cases import BLOCKS, cases, importance, weighted_error

from rooflm import _core


def main() -> None:
    ggml = Ggml(sys.argv[1])
    out: dict[str, dict[str, list[float]]] = {}
    for name, x in cases({"smollm2": sys.argv[2], "gemma3": sys.argv[3]}).items():
        out[name] = {}
        for type in BLOCKS:
            if x.shape[1] % _core._type_info(type)[1]:
                continue
            w = importance(x.shape[1])
            out[name][type] = [weighted_error(x, ggml.round_trip(x, type, i), type, i) for i in (None, w)]
    path = Path(__file__).parents[1] / "golden" / "quant_errors.json"
    path.write_text(json.dumps(out, indent=1) + "\n")


main()
