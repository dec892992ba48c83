# SPDX-License-Identifier: Apache-2.0
"""Importance matrices: what is collected is the squares of the inputs, files of both forms are read, damaged ones
refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from golden_files import NAMES, golden
from maker import tiny_model

import rooflm
from rooflm.quantization.imatrix import Entry

TAP = {"attn_q": "attn_norm", "attn_k": "attn_norm", "attn_v": "attn_norm", "attn_output": "attn_out",
       "ffn_gate": "ffn_norm", "ffn_up": "ffn_norm", "ffn_down": "ffn_act"}  # fmt: skip


def collected(model: rooflm.Model, ids: np.ndarray, **options: object) -> rooflm.IMatrix:
    return rooflm.imatrix(model, ids, ctx=32, compute="f32", **options)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_sums_are_the_squares_of_the_inputs(tmp_path, arch):
    model = rooflm.Model(tiny_model(tmp_path / "m.gguf", arch))
    ids = np.random.default_rng(0).integers(3, 300, 64)
    m = collected(model, ids, n_threads=2)
    assert m.chunks == 2 and m.chunk_size == 32
    want: dict[str, np.ndarray] = {}
    session = model.session(n_ctx=32, compute="f32", kv="f32")
    bos = model.tokenizer.bos_id if model.tokenizer.add_bos else None
    for window in ids.reshape(2, 32):
        window = window.copy()
        if bos is not None:
            window[0] = bos
        session.rewind(0)
        with session.capture("blk.*.*", "final_norm") as taps:
            session.eval(window, logits="none")
        for name in m.entries:
            layer, part = name.rsplit(".", 2)[0], name.split(".")[-2]
            tap = taps[f"{layer}.{TAP[part]}"] if part in TAP else taps["final_norm"]
            want[name] = want.get(name, 0) + (tap.astype(float) ** 2).sum(0)
    assert len(m.entries) == 2 * 7 + 1
    for name, e in m.entries.items():
        assert e.counts.tolist() == [64]
        np.testing.assert_allclose(e.sums[0], want[name], rtol=1e-6, err_msg=name)


def test_threads_and_batches_do_not_change_it(tmp_path):
    model = rooflm.Model(tiny_model(tmp_path / "m.gguf"))
    ids = np.random.default_rng(1).integers(3, 300, 34)
    one, three = (collected(model, ids, n_threads=n) for n in (1, 3))
    for name in one.entries:
        np.testing.assert_array_equal(one.entries[name].sums, three.entries[name].sums)
    # Two tokens at a time go another way through the pass.
    session = model.session(n_ctx=64, compute="f32", kv="f32", n_threads=2)
    session._c._collect_inputs(True)
    for i in range(0, 32, 2):
        session.eval(ids[i : i + 2], logits="last")
    few = session._c._take_inputs()
    session._c._collect_inputs(False)
    assert session._c._take_inputs() == {}
    for name, (sums, counts) in few.items():
        assert counts.tolist() == [32]
        np.testing.assert_allclose(sums, one.entries[name].sums, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama-moe", "qwen3moe", "granitemoe-shared"])
def test_experts_are_counted_apart(name):
    g = golden(name)
    model = rooflm.Model(g.path)
    ids = g.tokens[:32]
    m = rooflm.imatrix(model, ids, ctx=32, compute="f32", n_threads=2)
    session = model.session(n_ctx=32, compute="f32", kv="f32")
    with session.capture("blk.*.ffn_norm") as taps:
        session.eval(ids, logits="none")
    for layer in range(model.n_layer):
        x = taps[f"blk.{layer}.ffn_norm"].astype(float)
        router = model.gguf.tensors[f"blk.{layer}.ffn_gate_inp.weight"].dequantize().astype(float)
        used = int(model.gguf.metadata[f"{model.arch}.expert_used_count"])
        chosen = np.argsort(-(x @ router.T), axis=1, kind="stable")[:, :used]
        for part in ("ffn_gate_exps", "ffn_up_exps"):
            e = m.entries[f"blk.{layer}.{part}.weight"]
            for i in range(len(router)):
                own = (chosen == i).any(1)
                assert e.counts[i] == own.sum()
                np.testing.assert_allclose(e.sums[i], (x[own] ** 2).sum(0), rtol=1e-5, atol=1e-12)
        down = m.entries[f"blk.{layer}.ffn_down_exps.weight"]
        np.testing.assert_array_equal(down.counts, m.entries[f"blk.{layer}.ffn_up_exps.weight"].counts)
        assert ((down.sums > 0).any(1) == (down.counts > 0)).all()


@pytest.mark.parametrize("name", NAMES)
def test_every_matrix_is_fed_once_per_token(name):
    """Fused matrices, too: their slices share one input."""
    g = golden(name)
    model = rooflm.Model(g.path)
    m = rooflm.imatrix(model, g.tokens[:16], ctx=16)
    matrices = {
        n for n, t in model.gguf.tensors.items()
        if len(t.shape) > 1 and "ffn_gate_inp" not in n and "_norm" not in n and n != "token_embd.weight"
    }  # fmt: skip
    if "output.weight" not in model.gguf.tensors:
        matrices.add("token_embd.weight")
    assert set(m.entries) == matrices
    for tensor, e in m.entries.items():
        assert e.sums.shape[1] == model.gguf.tensors[tensor].shape[-1]
        if "_exps" not in tensor:
            assert e.counts.tolist() == [16], tensor


def test_two_halves_are_the_whole(tmp_path):
    model = rooflm.Model(tiny_model(tmp_path / "m.gguf"))
    ids = np.random.default_rng(2).integers(3, 300, 128)
    whole, a, b = collected(model, ids), collected(model, ids[:64]), collected(model, ids[64:])
    both = a + b
    assert both.chunks == whole.chunks == 4
    for name in whole.entries:
        np.testing.assert_allclose(both.entries[name].sums, whole.entries[name].sums, rtol=1e-12)
        np.testing.assert_array_equal(both.entries[name].counts, whole.entries[name].counts)
    a.entries["blk.0.attn_q.weight"].sums = np.zeros((1, 3))
    with pytest.raises(ValueError, match=r"blk.0.attn_q.weight"):
        a + b


def example() -> rooflm.IMatrix:
    rng = np.random.default_rng(3)
    entries = {
        "blk.0.attn_q.weight": Entry(rng.random((1, 64)), np.array([512.0])),
        "blk.1.attn_q.weight": Entry(rng.random((1, 64)), np.array([512.0])),
        "blk.0.ffn_up_exps.weight": Entry(rng.random((4, 32)), np.array([100.0, 0, 12, 400])),
    }
    return rooflm.IMatrix(entries, 3, 256, ["a.txt", "b.txt"])


def test_round_trip_and_the_outside_reader(tmp_path):
    gguf = pytest.importorskip("gguf")
    m, path = example(), tmp_path / "i.gguf"
    m.save(path)
    back = rooflm.IMatrix.load(path)
    assert (back.chunks, back.chunk_size, back.datasets) == (3, 256, ["a.txt", "b.txt"])
    assert set(back.entries) == set(m.entries)
    for name, e in m.entries.items():
        np.testing.assert_allclose(back.entries[name].sums, e.sums, rtol=1e-6)
        np.testing.assert_array_equal(back.entries[name].counts, e.counts)
    reader = gguf.GGUFReader(path)
    assert bytes(reader.fields["general.type"].parts[-1]) == b"imatrix"
    shapes = {t.name: t.shape.tolist() for t in reader.tensors}
    assert shapes["blk.0.ffn_up_exps.weight.in_sum2"] == [32, 4]
    assert shapes["blk.0.ffn_up_exps.weight.counts"] == [1, 4]
    imp = back.importance()
    assert imp["blk.0.attn_q.weight"].shape == (64,) and imp["blk.0.ffn_up_exps.weight"].shape == (4, 32)
    np.testing.assert_allclose(imp["blk.0.attn_q.weight"], m.entries["blk.0.attn_q.weight"].sums[0] / 512, rtol=1e-6)
    assert (imp["blk.0.ffn_up_exps.weight"][1] == 1).all()  # saw no token: not unimportant


def dat(entries: dict[str, tuple[int, np.ndarray]], tail: bytes = b"") -> bytes:
    out = struct.pack("<i", len(entries))
    for name, (calls, values) in entries.items():
        out += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, len(values))
        out += values.astype("<f4").tobytes()
    return out + tail


def test_the_older_form(tmp_path):
    values = np.arange(1, 9, dtype=np.float32)
    path = tmp_path / "i.dat"
    path.write_bytes(dat({"blk.0.ffn_up.weight": (4, values * 4)}, struct.pack("<ii", 4, 5) + b"a.txt"))
    m = rooflm.IMatrix.load(path)
    assert m.chunks == 4 and m.datasets == ["a.txt"]
    np.testing.assert_allclose(m.importance()["blk.0.ffn_up.weight"], values)
    path.write_bytes(dat({"blk.0.ffn_up.weight": (4, values * 4)}))
    assert rooflm.IMatrix.load(path).chunks == 0


@pytest.mark.parametrize("case", ["cut", "empty", "text", "negative", "nan", "count", "name", "model"])
def test_damaged_files(tmp_path, case):
    values = np.ones(8, np.float32)
    good = dat({"blk.0.ffn_up.weight": (4, values)})
    path = tmp_path / "i.dat"
    if case == "model":
        tiny_model(path)
    else:
        path.write_bytes({
            "cut": good[:-3], "empty": b"", "text": b"not a matrix, but a text of some length",
            "negative": dat({"a": (4, -values)}), "nan": dat({"a": (4, values * np.nan)}),
            "count": struct.pack("<i", 2**31 - 1) + good[4:], "name": struct.pack("<ii", 1, 2**30) + good[8:],
        }[case])  # fmt: skip
    with pytest.raises(rooflm.FormatError):
        rooflm.IMatrix.load(path)


def test_statistics():
    m = example()
    rows = {r["tensor"]: r for r in m.statistics()}
    row = rows["blk.1.attn_q.weight"]
    assert row["layer"] == 1 and row["part"] == "attn_q" and row["columns"] == 64 and row["tokens"] == 512
    a, b = (m.entries[f"blk.{i}.attn_q.weight"].sums[0] / 512 for i in (0, 1))
    assert row["cosine_before"] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert row["mean"] == pytest.approx(b.mean()) and row["max"] == pytest.approx(b.max())
    p = b / b.sum()
    assert row["entropy"] == pytest.approx(-(p * np.log(p)).sum() / np.log(64))
    assert rows["blk.0.attn_q.weight"]["cosine_before"] is None
    flat = rooflm.IMatrix({"a.weight": Entry(np.ones((1, 100)), np.ones(1))}).statistics()[0]
    assert flat["entropy"] == pytest.approx(1) and flat["top_hundredth"] == pytest.approx(0.01)
    assert "attn_q" in m.table() and "3 chunks" in repr(m) and "<table>" in m._repr_html_()
