# SPDX-License-Identifier: Apache-2.0
"""llama-quantize and rooflm.quantize on one F16 file, recipe by recipe, without and with an importance matrix: types
must be equal, and the error of every tensor, weighted as the type's own quantizer weights it, no larger than
llama.cpp's. Each side's file is opened by the other: theirs as a rooflm.Model, ours by llama-quantize, which copies it
and checks its blocks.

    python tests/oracle/check_quantize.py LLAMA_QUANTIZE F16.gguf IMATRIX SCRATCH_DIRECTORY [RECIPE ...]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from quant_cases import weights

import rooflm
from rooflm._output import table

RECIPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS"]
ROWS = 4096  # of a tensor held at once
EXACT = 1e-3  # relative errors below this are those of a grid that was found again, where the last bits decide


def errors(x: Any, files: list[Any], importance: Any) -> list[float]:
    """Weighted relative error of the tensor in each file."""
    sums = np.zeros((len(files), 2))
    for r in range(0, x.shape[0], ROWS):
        rows = slice(r, min(r + ROWS, x.shape[0]))
        a = x.dequantize(rows=rows).astype(float)
        w = weights(a, files[0].type, importance)
        for i, t in enumerate(files):
            sums[i] += (w * (a - t.dequantize(rows=rows)) ** 2).sum(), (w * a**2).sum()
    return [float(v) for v in np.sqrt(sums[:, 0] / sums[:, 1])]


def compare(program: str, source: str, recipe: str, imatrix: str | None, scratch: Path) -> dict[str, Any]:
    theirs, ours, copy = (scratch / f"{n}.gguf" for n in ("theirs", "ours", "copy"))
    given = [] if imatrix is None else ["--imatrix", imatrix]
    subprocess.run([program, *given, source, str(theirs), recipe, "2"], check=True, capture_output=True)
    rooflm.quantize(source, ours, recipe, imatrix=imatrix, progress=False)
    subprocess.run([program, str(ours), str(copy), "COPY"], check=True, capture_output=True)
    importance = {} if imatrix is None else rooflm.IMatrix.load(imatrix).importance()
    worst, where, total = 0.0, "", np.zeros(2)
    with rooflm.GGUF(source) as s, rooflm.GGUF(ours) as a, rooflm.GGUF(theirs) as b, rooflm.GGUF(copy) as c:
        for name, x in s.tensors.items():
            assert a.tensors[name].type == b.tensors[name].type, (recipe, name)
            assert bytes(a.tensors[name].raw) == bytes(c.tensors[name].raw), (recipe, name)
            if a.tensors[name].type == x.type:
                continue
            mine, other = errors(x, [a.tensors[name], b.tensors[name]], importance.get(name))
            total += mine**2, other**2
            if other > EXACT and mine / other > worst:
                worst, where = mine / other, f"{name} {a.tensors[name].type}"
    logits = rooflm.Model(theirs).session(n_ctx=64, compute="int8").eval([3, 4, 5])
    assert np.isfinite(logits).all()
    return {"recipe": recipe, "importance": imatrix is not None, "largest": worst, "of": where,
            "all": float(np.sqrt(total[0] / total[1]))}  # fmt: skip


def main() -> None:
    program, source, imatrix, scratch = *sys.argv[1:4], Path(sys.argv[4])
    rows = []
    for recipe in sys.argv[5:] or RECIPES:
        for given in (None, imatrix):
            rows.append(compare(program, source, recipe, given, scratch))
            print(rows[-1], flush=True)
    print(table(rows, ("recipe", "importance", "largest", "of", "all")))


if __name__ == "__main__":
    main()
