# SPDX-License-Identifier: Apache-2.0
"""What llama.cpp says about two models on one text, for tests/test_compare_oracle.py.

The models are SmolLM2 and SmolLM2 with every ffn_down in Q4_0, both written as F32, so that llama.cpp adds no rounding
of activations to the difference of the weights. Its logits go through the 16-bit storage of `--kl-divergence` (see
stored_kl), and beside that through NumPy in double.

Run with a Python that has llama-cpp-python and gguf; the F32 files (1.1 GB) are deleted again:
    llamacpp_kl.py SMOLLM2.gguf TEXT.txt OUT.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from rewrite import rewrite

CTX, WINDOWS = 512, 2
STEPS, DEPTH = 65535, 16  # of the 16-bit storage: steps of a row, nats below its largest


def weights(path: str, down: Any) -> dict[str, np.ndarray]:
    """All tensors as float32; those of ffn_down as they come back from the type `down`, where that is not None."""
    out = {}
    for t in gguf.GGUFReader(path).tensors:
        x = gguf.quants.dequantize(t.data, t.tensor_type).reshape([int(n) for n in t.shape[::-1]]).astype(np.float32)
        if down is not None and "ffn_down" in t.name:
            x = gguf.quants.dequantize(gguf.quants.quantize(x, down), down).reshape(x.shape)
        out[t.name] = x
    return out


def store(logits: np.ndarray) -> tuple[np.ndarray, np.float32, np.float32]:
    """One row as llama.cpp keeps it: log-probabilities in 65,536 steps over at most 16 nats below the largest."""
    top = logits.max()
    low = max(logits.min(), top - np.float32(DEPTH))
    log_sum = np.float32(np.log(np.exp(logits - top).sum(dtype=np.float64)))
    scale = np.float32((top - low) / STEPS)
    steps = np.where(logits > low, np.rint((logits - low) / scale), 0).astype(np.uint16)
    return steps, scale, np.float32(low - top - log_sum)


def stored_kl(p: np.ndarray, q: np.ndarray) -> float:
    """KL of one row of logits q against stored p: what lies 16 nats down or further counts as nothing."""
    steps, scale, least = store(p)
    log_p = scale * steps.astype(np.float32) + least
    log_q = q - q.max() - np.float32(np.log(np.exp(q - q.max()).sum(dtype=np.float64)))
    kept = log_p > -DEPTH
    return float((np.exp(log_p[kept]).astype(np.float64) * (log_p[kept] - log_q[kept])).sum())


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64) - float(x.max())
    return x - np.log(np.exp(x).sum())


def exact(p: np.ndarray, q: np.ndarray) -> float:
    a, b = log_softmax(p), log_softmax(q)
    return float((np.exp(a) * (a - b)).sum())


STEP = DEPTH / STEPS  # nats: the most that a step spans


def storage_error(p: np.ndarray, q: np.ndarray) -> float:
    """How far the KL of one row may move when log p is rounded to half a step and what lies DEPTH nats down or deeper
    is left out: half a step times (1 + the mean of |log p - log q|), and what is left out."""
    a, b = log_softmax(p), log_softmax(q)
    terms = np.exp(a) * (a - b)
    return STEP / 2 * (1 + float(abs(terms).sum())) + abs(float(terms[a <= STEP - DEPTH].sum()))


def logits_of(path: str, tokens: np.ndarray) -> np.ndarray:
    import llama_cpp

    model = llama_cpp.Llama(
        path, n_ctx=CTX, n_batch=CTX, n_ubatch=CTX, logits_all=True, n_threads=2, n_threads_batch=2, flash_attn=False,
        type_k=0, type_v=0, verbose=False,
    )  # fmt: skip
    out = []
    for window in tokens.reshape(WINDOWS, CTX):
        model.reset()
        model.eval(window.tolist())
        out.append(np.array(model.scores[CTX // 2 : CTX - 1], np.float32))
    return np.stack(out)


def main() -> None:
    source, text, out = sys.argv[1:4]
    logits = []
    with tempfile.TemporaryDirectory() as d:
        for name, down in (("reference", None), ("model", gguf.GGMLQuantizationType.Q4_0)):
            values = weights(source, down)
            path = str(Path(d) / f"{name}.gguf")
            rewrite(source, path, tensor=lambda n, _, values=values: values[n])
            if not logits:
                import llama_cpp

                vocab = llama_cpp.Llama(path, vocab_only=True, verbose=False)
                ids = np.array(vocab.tokenize(Path(text).read_bytes(), add_bos=False))[: CTX * WINDOWS]
            logits.append(logits_of(path, ids))
            Path(path).unlink()
    p, q = (x.reshape(-1, x.shape[-1]) for x in logits)
    following = np.concatenate([w[CTX // 2 + 1 :] for w in ids.reshape(WINDOWS, CTX)])
    kl, kept = (np.array([f(a, b) for a, b in zip(p, q)]) for f in (exact, stored_kl))

    def ppl(x: np.ndarray) -> float:
        x = x.astype(np.float64) - x.max(axis=1, keepdims=True)
        lp = x[np.arange(len(x)), following] - np.log(np.exp(x).sum(axis=1))
        return float(np.exp(-lp.mean()))

    record = {
        "made_by": f"llama-cpp-python {llama_cpp.__version__}",
        "ctx": CTX,
        "windows": WINDOWS,
        "ppl_ref": ppl(p),
        "ppl": ppl(q),
        "kl_mean": float(kl.mean()),
        "kl_median": float(np.median(kl)),
        "kl_max": float(kl.max()),
        "kl_mean_stored": float(kept.mean()),
        "kl_max_stored": float(kept.max()),
        "top1": float((p.argmax(axis=1) == q.argmax(axis=1)).mean()),
    }
    Path(out).write_text(json.dumps(record, indent=1) + "\n")
    print(record)


if __name__ == "__main__":
    main()
