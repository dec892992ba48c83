# SPDX-License-Identifier: Apache-2.0
"""Attention against float64 NumPy over what the cache holds, on every kernel that this CPU can run.

The oracle reads the cache's own values (cache.k(), checked in test_kvcache.py), so that the quantization of K and V
is no part of the error here; what remains is float32 rounding, and for q8_0 the int16 queries and weights.
"""

from __future__ import annotations

import numpy as np
import pytest

import rooflm
from rooflm import KVCache, attention
from rooflm._core import _attention_kernels, _kernel_table

ISAS = ["ref", "avx2", "avx512", "neon", "dotprod", "i8mm"]


def usable_isas():
    cache, out = KVCache(n_head_kv=1, head_dim=64, n_ctx=64), []
    for isa in ISAS:
        try:
            _attention_kernels(cache, 1, isa)
            out.append(isa)
        except rooflm.KernelUnavailable:
            pass
    return out


HERE = usable_isas()


def random(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def oracle(q, k, v, *, scale=None, window=None, softcap=None, causal=True, sinks=None, first=0):
    """k, v: positions first .. length; q: the last tokens. Returns the output and the weights, in float64."""
    n_tok, n_head, dim = q.shape
    length = first + len(k)
    k, v = (np.repeat(x.astype(np.float64), n_head // x.shape[1], axis=1) for x in (k, v))
    s = np.einsum("thd,lhd->thl", q.astype(np.float64), k) * (1 / np.sqrt(dim) if scale is None else scale)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    at, pos = np.arange(first, length)[None], (length - n_tok + np.arange(n_tok))[:, None]
    seen = at <= pos if causal else np.ones((n_tok, len(k)), bool)
    if window:
        seen = seen & (at > pos - window)
    s = np.where(seen[:, None], s, -np.inf)
    top = s.max(-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, np.asarray(sinks, np.float64)[None, :, None])
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks, np.float64)[None, :, None] - top)
    p /= total
    return np.einsum("thl,lhd->thd", p, v), np.concatenate([np.zeros((n_tok, n_head, first)), p], -1)


def error(got, want):
    return np.abs(got - want).max() / np.abs(want).max()


def bound(kv):
    return 3e-4 if "q8_0" in kv else 3e-6


def filled(length, n_head_kv, dim_k, dim_v=None, seed=1, **options):
    k, v = random((length, n_head_kv, dim_k), seed), random((length, n_head_kv, dim_v or dim_k), seed + 1)
    cache = KVCache(n_head_kv=n_head_kv, dim_k=dim_k, dim_v=dim_v or dim_k, n_ctx=length + 64, **options)
    cache.append(k, v)
    return cache


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("layout", ["tile", "token", "head"])
@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0", "q8_0/f16", "f16/q8_0", "f32/q8_0"])
def test_types_layouts_head_sizes(kv, layout, isa):
    """One token, a few, and a prompt; lengths that are no multiple of a page or a stretch. R19, R20."""
    for dim in (40, 64, 80, 96, 128, 256):
        cache = filled(601, 2, dim, kv=kv, layout=layout)
        k, v = cache.k(), cache.v()
        for n_tok in (1, 3, 21):
            q = random((n_tok, 4, dim), n_tok)
            want, _ = oracle(q, k, v)
            got = attention(q, cache, isa=isa)
            assert error(got, want) < bound(kv), (dim, n_tok)


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("n_head,n_head_kv", [(1, 1), (2, 1), (3, 1), (4, 1), (8, 1), (9, 3), (20, 1), (6, 6)])
def test_head_ratios(n_head, n_head_kv, isa):
    """R17: query head h reads KV head h // ratio, for any ratio and number of rows."""
    for kv in ("f32", "f16", "q8_0"):
        cache = filled(130, n_head_kv, 64, kv=kv)
        for n_tok in (1, 2, 5, 8, 9, 70):
            q = random((n_tok, n_head, 64), n_tok)
            want, _ = oracle(q, cache.k(), cache.v())
            assert error(attention(q, cache, isa=isa), want) < bound(kv), (kv, n_tok)


@pytest.mark.parametrize("isa", HERE)
def test_unequal_and_odd_head_sizes(isa):
    for dim_k, dim_v in [(192, 128), (64, 16), (5, 7), (1, 1), (33, 48)]:
        for layout in ("tile", "head"):
            for kv in ("f32", "q8_0"):
                cache = filled(100, 1, dim_k, dim_v, kv=kv, layout=layout)
                for n_tok in (1, 10):
                    q = random((n_tok, 2, dim_k), 3)
                    want, _ = oracle(q, cache.k(), cache.v())
                    got = attention(q, cache, isa=isa)
                    assert got.shape == (n_tok, 2, dim_v)
                    assert error(got, want) < bound(kv), (dim_k, dim_v, layout, kv)


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 511, 512, 513, 1025])
def test_lengths(length, isa):
    for kv in ("f32", "f16", "q8_0"):
        cache = filled(length, 1, 64, kv=kv)
        for n_tok in {1, min(length, 7), min(length, 30), min(length, 100)}:
            q = random((n_tok, 3, 64), n_tok)
            want, _ = oracle(q, cache.k(), cache.v())
            assert error(attention(q, cache, isa=isa), want) < bound(kv), (kv, n_tok)


