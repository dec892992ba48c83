# SPDX-License-Identifier: Apache-2.0
"""Layer by layer: errors as NumPy has them, and that an error put into one layer is found where it was put."""

from __future__ import annotations

import json

import numpy as np
import pytest
from maker import tiny_model
from plots import drawn

import rooflm

TOKENS = np.random.default_rng(3).integers(3, 320, 100)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    d = tmp_path_factory.mktemp("layers")
    return {k: tiny_model(d / f"{k}.gguf", types=k, n_layer=4) for k in ("F32", "Q4_0")}


@pytest.fixture(scope="module")
def compared(files):
    return rooflm.compare_layers(files["F32"], files["Q4_0"], TOKENS)


def test_errors_are_those_of_the_arrays(files, compared):
    taps = []
    for name in ("F32", "Q4_0"):
        with rooflm.Model(files[name]).session(n_ctx=100, compute="f32", kv="f32") as s, s.capture("*") as cap:
            s.eval(TOKENS, logits="none")
            taps.append({k: cap[k].astype(np.float64) for k in cap if "weights" not in k})
    rows = {r["tap"]: r for r in compared.rows}
    assert set(rows) == set(taps[0])
    for name, row in rows.items():
        x, y = taps[0][name], taps[1][name]
        assert row["relative_error"] == pytest.approx(np.linalg.norm(y - x) / np.linalg.norm(x), rel=1e-3, abs=1e-7)
        assert row["cosine"] == pytest.approx((x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y), rel=1e-6)
        assert row["max_error"] == pytest.approx(np.abs(y - x).max(), rel=1e-2)
    assert rows["blk.0.attn_norm"]["layer"] == 0 and rows["embed"]["layer"] is None
    json.loads(compared.to_json())


def test_an_error_is_found_where_it_was_put(files):
    """Only layer 2 differs: nothing before it, something from there on, and only it is born."""
    theirs = rooflm.GGUF(files["Q4_0"]).tensors
    changed = rooflm.Model(files["F32"], replace={n: t for n, t in theirs.items() if n.startswith("blk.2.")})
    c = rooflm.compare_layers(files["F32"], changed, TOKENS, isolate=False)
    errors = [r["relative_error"] for r in c.by_op("resid_post")]
    assert errors[:2] == [0, 0] and min(errors[2:]) > 1e-3 and c.born is None
    assert all(r["snr_db"] is None for r in c.rows if r["layer"] in (0, 1))
    whole = rooflm.compare_layers(files["F32"], files["Q4_0"], TOKENS)
    assert whole.born[2]["error_born"] == pytest.approx(errors[2], rel=1e-6)
    assert whole.born[2]["kl_mean"] == pytest.approx(c.record["kl_mean"], rel=1e-6)
    last = next(r for r in c.rows if r["tap"] == "final_norm")
    assert whole.born[2]["error_arrives"] == pytest.approx(last["relative_error"], rel=1e-6)


def test_settings_of_one_file_are_isolated_by_layer(files):
    c = rooflm.compare_layers({"model": files["Q4_0"]}, {"compute": "int8"}, TOKENS)
    assert len(c.born) == 4 and all(0 < r["error_born"] < 0.05 for r in c.born)
    by_hand = rooflm.compare_layers(
        {"model": files["Q4_0"]}, {"compute": {"*": "f32", "blk.1.*": "int8"}}, TOKENS, isolate=False
    )
    assert c.born[1]["error_born"] == pytest.approx(by_hand.by_op("resid_post")[1]["relative_error"], rel=1e-6)
    part = rooflm.compare_layers({"model": files["Q4_0"]}, {"compute": {"*": "f32", "blk.1.*": "int8"}}, TOKENS)
    assert [r["error_born"] > 0 for r in part.born] == [False, True, False, False]


def test_what_cannot_be_isolated_says_why(files):
    c = rooflm.compare_layers({"model": files["F32"]}, {"kv": "q8_0"}, TOKENS)
    assert c.born is None and "kv cannot be changed in one layer alone" in repr(c)


def test_against_itself_nothing_differs(files):
    c = rooflm.compare_layers(files["Q4_0"], files["Q4_0"], TOKENS, isolate=False)
    assert all(r["relative_error"] == 0 and r["snr_db"] is None for r in c.rows) and c.record["kl_mean"] == 0


def test_patterns_and_errors(files):
    c = rooflm.compare_layers(files["F32"], files["Q4_0"], TOKENS[:5], taps="blk.*.attn_weights", isolate=False)
    assert [r["tap"] for r in c.rows] == [f"blk.{i}.attn_weights" for i in range(4)]
    with pytest.raises(ValueError, match="matches nothing"):
        rooflm.compare_layers(files["F32"], files["Q4_0"], TOKENS, taps="nothing")
    with pytest.raises(ValueError, match="at least one token"):
        rooflm.compare_layers(files["F32"], files["Q4_0"], [])
    with pytest.raises(ValueError, match="was not tapped"):
        c.by_op("resid_post")


def test_plot(compared):
    a = drawn(compared.plot)
    assert "layer" in a.get_xlabel() and "100 tokens" in a.get_title()
