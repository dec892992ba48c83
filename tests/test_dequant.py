# SPDX-License-Identifier: Apache-2.0
"""Dequantization: every type and every kernel, to the bit, against the gguf package and plain NumPy."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from blocks import ALL, BLOCKS, dequantize, random_rows
from maker import Raw

import rooflm
from rooflm import _core

KINDS = sorted(ALL)
IDS = {k: int(gguf.GGMLQuantizationType[k]) for k in KINDS}
ENTRIES = [k for k in rooflm.kernels() if k.family == "dequant"]
HERE = [k for k in ENTRIES if k.available]


def file_with(tmp_path, kind, raw, shape, name="t"):
    path = tmp_path / f"{kind}.gguf"
    path.write_bytes(Raw().tensor(name, shape[::-1], IDS[kind], data=raw.tobytes()).build())
    return rooflm.GGUF(path).tensors[name]


def same_bits(a, b):
    """Equal to the bit; NaN may carry any payload, because even NumPy's differs between its own loops."""
    assert a.dtype == b.dtype == np.float32 and a.shape == b.shape
    nan = np.isnan(b)
    assert np.array_equal(np.isnan(a), nan)
    assert np.array_equal(np.where(nan, 0, a).view(np.uint32), np.where(nan, 0, b).view(np.uint32))


def halves(rng, n):
    """Half scales of every size: random bits without NaN and infinity; subnormals and the largest are certain."""
    h = rng.integers(0, 1 << 16, n).astype(np.uint16)
    h[(h & 0x7C00) == 0x7C00] ^= 0x4000
    special = np.array([0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x8000], np.uint16)
    h[: len(special)] = special[: min(n, len(special))]
    return h.view(np.float16)


def wild_rows(rng, kind, rows, cols):
    """random_rows with scales over the whole range of halves."""
    raw = random_rows(rng, kind, rows, cols)
    if kind in BLOCKS:
        block, nbytes, offsets, _ = ALL[kind]
        b = raw.reshape(-1, nbytes)
        for at in offsets:
            b[:, at : at + 2] = halves(rng, len(b)).reshape(-1, 1).view(np.uint8)
    return raw


def test_every_type_that_computes_is_tested():
    assert {k.type for k in ENTRIES if k.isa == "ref"} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_random_blocks_equal_the_gguf_package(tmp_path, kind):
    rng = np.random.default_rng(7)
    for rows, cols in ((3, 256), (64, 1024)):
        raw = wild_rows(rng, kind, rows, cols)
        t = file_with(tmp_path, kind, raw, (rows, cols))
        want = dequantize(kind, raw, cols)
        if kind in BLOCKS:
            assert np.count_nonzero(want) > want.size // 2  # all-zero fixtures would hide wrong scales
        same_bits(t.dequantize(), want)


@pytest.mark.parametrize("k", HERE, ids=lambda k: k.name)
def test_every_kernel_gives_the_same_bits(k):
    block = ALL[k.type][0]
    rng = np.random.default_rng(11)
    for blocks in (1, 2, 3, 7, 16, 33):
        n = blocks * block
        raw = wild_rows(rng, k.type, 1, n)
        # at the very end of an allocation, aligned no better than the fields of a block: no over-read
        shift = 4 if k.type in ("F32", "Q8_K") else 2
        shifted = np.empty(raw.size + shift, np.uint8)[shift:]
        shifted[:] = raw.ravel()
        out = np.full(n + 8, np.nan, np.float32)
        _core._dequantize(k.name, shifted, out[:n])
        assert np.isnan(out[n:]).all()
        same_bits(out[:n].reshape(1, n), dequantize(k.type, raw, n))


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_all_halves(tmp_path, kind):
    bits = np.arange(1 << 16, dtype=np.uint16)
    want = (
        bits.view(np.float16).astype(np.float32) if kind == "F16" else (bits.astype(np.uint32) << 16).view(np.float32)
    )
    t = file_with(tmp_path, kind, bits.view(np.uint8), (256, 256))
    same_bits(t.dequantize(), want.reshape(256, 256))
    for k in HERE:
        if k.type == kind:
            out = np.empty(1 << 16, np.float32)
            _core._dequantize(k.name, bits, out)
            same_bits(out, want)


