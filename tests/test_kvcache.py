# SPDX-License-Identifier: Apache-2.0
"""The KV cache alone: what is stored is what was given (to the precision of its type), wherever it lies; pages are
taken, shared, copied and given back as stated; damage and misuse are errors that name the sizes."""

from __future__ import annotations

import gc
import os
import re
import resource
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import rooflm
from rooflm import KVCache

TYPES = ["f32", "f16", "q8_0", "q8_0/f16", "f32/q8_0", "f16/f32"]
LAYOUTS = ["tile", "token", "head"]


def random(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def hadamard(x):
    """Walsh-Hadamard along the last axis by the largest power of two that divides it, written independently."""
    dim = x.shape[-1]
    block = dim & -dim
    h = np.array([[1.0]])
    while len(h) < block:
        h = np.block([[h, h], [h, -h]])
    y = x.reshape(*x.shape[:-1], dim // block, block).astype(np.float64) @ (h / np.sqrt(block))
    return y.reshape(x.shape)


def q8_0(x):
    """int8 with a float32 scale per 32 values along the last axis, the last group maybe shorter."""
    out = np.empty(x.shape, np.float64)
    for g in range(0, x.shape[-1], 32):
        part = x[..., g : g + 32].astype(np.float32)
        scale = np.abs(part).max(-1, keepdims=True) / np.float32(127)
        q = np.rint(np.divide(part, scale, out=np.zeros_like(part), where=scale > 0))
        out[..., g : g + 32] = q * scale
    return out


def stored(x, kind, rotated=False):
    if kind == "f32":
        return x
    if kind == "f16":
        return x.astype(np.float16).astype(np.float32)
    return hadamard(q8_0(hadamard(x).astype(np.float32))) if rotated else q8_0(x)


@pytest.mark.parametrize("dim", [40, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv", TYPES)
def test_values_come_back(kv, layout, dim):
    """Across page borders, in unequal chunks; q8_0 to its grid, the others exactly."""
    kind_k, kind_v = (kv.split("/") * 2)[:2]
    k, v = random((2, 150, 3, dim), 1), random((2, 150, 3, dim), 2)
    cache = KVCache(2, n_head_kv=3, head_dim=dim, n_ctx=200, kv=kv, layout=layout)
    assert cache.rotate == (kind_k == "q8_0")
    for a, b in [(0, 1), (1, 8), (8, 72), (72, 150)]:
        cache.append(k[:, a:b], v[:, a:b])
    for layer in range(2):
        for got, given, kind, turned in [
            (cache.k(layer), k[layer], kind_k, cache.rotate),
            (cache.v(layer), v[layer], kind_v, False),
        ]:
            want = stored(given, kind, turned)
            if kind == "q8_0":
                # A value on the edge of two steps may round either way after the rotation.
                step = np.abs(given).max() * 2 / 127
                assert np.abs(got - want).max() <= step
                assert np.mean(np.abs(got - want) > 1e-5) < 0.02
            else:
                np.testing.assert_array_equal(got, want)


def test_raw_keys_are_rotated():
    k = random((20, 2, 80))
    cache = KVCache(n_head_kv=2, head_dim=80, n_ctx=64, kv="q8_0")
    cache.append(k, k)
    np.testing.assert_allclose(cache.k(raw=True), hadamard(k), atol=0.05)
    np.testing.assert_allclose(cache.k(raw=False), k, atol=0.1)
    plain = KVCache(n_head_kv=2, head_dim=80, n_ctx=64, kv="q8_0", rotate=False)
    plain.append(k, k)
    np.testing.assert_array_equal(plain.k(), plain.k(raw=True))
    np.testing.assert_allclose(plain.k(), q8_0(k), atol=1e-6)


def test_rotation_helps():
    """Keys with an outlying dimension, as real ones have: rotation at least halves the error."""
    k = random((64, 1, 64))
    k[..., 5] *= 30
    error = {}
    for rotate in (False, True):
        cache = KVCache(n_head_kv=1, head_dim=64, n_ctx=64, kv="q8_0", rotate=rotate)
        cache.append(k, k)
        error[rotate] = np.square(cache.k() - k)[..., :32].sum()
    assert error[True] < error[False] / 2


def test_hard_values():
    """Zero, tiny and huge values, and what is not finite."""
    k = np.zeros((4, 1, 64), np.float32)
    k[1] = 1e-30
    k[2] = 3e38
    k[3, 0, 40] = np.nan
    for layout in LAYOUTS:
        cache = KVCache(n_head_kv=1, head_dim=64, n_ctx=64, kv="q8_0", rotate=False, layout=layout)
        cache.append(k, k)
        for got in (cache.k(), cache.v()):
            assert (got[0] == 0).all()
            np.testing.assert_allclose(got[1], 1e-30, rtol=1e-2)
            np.testing.assert_allclose(got[2], 3e38, rtol=1e-2)
            assert np.isfinite(got[3, 0, :32]).all()
            assert np.isnan(got[3, 0, 32:]).all(), "a NaN must show"


@pytest.mark.filterwarnings("ignore:overflow")
def test_half_precision_of_every_kind_of_value():
    """All of float32's ranges as NumPy converts them: normal, subnormal, ties, overflow, infinite, NaN."""
    bits = np.random.default_rng(0).integers(0, 2**32, 64 * 200, dtype=np.uint32)
    bits[:8000] = bits[:8000] & 0x8FFFFFFF | 0x30000000  # around half precision's range
    bits[8000:8064] = (np.arange(64, dtype=np.uint32) << 12) + 0x38800000 - (32 << 12)  # ties
    x = bits.view(np.float32).reshape(200, 1, 64)
    cache = KVCache(n_head_kv=1, head_dim=64, n_ctx=200, kv="f16")
    cache.append(x, x)
    np.testing.assert_array_equal(cache.k(), x.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(cache.v(), x.astype(np.float16).astype(np.float32))


# ---- pages ----


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0"])
def test_pages_are_zero_copy_and_complete(kv, layout):
    k, v = random((100, 2, 48), 3), random((100, 2, 48), 4)
    cache = KVCache(n_head_kv=2, head_dim=48, n_ctx=128, kv=kv, layout=layout)
    cache.append(k, v)
    pages = cache.pages()
    assert [(p.position, p.n_tokens) for p in pages] == [(0, 64), (64, 36)]
    assert pages[0].address != pages[1].address
    for page in pages:
        for name in ("k", "v"):
            a, scales = getattr(page, name), getattr(page, name + "_scales")
            assert not a.flags.writeable and not a.flags.owndata
            assert page.address <= a.__array_interface__["data"][0] < page.address + cache.nbytes
            assert (scales is None) == (kv != "q8_0")
            x = a.astype(np.float64)
            if layout == "tile":
                if name == "k":  # (head, group, dim/in, token, in) -> (head, token, dim)
                    x = x.transpose(0, 1, 3, 2, 4).reshape(2, 64, 48)
                    s = None if scales is None else scales.transpose(0, 1, 3, 2).reshape(2, 64, 2)
                else:  # (head, group, dim, token)
                    x = x.transpose(0, 1, 3, 2).reshape(2, 64, 48)
                    s = None if scales is None else scales.transpose(0, 2, 1)
            else:
                s = scales
            if s is not None:
                x = x * np.repeat(s, 32, axis=-1)[..., :48]
            want = (cache.k(raw=True) if name == "k" else cache.v())[page.position :][: page.n_tokens]
            np.testing.assert_allclose(x.transpose(1, 0, 2)[: page.n_tokens], want, rtol=1e-6)
            if layout == "token":
                assert a.strides[0] < a.strides[1]
            if layout == "head":
                assert a.strides[0] > a.strides[1]


def test_views_outlive_the_cache_and_never_change():
    k = random((70, 1, 64))
    cache = KVCache(n_head_kv=1, head_dim=64, n_ctx=256, kv="f32", layout="head")
    cache.append(k, k)
    pages = cache.pages()
    cache.rewind(66)
    cache.append(-k[:30], -k[:30])
    cache.append(k, k)
    seen = [p.k.copy() for p in pages]
    del cache
    for i in range(20):  # churn that would reuse freed memory
        other = KVCache(n_head_kv=1, head_dim=64, n_ctx=256, kv="f32", layout="head")
        other.append(np.full_like(k, i), k)
    np.testing.assert_array_equal(pages[0].k, seen[0])
    np.testing.assert_array_equal(pages[0].k[0], k[:64, 0])
    np.testing.assert_array_equal(pages[1].k[0, :6], k[64:, 0])
    with pytest.raises(ValueError):
        pages[0].k[0, 0, 0] = 1


def resident() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


@pytest.mark.unsanitized  # resident memory
def test_context_costs_nothing_until_used():
    """R31's memory side: 131072 tokens of 30 layers reserved, 10 used."""
    before = resident()
    cache = KVCache(30, n_head_kv=3, head_dim=64, n_ctx=131072, kv="f16")
    x = random((30, 10, 3, 64))
    cache.append(x, x)
    assert cache.nbytes_reserved >= 131072 * cache.nbytes_per_token > 3e9
    assert cache.nbytes == 30 * 64 * cache.nbytes_per_token // 30
    grown = resident() - before
    assert grown < cache.nbytes + 6e6, grown


@pytest.mark.unsanitized  # of this system's memory, not of an emulator's
@pytest.mark.parametrize("layers,heads", [(1, 8), (8, 1)])
def test_full_stretches_become_huge_pages(layers, heads):
    """8 KB a token: a stretch of 2 MB is full after 256 to 512 tokens of 1500, and one of the pages of eight layers,
    of which none alone fills so much, as well."""

    def huge_kb():
        with open("/proc/self/smaps_rollup") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("AnonHugePages"))

    kv = KVCache(layers, n_head_kv=heads, head_dim=128, n_ctx=4096, kv="f32")
    rng = np.random.default_rng(5)
    x = rng.standard_normal((layers, 1500, heads, 128), dtype=np.float32)
    gc.collect()  # or what other tests left goes meanwhile
    before = huge_kb()
    for start in range(0, 1500, 100):
        kv.append(x[:, start : start + 100], -x[:, start : start + 100])
    gained = huge_kb() - before
    for i in range(layers):
        assert np.array_equal(kv[i].k(), x[i]) and np.array_equal(kv[i].v(), -x[i])
    assert gained <= kv.nbytes >> 10  # none beyond the pages in use
    thp = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    release = tuple(int(n) for n in re.findall(r"\d+", os.uname().release)[:2])
    if not thp.exists() or "[never]" in thp.read_text() or release < (6, 1) or os.sysconf("SC_PAGESIZE") != 4096:
        pytest.skip("this system makes no huge pages when asked")
    assert gained >= 4096


@pytest.mark.unsanitized  # resident memory
def test_fifty_caches_come_and_go():
    x = random((4, 256, 2, 64))
    for i in range(50):
        cache = KVCache(4, n_head_kv=2, head_dim=64, n_ctx=4096, kv="f32")
        cache.append(x, x)
        fork = cache.fork()
        del cache
        fork.rewind(0)
        if i == 5:
            start = resident()
    assert resident() - start < 4e6


def test_full():
    x = random((65, 1, 32))
    cache = KVCache(n_head_kv=1, head_dim=32, n_ctx=64)
    cache.append(x[:63], x[:63])
    with pytest.raises(rooflm.ContextFull) as e:
        cache.append(x[:2], x[:2])
    assert (e.value.n_ctx, e.value.needed) == (64, 65)
    assert cache.length == 63
    cache.append(x[:1], x[:1])
    with pytest.raises(rooflm.ContextFull):
        cache.append(x[:1], x[:1])
    cache.rewind(10)
    cache.append(x[:54], x[:54])
    assert cache.length == 64


# ---- windows ----


@pytest.mark.parametrize("chunk", [1, 7, 64, 100])
def test_window_keeps_what_it_states(chunk):
    """Window + slack stay, older pages go and are used again; the layer without a window keeps all."""
    window, slack, n = 100, 100, 1500
    k = random((n, 1, 16))
    both = np.stack([k, k])
    cache = KVCache(2, n_head_kv=1, head_dim=16, n_ctx=n, kv="f32", window=[window, None], window_slack=slack)
    most = 0
    for a in range(0, n, chunk):
        cache.append(both[:, a : a + chunk], both[:, a : a + chunk])
        length, first = cache.length, cache.first(0)
        assert first <= max(0, length - window - slack + chunk + 1)
        assert first > length - window - slack - 64 - chunk
        most = max(most, len(cache.pages(0)))
    assert most <= (window + slack + 64 + 63) // 64
    assert cache.first(1) == 0 and len(cache.pages(1)) == (n + 63) // 64
    np.testing.assert_array_equal(cache.k(0), k[cache.first(0) :])
    np.testing.assert_array_equal(cache.k(1), k)
    addresses = {p.address for p in cache.pages(0)}
    assert len(addresses) == len(cache.pages(0))


def test_rewind_within_and_beyond_a_window():
    k = random((1000, 1, 16))
    cache = KVCache(n_head_kv=1, head_dim=16, n_ctx=1000, kv="f32", window=100, window_slack=50)
    for a in range(0, 1000, 50):
        cache.append(k[a : a + 50], k[a : a + 50])
    cache.rewind(950)  # the slack is always there
    least = cache.first() + 99
    with pytest.raises(ValueError, match=rf"\b{least - 1}\b.*\b{least}\b"):
        cache.rewind(least - 1)
    assert cache.length == 950
    cache.rewind(least)
    np.testing.assert_array_equal(cache.k(), k[cache.first() : least])
    cache.append(k[least:][:50], k[least:][:50])
    np.testing.assert_array_equal(cache.k(), k[cache.first() : least + 50])
    cache.rewind(0)
    assert cache.length == 0 and cache.first() == 0 and cache.nbytes == 0
    cache.append(k[:50], k[:50])
    np.testing.assert_array_equal(cache.k(), k[:50])


def test_rewind_leaves_no_trace():
    """An infinity that was rewound must not reach later results through a weight of zero."""
    bad = np.full((40, 1, 64), np.inf, np.float32)
    good = random((70, 1, 64))
    for kv in ("f32", "f16", "q8_0"):
        cache = KVCache(n_head_kv=1, head_dim=64, n_ctx=128, kv=kv)
        cache.append(good[:30], good[:30])
        cache.append(bad, bad)
        cache.rewind(30)
        cache.append(good[30:31], good[30:31])
        assert np.isfinite(rooflm.attention(good[:1], cache)).all()
        cache.rewind(0)
        cache.append(good[:10], good[:10])
        assert np.isfinite(rooflm.attention(good[:10], cache)).all()


# ---- forks ----


@pytest.mark.parametrize("kv", ["f32", "q8_0"])
def test_fork_shares_full_pages_and_goes_its_own_way(kv):
    k = random((300, 2, 32))
    cache = KVCache(n_head_kv=2, head_dim=32, n_ctx=400, kv=kv)
    cache.append(k[:200], k[:200])
    before = cache.k()
    fork = cache.fork()
    a, b = [p.address for p in cache.pages()], [p.address for p in fork.pages()]
    assert a[:3] == b[:3] and a[3] != b[3]
    assert [p.holders for p in cache.pages()][:3] == [2, 2, 2]
    cache.append(k[200:], k[200:])
    fork.append(-k[200:300], -k[200:300])
    np.testing.assert_array_equal(fork.k()[:200], before)
    np.testing.assert_array_equal(cache.k()[:200], before)
    assert not np.allclose(fork.k()[200:], cache.k()[200:])


def test_writing_into_a_shared_page_copies_it():
    k = random((128, 1, 32))
    cache = KVCache(n_head_kv=1, head_dim=32, n_ctx=256, kv="f32")
    cache.append(k, k)
    fork = cache.fork()
    fork.rewind(100)  # the second page is shared and now partial
    fork.append(-k[:20], -k[:20])
    np.testing.assert_array_equal(cache.k(), k)
    np.testing.assert_array_equal(fork.k(), np.concatenate([k[:100], -k[:20]]))
    cache.rewind(70)
    cache.append(2 * k[:30], 2 * k[:30])
    np.testing.assert_array_equal(fork.k(), np.concatenate([k[:100], -k[:20]]))


def test_fork_outlives_its_parent():
    k = random((200, 1, 32))
    cache = KVCache(n_head_kv=1, head_dim=32, n_ctx=256, kv="f16")
    cache.append(k, k)
    want = cache.k()
    forks = [cache.fork() for _ in range(3)]
    del cache
    np.testing.assert_array_equal(forks[0].k(), want)
    grand = forks[1].fork()
    del forks
    np.testing.assert_array_equal(grand.k(), want)
    grand.rewind(10)
    grand.append(k, k)
    np.testing.assert_array_equal(grand.k()[:10], want[:10])


def test_parent_outgrows_its_pages_while_forks_hold_them():
    """Pages that forks keep are not there for the parent: it must go on, not fail."""
    k = random((128, 1, 32))
    cache = KVCache(n_head_kv=1, head_dim=32, n_ctx=128, kv="f32")
    forks = []
    for i in range(5):
        cache.append(k + i, k)
        forks.append(cache.fork())
        cache.rewind(0)
    for i, fork in enumerate(forks):
        np.testing.assert_array_equal(fork.k(), k + i)


def test_forks_in_threads():
    k = random((320, 2, 32))
    cache = KVCache(n_head_kv=2, head_dim=32, n_ctx=640, kv="f32")
    cache.append(k[:200], k[:200])
    forks, wrong = [cache.fork() for _ in range(4)], []

    def work(fork, sign):
        for _ in range(20):
            fork.append(sign * k[200:], k[200:])
            if not (fork.k()[200:] == sign * k[200:]).all() or not (fork.k()[:200] == k[:200]).all():
                wrong.append(sign)
            again = fork.fork()
            fork.rewind(100)
            fork.append(k[100:200], k[100:200])
            del again

    threads = [threading.Thread(target=work, args=(f, i + 1)) for i, f in enumerate(forks)]
    for t in threads:
        t.start()
    del cache
    for t in threads:
        t.join()
    assert wrong == []


# ---- files ----


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv", ["f32", "q8_0/f16"])
def test_save_and_load(kv, layout, tmp_path):
    x = random((2, 500, 2, 48))
    options = dict(n_head_kv=2, head_dim=48, kv=kv, layout=layout, window=[None, 100], window_slack=64)
    cache = KVCache(2, n_ctx=500, **options)
    cache.append(x, x)
    cache.save(tmp_path / "a")
    other = KVCache(2, n_ctx=700, **options)
    other.append(x[:, :30], x[:, :30])
    other.load(tmp_path / "a")
    assert other.length == 500
    for i in range(2):
        assert other.first(i) == cache.first(i)
        np.testing.assert_array_equal(other.k(i), cache.k(i))
        np.testing.assert_array_equal(other.v(i), cache.v(i))
    q = random((1, 4, 48), 5)
    for i in range(2):
        np.testing.assert_array_equal(rooflm.attention(q, other, layer=i), rooflm.attention(q, cache, layer=i))
    other.append(x[:, :60], x[:, :60])  # stays usable


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0"])
def test_saved_bytes_depend_on_the_content_alone(kv, layout, tmp_path):
    """What was rewound, or lay in a page before, is neither saved nor seen in a page view."""
    x, files = random((130, 2, 48)), []
    for history in ([], [130], [40, 130], [130, 5]):
        cache = KVCache(n_head_kv=2, head_dim=48, n_ctx=192, kv=kv, layout=layout)
        for n in history:
            cache.append(-x[:n], -x[:n])
            cache.rewind(min(n, 30))
            cache.append(x[:n], x[:n])
            cache.rewind(0)
        cache.append(x[:100], x[:100])
        cache.append(-x[100:], -x[100:])
        cache.rewind(90)
        cache.append(x[90:91], x[90:91])
        cache.save(tmp_path / "a")
        files.append((tmp_path / "a").read_bytes())
    assert files[1:] == files[:1] * 3


def test_load_refuses_what_does_not_fit(tmp_path):
    x = random((100, 2, 32))
    base = dict(n_layer=1, n_head_kv=2, head_dim=32, n_ctx=128, kv="q8_0", layout="tile")
    cache = KVCache(**base)
    cache.append(x, x)
    cache.save(tmp_path / "a")
    for change, words in [
        (dict(kv="f16"), ["q8_0/q8_0", "f16/f16"]),
        (dict(layout="head"), ["tile", "head"]),
        (dict(rotate=False), ["rotated", "plain"]),
        (dict(head_dim=64), ["32/32", "64/64"]),
        (dict(n_head_kv=4), ["2 heads", "4 of"]),
        (dict(window=50), ["window 0", "50"]),
    ]:
        other = KVCache(**{**base, **change})
        with pytest.raises(ValueError) as e:
            other.load(tmp_path / "a")
        assert all(w in str(e.value) for w in words), str(e.value)
    with pytest.raises(rooflm.ContextFull) as e:
        KVCache(**{**base, "n_ctx": 64}).load(tmp_path / "a")
    assert (e.value.n_ctx, e.value.needed) == (64, 100)


def test_damaged_files(tmp_path):
    x = random((100, 1, 32))
    cache = KVCache(n_head_kv=1, head_dim=32, n_ctx=128, kv="q8_0")
    cache.append(x, x)
    path, bad = tmp_path / "a", tmp_path / "b"
    cache.save(path)
    data = path.read_bytes()
    for cut in [0, 3, 30, 60, 90, 500, len(data) // 2, len(data) - 1]:
        bad.write_bytes(data[:cut])
        with pytest.raises(rooflm.FormatError):
            cache.load(bad)
        assert cache.length in (0, 100)
        cache.load(path)
        assert cache.length == 100
    words = np.frombuffer(data[:136], np.uint32)
    for i in range(len(words)):
        for value in (0xFFFFFFFF, 0x7FFFFFFF, 200):
            broken = words.copy()
            broken[i] = value
            bad.write_bytes(broken.tobytes() + data[136:])
            with pytest.raises((rooflm.FormatError, ValueError, rooflm.ContextFull)):
                cache.load(bad)
    with pytest.raises(FileNotFoundError):
        cache.load(tmp_path / "none")
    with pytest.raises(OSError):
        cache.save(tmp_path / "no" / "where")


# ---- wrong arguments ----


def test_bad_arguments_name_sizes():
    good = dict(n_head_kv=2, head_dim=32, n_ctx=64)
    for change, words in [
        (dict(n_ctx=0), "n_ctx 0"),
        (dict(n_ctx=2**40), "n_ctx"),
        (dict(n_head_kv=0), "n_head_kv 0"),
        (dict(head_dim=0), "0, it must be from 1"),
        (dict(head_dim=4096), "4096"),
        (dict(kv="q4_0"), "q4_0"),
        (dict(kv="f16/q9"), "f16/q9"),
        (dict(layout="row"), "row"),
        (dict(rotate=True, kv="f16"), "f16"),
        (dict(window=-1), "-1"),
        (dict(window=[1, 2]), "2 entries for 1"),
        (dict(window=16, window_slack=0), "window_slack"),
        (dict(n_layer=0), "n_layer 0"),
    ]:
        with pytest.raises(ValueError, match=words):
            KVCache(**{**good, **change})
    with pytest.raises(TypeError):
        KVCache(n_head_kv=2, n_ctx=64)
    cache = KVCache(**good)
    for k, v in [
        ((3, 2, 31), (3, 2, 32)),
        ((3, 1, 32), (3, 1, 32)),
        ((3, 64), (3, 64)),
        ((3, 2, 32), (4, 2, 32)),
    ]:
        with pytest.raises(ValueError, match=r"shape|tokens"):
            cache.append(np.zeros(k, np.float32), np.zeros(v, np.float32))
    with pytest.raises(ValueError, match="0 tokens|holds 0"):
        cache.rewind(1)
    with pytest.raises(ValueError, match="layer 1"):
        cache.k(1)
    assert cache.length == 0
    assert "2 heads of 32/32" in repr(cache) and "KVLayer 0" in repr(cache[0])


def test_address_space_too_small():
    """What cannot be reserved is a MemoryError that says how much was asked for."""
    with pytest.raises((MemoryError, ValueError), match="reserve|large"):
        KVCache(4096, n_head_kv=128, head_dim=1024, n_ctx=2**30, kv="f32")


def test_a_save_that_fails_names_the_file_and_keeps_the_old_one(tmp_path):
    path = tmp_path / "kv"
    kv = rooflm.KVCache(n_head_kv=1, head_dim=32, n_ctx=64)
    kv.append(np.ones((3, 1, 32)), np.ones((3, 1, 32)))
    kv.save(path)
    before = path.read_bytes()
    kv.append(np.ones((3, 1, 32)), np.ones((3, 1, 32)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="cannot write .*/kv: File too large"):
            kv.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["kv"]
    path.write_bytes(b"RLKV")
    with pytest.raises(rooflm.FormatError, match="/kv: the saved KV cache ends too early"):
        kv.load(path)
