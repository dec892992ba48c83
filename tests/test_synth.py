# SPDX-License-Identifier: Apache-2.0
"""Synthetic models and the writer below them: right types, sane weights, valid vocabulary, whole files or none."""

from __future__ import annotations

import os
import stat

import gguf
import numpy as np
import pytest

import rooflm
from rooflm._gguf_write import Writer
from rooflm._synth import FILE_TYPES, byte_vocab

SMALL = dict(size="custom", width=256, layers=8, heads=4, kv_heads=2, ffn=512, vocab=400)


@pytest.mark.parametrize("kind", sorted(FILE_TYPES))
def test_weights_have_the_spread_of_a_model(tmp_path, kind):
    """Every matrix: mean near 0, standard deviation near 1/sqrt(inputs), by the outside dequantizer."""
    path = tmp_path / "m.gguf"
    record = rooflm.synth(path, type=kind, **SMALL)
    reader = gguf.GGUFReader(path)
    assert len(reader.tensors) == 2 + 9 * 8
    for t in reader.tensors:
        w = gguf.quants.dequantize(t.data, t.tensor_type)
        if w.ndim == 1:
            assert 0.9 < w.min() < w.max() < 1.1
            continue
        target = w.shape[1] ** -0.5
        assert abs(w.mean()) < 0.1 * target and 0.8 * target < w.std() < 1.25 * target, (t.name, w.mean(), w.std())
        assert np.abs(w).max() < 12 * target
    assert record["nbytes"] == path.stat().st_size
    bits = 8 * sum(int(t.n_bytes) for t in reader.tensors) / sum(int(t.n_elements) for t in reader.tensors)
    assert record["bits_per_weight"] == pytest.approx(bits)
    assert record["n_params"] == sum(int(t.n_elements) for t in reader.tensors)
    assert record["types"] == {n: len([t for t in reader.tensors if t.tensor_type.name == n]) for n in record["types"]}


def types_of(path):
    return {n: t.type for n, t in rooflm.GGUF(path).tensors.items()}


def test_the_mixture_of_q4_k_m(tmp_path):
    """More bits in the first and last eighth of the layers and in every third between; the head in Q6_K."""
    rooflm.synth(tmp_path / "m.gguf", type="Q4_K_M", **{**SMALL, "layers": 16})
    types = types_of(tmp_path / "m.gguf")
    more = {0, 1, 4, 7, 10, 13, 14, 15}
    for i in range(16):
        for part in ("attn_v", "ffn_down"):
            assert types[f"blk.{i}.{part}.weight"] == ("Q6_K" if i in more else "Q4_K"), i
        for part in ("attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up"):
            assert types[f"blk.{i}.{part}.weight"] == "Q4_K"
    assert types["token_embd.weight"] == "Q6_K" and "output.weight" not in types
    rooflm.synth(tmp_path / "m.gguf", type="Q4_K_M", tied=False, **SMALL)
    types = types_of(tmp_path / "m.gguf")
    assert types["token_embd.weight"] == "Q4_K" and types["output.weight"] == "Q6_K"


def test_rows_that_k_types_cannot_hold_are_reported(tmp_path):
    shape = {**SMALL, "width": 96, "heads": 3, "kv_heads": 1}
    record = rooflm.synth(tmp_path / "m.gguf", type="Q4_K_M", **shape)
    types = types_of(tmp_path / "m.gguf")
    changed = {s["tensor"]: s["used"] for s in record["substituted"]}
    assert changed["blk.0.attn_q.weight"] == "Q5_0" and changed["token_embd.weight"] == "Q8_0"
    assert "blk.0.ffn_down.weight" not in changed and types["blk.0.ffn_down.weight"] == "Q6_K"
    assert {n: types[n] for n in changed} == changed
    assert rooflm.synth(tmp_path / "m.gguf", type="Q8_0", **shape)["substituted"] == []


