# SPDX-License-Identifier: Apache-2.0
"""Every architecture against `transformers`, through tiny random models (tests/oracle/make_goldens.py).

The prompt crosses the window and the scaling limit of each model. The golden files were checked with llama.cpp,
too. Changed files show that each of them can fail.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from golden_files import NAMES, arch_of, golden

import rooflm

gguf = pytest.importorskip("gguf")
sys.path.insert(0, str(Path(__file__).parent / "oracle"))
from rewrite import rewrite  # noqa: E402

EXPERTS = ("llama-moe", "qwen3moe", "granitemoe", "granitemoe-shared", "olmoe")


def all_logits(path, tokens, chunk=None, compute="f32", kv="f32", n_ctx=128, **kw):
    # one thread: what threads change (nothing) is test_determinism's
    session = rooflm.Model(path).session(n_ctx=n_ctx, kv=kv, n_threads=1, compute=compute, **kw)
    step = chunk or len(tokens)
    parts = [session.eval(tokens[i : i + step], logits="all") for i in range(0, len(tokens), step)]
    return np.concatenate(parts)


def worst(a, b):
    """Largest difference, relative to the largest logit."""
    assert np.isfinite(a).all()
    return np.abs(a - b).max() / np.abs(b).max()


def test_golden_files_cover_the_families():
    assert {arch_of(n) for n in NAMES} == {
        *("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "smollm3", "olmo2", "granite", "mistral3"),
        *("starcoder2", "stablelm", "qwen3moe", "granitemoe", "olmoe"),
    }


@pytest.mark.parametrize("chunk", [None, 1, 7], ids=["at_once", "one_by_one", "by_7"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_transformers(name, chunk):
    g = golden(name)
    got = all_logits(g.path, g.tokens, chunk, n_ctx=g.n_ctx)
    assert got.shape == (len(g.tokens), g.logits.shape[1]) and got.dtype == np.float32
    error = worst(got[g.positions], g.logits)
    assert error < 1e-4, f"{name}: {error:.2e} of the largest logit"


# Quantizing activations to int8 per 32 values leaves an error of max / 127 / sqrt(12) per value, about 0.0048 of the
# norm for normal values; int16 per 256 about 0.00005. Each of the four inputs of a layer and the head's adds its own.
@pytest.mark.parametrize("compute,step", [("int8", 0.0048), ("int16", 0.00005)])
@pytest.mark.parametrize("name", NAMES)
def test_quantized_activations_within_norms(name, compute, step, tmp_path):
    g = golden(name)
    path = tmp_path / "q8.gguf"
    rewrite(g.path, path, quantize=gguf.GGMLQuantizationType.Q8_0)
    exact = all_logits(path, g.tokens, n_ctx=g.n_ctx)
    got = all_logits(path, g.tokens, compute=compute, n_ctx=g.n_ctx)
    model = rooflm.GGUF(path)
    n_layer = int(model.metadata[f"{arch_of(name)}.block_count"])
    relative = np.linalg.norm(got - exact, axis=1) / np.linalg.norm(exact, axis=1)
    bound = 3 * step * np.sqrt(4 * n_layer + 1)
    # a router may choose another expert for a few tokens, which no norm bounds: there the median counts
    measured = np.median(relative) if name in EXPERTS else relative.max()
    assert 0 < measured < bound, f"{name}: {measured:.2e}, bound {bound:.2e}"


@pytest.mark.parametrize("name", NAMES)
def test_weights_in_f16_and_q8_kv(name, tmp_path):
    """Another weight type and a quantized cache change the logits a little, and only a little."""
    g = golden(name)
    path = tmp_path / "f16.gguf"
    rewrite(g.path, path, quantize=gguf.GGMLQuantizationType.F16)
    got = all_logits(path, g.tokens, n_ctx=g.n_ctx)[g.positions]
    relative = np.linalg.norm(got - g.logits, axis=1) / np.linalg.norm(g.logits, axis=1)
    assert 0 < np.median(relative) < 2e-3
    f16 = all_logits(g.path, g.tokens, kv="f16", n_ctx=g.n_ctx)[g.positions]
    relative = np.linalg.norm(f16 - g.logits, axis=1) / np.linalg.norm(g.logits, axis=1)
    assert 1e-7 < np.median(relative) < 2e-3


def zero_biases(name, value):
    return np.zeros_like(value) if name.endswith(".bias") else value


def drop(*parts):
    return lambda name, value: None if any(p in name for p in parts) else value


CHANGED = {
    "llama-rope-freqs": dict(tensor=drop("rope_freqs")),  # R9, as is the tied output
    "llama-linear": dict(keys={"llama.rope.scaling.factor": 1.0}),
    "llama-yarn": dict(keys={"llama.rope.scaling.type": "linear"}),
    "llama-tied-bias": dict(tensor=zero_biases),
    "llama": dict(keys={"llama.rope.freq_base": 100000.0}),
    "mistral": dict(keys={"llama.rope.freq_base": 10000.0}),
    "qwen2": dict(tensor=zero_biases),
    "gemma2": dict(keys={"gemma2.attention.sliding_window": 40}),
    "gemma2:attn": dict(keys={"gemma2.attn_logit_softcapping": 50.0}),
    "gemma2:final": dict(keys={"gemma2.final_logit_softcapping": 30.0}),
    "gemma3": dict(keys={"gemma3.attention.sliding_window": 40}),
    "gemma3:base": dict(keys={"gemma3.rope.freq_base": 10000.0}),
    "gemma3:swa": dict(keys={"gemma3.rope.freq_base_swa": 20000.0}),
    "gemma3-linear": dict(keys={"gemma3.rope.scaling.factor": 1.0}),
    "phi3-long": dict(keys={"phi3.rope.scaling.attn_factor": 1.0}),
    "phi3-short": dict(keys={"phi3.rope.scaling.original_context_length": 64}),
    "granite:embedding": dict(keys={"granite.embedding_scale": 1.0}),
    "granite:attention": dict(keys={"granite.attention.scale": 0.25}),
    "granite:residual": dict(keys={"granite.residual_scale": 1.0}),
    "granite:logit": dict(keys={"granite.logit_scale": 1.0}),
    "granite:rope": dict(keys={"granite.rope.scaling.finetuned": False}),
    "mistral3": dict(keys={"mistral3.attention.temperature_scale": 0.2}),
    "mistral3:beta": dict(keys={"mistral3.rope.scaling.yarn_beta_fast": 0.1}),
    "starcoder2": dict(tensor=zero_biases),
    "stablelm": dict(keys={"stablelm.rope.dimension_count": 16}),
    "stablelm-parallel": dict(tensor=lambda n, v: np.ones_like(v) if "attn_q_norm" in n else v),
    "olmo3": dict(keys={"olmo2.attention.sliding_window": 40}),
    "olmo3:scaling": dict(keys={"olmo2.rope.scaling.type": "linear"}),
    "llama-moe": dict(keys={"llama.expert_used_count": 3}),
    "qwen3moe": dict(keys={"qwen3moe.expert_used_count": 3}),
    "granitemoe": dict(keys={"granitemoe.expert_used_count": 3}),
    "olmoe": dict(keys={"olmoe.expert_used_count": 3}),
}


@pytest.mark.parametrize("change", CHANGED)
def test_a_changed_file_gives_other_logits(change, tmp_path):
    """What a file states is used: change it, and the golden test would fail by far."""
    name = change.split(":")[0]
    g = golden(name)
    path = tmp_path / "changed.gguf"
    rewrite(g.path, path, **CHANGED[change])
    got = all_logits(path, g.tokens, n_ctx=g.n_ctx)
    assert worst(got[g.positions], g.logits) > 1e-3


REFUSED = {
    "unknown architecture": ("llama", dict(arch="mamba9"), "mamba9"),
    "unknown rope scaling": ("llama-yarn", dict(keys={"llama.rope.scaling.type": "spiral"}), "rope.scaling.type"),
    "attention sinks": (
        "qwen2",
        dict(extra={"blk.0.attn_sinks.weight": np.ones(4, np.float32)}),
        "attn_sinks",
    ),
    "pooling": ("qwen3", dict(keys={"qwen3.pooling_type": 1}), "pooling_type"),
    "activation": ("llama", dict(keys={"llama.hidden_activation": "relu"}), "hidden_activation"),
    "no head count": ("llama", dict(drop=["llama.attention.head_count"]), "llama.attention.head_count"),
    "no norm epsilon": ("llama", dict(drop=["llama.attention.layer_norm_rms_epsilon"]), "layer_norm_rms_epsilon"),
    "missing tensor": ("llama", dict(tensor=drop("blk.1.ffn_down")), "blk.1.ffn_down.weight"),
    "wrong shape": (
        "llama",
        dict(tensor=lambda n, v: v[:, :32] if n == "blk.0.attn_k.weight" else v),
        "blk.0.attn_k.weight",
    ),
    "tensor nobody reads": ("llama", dict(extra={"blk.0.mystery.weight": np.ones(64, np.float32)}), "mystery"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(what, tmp_path):
    name, change, said = REFUSED[what]
    path = tmp_path / "refused.gguf"
    rewrite(golden(name).path, path, **change)
    with pytest.raises(rooflm.Error) as e:
        rooflm.Model(path)
    assert said in f"{e.value} {getattr(e.value, 'key', '')} {getattr(e.value, 'tensor', '')}"
    assert rooflm.GGUF(path).metadata  # the file can still be inspected


@pytest.mark.parametrize("name", NAMES)
def test_live_against_transformers(name, tmp_path):
    """Fresh weights from the installed transformers, not the golden file's."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import tiny_models

    case = tiny_models.CASES[name]
    model = tiny_models.build(case)
    tokens = np.random.default_rng(99).integers(0, 256, 50).astype(np.int32)
    path = tmp_path / "live.gguf"
    tiny_models.write_gguf(case, model, str(path))
    want = tiny_models.logits(model, tokens)
    assert worst(all_logits(path, tokens, chunk=23, n_ctx=case.n_ctx), want) < 1e-4