@pytest.mark.parametrize("isa", HERE)
def test_f32_is_exact_to_rounding(isa):
    """The exact path: 1e-6 of the norm, large scores included."""
    cache = filled(1000, 1, 64, kv="f32")
    for sharp in (1.0, 8.0):
        q = sharp * random((40, 2, 64))
        want, _ = oracle(q, cache.k(), cache.v())
        for n_tok in (1, 40):
            got = attention(q[-n_tok:], cache, isa=isa)
            rel = np.linalg.norm(got - want[-n_tok:], axis=-1) / np.linalg.norm(want[-n_tok:], axis=-1)
            assert np.sqrt(np.mean(rel**2)) < 1e-6 * sharp, (sharp, n_tok)


@pytest.mark.parametrize("isa", HERE)
def test_options(isa):
    """Scale, window, soft-cap, non-causal, sinks and the weights themselves, alone and together."""
    cache = {kv: filled(300, 2, 64, kv=kv) for kv in ("f32", "q8_0")}
    sinks = np.array([0.5, -3.0, 8.0, 0.0], np.float32)
    for options in (
        dict(scale=0.3),
        dict(window=1),
        dict(window=64),
        dict(window=100),
        dict(window=1000),
        dict(softcap=2.0),
        dict(causal=False),
        dict(causal=False, window=70),
        dict(sinks=sinks),
        dict(scale=0.2, window=130, softcap=5.0, sinks=sinks),
    ):
        for kv, c in cache.items():
            for n_tok in (1, 6, 50):
                q = random((n_tok, 4, 64), n_tok)
                want, p = oracle(q, c.k(), c.v(), **options)
                got, weights = attention(q, c, isa=isa, return_weights=True, **options)
                assert error(got, want) < bound(kv), (options, kv, n_tok)
                assert weights.shape == (n_tok, 4, 300)
                assert np.abs(weights - p).max() < (1e-4 if kv == "q8_0" else 2e-6), (options, kv, n_tok)
                np.testing.assert_array_equal(weights == 0, p == 0)
                np.testing.assert_array_equal(got, attention(q, c, isa=isa, **options))


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize("chunk", [1, 7, 64, 100])
def test_chunks_across_a_window(chunk, kv, isa):
    """R28: however a prompt is cut, every position sees its window and nothing else."""
    n, window = 400, 128
    k, v, q = random((n, 1, 64), 1), random((n, 1, 64), 2), random((n, 4, 64), 3)
    whole = KVCache(n_head_kv=1, head_dim=64, n_ctx=n, kv=kv)
    whole.append(k, v)
    want, _ = oracle(q, whole.k(), whole.v(), window=window)
    cache = KVCache(n_head_kv=1, head_dim=64, n_ctx=n, kv=kv, window=window, window_slack=100)
    for a in range(0, n, chunk):
        b = min(a + chunk, n)
        cache.append(k[a:b], v[a:b])
        got = attention(q[a:b], cache, isa=isa)
        assert error(got, want[a:b]) < bound(kv), a
    assert cache.first() > 0
    cache.rewind(n - 50)
    assert error(attention(q[n - 60 : n - 50], cache, isa=isa), want[n - 60 : n - 50]) < bound(kv)


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0"])
def test_same_bits_for_any_number_of_threads(kv, isa):
    cache = filled(1100 if isa == "ref" else 2100, 3, 64, kv=kv)
    for n_tok in (1, 4, 30, 150):
        q = random((n_tok, 9, 64), n_tok)
        want, p = attention(q, cache, isa=isa, threads=1, return_weights=True)
        for threads in (2, 3, 4):
            got, w = attention(q, cache, isa=isa, threads=threads, return_weights=True)
            assert got.tobytes() == want.tobytes() and w.tobytes() == p.tobytes(), (n_tok, threads)