def test_same_seed_same_bytes(tmp_path):
    def make(**kw):
        rooflm.synth(tmp_path / "m.gguf", **SMALL, **kw)
        return (tmp_path / "m.gguf").read_bytes()

    assert make(seed=1) == make(seed=1)
    assert make(seed=1) != make(seed=2)


def test_generated_vocabulary_is_a_valid_bpe():
    tokens, merges = byte_vocab(3000)
    assert len(tokens) == len(set(tokens)) == 3000 and len(merges) == 3000 - 259
    assert byte_vocab(2000)[0] == tokens[:2000]
    place = {t: i for i, t in enumerate(tokens)}
    for i, merge in enumerate(merges):
        a, b = merge.split(" ")
        assert tokens[259 + i] == a + b and max(place[a], place[b]) < 259 + i
    with pytest.raises(ValueError, match="at least 259"):
        byte_vocab(258)


def test_generated_vocabulary_in_the_outside_tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    rooflm.synth(tmp_path / "m.gguf", **{**SMALL, "vocab": 2000})
    m = rooflm.GGUF(tmp_path / "m.gguf").metadata
    pairs = [tuple(s.split(" ")) for s in m["tokenizer.ggml.merges"]]
    vocab = {t: i for i, t in enumerate(m["tokenizer.ggml.tokens"])}
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=pairs))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Digits(individual_digits=True), tokenizers.pre_tokenizers.ByteLevel(False)]
    )
    ours = rooflm.Tokenizer.from_gguf(tmp_path / "m.gguf")
    for s in ("the rose of a nation", " heat\n\n  rates 2024", "é中🦙 naïve"):
        assert list(ours.encode(s)) == theirs.encode(s).ids
        assert ours.decode(ours.encode(s)) == s


