# SPDX-License-Identifier: Apache-2.0
"""Compressed pages: attention over them is what NumPy makes of keys and values in the same basis, at full rank nothing
is lost, the basis is the best one of its rank, the memory is really saved, and what cannot be right is refused."""

from __future__ import annotations

import numpy as np
import pytest

import rooflm
from rooflm import _core

pytest.importorskip("gguf")
from maker import tiny_model
from numpy_forward import NumpyModel, logits_of, worst_row

N, OLD, RECENT = 420, 330, 100  # tokens of a text, evaluated before compressing, and kept whole then
END = 192  # (OLD - RECENT) in whole pages


class CompressedModel(NumpyModel):
    """The NumPy forward pass where tokens from OLD on see positions 64 to END through a session's compressed pages:
    what the session shows of them stands in for keys (behind RoPE) and values."""

    def __init__(self, path, shown):
        super().__init__(path)
        self.shown = shown

    def attention(self, x, layer):
        self.layer = layer
        return super().attention(x, layer)

    def heads(self, q, k, v, local):
        whole = super().heads(q, k, v, local)
        if self.shown[self.layer] is None:
            return whole
        base = self.base_local if local else self.base
        q, k, v = self.rope(q, base), self.rope(k, base), v.copy()
        k[64:END], v[64:END] = self.shown[self.layer]
        for h in range(self.n_head):
            score = q[OLD:, h] @ k[:, h * self.n_kv // self.n_head].T / np.sqrt(self.head_dim)
            score[np.arange(len(k)) > np.arange(OLD, len(k))[:, None]] = -np.inf
            p = np.exp(score - score.max(-1, keepdims=True))
            whole[OLD:, h] = p / p.sum(-1, keepdims=True) @ v[:, h * self.n_kv // self.n_head]
        return whole


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """Head size 24: ranks below it that 16 does not divide, and rotations of q8_0 in blocks of 8, 4 and 1."""
    path = tmp_path_factory.mktemp("low") / "llama.gguf"
    return tiny_model(path, width=96, n_head=4, n_kv=2, head_dim=24, n_ctx=4096, seed=7)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    path = tmp_path_factory.mktemp("low") / "gemma.gguf"
    return tiny_model(path, "gemma3", n_layer=6, n_kv=1, window=100, vocab="spm", n_ctx=4096, seed=8)


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(9).integers(3, 300, N, dtype=np.int32)


def session(path, **options):
    options = {"kv": "f32", "compute": "f32", "n_threads": 1, "n_ctx": 512, **options}
    return rooflm.Model(path).session(**options)


def old_pages(s):
    return [
        (layer.k()[64:END], layer.v()[64:END]) if whole else None for layer, whole in zip(s.kv, s._c._whole_layers)
    ]


def right(path, s, tokens):
    m = CompressedModel(path, old_pages(s))
    return m.logits(m.layers(tokens)[-1])[OLD:]


@pytest.mark.parametrize("layout", ["tile", "token", "head"])
@pytest.mark.parametrize("kv, bound", [("f32", 2e-5), ("f16", 3e-3), ("q8_0", 3e-2), ("f16/q8_0", 3e-2)])
@pytest.mark.parametrize("rank", ["20", "7/12"])
def test_attention_is_that_of_numpy(llama, tokens, rank, kv, bound, layout):
    """Single tokens read the pages as stored, more of them make them float32 first: both."""
    with session(llama, kv=kv, layout=layout) as s:
        s.eval(tokens[:OLD], logits="none")
        record = s.compress(rank=rank, recent=RECENT)
        assert record["positions"] == [64, END] and record["k_error"] > 0.05
        got = np.concatenate([logits_of(s, tokens[OLD : OLD + 50], 50), logits_of(s, tokens[OLD + 50 :], 1)])
        assert worst_row(got, right(llama, s, tokens)) < bound


@pytest.mark.parametrize("layout", ["tile", "head"])
@pytest.mark.parametrize("chunk", [1, 8, 60])
def test_ranks_and_rows_beyond_a_page(tmp_path, tokens, chunk, layout):
    """More than 64 of either: heads of 80 values, ten queries for each key."""
    path = tiny_model(tmp_path / "m.gguf", width=64, n_head=10, n_kv=1, head_dim=80, n_ctx=4096, seed=13)
    with session(path, layout=layout) as s:
        s.eval(tokens[:OLD], logits="none")
        s.compress(rank="66/70", recent=RECENT)
        assert worst_row(logits_of(s, tokens[OLD:], chunk), right(path, s, tokens)) < 2e-5


def test_windowed_layers_stay_whole(gemma, tokens):
    with session(gemma) as s, session(gemma) as plain:
        for one in (s, plain):
            one.eval(tokens[:OLD], logits="none")
        s.compress(rank=5, recent=RECENT)
        whole = s._c._whole_layers
        assert whole.count(True) == 1
        for i, (a, b) in enumerate(zip(s.kv, plain.kv)):
            assert np.array_equal(a.k(), b.k()) != whole[i], i
        got = logits_of(s, tokens[OLD:], 30)
        assert worst_row(got, right(gemma, s, tokens)) < 5e-5


@pytest.mark.parametrize("kv, bound", [("f32", 1e-5), ("f16", 3e-3)])
def test_full_rank_loses_nothing(llama, tokens, kv, bound):
    with session(llama, kv=kv) as s, session(llama, kv=kv) as plain:
        for one in (s, plain):
            one.eval(tokens[:OLD], logits="none")
        record = s.compress(rank=24, recent=RECENT)
        assert record["k_error"] < bound and record["v_error"] < bound
        assert worst_row(logits_of(s, tokens[OLD:], 30), logits_of(plain, tokens[OLD:], 30).astype(np.float64)) < bound


def test_the_basis_is_the_best_of_its_rank(llama, tokens):
    """Eckart and Young: the error is that of the singular values left out."""
    with session(llama) as s:
        s.eval(tokens[:OLD], logits="none")
        before = old_pages(s)
        record = s.compress(rank="9/5", recent=RECENT)
    for side, rank, name in ((0, 9, "k_error"), (1, 5, "v_error")):
        heads = [pair[side][:, h].astype(np.float64) for pair in before for h in (0, 1)]
        values = np.array([np.linalg.svd(x, compute_uv=False) ** 2 for x in heads])
        assert record[name] == pytest.approx(np.sqrt(values[:, rank:].sum() / values.sum()), rel=1e-4)


def test_threads_give_the_same_bits(llama, tokens):
    got = []
    for n in (1, 2, 4):
        with session(llama, kv="q8_0", n_threads=n) as s:
            s.eval(tokens[:OLD], logits="none")
            s.compress(rank=16, recent=RECENT)
            got.append(np.concatenate([logits_of(s, tokens[OLD:400], 70), logits_of(s, tokens[400:], 1)]))
    np.testing.assert_array_equal(got[0], got[1])
    np.testing.assert_array_equal(got[0], got[2])


# ---- memory and what shows ----


def test_memory_is_really_given_back(llama, tokens):
    """What the record says is what the pages take, and the freed ones are used again."""
    with session(llama, kv="f16", n_ctx=4096) as s:
        for _ in range(9):
            s.eval(tokens[:400], logits="none")  # 3600
        before = s.kv_nbytes
        page = before // 57
        record = s.compress(rank=16, recent=128)
        end = (3600 - 128) // 64 * 64
        n = end // 64 - 1
        basis = 2 * 2 * 2 * 24 * 16 * 4
        assert record["tokens"] == n * 64 and record["kv_nbytes_before"] == before
        # tile pages pad heads to 16: 24 values take 32, 16 take 16
        assert record["kv_nbytes"] == s.kv_nbytes == before - n * page + n * page // 2 + basis
        free = len({p.address for p in s.kv[0].pages})
        assert free == 57
        s.eval(tokens[:400], logits="none")
        assert s.kv_nbytes == record["kv_nbytes"] + 6 * page


def test_what_is_compressed_shows(llama, tokens):
    with session(llama) as s:
        assert s.compressed is None
        s.eval(tokens[:OLD], logits="none")
        assert s.compress(rank=16, recent=300)["tokens"] == 0 and s.compressed is None  # nothing is old
        s.compress(rank="16/8", recent=RECENT)
        assert s.compressed == {"positions": [64, END], "ranks": [16, 8]}
        assert "64 to 191 at rank 16/8" in repr(s)
        pages = s.kv[1].pages
        assert [p.ranks for p in pages] == [None, (16, 8), (16, 8), None, None, None]
        assert [p.position for p in pages] == [0, 64, 128, 192, 256, 320]
        assert pages[1].k.shape[:3] == (2, 4, 16) and pages[1].v.shape[-2] == 16  # padded to 16
        assert s.kv[1].k().shape == (OLD, 2, 24)


def test_more_becomes_old(llama, tokens):
    """A second call goes on by the same basis, as one call would have with it."""
    with session(llama) as s:
        s.eval(tokens[:OLD], logits="none")
        s.compress(rank=16, recent=RECENT)
        first = s.kv[0].k()[64:END]
        logits_of(s, tokens[OLD:], 30)
        record = s.compress(recent=RECENT)
        assert record["positions"] == [64, 320] and record["k_error"] is None
        np.testing.assert_array_equal(s.kv[0].k()[64:END], first)
        assert s.compress(recent=RECENT)["tokens"] == 256  # nothing more
        with pytest.raises(ValueError, match="ranks 16/16 already"):
            s.compress(rank=8)


# ---- forks, going back, files ----


def test_forks_rewinds_and_views(llama, tokens):
    with session(llama) as s:
        s.eval(tokens[:OLD], logits="none")
        view = s.kv[0].pages[1]
        seen = np.array(view.k)
        s.compress(rank=16, recent=RECENT)
        want = right(llama, s, tokens)
        with s.fork() as twin:
            logits_of(twin, tokens[::-1][:90].copy(), 30)
            assert twin.compressed == s.compressed
        assert worst_row(logits_of(s, tokens[OLD:], 30), want) < 2e-5
        s.rewind(OLD)
        assert worst_row(logits_of(s, tokens[OLD:], 1), want) < 2e-5
        with pytest.raises(ValueError, match="64 to 192 are compressed, so 192 is the least [(]or at most 64[)]"):
            s.rewind(191)
        s.rewind(192)
        assert s.compressed
        for n in (64, 0):
            s.rewind(n)
            assert s.compressed is None
            logits_of(s, tokens[n:OLD], 90)
            with session(llama) as plain:
                whole = logits_of(plain, tokens, N)[OLD:].astype(np.float64)
                assert worst_row(logits_of(s, tokens[OLD:], 30), whole) < 2e-5
        np.testing.assert_array_equal(view.k, seen)


@pytest.mark.parametrize("kv, layout", [("f32", "tile"), ("q8_0", "token")])
def test_saved_states_go_on(llama, tokens, tmp_path, kv, layout):
    with session(llama, kv=kv, layout=layout) as s, session(llama, kv=kv, layout=layout) as t:
        s.eval(tokens[:OLD], logits="none")
        s.compress(rank="16/7", recent=RECENT)
        s.save(tmp_path / "s")
        t.load(tmp_path / "s")
        assert t.compressed == s.compressed and t.kv_nbytes == s.kv_nbytes
        np.testing.assert_array_equal(logits_of(s, tokens[OLD:], 30), logits_of(t, tokens[OLD:], 30))
        s.compress(recent=64)
        t.compress(recent=64)
        np.testing.assert_array_equal(s.kv[1].k(), t.kv[1].k())


def test_damaged_states_are_refused(llama, tokens, tmp_path):
    """Counts and ranks that lie, a cache inside the cache inside, every length of the file."""
    with session(llama) as s:
        s.eval(tokens[:OLD], logits="none")
        s.compress(rank="16/7", recent=RECENT)
        s.save(tmp_path / "s")
    raw = (tmp_path / "s").read_bytes()
    header = 8 + 4 * 4 + 3 * 8 + 4 * OLD
    at = header + 8 * 4 + 4 * 8
    assert [int.from_bytes(raw[at + 8 * i : at + 8 * i + 8], "little") for i in range(3)] == [128, 16, 7]
    inner = raw.index(raw[header : header + 8], header + 8)  # the header of the compressed pages
    cases = [(at, 64), (at, 2**63), (at, 192), (at + 8, 0), (at + 8, 25), (at + 16, 2**40), (inner + at - header, 64)]
    for place, value in cases:
        bad = bytearray(raw)
        bad[place : place + 8] = value.to_bytes(8, "little")
        (tmp_path / "bad").write_bytes(bad)
        with session(llama) as s, pytest.raises((_core.FormatError, ValueError)):
            s.load(tmp_path / "bad")
    for cut in range(0, len(raw), len(raw) // 50):
        (tmp_path / "bad").write_bytes(raw[:cut])
        with session(llama) as s:
            with pytest.raises(_core.FormatError):
                s.load(tmp_path / "bad")
            assert s.n_past == 0 and s.compressed is None


def test_a_batch_reads_compressed_pages(llama, tokens):
    """A sequence with compressed pages beside one without."""
    options = {"kv": "f32", "compute": "f32", "n_threads": 1, "n_ctx": 512}
    q = np.linalg.qr(np.random.default_rng(2).standard_normal((2, 24, 16)))[0].astype(np.float32)
    with rooflm.Model(llama).batch(**options) as batch, session(llama) as s:
        a, b = batch.join(tokens[:3]), batch.join(tokens[:3])
        batch.eval([a], [tokens[:OLD]])
        s.eval(tokens[:OLD], logits="none")
        for core in (a._core, s._c):
            core._compress(END, 16, 16, [(q, q.transpose(0, 2, 1))] * 2)
        got = batch.eval([a, b], [tokens[OLD : OLD + 20], tokens[:20]])
        assert worst_row(got[:1], right(llama, s, tokens)[19:20]) < 2e-5
        with session(llama) as plain:
            assert worst_row(got[1:], plain.eval(tokens[:20])[None].astype(np.float64)) < 2e-5


# ---- what is refused ----


def zeros(*shape):
    return np.zeros(shape, np.float32)


def test_what_cannot_be_right(llama, tokens):
    with session(llama) as s:
        s.eval(tokens[:OLD], logits="none")
        for rank, match in [("x", "a number, or two"), (0, "1 to 24"), (25, "1 to 24"), ("8/25", "V has heads of 24")]:
            with pytest.raises(ValueError, match=match):
                s.compress(rank=rank)
        with pytest.raises(TypeError, match="needs rank="):
            s.compress()
        with pytest.raises(ValueError, match="recent=-1: must be at least 0"):
            s.compress(rank=8, recent=-1)
        for end in (63, 64 * 6, 128 + 1):
            with pytest.raises(ValueError, match="cannot compress up to"):
                s._c._compress(end, 8, 8, [(zeros(2, 24, 8), zeros(2, 8, 24))] * 2)
        for k, v, match in [((2, 24, 7), (2, 8, 24), r"\(2, 24, 8\)"), ((2, 24, 8), (2, 24, 8), r"\(2, 8, 24\)")]:
            with pytest.raises(ValueError, match=match):
                s._c._compress(128, 8, 8, [(zeros(*k), zeros(*v))] * 2)
        assert s.compressed is None
    with session(llama, n_ctx=None, evict="64+128") as s:
        s.eval(tokens[:OLD], logits="none")
        with pytest.raises(ValueError, match="evicts old positions"):
            s.compress(rank=8)
    with session(llama, window=50) as s:
        s.eval(tokens[:OLD], logits="none")
        with pytest.raises(ValueError, match="every layer has a sliding window"):
            s.compress(rank=8, recent=RECENT)
