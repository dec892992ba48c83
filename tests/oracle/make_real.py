# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/real/NAME.npz: what llama.cpp says about the real models.

    make_real.py MODEL.gguf NAME WINDOWS          (with a Python that has llama-cpp-python)

Perplexity: the first 120,000 bytes of pydoc_data/topics.py (topics joined in sorted key order with blank lines),
tokenized at once, windows of 512 tokens without overlap, the first token of each replaced by BOS where the
vocabulary asks for it, positions 256 to 510 scored on the token that follows them. The tokens are kept, because the
text differs between versions of Python.

Greedy text: continuations of a few prompts with the distance between the two highest logits of each step. A step
counts only while that distance is larger than what quantized activations can move.
"""

from __future__ import annotations

import sys
from pathlib import Path
from pydoc_data.topics import topics

import llama_cpp
import numpy as np

GOLDEN = Path(__file__).parents[1] / "golden" / "real"
CONTEXT, FIRST = 512, 256
PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "1, 2, 3, 4, 5, 6, 7,",
    "The following is a list of the planets of the solar system:\n1. Mercury\n2.",
    "Question: How many days are there in a week?\nAnswer:",
    "import numpy as np\n\ndef mean(x):\n",
]
NEW_TOKENS = 32


def text() -> bytes:
    return "\n\n".join(topics[k] for k in sorted(topics)).encode("utf-8")[:120_000]


def load(path: str, logits_all: bool) -> llama_cpp.Llama:
    # verbose would print to stderr on every call
    return llama_cpp.Llama(
        path, n_ctx=CONTEXT, n_batch=512, n_threads=2, n_threads_batch=2, logits_all=logits_all, verbose=False
    )


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def perplexity(path: str, n_windows: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (window, 512) and the negative log-likelihood of the scored positions (window, 255)."""
    model = load(path, True)
    add_bos = bool(llama_cpp.llama_vocab_get_add_bos(model._model.vocab))
    ids = model.tokenize(text(), add_bos=add_bos, special=False)
    windows = np.array(ids[: n_windows * CONTEXT], np.int32).reshape(n_windows, CONTEXT)
    nll = np.empty((n_windows, CONTEXT - 1 - FIRST))
    for i, w in enumerate(windows):
        if add_bos:
            w[0] = model.token_bos()
        model.reset()
        model.eval(w.tolist())
        for j, p in enumerate(range(FIRST, CONTEXT - 1)):
            nll[i, j] = -log_softmax(model.scores[p])[w[p + 1]]
        print(i, "ppl so far", np.exp(nll[: i + 1].mean()), flush=True)
    return windows, nll


def greedy(path: str) -> dict[str, np.ndarray]:
    model = load(path, False)
    add_bos = bool(llama_cpp.llama_vocab_get_add_bos(model._model.vocab))
    out: dict[str, np.ndarray] = {}
    for k, prompt in enumerate(PROMPTS):
        ids = model.tokenize(prompt.encode(), add_bos=add_bos, special=False)
        model.reset()
        model.eval(ids)
        new, gap = [], []
        for _ in range(NEW_TOKENS):
            logits = np.ctypeslib.as_array(model._ctx.get_logits(), shape=(model.n_vocab(),)).copy()
            two = np.partition(logits, -2)[-2:]
            new.append(int(logits.argmax()))
            gap.append(float(two[1] - two[0]))
            if new[-1] == model.token_eos():
                break
            model.eval([new[-1]])
        out[f"prompt_{k}"] = np.array(prompt)
        out[f"ids_{k}"] = np.array(ids, np.int32)
        out[f"new_{k}"] = np.array(new, np.int32)
        out[f"gap_{k}"] = np.array(gap, np.float32)
        out[f"text_{k}"] = np.array(model.detokenize(new).decode("utf-8", "replace"))
        print(k, repr(prompt), "->", repr(str(out[f"text_{k}"])), f"least gap {min(gap):.2f}", flush=True)
    return out


def main() -> None:
    path, name, n_windows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    windows, nll = perplexity(path, n_windows)
    GOLDEN.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        GOLDEN / f"{name}.npz",
        windows=windows,
        nll=nll.astype(np.float32),
        n_prompts=len(PROMPTS),
        **greedy(path),
    )
    print(name, "ppl", float(np.exp(nll.mean())))


if __name__ == "__main__":
    main()