def test_vocabulary_copied_from_a_file(tmp_path):
    from maker import tiny_model

    source = rooflm.GGUF(tiny_model(tmp_path / "source.gguf", vocab="spm", n_vocab=333))
    shape = {k: v for k, v in SMALL.items() if k != "vocab"}
    record = rooflm.synth(tmp_path / "m.gguf", vocab=source.path, **shape)
    g = rooflm.GGUF(tmp_path / "m.gguf")
    assert record["vocab"] == 333 and g.tensors["token_embd.weight"].shape == (333, 256)
    theirs = {k: v for k, v in source.metadata.items() if k.startswith("tokenizer.")}
    ours = {k: v for k, v in g.metadata.items() if k.startswith("tokenizer.")}
    assert list(theirs) == list(ours)
    for k, v in theirs.items():
        assert np.array_equal(ours[k], v), k
        assert getattr(ours[k], "dtype", None) == getattr(v, "dtype", None)
    with pytest.raises(ValueError, match="no vocabulary"):
        rooflm.synth(tmp_path / "n.gguf", vocab=tiny_model(tmp_path / "none.gguf", vocab=None), **shape)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(type="Q9_9"), "type must be one of"),
        (dict(size="9b"), "size must be one of"),
        (dict(arch="bert"), "arch must be"),
        (dict(size="custom"), "needs width, layers, heads, kv_heads, ffn"),
        (dict(heads=33), "multiple of heads"),
        (dict(kv_heads=5), "multiple of heads"),
        (dict(width=2064, heads=2, kv_heads=1), "multiple of 32"),
        (dict(vocab=5), "at least 259"),
    ],
    ids=str,
)
def test_wrong_requests_leave_no_file(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        rooflm.synth(tmp_path / "m.gguf", **wrong)
    assert list(tmp_path.iterdir()) == []


def test_the_engine_gives_finite_logits(tmp_path):
    if not hasattr(rooflm, "Model"):
        pytest.skip("the engine has not landed")
    for kind in ("Q4_K_M", "Q8_0", "Q4_1", "F16"):
        rooflm.synth(tmp_path / "m.gguf", type=kind, **SMALL)
        logits = rooflm.Model(tmp_path / "m.gguf").session(n_ctx=64).eval(np.arange(40), logits="all")
        assert np.isfinite(logits).all() and 0.3 < logits.std() < 5


# --- the writer ----------------------------------------------------------------------------------------------


def test_writer_round_trip(tmp_path):
    path = tmp_path / "w.gguf"
    values = {"u8": 255, "i8": -1, "u16": 65535, "i16": -2, "u32": 2**32 - 1, "i32": -3, "u64": 2**64 - 1}
    values |= {"i64": -4, "bool": True, "f64": 0.1, "str": "é\0x", "f32": 0.5}
    with Writer(path, alignment=64) as w:
        for kind, v in values.items():
            w.key(kind, kind, v)
            w.key(f"list.{kind}", f"[{kind}]", [v, v])
        w.key("empty", "[i32]", [])
        w.declare("a", "F32", (3,))
        w.declare("b", "Q8_0", (2, 64))
        w.write(np.arange(3, dtype=np.float32))
        w.write(bytes(range(100)))
        w.write(bytes(range(36)))
    g = rooflm.GGUF(path)
    for kind, v in values.items():
        assert g.metadata[kind] == v and list(g.metadata[f"list.{kind}"]) == [v, v]
    assert g.alignment == 64 and g.tensors["a"].dequantize().tolist() == [0, 1, 2]
    assert g.tensors["b"].raw.tobytes() == bytes(range(100)) + bytes(range(36))
    theirs = gguf.GGUFReader(path)
    assert [t.name for t in theirs.tensors] == ["a", "b"] and theirs.tensors[1].data.shape == (2, 68)
    assert theirs.fields["list.str"].contents() == ["é\0x"] * 2
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    with Writer(tmp_path / "c.gguf") as w:
        w.copy_keys(g)
    copied = rooflm.GGUF(tmp_path / "c.gguf").metadata
    assert set(copied) == set(g.metadata) - {"general.alignment"}
    assert copied["f32"] == 0.5 and copied["list.i16"].dtype == np.int16


@pytest.mark.parametrize("stage", ["too little", "too much", "error", "interrupt"])
def test_a_broken_write_leaves_the_old_file(tmp_path, stage):
    path = tmp_path / "w.gguf"
    path.write_bytes(b"old")
    error = {"error": RuntimeError, "interrupt": KeyboardInterrupt}.get(stage, ValueError)
    with pytest.raises(error):
        with Writer(path) as w:
            w.declare("a", "F32", (8,))
            w.write(bytes(16))
            if stage == "too much":
                w.write(bytes(17))
            elif stage != "too little":
                raise error
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_refused_and_a_link_stays_one(tmp_path):
    """A finished file takes the place of the one with its name, which must not be a device."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file.*pipe"):
        Writer(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        Writer(tmp_path)
    (tmp_path / "old.gguf").write_bytes(b"old")
    (tmp_path / "link.gguf").symlink_to(tmp_path / "old.gguf")
    with Writer(tmp_path / "link.gguf") as w:
        w.declare("a", "F32", (8,))
        w.write(bytes(32))
    assert (tmp_path / "link.gguf").is_symlink() and len(rooflm.GGUF(tmp_path / "old.gguf").tensors) == 1
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and len(list(tmp_path.iterdir())) == 3


def test_wrong_declarations(tmp_path):
    with Writer(tmp_path / "w.gguf") as w:
        w.declare("a", "F32", (1,))
        for args in (("a", "F32", (1,)), ("b", "Q4_K", (128,)), ("b", "F32", ()), ("b", "F32", (0,)), ("b", "X", (1,))):
            with pytest.raises(ValueError):
                w.declare(*args)
        with pytest.raises(ValueError):
            w.key("a\0", "u8", 1)
        w.write(bytes(4))
        with pytest.raises(ValueError, match="before the first data"):
            w.declare("c", "F32", (1,))
    with pytest.raises(ValueError, match="alignment"):
        Writer(tmp_path / "w.gguf", alignment=12)
