# SPDX-License-Identifier: Apache-2.0
"""The error budget: each source alone, left out, the interaction; on SmolLM2 the KL of each operation's rounding."""

from __future__ import annotations

import json

import numpy as np
import pytest
from maker import tiny_model
from plots import drawn
from text_for_tests import topics

import rooflm

TOKENS = np.random.default_rng(3).integers(3, 320, 400)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    d = tmp_path_factory.mktemp("budget")
    return {k: tiny_model(d / f"{k}.gguf", types=k) for k in ("F32", "Q4_0")}


def test_every_bar_is_the_kl_that_compare_measures(files):
    b = rooflm.error_budget(files["Q4_0"], TOKENS, reference=files["F32"], compute="int8", kv="q8_0", ctx=64)
    exact = {"model": files["F32"], "compute": "f32", "kv": "f32"}
    own = {"model": files["Q4_0"]}
    settings = {
        "whole": {**own, "compute": "int8", "kv": "q8_0"},
        "weights": own,
        "KV cache": {"kv": "q8_0"},
        "without weights": {"compute": "int8", "kv": "q8_0"},
        "without activations": {**own, "kv": "q8_0"},
        "without KV cache": {**own, "compute": "int8"},
    }
    r = rooflm.compare(exact, list(settings.values()), TOKENS, ctx=64)
    assert list(b.kl) == ["whole", *b.names, *(f"without {n}" for n in b.names)]
    assert set(b.kl) == {*settings, "activations"}
    for name, c in zip(settings, r):
        np.testing.assert_allclose(b.kl[name], c.kl.mean(axis=1), rtol=1e-12, atol=0)
    # F32 weights are multiplied as floats whatever compute says: there, activations would cost nothing at all.
    own_exact = {**own, "compute": "f32", "kv": "f32"}
    r = rooflm.compare(own_exact, {"compute": "int8"}, TOKENS, ctx=64)
    np.testing.assert_allclose(b.kl["activations"], r[0].kl.mean(axis=1), rtol=1e-12)
    assert b.kl["activations"].min() > 0 and (b.kl["without weights"] == b.kl["KV cache"]).all()
    assert "activations alone: on the weights of Q4_0.gguf" in repr(b)
    d = b.to_dict()
    assert [s["alone_on"] for s in d["sources"]] == ["reference", "model", "reference"]
    alone = sum(s["kl_alone"] for s in d["sources"])
    assert d["interaction"] == pytest.approx(d["kl_whole"] - alone, rel=1e-9)
    assert d["interaction_ci95"][0] < d["interaction"] < d["interaction_ci95"][1]
    json.dumps(d, allow_nan=False)


def test_two_sources_left_out_are_each_other(files):
    b = rooflm.error_budget(files["Q4_0"], TOKENS, reference=files["F32"], compute="f32", kv="q8_0", ctx=64)
    assert b.names == ["weights", "KV cache"]
    assert (b.kl["without weights"] == b.kl["KV cache"]).all()


def test_one_source_is_the_whole(files):
    b = rooflm.error_budget(files["Q4_0"], TOKENS, compute="f32", kv="q8_0", ctx=64)
    assert (b.interaction == 0).all() and (b.kl["without KV cache"] == 0).all() and b.kl["whole"].min() > 0


def test_window_and_rope_are_sources(files):
    b = rooflm.error_budget(
        files["F32"], TOKENS, compute="f32", kv="f32", window=16, rope_base=5000.0, ctx=64, left_out=False
    )
    assert b.names == ["attention window", "RoPE base"] and min(b.kl[n].mean() for n in b.names) > 1e-4
    assert b.sources()[0]["kl_left_out"] is None


def test_nothing_to_split_is_said(files):
    with pytest.raises(ValueError, match="nothing to split"):
        rooflm.error_budget(files["Q4_0"], TOKENS, compute="f32", kv="f32", ctx=64)


def test_by_operation_switches_each_path_alone(files):
    b = rooflm.error_budget(
        files["Q4_0"], TOKENS, compute="int8", kv="q8_0", ctx=64, windows=2, by_operation=True, left_out=False
    )
    assert b.names == ["head", "qkv", "attention out", "gate and up", "down", "K", "V"]
    assert all(b.kl[n].min() > 0 for n in b.names) and 0 <= b.kl["query"].max() < b.kl["K"].max()
    hand = rooflm.compare(
        {"model": files["Q4_0"], "compute": "f32"},
        [{"compute": {"*": "f32", "ffn_down": "int8"}}, {"kv": "q8_0/f32"}, {"kv": "f32/q8_0"}],
        TOKENS,
        ctx=64,
        windows=2,
    )
    for name, c in zip(("down", "K", "V"), hand):
        np.testing.assert_allclose(b.kl[name], c.kl.mean(axis=1), rtol=1e-12)


def test_plot(files):
    a = drawn(rooflm.error_budget(files["Q4_0"], TOKENS, reference=files["F32"], kv="q8_0", ctx=64).plot)
    labels = [t.get_text() for t in a.get_yticklabels()]
    assert labels == ["weights", "activations", "KV cache", "interaction", "whole"]
    assert "nats" in a.get_xlabel() and "windows" in a.get_title()


@pytest.mark.slow
def test_kl_by_source_on_a_real_model(smollm2, capsys):
    """The KL that each rounding of the fast path costs SmolLM2, 4 windows of 512; bounds of the default prompt path,
    of int16 and of the q8_0 cache. int8 everywhere, as other engines have it, costs 0.003."""
    text = topics()[:120_000]
    b = rooflm.error_budget(smollm2, text, compute="auto", kv="q8_0", windows=4, by_operation=True, left_out=False)
    r = rooflm.compare(
        {"model": smollm2, "compute": "f32", "kv": "f32"},
        [{"compute": "auto", "kv": "f32"}, {"compute": "int16", "kv": "f32"}, {"kv": "q8_0"}],
        text,
        windows=4,
    )
    auto, int16, q8 = (float(c.kl.mean()) for c in r)
    with capsys.disabled():
        print(f"\n{b}\nauto {auto:.2e}, int16 {int16:.2e}, q8_0 KV {q8:.2e}")
    assert auto <= 0.0018 and q8 <= 0.00022
    assert int16 <= 1e-6
    source = {s["source"]: s["kl_alone"] for s in b.sources()}
    assert source["K"] + source["V"] + source["query"] <= 0.00025 and source["head"] < 1e-5