@pytest.mark.parametrize("isa", HERE)
def test_batch_split_bound(isa):
    """A batch cut in another way goes through other kernels: the difference stays within 5e-6 (f32, f16) and 1e-4
    (q8_0: int16 queries and weights in small batches, float32 in large ones) of the largest output."""
    for kv in ("f32", "f16", "q8_0"):
        cache = filled(700, 2, 64, kv=kv)
        q = random((32, 4, 64))
        whole = attention(q, cache, isa=isa)
        for n in (1, 8, 9):
            assert error(attention(q[-n:], cache, isa=isa), whole[-n:]) < (1e-4 if kv == "q8_0" else 5e-6)


def test_isas_agree():
    """With q8_0 most agree to the bit; dotprod, and so i8mm, rounds weights to 32,639 steps instead of 32,767, and
    either rounding is about 6e-5 off."""
    for kv in ("f32", "f16", "q8_0"):
        cache = filled(700, 2, 64, kv=kv)
        for n_tok in (1, 20):
            q = random((n_tok, 4, 64))
            outs = [attention(q, cache, isa=isa) for isa in HERE]
            for out in outs[1:]:
                assert error(out, outs[0]) < (1.5e-4 if kv == "q8_0" else 5e-6)


def test_q8_0_is_close_to_f32():
    """What the type costs, K rotated: outputs within 1 % in the mean, half of what plain keys with outliers cost."""
    k, v, q = random((500, 1, 64), 1), random((500, 1, 64), 2), random((64, 4, 64), 3)
    k[..., 7] *= 20
    want, _ = oracle(q, k, v)
    found = {}
    for rotate in (True, False):
        cache = KVCache(n_head_kv=1, head_dim=64, n_ctx=500, kv="q8_0", rotate=rotate)
        cache.append(k, v)
        found[rotate] = np.linalg.norm(attention(q, cache) - want) / np.linalg.norm(want)
    assert found[True] < 0.03 and found[True] < found[False]


@pytest.mark.parametrize("isa", HERE)
def test_what_is_not_finite_shows(isa):
    for kv in ("f32", "f16", "q8_0"):
        for n_tok in (1, 12):
            k = random((100, 1, 64))
            q = random((n_tok, 2, 64))
            good = KVCache(n_head_kv=1, head_dim=64, n_ctx=100, kv=kv)
            good.append(k, k)
            bad_q = q.copy()
            bad_q[0, 1, 3] = np.nan
            got = attention(bad_q, good, isa=isa)
            assert np.isnan(got[0, 1]).all() and np.isfinite(got[0, 0]).all() and np.isfinite(got[1:]).all()
            for name in ("k", "v"):
                x = {"k": k.copy(), "v": k.copy()}
                x[name][50, 0, 3] = np.nan
                cache = KVCache(n_head_kv=1, head_dim=64, n_ctx=100, kv=kv)
                cache.append(x["k"], x["v"])
                got = attention(q, cache, isa=isa)
                assert np.isnan(got[..., 3]).all(), (kv, n_tok, name)
            huge = attention(1e4 * q, good, isa=isa)  # one weight takes all
            assert np.isfinite(huge).all()


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("sign", [1, -1])
def test_integer_sums_at_their_largest(isa, sign):
    """Every key, query and value at the end of its range, so that each integer sum is as large as it can be. Sums that
    wrap would turn the scores of even and odd positions, and with them the output, upside down."""
    for dim in (32, 256):
        ends = np.where(np.arange(dim) % 3 == 0, -1.0, 1.0).astype(np.float32)
        k = np.where(np.arange(192) % 2 == 0, 1.0, -1.0)[:, None, None] * ends
        v = np.where(np.arange(192) % 2 == 0, 1.0, -1.0)[:, None, None] * np.ones(dim)
        cache = KVCache(n_head_kv=1, head_dim=dim, n_ctx=192, kv="q8_0", rotate=False)
        cache.append(k.astype(np.float32), v.astype(np.float32))
        q = np.broadcast_to(sign * ends, (1, 5, dim)).astype(np.float32)
        want, _ = oracle(q, cache.k(), cache.v())
        got = attention(q, cache, isa=isa)
        assert np.abs(want).min() > 0.9 and error(got, want) < bound("q8_0"), dim


