# SPDX-License-Identifier: Apache-2.0
"""Rows kernels: references against the gguf package in float64, every other entry against its reference."""

from __future__ import annotations

import ctypes
import mmap
import platform

import numpy as np
import pytest
import rooflm
from blocks import ALL, BLOCKS, Q16_MAX, dequantize, random_rows
from rooflm import _core

Q8, Q16 = 2, 4
ALL_ROW_FORMATS = 2 + 4 + 8 + 16 + 32 + 512 + 1024 + 2048 + 4096 + 8192
ROWS = [k for k in rooflm.kernels(isa=None) if k.family == "rows"]
HERE = [k for k in ROWS if k.available]
FAST = [k for k in HERE if k.isa != "ref"]


def name_of(k):
    return k.name[len("rl_rows_") :]


def ref_of(k):
    return k.name[: -len(k.isa)] + "ref"


def run(name, raw, cols, x, ld_out=None, row_bytes=None, n_rows=None):
    """(tokens, rows) from one kernel; out is NaN before, and what lies beyond the rows must stay NaN."""
    n_rows = n_rows or raw.shape[0]
    row_bytes = row_bytes or raw.shape[1]
    out = np.full((x.shape[0], ld_out or n_rows), np.nan, np.float32)
    _core._rows(name, raw, row_bytes, n_rows, x, out, 1, "ref")
    assert np.isnan(out[:, n_rows:]).all()
    return out[:, :n_rows]


def lengths(kind):
    block = ALL[kind][0]
    step = 256 if block == 256 else 32
    return [n for n in range(32, 1057, 32) if n % step == 0]


def act_values(x, fmt):
    """Activations as the kernels see them, in float64."""
    tok, cols = x.shape
    a = _core._act(x, fmt, "ref")
    if fmt == Q8:
        q = np.frombuffer(a["q8"], np.int8).reshape(tok, -1, 32)
        d = np.frombuffer(a["d8"], np.float32).reshape(tok, -1, 1)
    else:
        q = np.frombuffer(a["q16"], np.int16).reshape(tok, -1, 256)
        d = np.frombuffer(a["d16"], np.float32).reshape(tok, -1, 1)
    return (q * d.astype(np.float64)).reshape(tok, -1)[:, :cols]


def bound(w, x):
    """What the order and rounding of float32 sums may change, from the norms of the operands."""
    return 4e-6 * np.sqrt(np.outer((x**2).sum(1), (w**2).sum(1))) + 1e-30


@pytest.mark.parametrize("kind", ALL)
def test_reference_equals_gguf_package(kind):
    rng = np.random.default_rng(1)
    cols = 768 if kind in BLOCKS else 771
    raw = random_rows(rng, kind, 7, cols)
    x = rng.normal(size=(3, cols)).astype(np.float32)
    w = dequantize(kind, raw, cols).astype(np.float64)
    modes = {"f32": x.astype(np.float64)}
    if kind in BLOCKS:
        modes |= {"q8": act_values(x, Q8), "q16": act_values(x, Q16)}
    for mode, seen in modes.items():
        got = run(f"rl_rows_{ALL[kind][3]}_{mode}_ref", raw, cols, x)
        np.testing.assert_array_less(np.abs(got - seen @ w.T), bound(w, seen), err_msg=mode)
        loss = {"f32": 1e-6, "q8": 0.02, "q16": 2e-4}[mode]
        assert np.abs(seen - x).max() < loss * np.abs(x).max()


@pytest.mark.parametrize("k", FAST, ids=name_of)
def test_equals_reference_at_every_length(k):
    """Unaligned rows with padding between them, 1 to 9 tokens, random scales and minimums."""
    rng = np.random.default_rng(2)
    odd = [1, 7, 31, 33, 64, 100, 257, 576, 1056]
    for i, cols in enumerate(lengths(k.type) if k.type in BLOCKS else odd):
        raw = random_rows(rng, k.type, 5, cols)
        n = raw.shape[1]
        padded = np.full(5 * (n + 6) + 1, 255, np.uint8)  # 255: NaN where taken for a scale
        view = np.lib.stride_tricks.as_strided(padded[1:], (5, n), (n + 6, 1))
        view[:] = raw
        x = rng.normal(size=(i % 9 + 1, cols)).astype(np.float32)
        want = run(ref_of(k), raw, cols, x)
        got = run(k.name, padded[1:], cols, x, ld_out=8, row_bytes=n + 6, n_rows=5)
        w = dequantize(k.type, raw, cols).astype(np.float64)
        limit = bound(w, x.astype(np.float64))
        np.testing.assert_array_less(np.abs(got - want), limit, err_msg=f"{cols} columns")


