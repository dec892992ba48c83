# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/arch: one tiny GGUF (xz) and its float32 logits (npz) per architecture.

    python tests/oracle/make_goldens.py [--peer PYTHON] [NAME ...]

The logits come from `transformers`. With --peer, a Python that has llama-cpp-python, each file is also run there:
two independent implementations must agree about the file before it counts as right. Their largest difference,
relative to the largest logit, is kept beside the logits.
"""

from __future__ import annotations

import argparse
import lzma
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import tiny_models

GOLDEN = Path(__file__).parents[1] / "golden" / "arch"
KEPT_POSITIONS = 20


def kept_positions(case: tiny_models.Case) -> np.ndarray:
    """The edges (start, window, scaling limit, end) and a seeded sample of the rest."""
    w, o, n = tiny_models.WINDOW, tiny_models.ORIG_CTX, tiny_models.PROMPT
    edges = {0, 1, w - 1, w, w + 1, o - 1, o, o + 1, n - 2, n - 1}
    rest = sorted(set(range(n)) - edges)
    sample = np.random.default_rng(len(case.name)).choice(rest, KEPT_POSITIONS - len(edges), replace=False)
    return np.array(sorted(edges | set(sample.tolist())), np.int32)


def peer_logits(peer: str, path: Path, tokens: np.ndarray, n_ctx: int, tmp: Path) -> np.ndarray:
    np.save(tmp / "tokens.npy", tokens)
    script = Path(__file__).with_name("llamacpp_logits.py")
    cmd = [peer, str(script), str(path), str(tmp / "tokens.npy"), str(tmp / "out.npy"), str(n_ctx)]
    subprocess.run(cmd, check=True)
    return np.load(tmp / "out.npy")


def make(case: tiny_models.Case, peer: str | None, tmp: Path) -> bool:
    model = tiny_models.build(case)
    tokens = tiny_models.prompt(case)
    logits = tiny_models.logits(model, tokens)
    path = tmp / f"{case.name}.gguf"
    tiny_models.write_gguf(case, model, str(path))
    error = -1.0
    if peer is not None:
        other = peer_logits(peer, path, tokens, case.n_ctx, tmp)
        error = float(np.abs(other - logits).max() / np.abs(logits).max())
    GOLDEN.mkdir(parents=True, exist_ok=True)
    packed = lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
    right = peer is None or error <= case.tolerance
    print(
        f"{case.name:18} {path.stat().st_size:9,} -> {len(packed):8,} bytes  spread {logits.std():7.3f}  "
        f"top {np.abs(logits).max():7.3f}  llama.cpp differs by {error:.1e}{'' if right else '   WRONG'}",
        flush=True,
    )
    if right:
        (GOLDEN / f"{case.name}.gguf.xz").write_bytes(packed)
        keep = kept_positions(case)
        np.savez_compressed(
            GOLDEN / f"{case.name}.npz",
            tokens=tokens,
            positions=keep,
            logits=logits[keep],
            n_ctx=case.n_ctx,
            llamacpp_error=error,
        )
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases; default: all")
    parser.add_argument("--peer", help="a Python that has llama-cpp-python")
    args = parser.parse_args()
    cases = [tiny_models.CASES[n] for n in args.names] or list(tiny_models.CASES.values())
    with tempfile.TemporaryDirectory() as tmp:
        wrong = [c.name for c in cases if not make(c, args.peer, Path(tmp))]
    if wrong:
        print("wrong:", " ".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