@pytest.mark.parametrize("isa", HERE)
def test_outliers_do_not_drown_the_rest(isa):
    """Integer weights share a step within a page: a value of huge size with no weight must not cost the others."""
    k, v = random((64, 1, 64), 1), random((64, 1, 64), 2)
    q = random((1, 1, 64), 3)
    v[10] *= 1000
    k[10] = -20 * q[0, 0]
    cache = KVCache(n_head_kv=1, head_dim=64, n_ctx=64, kv="q8_0")
    cache.append(k, v)
    want, _ = oracle(q, cache.k(), cache.v())
    assert error(attention(q, cache, isa=isa), want) < 1e-4


def test_bad_arguments_name_sizes():
    cache = filled(100, 2, 64, kv="f16")
    q = random((1, 4, 64))
    for bad, words in [
        (random((1, 4, 32)), "64"),
        (random((4, 64)), "shape"),
        (random((101, 4, 64)), "101 tokens.*100"),
        (random((0, 4, 64)), "0 tokens"),
        (random((1, 3, 64)), "3 heads.*2 KV"),
    ]:
        with pytest.raises(ValueError, match=words):
            attention(bad, cache)
    for options, words in [
        (dict(layer=1), "layer 1.*1 layers"),
        (dict(window=0), "window is 0"),
        (dict(threads=0), "threads is 0"),
        (dict(scale=np.nan), "scale"),
        (dict(sinks=np.zeros(3)), r"\(4,\)"),
        (dict(isa="sse9"), "sse9"),
        (dict(kernels="rl_no_such"), "rl_no_such"),
    ]:
        with pytest.raises(ValueError, match=words):
            attention(q, cache, **options)
    with pytest.raises(TypeError):
        attention(q, object())
    windowed = KVCache(n_head_kv=1, head_dim=64, n_ctx=500, kv="f32", window=64, window_slack=64)
    for _ in range(10):
        windowed.append(random((50, 1, 64)), random((50, 1, 64)))
    with pytest.raises(ValueError, match=f"{windowed.first()} on"):
        attention(random((400, 1, 64)), windowed)


@pytest.mark.best_tier
def test_every_kernel_ran():
    """Each entry that this CPU can run is run here, by name, and compared; one that is not is a failure."""
    names = {row[0] for row in _kernel_table() if row[1] == "attn"}
    assert names
    runnable = {n for n in names if n.rsplit("_", 1)[1] in HERE}
    q = random((20, 3, 80), 9)
    seen = set()
    for kv in ("f32", "f16", "q8_0"):
        for layout in ("tile", "head"):
            cache = filled(100, 1, 80, kv=kv, layout=layout)
            want, _ = oracle(q, cache.k(), cache.v())
            for isa in HERE:
                for n_tok in (1, 20):
                    ran = _attention_kernels(cache, n_tok, isa)
                    for name in [*ran, *(n for n in runnable if n.endswith("_" + isa))]:
                        asked = _attention_kernels(cache, n_tok, None, name)
                        if name not in asked:
                            continue  # of another type, layout or number of tokens
                        assert error(attention(q[-n_tok:], cache, kernels=name), want[-n_tok:]) < bound(kv), name
                        seen.add(name)
    assert runnable - seen == set()
    with_kernels = {n.rsplit("_", 1)[1] for n in names}  # i8mm has none of its own: dotprod's run there
    assert {n.rsplit("_", 1)[1] for n in seen} == with_kernels & set(HERE)