@pytest.mark.parametrize("k", HERE, ids=name_of)
def test_integer_sums_are_exact(k):
    """With power-of-two scales every float is an integer below 2^24 times one power of two: the results of
    all kernels must equal float64 to the bit, whatever their order."""
    rng = np.random.default_rng(3)
    for cols in (256, 768) if ALL[k.type][0] == 256 else (32, 96, 288, 576, 1056):
        for _ in range(4):
            raw = random_rows(rng, k.type, 1, cols, power_of_two=True)
            w = dequantize(k.type, raw, cols).astype(np.float64)
            x = np.zeros((5, cols), np.float32)
            top, step = {"int8": (127, 32), "int16": (Q16_MAX, 256), "f32": (1, cols)}[k.act]
            for b in range(0, cols, step):
                part = slice(b, min(b + step, cols))
                # Small values at some places; the largest, which makes the scale 1, at the smallest weight.
                for t in range(5):
                    at = b + rng.permutation(part.stop - b)[: 1 + t]
                    x[t, at] = rng.integers(-30 // (t + 1), 30 // (t + 1) + 1, size=len(at))
                x[:, b + np.abs(w[0, part]).argmin()] = rng.choice([-top, top])
            got = run(k.name, raw, cols, x)
            want = (x.astype(np.float64) @ w.T).astype(np.float32)
            np.testing.assert_array_equal(got, want, err_msg=f"{cols} columns")


@pytest.mark.parametrize("k", [k for k in FAST if k.act != "f32"], ids=name_of)
@pytest.mark.parametrize("fill", [0x00, 0x7F, 0x80, 0xFF, 0xF0, 0x0F])
def test_worst_case_of_integer_sums(k, fill):
    """All weights, block scales and activations at an extreme: an accumulator that wraps or saturates is off
    by far more than rounding."""
    rng = np.random.default_rng(4)
    raw = random_rows(rng, k.type, 2, 1024, fill=fill)
    signs = np.repeat([1, -1, 1, -1], 256) * np.array([[1.0], [1.0], [-1.0]])
    signs[0] = 1
    x = (signs * 3.0).astype(np.float32)
    want = run(ref_of(k), raw, 1024, x)
    w = dequantize(k.type, raw, 1024).astype(np.float64)
    np.testing.assert_array_less(np.abs(run(k.name, raw, 1024, x) - want), bound(w, x.astype(np.float64)))


@pytest.mark.parametrize("k", [k for k in HERE if k.type in BLOCKS], ids=name_of)
def test_one_huge_block_of_activations(k):
    """One block at +3000 beside blocks at 1e-6: half precision sums would overflow or vanish."""
    rng = np.random.default_rng(5)
    raw = random_rows(rng, k.type, 64, 1024)
    x = rng.uniform(0.5e-6, 1e-6, size=(2, 1024)).astype(np.float32)
    x[0, 256:512] = 3000

    def check():
        want = x.astype(np.float64) @ dequantize(k.type, raw, 1024).astype(np.float64).T
        error = np.linalg.norm(run(k.name, raw, 1024, x) - want, axis=1)
        assert (error <= 0.01 * np.linalg.norm(want, axis=1)).all()

    check()
    # The small blocks by themselves: the huge one meets weights whose scales are zero.
    block, nbytes, halves, _ = ALL[k.type]
    b = raw.reshape(64, -1, nbytes)
    for at in halves or (0, 2):
        b[:, 256 // block : 512 // block, at : at + 2] = 0
    check()


@pytest.mark.parametrize("k", HERE, ids=name_of)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_activations_show(k, bad):
    rng = np.random.default_rng(6)
    raw = random_rows(rng, k.type, 3, 512)
    x = rng.normal(size=(2, 512)).astype(np.float32)
    x[1, 300] = bad
    got = run(k.name, raw, 512, x)
    assert np.isfinite(got[0]).all()
    assert not np.isfinite(got[1]).any()


@pytest.mark.parametrize("k", HERE, ids=name_of)
def test_never_reads_past_the_last_row(k):
    """The file may end with the last row: here an unreadable page follows it, and one precedes the first."""
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.PAGESIZE
    area = mmap.mmap(-1, 4 * page)
    base = np.frombuffer(area, np.uint8).ctypes.data
    for at in (0, 3 * page):
        assert libc.mprotect(ctypes.c_void_p(base + at), ctypes.c_size_t(page), 0) == 0
    rng = np.random.default_rng(7)
    lengths_of = {1: (1, 33, 575), 32: (32, 64, 96, 224, 288, 576), 256: (256, 512)}
    for cols in lengths_of[ALL[k.type][0]]:
        raw = random_rows(rng, k.type, 1, cols)
        for start in (page, 3 * page - raw.size):
            w = np.frombuffer((ctypes.c_uint8 * raw.size).from_address(base + start), np.uint8)
            w[:] = raw.ravel()
            for tok in (1, 2, 4):
                x = rng.normal(size=(tok, cols)).astype(np.float32)
                got = run(k.name, w, cols, x, row_bytes=raw.size, n_rows=1)
                np.testing.assert_array_equal(got, run(k.name, raw, cols, x))
    libc.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(4 * page), 3)


@pytest.mark.parametrize("k", HERE, ids=name_of)
def test_neighbours_do_not_change_a_row(k):
    """Kernels fold 8 rows at once and multiply the ends of two: threads that share the rows otherwise get other
    neighbours, and must get the same bits. Rows are apart from each other, with bytes of 255 in between."""
    rng = np.random.default_rng(9)
    for cols in {1: (575,), 32: (64, 160, 576), 256: (512,)}[ALL[k.type][0]]:
        packed = random_rows(rng, k.type, 19, cols)
        raw = np.full((19, packed.shape[1] + 34), 255, np.uint8)
        raw[:, : packed.shape[1]] = packed
        for tok in (1, 2, 5):
            x = rng.normal(size=(tok, cols)).astype(np.float32)
            together = run(k.name, raw, cols, x)
            alone = np.concatenate([run(k.name, packed[r : r + 1], cols, x) for r in range(19)], axis=1)
            np.testing.assert_array_equal(together, alone, err_msg=f"{cols} columns, {tok} tokens")
            by_three = [run(k.name, raw[r : r + 3], cols, x) for r in range(0, 19, 3)]
            np.testing.assert_array_equal(np.concatenate(by_three, axis=1), alone)


@pytest.mark.parametrize("k", [k for k in HERE if k.isa not in ("neon", "dotprod", "i8mm")], ids=name_of)
def test_strips_give_the_same_bits(k):
    """Rows of eight strips by turns, 256 to 1024 columns of each: sums wait while other rows have theirs."""
    rng = np.random.default_rng(11)
    for cols in {1: (575, 1031), 32: (64, 544, 1088, 1600, 2592), 256: (512, 1280, 2560)}[ALL[k.type][0]]:
        raw = random_rows(rng, k.type, 24, cols)
        x = rng.normal(size=(1, cols)).astype(np.float32)
        by_turns = np.full((1, 24), np.nan, np.float32)
        _core._rows(k.name, raw, raw.shape[1], 24, x, by_turns, 1, "ref", True)
        np.testing.assert_array_equal(by_turns, run(k.name, raw, cols, x), err_msg=f"{cols} columns")


@pytest.mark.parametrize("isa", ["ref"] + sorted({k.isa for k in rooflm.kernels() if k.available} - {"ref"}))
def test_activations(isa):
    rng = np.random.default_rng(8)
    for cols in (32, 96, 256, 576, 640, 1056):
        x = (rng.normal(size=(3, cols)) * np.exp(rng.normal(size=(3, cols)))).astype(np.float32)
        x[0, :32] = 0
        x[1, :32] = 1e-42
        x[2, 0] = 3e38
        x[2, 32:64] = 3.0
        got, want = _core._act(x, ALL_ROW_FORMATS, isa), _core._act(x, ALL_ROW_FORMATS, "ref")
        assert got == want, [n for n in got if got[n] != want[n]]
        pad = -(-cols // 256) * 256
        xp = np.zeros((3, pad))
        xp[:, :cols] = x
        q8 = np.frombuffer(got["q8"], np.int8).reshape(3, pad)
        d8 = np.frombuffer(got["d8"], np.float32).reshape(3, -1).astype(np.float64)
        assert (np.abs(q8 * np.repeat(d8, 32, 1) - xp) <= 0.5001 * np.repeat(d8, 32, 1) + 1e-33).all()
        assert np.abs(q8).max() == 127
        np.testing.assert_allclose(
            np.frombuffer(got["s8"], np.float32).reshape(3, -1), d8 * q8.reshape(3, -1, 32).sum(2), rtol=1e-6
        )
        np.testing.assert_array_equal(
            np.frombuffer(got["b8"], np.int16).reshape(3, -1), q8.reshape(3, -1, 16).sum(2, dtype=np.int32)
        )
        n = q8.reshape(3, -1, 4, 2, 16).swapaxes(2, 3).reshape(3, pad)
        np.testing.assert_array_equal(np.frombuffer(got["q8n"], np.int8).reshape(3, pad), n)
        q16 = np.frombuffer(got["q16"], np.int16).reshape(3, pad)
        d16 = np.frombuffer(got["d16"], np.float32).reshape(3, -1).astype(np.float64)
        assert (np.abs(q16 * np.repeat(d16, 256, 1) - xp) <= 0.501 * np.repeat(d16, 256, 1) + 1e-33).all()
        assert np.abs(q16).max() == Q16_MAX
        np.testing.assert_allclose(
            np.frombuffer(got["s16"], np.float32).reshape(3, -1),
            np.repeat(d16, 8, 1) * q16.reshape(3, -1, 32).sum(2, dtype=np.int64),
            rtol=1e-6,
        )
        np.testing.assert_array_equal(
            np.frombuffer(got["b16"], np.int32).reshape(3, -1), q16.reshape(3, -1, 16).sum(2, dtype=np.int32)
        )
        e = q16.reshape(3, -1, 16, 2).swapaxes(2, 3).reshape(3, pad)
        np.testing.assert_array_equal(np.frombuffer(got["q16e"], np.int16).reshape(3, pad), e)
        order = [0, 2, 1, 3]
        p = q8.reshape(3, -1, 4, 32)[:, :, order].reshape(3, pad)
        np.testing.assert_array_equal(np.frombuffer(got["q8p"], np.int8).reshape(3, pad), p)
        p = q16.reshape(3, -1, 4, 16, 2)[:, :, order].transpose(0, 1, 4, 2, 3).reshape(3, pad)
        np.testing.assert_array_equal(np.frombuffer(got["q16p"], np.int16).reshape(3, pad), p)
        halves = np.frombuffer(got["q16s"], np.int8).reshape(3, -1, 2, 16).astype(np.int16)
        np.testing.assert_array_equal((256 * halves[:, :, 0] + halves[:, :, 1]).reshape(3, pad), q16)
        # Tokens 0 and 1 side by side, then 2 with a neighbour that is no token.
        pairs = np.frombuffer(got["q8m"], np.int8).reshape(2, -1, 2, 8).swapaxes(1, 2).reshape(4, pad)
        np.testing.assert_array_equal(pairs[:3], q8)
        high, low = np.frombuffer(got["q16m"], np.int8).reshape(2, -1, 2, 2, 8).transpose(2, 0, 3, 1, 4)
        np.testing.assert_array_equal((256 * high.astype(np.int16) + low).reshape(4, pad)[:3], q16)
        n = q16.reshape(3, -1, 4, 2, 8, 2).transpose(0, 1, 5, 3, 2, 4).reshape(3, pad)
        np.testing.assert_array_equal(np.frombuffer(got["q16n"], np.int16).reshape(3, pad), n)
    bad = np.ones((3, 96), np.float32)
    bad[0, 40], bad[1, 95], bad[2, 0] = np.nan, np.inf, -np.inf
    a = _core._act(bad, ALL_ROW_FORMATS, isa)
    d8 = np.frombuffer(a["d8"], np.float32).reshape(3, -1)
    np.testing.assert_array_equal(np.isnan(d8[:, :3]), [[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(np.isnan(np.frombuffer(a["s8"], np.float32).reshape(3, -1)), np.isnan(d8))
    assert np.isnan(np.frombuffer(a["d16"], np.float32)).all()


class Tensor:
    """What rooflm.linear() reads of a tensor."""

    def __init__(self, kind, raw, cols):
        self.type, self.raw, self.shape = kind, raw, (raw.shape[0], cols)


@pytest.mark.parametrize("compute", ["auto", "int8", "int16", "f32"])
@pytest.mark.parametrize("kind", ALL)
def test_linear(kind, compute):
    rng = np.random.default_rng(9)
    raw = random_rows(rng, kind, 83, 512)
    w = dequantize(kind, raw, 512).astype(np.float64)
    for tokens in (1, 5, 8, 11, 40):
        x = rng.normal(size=(tokens, 512)).astype(np.float32)
        got = rooflm.linear(x, Tensor(kind, raw, 512), compute=compute)
        loss = {"int8": 8e-3, "auto": 8e-3, "int16": 1e-4, "f32": 1e-6}[compute]
        scale = np.sqrt(np.outer((x**2).sum(1), (w**2).sum(1)))
        assert (np.abs(got - x @ w.T) < loss * scale).all()
        for threads in (2, 3):
            again = rooflm.linear(x, Tensor(kind, raw, 512), compute=compute, threads=threads)
            np.testing.assert_array_equal(got, again)
    one = rooflm.linear(x[0], Tensor(kind, raw, 512), compute=compute)
    assert one.shape == (83,)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="strips are for x86-64")
@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0", "Q4_1", "F16"])
def test_matrices_in_strips_give_the_same_bits(kind, monkeypatch):
    """Units lie in strips, rows behind them and several tokens do not; threads change nothing.

    Of 2059 rows the last whole unit is left out of the strips, whose beginnings would be multiples of 4 KB apart (not
    in F16, whose rows are 4 KB).
    """
    rng = np.random.default_rng(12)
    cols = 2048
    raw = np.resize(random_rows(rng, kind, 130, cols), (2059, random_rows(rng, kind, 1, cols).shape[1]))
    assert raw.nbytes > 1 << 20
    for tokens in (1, 3, 9):
        x = rng.normal(size=(tokens, cols)).astype(np.float32)
        got = {}
        for strips in "01":
            monkeypatch.setenv("ROOFLM_STRIPS", strips)
            assert _core._isa()["strips"] == (strips == "1")
            for threads in (1, 2, 3):
                got[strips, threads] = rooflm.linear(x, Tensor(kind, raw, cols), compute="int8", threads=threads)
        for other in got.values():
            np.testing.assert_array_equal(other, got["0", 1])
    monkeypatch.setenv("ROOFLM_STRIPS", "yes")
    with pytest.raises(ValueError, match="ROOFLM_STRIPS must be 0 or 1"):
        rooflm.linear(x, Tensor(kind, raw, cols))


def test_linear_refuses_what_does_not_fit():
    raw = random_rows(np.random.default_rng(0), "Q4_1", 4, 64)
    x = np.ones((2, 64), np.float32)
    with pytest.raises(ValueError, match="compute"):
        rooflm.linear(x, Tensor("Q4_1", raw, 64), compute="int4")
    with pytest.raises(ValueError, match="64"):
        rooflm.linear(x[:, :32], Tensor("Q4_1", raw, 64))
    with pytest.raises(ValueError, match="bytes"):
        rooflm.linear(x, Tensor("Q8_0", raw, 64))
    with pytest.raises(rooflm.KernelUnavailable, match="does not multiply"):
        rooflm.linear(x, Tensor("Q4_1", raw, 64), kernel="rl_rows_q8_0_q8_ref")
    with pytest.raises(rooflm.KernelUnavailable, match="no kernel named"):
        rooflm.linear(x, Tensor("Q4_1", raw, 64), kernel="rl_rows_q4_1_q8_sse")
    with pytest.raises(ValueError, match="threads"):
        rooflm.linear(x, Tensor("Q4_1", raw, 64), threads=0)
