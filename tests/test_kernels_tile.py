# SPDX-License-Identifier: Apache-2.0
"""Tile kernels: references against the gguf package in float64, every other entry against its reference.

All entries of a layout take one order of float operations (kernels/tile.h), so they agree to the bit whatever
the scales. Where an ISA uses another layout for a type (Q4_0 and Q5_0 on AVX2), power-of-two scales make every
float exact and the results equal again.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
import rooflm
from cpu_features import cpu_has
from blocks import ALL, BLOCKS, FLOATS, Q16_MAX, dequantize, random_rows
from rooflm import _core

KERNELS = rooflm.kernels(isa=None)
HERE = [k for k in KERNELS if k.available]
UNPACK = [k for k in HERE if k.family == "tile_unpack"]
MUL = [k for k in HERE if k.family == "tile_mul"]
FAST_UNPACK = [k for k in UNPACK if k.isa != "ref"]
FAST_MUL = [k for k in MUL if k.isa != "ref" and k.act != "f32"]
FAST_F32 = [k for k in MUL if k.isa != "ref" and k.act == "f32"]
RAN: set[str] = set()  # names that ran in this session


def name_of(k):
    return k.name[len("rl_") :]


def unpack_for(kind, mul):
    """The unpack that feeds `mul` for a type: of its own ISA, else of another with this layout; None without."""
    found = [u for u in UNPACK if u.type == kind and u.layout == mul.layout]
    return next((u for u in found if u.isa == mul.isa), next((u for u in found if u.isa != "ref"), None))


def ref_pair(kind, act):
    (u,) = (k for k in UNPACK if k.type == kind and k.isa == "ref")
    (m,) = (k for k in MUL if k.isa == "ref" and k.layout == u.layout and k.act == act)
    return u, m


def dequantizer(kind):
    return next(k for k in HERE if k.family == "dequant" and k.type == kind and k.isa == "ref")


def run(unpack, mul, kind, raw, x, rows=None, threads=1):
    rows = rows or raw.shape[0]
    out = np.full((x.shape[0], rows), np.nan, np.float32)
    _core._tile(unpack.name, mul.name, raw, kind, x, out, 1, threads)
    RAN.update((unpack.name, mul.name))
    return out


def by_reference(kind, act, raw, x):
    return run(*ref_pair(kind, act), kind, raw, x)


def cases(muls):
    """(mul, type, unpack) for every type a multiply kernel can work on."""
    return [(m, t, u) for m in muls for t in BLOCKS if (u := unpack_for(t, m))]


def case_id(v):
    return name_of(v) if hasattr(v, "name") else v


def guarded(raw):
    """A copy that ends where memory ends: reading one byte further is a crash."""
    page = mmap.PAGESIZE
    size = (raw.size + page - 1) // page * page
    m = mmap.mmap(-1, size + page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(m))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(base + size), ctypes.c_size_t(page), 0) == 0
    view = np.frombuffer(m, np.uint8, raw.size, size - raw.size).reshape(raw.shape)
    view[:] = raw
    return view


def parts(tile):
    """A tile as (columns, rows) bytes, scales and mins."""
    q = np.frombuffer(tile, np.uint8, 8192).reshape(64, 32, 4).transpose(0, 2, 1).reshape(256, 32)
    d, m = np.frombuffer(tile, np.float32, 1024, 8192).reshape(2, 16, 32)
    return q, d, m


def bound(w, x):
    """What the rounding of float32 sums may change, from the norms of the operands."""
    return 4e-6 * np.sqrt(np.outer((x.astype(np.float64) ** 2).sum(1), (w.astype(np.float64) ** 2).sum(1))) + 1e-30


def seen(x, act):
    """Activations as the kernels see them, in float64."""
    tok, cols = x.shape
    a = _core._act(x, 2 if act == "int8" else 4, "ref")
    q, d, n, t = ("q8", "d8", 32, np.int8) if act == "int8" else ("q16", "d16", 256, np.int16)
    q = np.frombuffer(a[q], t).reshape(tok, -1, n).astype(np.float64)
    return (q * np.frombuffer(a[d], np.float32).reshape(tok, -1, 1)).reshape(tok, -1)[:, :cols]


@pytest.mark.parametrize("u", UNPACK, ids=name_of)
def test_unpacked_tile_is_the_dequantized_block(u):
    rng = np.random.default_rng(1)
    raw = random_rows(rng, u.type, 32, 256)
    q, d, m = parts(_core._tile_unpack(u.name, raw, 256))
    RAN.add(u.name)
    group = 16 if ".g16" in u.layout else 32
    bias = {"u8b128": 128, "u6b32": 32, "u5": 0}[u.layout.split(".")[0]]
    got = (q.astype(np.float64) - bias) * np.repeat(d[: 256 // group], group, 0)
    if u.layout.endswith("min"):
        got += np.repeat(m[: 256 // group], group, 0)
    want = dequantize(u.type, raw, 256).T
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=3e-7 * np.abs(want).max())
    assert q.max() <= {"u8b128": 255, "u6b32": 63, "u5": 31}[u.layout.split(".")[0]]


@pytest.mark.parametrize("u", FAST_UNPACK, ids=name_of)
def test_unpack_equals_reference(u):
    """To the bit, for every number of columns, with fewer rows than a tile, up to the last byte of memory."""
    rng = np.random.default_rng(2)
    (ref,) = (k for k in UNPACK if k.type == u.type and k.isa == "ref")
    for i, cols in enumerate(range(ALL[u.type][0], 257, ALL[u.type][0])):
        raw = guarded(random_rows(rng, u.type, (1, 31, 32)[i % 3], cols))
        got = parts(_core._tile_unpack(u.name, raw, cols))
        if ref.layout == u.layout:
            for a, b in zip(got, parts(_core._tile_unpack(ref.name, raw, cols))):
                np.testing.assert_array_equal(a, b, err_msg=f"{cols} columns")
        n = raw.shape[0]
        for a in got:  # missing rows repeat the last one
            np.testing.assert_array_equal(a[:, n:], np.repeat(a[:, n - 1 : n], 32 - n, 1))


@pytest.mark.parametrize("act", ["int8", "int16"])
@pytest.mark.parametrize("kind", BLOCKS)
def test_reference_equals_gguf_package(kind, act):
    rng = np.random.default_rng(3)
    raw = random_rows(rng, kind, 35, 768)
    x = rng.normal(size=(8, 768)).astype(np.float32)
    w = dequantize(kind, raw, 768)
    exact = seen(x, act) @ w.astype(np.float64).T
    np.testing.assert_array_less(np.abs(by_reference(kind, act, raw, x) - exact), bound(w, x))


@pytest.mark.parametrize(("m", "kind", "u"), cases(FAST_MUL), ids=case_id)
def test_equals_reference(m, kind, u):
    """Lengths 32 to 1056, 1 to 40 tokens, 1 to 70 rows; random scales where the layouts agree."""
    rng = np.random.default_rng(4)
    ref = ref_pair(kind, m.act)[0]
    step = 256 if ALL[kind][0] == 256 else 32
    for i, cols in enumerate(range(step, 1057, step)):
        rows, tok = (1, 32, 33, 70)[i % 4], (i * 7) % 40 + 1
        raw = random_rows(rng, kind, rows, cols, power_of_two=ref.layout != u.layout)
        x = rng.normal(size=(tok, cols)).astype(np.float32)
        if ref.layout != u.layout:
            x = rng.integers(-9, 10, size=(tok, cols)).astype(np.float32)
            x[:, :: 32 if m.act == "int8" else 256] = 127 if m.act == "int8" else Q16_MAX
        want, got = by_reference(kind, m.act, raw, x), run(u, m, kind, raw, x)
        np.testing.assert_array_equal(got, want, err_msg=f"{cols} columns, {rows} rows, {tok} tokens")


@pytest.mark.parametrize("m", FAST_MUL, ids=name_of)
def test_every_number_of_tokens(m):
    """1 to 40 tokens, with whole blocks of 256 columns and with an even and an odd number of groups of 32."""
    rng = np.random.default_rng(13)
    kind = {"u8b128.g32": "Q8_0", "u5.g32.min": "Q4_1", "u6b32.g16": "Q6_K", "u5.g16.min": "Q2_K"}[m.layout]
    u = unpack_for(kind, m)
    for cols in (32, 64, 96, 224, 256) if ALL[kind][0] == 32 else (256,):
        raw = random_rows(rng, kind, 33, cols)
        x = rng.normal(size=(40, cols)).astype(np.float32)
        want = by_reference(kind, m.act, raw, x)
        for n in range(1, 41):
            got = run(u, m, kind, raw, x[:n].copy())
            np.testing.assert_array_equal(got, want[:n], err_msg=f"{cols} columns, {n} tokens")


@pytest.mark.parametrize("fill", [0x00, 0x7F, 0x80, 0xFF, 0xF0, 0x0F])
@pytest.mark.parametrize(("m", "kind", "u"), cases(FAST_MUL), ids=case_id)
def test_worst_case_of_integer_sums(m, kind, u, fill):
    """Weights and activations at an extreme: an accumulator that wraps or saturates is off by far more than
    rounding. The signs of the activations follow those of the weights in one token and oppose them in another."""
    rng = np.random.default_rng(5)
    raw = random_rows(rng, kind, 2, 512, fill=fill)
    w = dequantize(kind, raw, 512)
    x = np.stack([np.full(512, 3.0), np.full(512, -3.0), np.sign(w[0]) * 3, -np.sign(w[0]) * 3]).astype(np.float32)
    got = run(u, m, kind, raw, x)
    np.testing.assert_array_less(np.abs(got - seen(x, m.act) @ w.astype(np.float64).T), bound(w, x))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "Q2_K"])
@pytest.mark.parametrize("act", ["int8", "int16"])
def test_large_and_small_blocks_side_by_side(kind, act):
    """One block of activations at +3000 meets weights of zero; what remains are blocks at 1e-6, and they must
    come through within 1 % of float64."""
    rng = np.random.default_rng(6)
    raw = random_rows(rng, kind, 5, 1024).reshape(5, 1024 // ALL[kind][0], -1)
    raw[:, : 256 // ALL[kind][0]] = 0
    if kind == "Q4_1":
        raw[:, : 256 // ALL[kind][0], :4] = 0
    raw = np.ascontiguousarray(raw.reshape(5, -1))
    w = dequantize(kind, raw, 1024).astype(np.float64)
    assert not w[:, :256].any() and w[:, 256:].any()
    x = (1e-6 * (1 + rng.random((7, 1024)))).astype(np.float32)
    x[:, :256] = 3000
    exact = x.astype(np.float64) @ w.T
    scale = 0.01 * (np.abs(x[:, 256:]).astype(np.float64) @ np.abs(w[:, 256:]).T)
    for m in (k for k in MUL if k.act == act):
        u = unpack_for(kind, m) if m.isa != "ref" else ref_pair(kind, act)[0]
        if u and u.layout == m.layout:
            np.testing.assert_array_less(np.abs(run(u, m, kind, raw, x) - exact), scale, err_msg=m.name)


@pytest.mark.parametrize(("m", "kind", "u"), cases(FAST_MUL)[::5], ids=case_id)
def test_tokens_do_not_see_each_other(m, kind, u):
    """A token alone, and in a batch so large, in rows so long, that tokens and columns are cut."""
    rng = np.random.default_rng(7)
    cols = 12288
    raw = random_rows(rng, kind, 33, cols)
    x = rng.normal(size=(130, cols)).astype(np.float32)
    whole = run(u, m, kind, raw, x)
    assert np.isfinite(whole).all()
    for t0, t1 in ((0, 1), (5, 12), (60, 73), (129, 130)):
        np.testing.assert_array_equal(run(u, m, kind, raw, x[t0:t1].copy()), whole[t0:t1])


@pytest.mark.parametrize("compute", ["int8", "int16", "f32"])
def test_same_bits_for_any_number_of_threads(compute):
    rng = np.random.default_rng(8)
    raw = random_rows(rng, "Q6_K", 300, 1024)
    x = rng.normal(size=(50, 1024)).astype(np.float32)
    results = []
    for threads in (1, 2, 3):
        out = np.full((50, 300), np.nan, np.float32)
        used = _core._linear(x, raw, "Q6_K", 300, out, compute, None, threads)
        assert used.startswith("rl_tile_mul_")
        results.append(out)
    assert np.isfinite(results[0]).all()
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("compute", ["int8", "int16", "f32", "auto"])
def test_linear_takes_the_tile_of_its_type(kind, compute):
    rng = np.random.default_rng(9)
    cols = 512 if kind in BLOCKS else 517
    raw = random_rows(rng, kind, 45, cols)
    x = rng.normal(size=(41, cols)).astype(np.float32)
    out = np.full((41, 45), np.nan, np.float32)
    used = _core._linear(x, raw, kind, 45, out, compute, None, 2)
    act = "f32" if kind in FLOATS else "int8" if compute == "auto" else compute
    (k,) = (k for k in MUL if k.name == used)
    assert k.act == act
    w = dequantize(kind, raw, cols)
    eye = x.astype(np.float64) if act == "f32" else seen(x, act)
    np.testing.assert_array_less(np.abs(out - eye @ w.astype(np.float64).T), bound(w, x))


def test_not_a_number_shows():
    rng = np.random.default_rng(10)
    raw = random_rows(rng, "Q4_K", 33, 512)
    x = rng.normal(size=(30, 512)).astype(np.float32)
    x[7, 300] = np.nan
    x[21, 3] = np.inf
    for compute in ("int8", "int16", "f32"):
        out = np.zeros((30, 33), np.float32)
        assert "tile_mul" in _core._linear(x, raw, "Q4_K", 33, out, compute, None, 1)
        bad = ~np.isfinite(out).all(1)
        assert np.flatnonzero(bad).tolist() == [7, 21]


@pytest.mark.parametrize("kind", ALL)
def test_float_tile(kind):
    """Against float64, and every ISA against the reference to the bit."""
    rng = np.random.default_rng(11)
    (ref,) = (k for k in MUL if k.isa == "ref" and k.act == "f32")
    for tok, rows, cols in ((1, 3, 256), (8, 33, 768), (13, 64, 1024), (121, 5, 4096)):
        cols += (tok * 3) % 7 if kind in FLOATS else 0
        raw = guarded(random_rows(rng, kind, rows, cols))
        x = rng.normal(size=(tok, cols)).astype(np.float32)
        want = run(dequantizer(kind), ref, kind, raw, x)
        w = dequantize(kind, raw, cols)
        np.testing.assert_array_less(np.abs(want - x.astype(np.float64) @ w.astype(np.float64).T), bound(w, x) / 4)
        for m in FAST_F32:
            np.testing.assert_array_equal(run(dequantizer(kind), m, kind, raw, x), want, err_msg=m.name)


def test_names_and_fields_agree():
    for k in KERNELS:
        if k.family not in ("tile_unpack", "tile_mul"):
            continue
        parts = [k.family, ALL[k.type][3] if k.type else k.layout.replace(".", "_")]
        if k.family == "tile_mul" and k.act != "f32":
            parts.append({"int8": "q8", "int16": "q16"}[k.act])
        assert k.name == "_".join(["rl", *parts, k.isa])
    layouts = {k.layout for k in KERNELS if k.family == "tile_mul"} - {"f32"}
    for isa in {k.isa for k in KERNELS if k.family == "tile_mul"}:
        for act in ("int8", "int16"):
            have = {k.layout for k in KERNELS if k.family == "tile_mul" and k.isa == isa and k.act == act}
            assert have == layouts
    assert {k.type for k in UNPACK if k.isa == "ref"} == set(BLOCKS)


@pytest.mark.best_tier
def test_every_kernel_of_this_cpu_ran():
    """What the system promises, asked apart from the library: a capable CPU that ran no entry is a failure."""
    has, isas = cpu_has(), {k.isa for k in FAST_MUL}
    tiers = {
        "avx2": {"avx2", "fma", "f16c"},
        "avxvnni": {"avxvnni"},
        "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"},
        "amx": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "amxtile", "amxint8"},
        "neon": {"neon"},
        "dotprod": {"dotprod"},
        "i8mm": {"dotprod", "i8mm"},
    }
    for isa, needs in tiers.items():
        if needs <= has:
            assert isa in isas
    everything = {k.name for k in UNPACK + MUL}
    if RAN and len(RAN) > len(everything) // 2:  # the whole file was run, not one test chosen by -k
        assert everything - RAN == set()


@pytest.mark.parametrize("isa", sorted({k.isa for k in UNPACK}))
def test_one_unpack_is_chosen_for_each_type(isa):
    chosen = rooflm.kernels(isa=isa).select(family="tile_unpack", chosen=True)
    assert sorted(k.type for k in chosen) == sorted(BLOCKS)
    for k in chosen:  # and the engine pairs it with a multiply of the same tier
        for compute, act in (("int8", "q8"), ("int16", "q16")):
            raw = random_rows(np.random.default_rng(12), k.type, 2, 256)
            x, out = np.ones((30, 256), np.float32), np.zeros((30, 2), np.float32)
            used = _core._linear(x, raw, k.type, 2, out, compute, None, 1, isa)
            assert used == f"rl_tile_mul_{k.layout.replace('.', '_')}_{act}_{isa}"