def test_q4_1_header_is_four_bytes(tmp_path):
    """Both halves of the header count: q = 3 with d = 2 and m = -1 is 5."""
    block = np.array([2, -1], np.float16).tobytes() + b"\x33" * 16
    t = file_with(tmp_path, "Q4_1", np.frombuffer(block * 2, np.uint8), (1, 64))
    assert (t.dequantize() == 5).all()


@pytest.mark.parametrize("k", HERE, ids=lambda k: k.name)
def test_nan_and_infinite_scales_show(k):
    block, nbytes, offsets, _ = ALL[k.type]
    if k.type in ("F32", "F16", "BF16", "Q8_K"):
        pytest.skip("no half scale")
    for bad in (np.nan, np.inf):
        raw = random_rows(np.random.default_rng(3), k.type, 1, 2 * block).reshape(2, nbytes)
        raw[0, offsets[0] : offsets[0] + 2] = np.array([bad], np.float16).view(np.uint8)
        out = np.empty(2 * block, np.float32)
        with np.errstate(invalid="ignore"):
            want = dequantize(k.type, raw.reshape(1, -1), 2 * block)[0]
        _core._dequantize(k.name, raw, out)
        same_bits(out, want)
        assert not np.isfinite(out[:block]).all() and np.isfinite(out[block:]).all()


# --- rows, out, threads --------------------------------------------------------------------------------------


@pytest.fixture
def q4k(tmp_path):
    raw = random_rows(np.random.default_rng(5), "Q4_K", 40, 512)
    return file_with(tmp_path, "Q4_K", raw, (40, 512)), dequantize("Q4_K", raw, 512)


@pytest.mark.parametrize(
    "rows",
    [
        0,
        -1,
        np.int64(3),
        slice(None),
        slice(3, 17),
        slice(30, 2, -3),
        slice(5, 5),
        slice(-4, 1000),
        [1, 1, 0, -40],
        np.array([39, 2], np.uint8),
        np.array([], np.int64),
        np.arange(40) % 3 == 0,
    ],
    ids=str,
)
def test_rows_index_like_numpy(q4k, rows):
    t, want = q4k
    same_bits(t.dequantize(rows), np.ascontiguousarray(want[rows]))


@pytest.mark.parametrize(
    "rows, error",
    [
        (40, IndexError),
        (-41, IndexError),
        ([0, 40], IndexError),
        ([-41], IndexError),
        (np.ones(39, bool), IndexError),
        (1.5, TypeError),
        ([0.0], TypeError),
        ("0", TypeError),
        (np.zeros((2, 2), int), TypeError),
        (2**70, IndexError),
    ],
    ids=str,
)
def test_wrong_rows(q4k, rows, error):
    with pytest.raises(error):
        q4k[0].dequantize(rows)


def test_out_is_filled_and_returned(q4k):
    t, want = q4k
    out = np.full((2, 512), np.nan, np.float32)
    assert t.dequantize([4, 5], out) is out
    same_bits(out, want[4:6])
    frozen = np.zeros((2, 512), np.float32)
    frozen.flags.writeable = False
    for bad in (
        np.zeros((2, 512)),
        np.zeros((3, 512), np.float32),
        np.zeros((2, 1024), np.float32)[:, ::2],
        frozen,
        [0.0],
    ):
        with pytest.raises(ValueError, match=r"float32 array of shape \(2, 512\)"):
            t.dequantize([4, 5], bad)
    with pytest.raises(ValueError, match="threads"):
        t.dequantize(threads=0)


@pytest.mark.parametrize("rows", [None, slice(None, None, -1), np.arange(2999, -1, -2)], ids=["all", "back", "some"])
def test_threads_give_the_same_bits(tmp_path, rows):
    raw = random_rows(np.random.default_rng(6), "Q6_K", 3000, 512)
    t = file_with(tmp_path, "Q6_K", raw, (3000, 512))
    one = t.dequantize(rows, threads=1)
    same_bits(one, np.ascontiguousarray(dequantize("Q6_K", raw, 512)[slice(None) if rows is None else rows]))
    for n in (2, 3, 7):
        out = np.full_like(one, np.nan)
        same_bits(t.dequantize(rows, out, threads=n), one)


