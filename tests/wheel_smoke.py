# SPDX-License-Identifier: Apache-2.0
"""An installed wheel at work, with NumPy alone: python tests/wheel_smoke.py. Prints where it ran and what it chose.

A row kernel and a tile against the exact path, and a whole tiny model against the logits that `transformers` gave.

--golden FILE             the tiny model, unpacked already
--logits MODEL FILE.npy   saves the logits of a prompt and of eight tokens after it, each the likeliest of its moment
"""

from __future__ import annotations

import argparse
import platform
from pathlib import Path

import numpy as np
from golden_files import golden, recorded

import rooflm
from rooflm import _core

ROOT = Path(__file__).resolve().parent.parent


def continued(model: Path) -> np.ndarray:
    """(9, vocabulary): integer arithmetic over a quantized cache on two threads, as most users have it."""
    with rooflm.Model(model).session(n_ctx=64, kv="q8_0", n_threads=2, compute="int8") as s:
        rows = [s.eval(np.arange(5, 25), logits="last")]
        for _ in range(8):
            rows.append(s.eval([int(rows[-1].argmax())], logits="last"))
    return np.stack(rows)


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--golden", type=Path)
    p.add_argument("--logits", type=Path, nargs=2)
    args = p.parse_args()
    assert ROOT not in Path(rooflm.__file__).resolve().parents, f"this is the source tree's: {rooflm.__file__}"
    g = recorded("llama", args.golden) if args.golden else golden("llama")
    with rooflm.Model(g.path).session(n_ctx=g.n_ctx, kv="f32", n_threads=2, compute="f32") as s:
        got = s.eval(g.tokens, logits="all")[g.positions]
    error = float(np.abs(got - g.logits).max() / np.abs(g.logits).max())
    assert error < 1e-4, error
    weight = rooflm.GGUF(g.path).tensors["blk.0.attn_q.weight"]
    x = np.random.default_rng(1).standard_normal((16, weight.shape[1])).astype(np.float32)
    want = x @ weight.dequantize().T
    for rows in (1, 16):
        near = rooflm.linear(x[:rows], weight, compute="int8")
        assert np.abs(near - want[:rows]).max() < 0.05 * np.abs(want).max()
    if args.logits:
        model, out = args.logits
        np.save(out, continued(model))
    isa = rooflm.kernels().isa
    where = f"{platform.machine()}, Python {platform.python_version()}"
    print(f"{Path(_core.__file__).name}: {where}, {isa}, error {error:.1e}")


if __name__ == "__main__":
    main()
