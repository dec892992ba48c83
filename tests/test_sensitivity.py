# SPDX-License-Identifier: Apache-2.0
"""Sensitivity: each row is the KL of a model with that one swap, made here by hand as a file of its own."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from maker import tiny_model
from plots import drawn

import rooflm
from rooflm import _core
from rooflm.quantization import sensitivity
from rooflm.quantization.sensitivity import _spread

TOKENS = np.random.default_rng(3).integers(3, 320, 200)
SHAPE = {"ctx": 32, "windows": 3}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    d = tmp_path_factory.mktemp("sensitivity")
    return {k: tiny_model(d / f"{k}.gguf", types=k) for k in ("F32", "Q4_0")}


def kl_of(reference, replace):
    swapped = rooflm.Model(reference, replace=replace)
    return float(rooflm.compare(reference, swapped, TOKENS, **SHAPE)[0].kl.mean())


@pytest.fixture(scope="module")
def measured(files):
    return rooflm.sensitivity(files["F32"], TOKENS, types=["Q8_0", "Q4_0"], **SHAPE)


def test_rows_are_the_kl_of_one_swap(files, measured):
    g = rooflm.GGUF(files["F32"])
    rows = {(r["tensor"], r["kind"], r["type"]): r for r in measured.rows}
    assert len(measured.rows) == 2 * (7 + 7 * 2 + 2)  # kinds, tensors of two layers, embedding and output
    for name, kind in (("blk.1.ffn_up.weight", "up"), ("blk.0.attn_k.weight", "k")):
        blocks = _core.quantize_rows(g.tensors[name].dequantize(), "Q4_0")
        row = rows[name, kind, "Q4_0"]
        assert row["kl_mean"] == pytest.approx(kl_of(files["F32"], {name: ("Q4_0", blocks)}), rel=1e-6)
        assert row["nbytes"] == blocks.nbytes and row["nbytes_before"] == g.tensors[name].nbytes
        assert row["bits_per_weight"] == 4.5
        assert 0 < rows[name, kind, "Q8_0"]["kl_mean"] < row["kl_mean"] / 20
    whole = {
        f"blk.{i}.ffn_up.weight": (
            "Q4_0",
            _core.quantize_rows(g.tensors[f"blk.{i}.ffn_up.weight"].dequantize(), "Q4_0"),
        )
        for i in range(2)
    }
    assert rows[None, "up", "Q4_0"]["kl_mean"] == pytest.approx(kl_of(files["F32"], whole), rel=1e-6)
    json.dumps(measured.to_dict(), allow_nan=False)


def test_tied_embedding_and_output_are_swapped_apart(files, measured):
    own = rooflm.GGUF(files["F32"]).tensors["token_embd.weight"]
    q4 = ("Q4_0", _core.quantize_rows(own.dequantize(), "Q4_0"))
    rows = {r["kind"]: r for r in measured.by_tensor() if r["type"] == "Q4_0" and r["layer"] is None}
    output = kl_of(files["F32"], {"output.weight": q4})
    embedding = kl_of(files["F32"], {"token_embd.weight": q4, "output.weight": ("F32", own.raw)})
    assert rows["output"]["kl_mean"] == pytest.approx(output, rel=1e-6)
    assert rows["embedding"]["kl_mean"] == pytest.approx(embedding, rel=1e-6)
    assert output != pytest.approx(embedding, rel=1e-3)


def test_tensors_of_a_file_are_put_in_as_they_are(files):
    s = rooflm.sensitivity(files["Q4_0"], TOKENS, reference=files["F32"], tensors="blk.1.attn_*", kinds=False, **SHAPE)
    other = rooflm.GGUF(files["Q4_0"]).tensors
    assert sorted(r["kind"] for r in s.rows) == ["k", "o", "q", "v"] and {r["type"] for r in s.rows} == {"Q4_0"}
    for r in s.rows:
        assert r["kl_mean"] == pytest.approx(kl_of(files["F32"], {r["tensor"]: other[r["tensor"]]}), rel=1e-6)


def test_a_type_that_does_not_fit_is_said_and_not_replaced(files):
    s = rooflm.sensitivity(files["F32"], TOKENS, types="Q4_K", tensors="blk.0.attn_q.weight", kinds=False, **SHAPE)
    assert s.rows[0]["kl_mean"] is None and s.rows[0]["why_not"] == "rows of 64 values are no multiple of 256"
    assert "Q4_K does not fit q: rows of 64 values are no multiple of 256" in repr(s)
    assert "Q4_K does not fit q" in s._repr_html_()


def test_a_time_budget_leaves_out_detail_first(files):
    s = rooflm.sensitivity(files["F32"], TOKENS, types="Q4_0", budget_s=0, **SHAPE)
    assert s.rows == [] and len(s.not_measured) == 7 + 16 and s.not_measured[0] == "all of q as Q4_0"
    assert "not measured" in repr(s)


def rows_by_swap(s):
    return {(r["tensor"], r["kind"], r["type"]): (r["kl_mean"], r["kl_ci95"], r["nbytes"]) for r in s.rows}


def stop_after(monkeypatch, n, error):
    """The swap behind the n-th fails; gives the list of those that ran."""
    ran = []
    measure = sensitivity._row

    def row(swap, *args):
        if len(ran) == n:
            raise error
        ran.append(swap.name)
        return measure(swap, *args)

    monkeypatch.setattr(sensitivity, "_row", row)
    return ran


def test_going_on_gives_the_table_of_one_run(files, tmp_path, monkeypatch):
    whole = rooflm.sensitivity(files["F32"], TOKENS, types="Q4_0", **SHAPE)
    out = tmp_path / "s.json"
    with monkeypatch.context() as m:
        first = stop_after(m, 9, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt) as e:
            rooflm.sensitivity(files["F32"], TOKENS, types="Q4_0", out=out, **SHAPE)
    part = e.value.results
    assert len(part.rows) == 9 and len(part.not_measured) == 14 and "interrupted" in repr(part)
    assert json.loads(out.read_text())["not_measured"] == part.not_measured
    for state in (out, str(out), part, part.to_dict(), json.loads(part.to_json())):
        with monkeypatch.context() as m:
            second = stop_after(m, 99, AssertionError())
            s = rooflm.sensitivity(files["F32"], TOKENS, types="Q4_0", resume=state, **SHAPE)
        assert len(second) == 14 and not set(first) & set(second)
        assert rows_by_swap(s) == rows_by_swap(whole) and s.not_measured == []
        assert s.head["seconds"] > part.head["seconds"] and not s.head["interrupted"]


def test_other_types_and_tensors_are_added_to_what_is_there(files, tmp_path):
    a = rooflm.sensitivity(files["F32"], TOKENS, types="Q4_0", tensors="blk.0.attn_*", **SHAPE)
    a.save(tmp_path / "a.json")
    b = rooflm.sensitivity(files["F32"], TOKENS, types=["Q4_0", "Q8_0"], tensors="*attn_q*", resume=a, **SHAPE)
    # The swap of the kind is another one: it now has the tensors of both layers.
    new = [r for r in b.rows if r not in a.rows]
    assert [(r["tensor"], len(r["tensors"]), r["type"]) for r in new] == [
        (None, 2, "Q4_0"), (None, 2, "Q8_0"), ("blk.0.attn_q.weight", 1, "Q8_0"), ("blk.1.attn_q.weight", 1, "Q4_0"),
        ("blk.1.attn_q.weight", 1, "Q8_0"),
    ]  # fmt: skip
    assert len(b.rows) == len(a.rows) + 5
    # The file's own blocks are no swap to the same type of the reference's values.
    shape = {**SHAPE, "reference": files["F32"], "tensors": "blk.1.attn_q*"}
    own = rooflm.sensitivity(files["Q4_0"], TOKENS, **shape)
    with pytest.raises(ValueError, match="the file whose tensors are put in was given and is not now"):
        rooflm.sensitivity(files["Q4_0"], TOKENS, types="Q4_0", resume=own, **shape)
    assert rooflm.sensitivity(files["Q4_0"], TOKENS, resume=own, **shape).rows == own.rows


@pytest.mark.parametrize(
    "change, message",
    [
        ({"reference": "Q4_0"}, "the reference file is another one"),
        ({"text": TOKENS[::-1]}, "the text is another one"),
        ({"ctx": 16}, "ctx was 32 and is now 16"),
        ({"windows": 2}, "windows was 3 and is now 2"),
        ({"compute": "f32"}, "compute was 'int16' and is now 'f32'"),
        ({"kv": "q8_0"}, "kv was 'f32' and is now 'q8_0'"),
        ({"imatrix": {"blk.0.attn_q.weight": np.ones(64)}}, "imatrix was not given and is now"),
    ],
)
def test_only_the_same_measurement_is_gone_on_with(files, change, message):
    shape = {**SHAPE, "types": "Q4_0", "tensors": "blk.0.attn_q.weight", "text": TOKENS}
    a = rooflm.sensitivity(files["F32"], **shape)
    new = {**shape, **change}
    file = files[new.pop("reference", "F32")]
    with pytest.raises(ValueError, match=message):
        rooflm.sensitivity(file, resume=a, **new)


def test_another_importance_is_another_measurement(files):
    shape = {**SHAPE, "types": "Q4_0", "tensors": "blk.0.attn_q.weight"}
    weights = np.linspace(1, 2, 64, dtype=np.float32)
    a = rooflm.sensitivity(files["F32"], TOKENS, imatrix={"blk.0.attn_q.weight": weights}, **shape)
    with pytest.raises(ValueError, match="imatrix is another one"):
        rooflm.sensitivity(files["F32"], TOKENS, imatrix={"blk.0.attn_q.weight": weights[::-1]}, resume=a, **shape)
    again = {"blk.0.attn_q.weight": weights.astype(np.float64)}
    assert rooflm.sensitivity(files["F32"], TOKENS, imatrix=again, resume=a, **shape).rows == a.rows


def test_records_that_are_none(files, tmp_path):
    shape = {**SHAPE, "types": "Q4_0", "tensors": "blk.0.attn_q.weight"}
    a = rooflm.sensitivity(files["F32"], TOKENS, **shape)
    torn = tmp_path / "torn.json"
    torn.write_text(a.to_json()[:-9])
    old = {k: v for k, v in a.to_dict().items() if k != "text_sha256"}
    for state, message in ((torn, "torn.json .* not JSON"), ({"rows": []}, "kinds and tensors"), ([], "kinds and tens"),
                           (old, "does not say text_sha256")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            rooflm.sensitivity(files["F32"], TOKENS, resume=state, **shape)


def test_a_record_is_not_written_over(files, tmp_path, monkeypatch):
    shape = {**SHAPE, "types": "Q4_0", "tensors": "blk.0.attn_q.weight"}
    out = tmp_path / "s.json"
    a = rooflm.sensitivity(files["F32"], TOKENS, out=out, **shape)
    kept = out.read_bytes()
    ran = stop_after(monkeypatch, 0, AssertionError())
    for resume in (None, a):
        with pytest.raises(FileExistsError, match="resume= with its name goes on"):
            rooflm.sensitivity(files["F32"], TOKENS, out=out, resume=resume, **shape)
    with pytest.raises(FileNotFoundError, match="no directory"):
        rooflm.sensitivity(files["F32"], TOKENS, out=tmp_path / "none" / "s.json", **shape)
    assert ran == [] and out.read_bytes() == kept and os.listdir(tmp_path) == ["s.json"]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 30])
def test_order_covers_the_depth_early(n):
    order = list(_spread(n))
    assert sorted(order) == list(range(n))
    if n == 30:
        assert max(np.diff(sorted(order[:8]))) <= 8


def test_warnings_come_from_the_measured_kl(measured, monkeypatch):
    worst = measured._sorted(measured.rows)[0]
    monkeypatch.setattr("rooflm.quantization.sensitivity.WARN_KL", worst["kl_mean"] * 0.99)
    assert measured.warnings[0].startswith(worst["tensor"] or f"all of {worst['kind']}")
    monkeypatch.setattr("rooflm.quantization.sensitivity.WARN_KL", worst["kl_mean"])
    assert measured.warnings == []


@pytest.mark.parametrize(
    "change, message",
    [
        ({"types": "Q4_9"}, "Q4_9"),
        ({"types": "Q4_0", "tensors": "nothing*"}, "no matrix matches"),
        ({}, "types= says what to swap to"),
        ({"types": "Q4_0", "each": False, "kinds": False}, "nothing to measure"),
    ],
)
def test_wrong_requests(files, change, message):
    with pytest.raises(ValueError, match=message):
        rooflm.sensitivity(files["F32"], TOKENS, **SHAPE, **change)


def test_a_model_with_tensors_in_memory_is_refused(files):
    name = "blk.0.attn_q.weight"
    model = rooflm.Model(files["F32"], replace={name: rooflm.GGUF(files["Q4_0"]).tensors[name]})
    for given in ((model, None), (files["F32"], model)):
        with pytest.raises(ValueError, match=f"replaced in memory .{name}"):
            rooflm.sensitivity(given[0], TOKENS, types="Q8_0", reference=given[1], **SHAPE)


def test_logits_of_the_reference_have_a_limit(files, monkeypatch):
    monkeypatch.setattr("rooflm.quantization.sensitivity.MOST_LOGITS", 1000)
    with pytest.raises(ValueError, match="reference logits"):
        rooflm.sensitivity(files["F32"], TOKENS, types="Q4_0", **SHAPE)


def test_plot(measured):
    a = drawn(measured.plot, type="Q4_0")
    assert "nats" in a.get_ylabel() and "3 windows" in a.get_title()
    with pytest.raises(ValueError, match="not measured"):
        measured.plot(type="Q5_0")


def test_the_order_covers_the_depth_however_the_file_is_sorted():
    names = sorted(f"blk.{i}.attn_q.weight" for i in range(30)) + ["token_embd.weight", "output.weight"]
    swaps = list(sensitivity._swaps(names, ["Q4_0"], True, True))
    assert [s.name for s in swaps[:3]] == ["all of q", "token_embd.weight", "output.weight"]  # kinds, of one as well
    assert [s.tensors[0].split(".")[1] for s in swaps[3:7]] == ["0", "29", "14", "28"]
    assert len(swaps) == 33 and len({s.name for s in swaps}) == 33