def test_shapes_of_one_and_three_axes(tmp_path):
    raw = random_rows(np.random.default_rng(8), "Q8_0", 6, 64)
    t = file_with(tmp_path, "Q8_0", raw, (2, 3, 64))
    want = dequantize("Q8_0", raw, 64)
    assert t.shape == (2, 3, 64) and t.blocks.shape == (6, 2) and t.raw.shape == (2, 3, 68)
    same_bits(t.dequantize(), want.reshape(2, 3, 64))
    same_bits(t.dequantize(slice(2, 4)), want[2:4])
    x = np.random.default_rng(9).standard_normal((64, 5)).astype(np.float32)
    np.testing.assert_allclose(t @ x, want.reshape(2, 3, 64) @ x, rtol=1e-5, atol=1e-4)
    v = file_with(tmp_path, "Q8_0", raw[0], (64,))
    assert v.shape == (64,) and v.blocks.shape == (1, 2) and v.raw.shape == (68,)
    same_bits(v.dequantize(), want[0])
    assert np.ndim(v @ x[:, 0]) == 0 and abs(v @ x[:, 0] - want[0] @ x[:, 0]) < 1e-3


# --- product -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(512,), (512, 1), (512, 9)], ids=str)
def test_product_is_exact(tmp_path, dtype, shape):
    raw = random_rows(np.random.default_rng(1), "Q4_K", 1200, 512)  # several chunks
    t = file_with(tmp_path, "Q4_K", raw, (1200, 512))
    x = np.random.default_rng(2).standard_normal(shape).astype(dtype)
    got = t @ x
    want = dequantize("Q4_K", raw, 512).astype(np.float64) @ x
    assert got.dtype == dtype and got.shape == want.shape
    norms = np.linalg.norm(dequantize("Q4_K", raw, 512), axis=1).reshape(-1, *[1] * (want.ndim - 1)) * np.linalg.norm(x)
    assert (np.abs(got - want) <= 4 * np.finfo(dtype).eps * norms).all()


def test_product_with_strided_x(tmp_path):
    raw = random_rows(np.random.default_rng(1), "Q4_0", 8, 64)
    t = file_with(tmp_path, "Q4_0", raw, (8, 64))
    x = np.random.default_rng(2).standard_normal((10, 128)).astype(np.float32).T[::2]
    np.testing.assert_allclose(t @ x, dequantize("Q4_0", raw, 64) @ x, rtol=1e-4, atol=1e-4)


def test_wrong_products(q4k):
    t, _ = q4k
    x = np.ones((512, 2), np.float32)
    for bad in (x[:511], x.reshape(2, 512), x.reshape(512, 2, 1), np.float32(1)):
        with pytest.raises(ValueError, match=r"\(512,\) or \(512, n\)"):
            t @ bad
    for bad in (x.astype(np.float16), x.astype(int), "x", None):
        with pytest.raises(TypeError):
            t @ bad
    with pytest.raises(TypeError):
        x.T @ t  # not an array of objects
    with pytest.raises(TypeError):
        t + 1


# --- blocks --------------------------------------------------------------------------------------------------

