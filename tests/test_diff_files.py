# SPDX-License-Identifier: Apache-2.0
"""What differs between two files, and whether a file is what it says."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
from maker import tiny_model

import rooflm
from rooflm.quantization.claims import claim_in
from rooflm.quantization.diff import HISTOGRAM


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    d = tmp_path_factory.mktemp("diff")
    a = tiny_model(d / "a.gguf", types="F32")
    b = tiny_model(
        d / "b.gguf", types={"*ffn_*.weight": "Q4_0", "*attn_v.weight": "Q8_0"}, metadata={".context_length": 99}
    )
    return a, b


def test_a_file_against_itself(pair):
    d = rooflm.diff_files(pair[0], pair[0])
    assert d.same and all(t["same_bytes"] and t["relative_error"] == 0 for t in d.tensors)
    assert all(t["snr_db"] is None and t["histogram"] is None for t in d.tensors)
    json.loads(d.to_json())


def test_the_picture_goes_from_layer_to_layer(pair):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    d = rooflm.diff_files(*pair)
    d.record["tensors"].sort(key=lambda t: t["tensor"], reverse=True)  # files list layers as 0, 1, 10, 11, 2
    lines = [list(line.get_xdata()) for line in d.plot().get_lines()]
    assert lines and max(map(len, lines)) > 1 and all(x == sorted(x) for x in lines)


def test_errors_are_those_of_numpy(pair):
    d = rooflm.diff_files(*pair)
    assert not d.same
    names = {t["tensor"]: t for t in d.tensors}
    for name in ("blk.1.ffn_up.weight", "blk.0.attn_v.weight"):
        x = rooflm.GGUF(pair[0]).tensors[name].dequantize().astype(np.float64)
        t = rooflm.GGUF(pair[1]).tensors[name]
        y = gguf.quants.dequantize(t.raw, gguf.GGMLQuantizationType[t.type]).reshape(x.shape).astype(np.float64)
        e, row = y - x, names[name]
        assert row["relative_error"] == pytest.approx(np.linalg.norm(e) / np.linalg.norm(x), rel=1e-9)
        assert row["max_error"] == pytest.approx(np.abs(e).max(), rel=1e-9)
        assert row["bias"] == pytest.approx(e.mean(), rel=1e-6)
        assert row["cosine"] == pytest.approx((x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y), rel=1e-9)
        assert row["snr_db"] == pytest.approx(20 * np.log10(np.linalg.norm(x) / np.linalg.norm(e)), rel=1e-9)
        z = (x - x.mean()) / x.std()
        assert row["a"]["std"] == pytest.approx(x.std(), rel=1e-9) and row["a"]["min"] == x.min()
        assert row["a"]["skew"] == pytest.approx((z**3).mean(), abs=1e-9)
        assert row["a"]["kurtosis"] == pytest.approx((z**4).mean() - 3, abs=1e-9)
        counts = np.histogram(np.clip(e / np.sqrt((e**2).mean()), -4, 4), HISTOGRAM)[0]
        assert row["histogram"] == counts.tolist() and sum(counts) == x.size
    assert names["blk.1.ffn_up.weight"]["type_b"] == "Q4_0" and names["blk.0.attn_q.weight"]["same_bytes"]


def test_pieces_change_nothing(pair, monkeypatch):
    whole = rooflm.diff_files(*pair).tensors
    monkeypatch.setattr("rooflm.quantization.diff.PIECE_BYTES", 1)
    for a, b in zip(whole, rooflm.diff_files(*pair).tensors):
        assert a["histogram"] == b["histogram"]
        assert a["relative_error"] == pytest.approx(b["relative_error"], rel=1e-12)


def test_metadata_and_tensors_of_one_side(pair, tmp_path):
    more = tiny_model(
        tmp_path / "m.gguf",
        types="F32",
        metadata={"x.y": 3},
        drop=("blk.0.attn_q.weight",),
        extra={"new": np.ones(4, "f")},
    )
    d = rooflm.diff_files(pair[0], more).record
    assert d["metadata"]["only_b"] == ["x.y"] and d["only_b"] == ["new"] and d["only_a"] == ["blk.0.attn_q.weight"]
    changed = rooflm.diff_files(*pair).record["metadata"]["changed"]
    assert changed == [{"key": "llama.context_length", "a": 256, "b": 99}]
    assert "llama.context_length: 256 -> 99" in repr(rooflm.diff_files(*pair))


def test_other_shapes_say_so(pair, tmp_path):
    wide = tiny_model(tmp_path / "w.gguf", types="F32", ffn=192)
    rows = {t["tensor"]: t for t in rooflm.diff_files(pair[0], wide).tensors}
    assert "shapes differ" in rows["blk.0.ffn_up.weight"]["error_why"]
    assert "relative_error" in rows["blk.0.attn_q.weight"]


@pytest.mark.parametrize(
    "text, claim",
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", ("Q4_1", 5.0)),
        ("llama-7b-q4_k_m.gguf", ("Q4_K_M", 4.85)),
        ("m-fp16.gguf", ("F16", 16.0)),
        ("model-4bit.gguf", ("4-bit", 4.5)),
        ("model_int8", ("8-bit", 8.5)),
        ("Qwen2-7B.gguf", None),
        ("32bit-machine", None),
        ("IQ4_XS", ("IQ4_XS", 4.25)),
    ],
)
def test_claims_of_names(text, claim):
    assert claim_in(text) == claim


def test_a_four_bit_name_with_floats_inside_is_said(tmp_path):
    """F5: a file named 4-bit that held F16."""
    path = tiny_model(tmp_path / "nice-Q4_K_M.gguf", types="F16", n_vocab=320, width=256, ffn=256)
    c = rooflm.check_claims(path)
    assert c["agrees"] is False and c["dominant_type"] == "F16" and c["bits_per_weight"] == 16
    assert "claims Q4_K_M, about 4.85 bits per weight, and the file has 16.00 (100% F16)" in c["warnings"][0]
    r = c["recommendation"]
    assert (
        r["to"] == "Q8_0" and r["evidence"]["relative_error"]["Q8_0"] < 0.01 and "blk." in r["evidence"]["measured_on"]
    )


def test_a_file_that_keeps_its_word(tmp_path):
    c = rooflm.check_claims(tiny_model(tmp_path / "m.Q4_0.gguf", types="Q4_0", metadata={"general.file_type": 2}))
    assert c["agrees"] is True and not c["warnings"] and len(c["claims"]) == 2
    assert rooflm.check_claims(tiny_model(tmp_path / "m.gguf", types="Q4_0"))["agrees"] is None


def test_file_type_of_the_metadata_is_a_claim(tmp_path):
    c = rooflm.check_claims(tiny_model(tmp_path / "m.gguf", types="Q8_0", metadata={"general.file_type": 2}))
    assert c["agrees"] is False and "general.file_type (2) claims Q4_0" in c["warnings"][0]


def test_q4_0_is_shown_what_q4_k_does_at_its_bits(tmp_path):
    c = rooflm.check_claims(tiny_model(tmp_path / "m.gguf", types="Q4_0", width=256, ffn=256))
    e = c["recommendation"]["evidence"]
    assert e["relative_error"]["Q4_K"] < e["relative_error"]["Q4_0"] and e["bits_per_weight"]["Q4_K"] == 4.5
    narrow = rooflm.check_claims(tiny_model(tmp_path / "n.gguf", types="Q4_0"))
    assert narrow["recommendation"] is None  # rows of 64: no K type fits
    # Only the down matrices have rows of 256; Q4_K_M would give all others types of more bits.
    partly = rooflm.check_claims(tiny_model(tmp_path / "p.gguf", types="Q4_0", width=64, ffn=256))
    assert partly["recommendation"] is None


def test_real_claims(smollm2, gemma3):
    assert rooflm.check_claims(smollm2)["dominant_type"] == "Q4_1"
    c = rooflm.check_claims(gemma3)
    assert 6 < c["bits_per_weight"] < 8 and c["bits_per_weight_layers"] < c["bits_per_weight"]
