# SPDX-License-Identifier: Apache-2.0
"""Each layer's output against the NumPy forward pass of numpy_forward.py: relative error under 1e-5 in f32."""

from __future__ import annotations

import numpy as np
import pytest
from golden_files import golden

import rooflm

pytest.importorskip("gguf")
from numpy_forward import NumpyModel

# the tiny models that the NumPy pass covers: window, tied output, biases, RoPE factors, GQA, head size of its own
TINY = ["llama", "llama-tied-bias", "llama-rope-freqs", "llama-gqa-9-3", "llama-head-128", "gemma3"]


def layer_outputs(path, tokens, chunk=None):
    """Residual stream after each layer and logits of the last token, from the engine's exact path."""
    session = rooflm.Model(path).session(
        n_ctx=len(tokens) + 8, kv="f32", n_threads=2 if chunk is None else 1, compute="f32"
    )
    step = chunk or len(tokens)
    with session.capture("blk.*.resid_post") as cap:
        for i in range(0, len(tokens), step):
            logits = session.eval(tokens[i : i + step], logits="last")
    return [cap[f"blk.{i}.resid_post"] for i in range(len(cap))], logits


def check(path, tokens, chunk=None, stride=1, bound=1e-5):
    reference = NumpyModel(path)
    want = reference.layers(tokens)
    got, last = layer_outputs(path, tokens, chunk)
    assert len(got) == len(want) == reference.n_layer
    for i, (a, b) in enumerate(zip(got, want)):
        assert a.shape == b.shape and a.dtype == np.float32
        error = np.linalg.norm(a - b) / np.linalg.norm(b)
        assert error < bound, f"layer {i}: {error:.2e}"
        per_token = np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)
        assert per_token.max() < 4 * bound, f"layer {i}, token {per_token.argmax()}: {per_token.max():.2e}"
    logits = reference.logits(want[-1][-1:], stride)[0]
    last = last[::stride]
    error = np.linalg.norm(last - logits) / np.linalg.norm(logits)
    assert error < bound, f"logits: {error:.2e}"


@pytest.mark.parametrize("name", TINY)
def test_the_numpy_pass_itself_agrees_with_transformers(name):
    """Two outside answers about the same file; without this, an error of the NumPy pass would look like ours."""
    g = golden(name)
    m = NumpyModel(g.path)
    got = m.logits(m.layers(g.tokens)[-1])[g.positions]
    assert np.abs(got - g.logits).max() < 2e-6 * np.abs(g.logits).max()


@pytest.mark.parametrize("chunk", [None, 7, 1], ids=["at_once", "by_7", "one_by_one"])
@pytest.mark.parametrize("name", TINY)
def test_layers_of_tiny_models(name, chunk):
    g = golden(name)
    check(g.path, g.tokens, chunk)


def test_layers_of_smollm2(smollm2):
    tokens = np.random.default_rng(1).integers(0, 49152, 40).astype(np.int32)
    check(smollm2, tokens, stride=4)


def test_layers_of_gemma3(gemma3):
    tokens = np.random.default_rng(2).integers(5, 250000, 40).astype(np.int32)
    tokens[0] = 2
    check(gemma3, tokens, chunk=33, stride=16)  # 16,384 of 262,144 logits