FIELDS = {
    "Q4_0": "d qs",
    "Q4_1": "d m qs",
    "Q5_0": "d qh qs",
    "Q5_1": "d m qh qs",
    "Q8_0": "d qs",
    "IQ4_NL": "d qs",
    "Q2_K": "scales qs d dmin",
    "Q3_K": "hmask qs scales d",
    "Q4_K": "d dmin scales qs",
    "Q5_K": "d dmin scales qh qs",
    "Q6_K": "ql qh scales d",
    "Q8_K": "d qs bsums",
    "IQ4_XS": "d scales_h scales_l qs",
}


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_views_with_the_fields_of_the_format(tmp_path, kind):
    raw = random_rows(np.random.default_rng(4), kind, 3, 512)
    t = file_with(tmp_path, kind, raw, (3, 512))
    block, nbytes, offsets, _ = ALL[kind]
    b = t.blocks
    assert b.shape == (3, 512 // block) and b.dtype.itemsize == nbytes == b.strides[1]
    assert np.shares_memory(b, t.raw) and not b.flags.writeable and not b.flags.owndata
    assert np.array_equal(t.raw, raw.reshape(3, -1))
    assert t.nbytes == raw.size and t.bits_per_weight == 8 * nbytes / block
    if kind not in BLOCKS:
        assert b.dtype == {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[kind]
        return
    assert b.dtype.names == tuple(FIELDS[kind].split())
    assert [b.dtype.fields[n][1] for n in ("d", "m", "dmin") if n in b.dtype.names and kind != "Q8_K"] == list(offsets)
    scale = np.ascontiguousarray(raw.reshape(-1, nbytes)[:, b.dtype.fields["d"][1] :][:, : b.dtype["d"].itemsize])
    assert np.array_equal(b["d"].ravel().view(np.uint8), scale.ravel())
    assert b["d"].dtype == (np.float32 if kind == "Q8_K" else np.float16)


def test_a_value_from_its_block(q4k):
    """The fields, taken by hand, give the value: row 1, weight 300 (block 1, group 1, high nibble of byte 12)."""
    t, want = q4k
    b = t.blocks[1, 1]
    scale, low = int(b["scales"][1]) & 63, int(b["scales"][5]) & 63
    d, dmin = np.float32(b["d"]) * np.float32(scale), np.float32(b["dmin"]) * np.float32(low)
    assert d * np.float32(b["qs"][12] >> 4) - dmin == want[1, 300]


# --- real models ---------------------------------------------------------------------------------------------


def compare_picks(ours, raw, kind):
    """Some rows of a tensor (all would take minutes), to the bit."""
    if len(ours.shape) != 2:
        same_bits(ours.dequantize(), gguf.quants.dequantize(raw, kind))
        return
    picks = np.unique(np.linspace(0, ours.shape[0] - 1, 200).astype(int))
    same_bits(ours.dequantize(picks), gguf.quants.dequantize(raw[picks], kind))


def test_every_tensor_of_smollm2(smollm2):
    """Names, types, shapes, places and values, by the outside reader."""
    g = rooflm.GGUF(smollm2)
    reader = gguf.GGUFReader(smollm2)
    assert list(g.tensors) == [t.name for t in reader.tensors]
    for theirs in reader.tensors:
        ours = g.tensors[theirs.name]
        assert ours.type == theirs.tensor_type.name and ours.shape == tuple(int(n) for n in theirs.shape[::-1])
        compare_picks(ours, theirs.data, theirs.tensor_type)


def test_every_tensor_of_gemma3(gemma3):
    """Values alone: the outside reader takes half a minute for the 262,144 tokens of this file."""
    g = rooflm.GGUF(gemma3)
    assert {t.type for t in g.tensors.values()} == {"F32", "Q4_K", "Q5_0", "Q6_K", "Q8_0"}
    for ours in g.tensors.values():
        kind = gguf.GGMLQuantizationType[ours.type]
        compare_picks(ours, ours.raw.view(np.float32) if ours.type == "F32" else ours.raw, kind)


def test_numpy_takes_a_tensor_as_the_array_of_its_values(tmp_path):
    """Not as an array of one Python object."""
    raw = random_rows(np.random.default_rng(3), "Q4_0", 6, 64)
    t = file_with(tmp_path, "Q4_0", raw, (6, 64))
    values = t.dequantize()
    assert np.asarray(t).dtype == np.float32 and np.array_equal(np.asarray(t), values)
    assert np.array(t, dtype=np.float64).dtype == np.float64 and np.linalg.norm(t) == np.linalg.norm(values)
    own = np.array(t)
    own[0, 0] = 1e9
    assert np.array_equal(np.asarray(t), values), "a copy"
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        with pytest.raises(ValueError, match="without a copy; .blocks and .raw are views"):
            np.asarray(t, copy=False)
    assert not isinstance(t, np.ndarray) and (t @ np.ones(64, np.float32)).shape == (6,)
