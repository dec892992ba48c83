# SPDX-License-Identifier: Apache-2.0
"""Logits of llama.cpp for one file and one prompt: a second, independent answer beside `transformers`.

Run with a Python that has llama-cpp-python:  llamacpp_logits.py MODEL TOKENS.npy OUT.npy [N_CTX [N_BATCH]]
"""

from __future__ import annotations

import sys

import llama_cpp
import numpy as np


def main() -> None:
    path, tokens_path, out_path = sys.argv[1:4]
    n_ctx = int(sys.argv[4]) if len(sys.argv) > 4 else 512
    n_batch = int(sys.argv[5]) if len(sys.argv) > 5 else 512
    tokens = np.load(tokens_path).astype(int).tolist()
    model = llama_cpp.Llama(
        path,
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_ubatch=n_batch,
        logits_all=True,
        n_threads=2,
        n_threads_batch=2,
        flash_attn=False,
        type_k=0,  # F32
        type_v=0,
        swa_full=True,
        yarn_beta_fast=-1.0,  # from the file; the binding would override it
        yarn_beta_slow=-1.0,
        verbose="-v" in sys.argv,
    )
    model.eval(tokens)
    np.save(out_path, np.array(model.scores[: len(tokens)], np.float32))


if __name__ == "__main__":
    main()
