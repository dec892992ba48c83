# SPDX-License-Identifier: Apache-2.0
"""Eviction: what a talk beyond the cache computes is what NumPy says of the sinks and the recent positions, however the
text is cut, stored, forked, saved or shared between threads; what is dropped shows; what cannot be right is refused."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import rooflm
from rooflm import _core

pytest.importorskip("gguf")
from maker import tiny_model
from numpy_forward import EvictingModel, logits_of, worst_row

N = 600  # tokens of a talk
EVICT = "64+128"  # 256 positions


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """Head size 24: 16 does not divide it, and the rotation of q8_0 works in blocks of 8."""
    path = tmp_path_factory.mktemp("evict") / "llama.gguf"
    return tiny_model(path, width=96, n_head=4, n_kv=2, head_dim=24, n_ctx=4096, seed=3)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    """Five of six layers with a window of 100 tokens and a RoPE base of their own."""
    path = tmp_path_factory.mktemp("evict") / "gemma.gguf"
    return tiny_model(path, "gemma3", n_layer=6, n_kv=1, window=100, vocab="spm", n_ctx=4096, seed=4)


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(5).integers(3, 300, N, dtype=np.int32)


@pytest.fixture(scope="module")
def right(llama, gemma, tokens):
    """Float64 logits of all positions: {(model, sinks, recent): (N, n_vocab)}, made when asked for."""
    made = {}

    def of(path, sinks=64, recent=128):
        key = (path, sinks, recent)
        if key not in made:
            m = EvictingModel(path, sinks, recent)
            made[key] = m.logits(m.layers(tokens)[-1])
        return made[key]

    return of


def session(path, evict=EVICT, **options):
    options = {"kv": "f32", "compute": "f32", "n_threads": 1, **options}
    return rooflm.Model(path).session(evict=evict, **options)


@pytest.mark.parametrize("chunk", [1, 7, 64, N])
@pytest.mark.parametrize("sinks, recent", [(64, 128), (0, 64), (128, 192)])
def test_logits_are_those_of_numpy(llama, tokens, right, sinks, recent, chunk):
    """Every position, so also the first and last before each eviction, under any cut of the text."""
    with session(llama, f"{sinks}+{recent}") as s:
        got = logits_of(s, tokens, chunk)
    assert worst_row(got, right(llama, sinks, recent)) < 2e-5


def test_eviction_changes_what_is_computed(llama, tokens, right):
    """Else the test above could not see a position that stayed."""
    full, evicted = right(llama, 64, 4096), right(llama)
    assert np.array_equal(full[:256], evicted[:256])
    assert np.linalg.norm(full[256:] - evicted[256:], axis=1).min() > 1e-3


@pytest.mark.parametrize("layout", ["tile", "token", "head"])
@pytest.mark.parametrize("kv, bound", [("f32", 2e-5), ("f16", 3e-3), ("q8_0", 3e-2), ("q8_0/f16", 3e-2)])
def test_types_and_layouts(llama, tokens, right, kv, bound, layout):
    with session(llama, kv=kv, layout=layout) as s:
        assert worst_row(logits_of(s, tokens, 100), right(llama)) < bound


@pytest.mark.parametrize("chunk", [1, 50])
@pytest.mark.parametrize("recent", [128, 64 * 16])
def test_sliding_windows(gemma, tokens, right, recent, chunk):
    """Windowed layers beside full ones: the window within what stays, and nothing evicted at all."""
    with session(gemma, f"64+{recent}") as s:
        assert worst_row(logits_of(s, tokens, chunk), right(gemma, 64, recent)) < 5e-5


def test_a_window_longer_than_the_cache(tmp_path, tokens):
    path = tiny_model(tmp_path / "g.gguf", "gemma3", n_layer=6, n_kv=1, window=256, vocab="spm", n_ctx=4096, seed=4)
    m = EvictingModel(path, 64, 128)
    with session(path) as s:
        assert worst_row(logits_of(s, tokens, 80), m.logits(m.layers(tokens)[-1])) < 5e-5


def test_a_long_talk_keeps_its_memory_and_its_keys(llama):
    """The keys of the sinks are turned from their originals: after 200 evictions as exact as after the first, and
    what is stored does not grow."""
    ids = np.random.default_rng(6).integers(3, 300, 256 + 64 * 200, dtype=np.int32)
    with session(llama, kv="f16") as s:
        s.eval(ids[:256], logits="none")
        first = s.kv[1].k()[:64].astype(np.float64)
        held = []
        for i in range(256, len(ids), 64):
            s.eval(ids[i : i + 64], logits="none")
            held.append(s.kv_nbytes)
        assert len(set(held)) == 1
        assert s.n_past == len(ids) and s.evicted == 64 * 200
        turned = s.kv[1].k()[:64]
    angle = 64 * 200 * 10000.0 ** (-np.arange(0, 24, 2) / 24)
    a, b = first[..., 0::2], first[..., 1::2]
    want = np.empty_like(first)
    want[..., 0::2], want[..., 1::2] = (
        a * np.cos(angle) - b * np.sin(angle),
        a * np.sin(angle) + b * np.cos(angle),
    )
    assert np.abs(turned - want).max() <= np.abs(want).max() * 2.0**-10


def test_sinks_that_are_looked_at_are_turned_elsewhere(llama, tokens):
    """A page of the sinks is turned where it lies from the second eviction on, unless a view or a fork has it."""
    with session(llama, kv="f16") as s:
        s.eval(tokens[:320], logits="none")
        alone = s.kv[0].pages[0].address
        s.eval(tokens[320:384], logits="none")
        assert s.kv[0].pages[0].address == alone
        seen = s.kv[0].pages[0].k
        before = seen.copy()
        s.eval(tokens[384:448], logits="none")
        assert s.kv[0].pages[0].address != alone
        np.testing.assert_array_equal(seen, before)
        with s.fork() as twin:
            before = s.kv[0].k()[:64]
            s.eval(tokens[448:512], logits="none")
            np.testing.assert_array_equal(twin.kv[0].k()[:64], before)
            assert not np.array_equal(s.kv[0].k()[:64], before)


def test_short_talks_have_the_bits_of_a_session_that_never_evicts(llama, tokens):
    with session(llama) as s, rooflm.Model(llama).session(kv="f32", compute="f32", n_threads=1, n_ctx=256) as plain:
        np.testing.assert_array_equal(logits_of(s, tokens[:256], 100), logits_of(plain, tokens[:256], 100))


def test_threads_give_the_same_bits(llama, gemma, tokens):
    for path in (llama, gemma):
        got = []
        for n in (1, 2, 4):
            with session(path, kv="q8_0", n_threads=n) as s:
                got.append(logits_of(s, tokens, 90))
        np.testing.assert_array_equal(got[0], got[1])
        np.testing.assert_array_equal(got[0], got[2])


# ---- what is held ----


def test_counts_may_be_read_while_another_thread_evaluates(llama, tokens):
    """They never go back, though the cache itself becomes shorter by a page at each eviction. Run under
    ThreadSanitizer, too."""
    with session(llama, n_batch=16) as s:
        whole = threading.Thread(target=lambda: [s.eval(tokens, logits="none") for _ in range(2)])
        whole.start()
        seen = [(0, 0)]
        while whole.is_alive():
            assert "positions" in repr(s) and s.room > N
            seen.append((s.n_past, s.evicted))
        whole.join()
        n_past, evicted = np.array(seen).T
        assert (np.diff(n_past) >= 0).all() and (np.diff(evicted) >= 0).all()
        assert (s.n_past, s.evicted) == (2 * N, (2 * N - 256 + 63) // 64 * 64)


def test_what_is_held_shows(llama, tokens):
    with session(llama, kv="f16") as s:
        assert s.evict == EVICT and s.n_ctx == 256
        s.eval(tokens[:256], logits="none")
        assert s.held == [[0, 256]] and s.evicted == 0
        s.eval(tokens[256:300], logits="none")
        assert s.held == [[0, 64], [128, 300]] and s.n_past == 300 and s.evicted == 64
        np.testing.assert_array_equal(s.tokens, tokens[:300])
        pages = s.kv[0].pages
        assert [p.position for p in pages] == [0, 128, 192, 256] and [p.n_tokens for p in pages] == [64, 64, 64, 44]
        assert s.kv[0].k().shape == (300 - 64, 2, 24)
        assert "0 to 63 and 128 to 299" in repr(s) and EVICT in repr(s)
    with session(llama, "0+64") as s:
        s.eval(tokens, logits="none")
        assert s.held == [[512, 600]]
    with rooflm.Model(llama).session(n_ctx=64) as s:
        assert s.evict is None and s.held == [[0, 0]]
        with pytest.raises(rooflm.ContextFull):
            s.eval(tokens[:65])


def test_values_stay_where_they_were(llama, tokens):
    """V of all that stays, and K behind the sinks, to the bit."""
    with session(llama, kv="q8_0") as s:
        s.eval(tokens[:256], logits="none")
        k, v = s.kv[1].k(raw=True), s.kv[1].v()
        s.eval(tokens[256:257], logits="none")
        np.testing.assert_array_equal(s.kv[1].v()[:-1], np.delete(v, np.s_[64:128], axis=0))
        np.testing.assert_array_equal(s.kv[1].k(raw=True)[64:-1], k[128:])
        assert not np.array_equal(s.kv[1].k(raw=True)[:64], k[:64])


def test_a_view_of_a_page_that_goes_stays_as_it_was(llama, tokens):
    with session(llama) as s:
        s.eval(tokens[:256], logits="none")
        pages = s.kv[0].pages
        seen = [np.array(p.k) for p in pages]
        s.eval(tokens[256:], logits="none")
        for page, before in zip(pages, seen):
            np.testing.assert_array_equal(page.k, before)


# ---- forks, going back, files ----


def test_forks_go_their_own_ways(llama, tokens, right):
    with session(llama) as s:
        logits_of(s, tokens[:400], 90)
        with s.fork() as twin:
            assert twin.evict == EVICT and twin.held == s.held
            other = logits_of(twin, tokens[::-1][:200].copy(), 30)
            got = logits_of(s, tokens[400:], 90)
            assert worst_row(got, right(llama)[400:]) < 2e-5
        assert np.isfinite(other).all()
        with session(llama) as fresh:
            both = np.concatenate([tokens[:400], tokens[::-1][:200]])
            assert worst_row(other, logits_of(fresh, both, N)[400:].astype(np.float64)) < 2e-5


def test_rewind(llama, tokens, right):
    """To places behind the last eviction and to the sinks; anything between is an error that says what is possible."""
    with session(llama) as s:
        logits_of(s, tokens[:500], 90)  # evicted at 256, 320, 384 and 448: 256 tokens
        assert s.held == [[0, 64], [320, 500]]
        s.rewind(448)
        assert worst_row(logits_of(s, tokens[448:], 90), right(llama)[448:]) < 2e-5
        with pytest.raises(ValueError, match="64 to 448 were evicted when there were 576"):
            s.rewind(575)
        assert s.n_past == N and s.held == [[0, 64], [448, N]]
        for n in (64, 40, 0):
            s.rewind(n)
            assert s.n_past == n and s.held == [[0, n]] and s.evicted == 0
            assert worst_row(logits_of(s, tokens[n:], 90), right(llama)[n:]) < 2e-5


def test_rewind_of_windowed_layers(gemma, tokens, right):
    with session(gemma) as s:
        logits_of(s, tokens[:500], 50)
        s.rewind(450)
        assert worst_row(logits_of(s, tokens[450:], 50), right(gemma)[450:]) < 5e-5
        s.rewind(0)
        assert worst_row(logits_of(s, tokens, 50), right(gemma)) < 5e-5


@pytest.mark.parametrize("kv", ["f32", "q8_0"])
def test_saved_states_go_on(llama, tokens, tmp_path, kv):
    """A loaded session computes what the saved one would have: the sinks' originals are part of the state."""
    with session(llama, kv=kv) as s, session(llama, kv=kv) as t:
        logits_of(s, tokens[:400], 90)
        s.save(tmp_path / "s")
        t.load(tmp_path / "s")
        assert t.held == s.held and t.n_past == 400
        np.testing.assert_array_equal(logits_of(s, tokens[400:], 90), logits_of(t, tokens[400:], 90))
        t.rewind(64)
        assert t.held == [[0, 64]]
        s.rewind(64)
        np.testing.assert_array_equal(logits_of(s, tokens[64:200], 90), logits_of(t, tokens[64:200], 90))


def test_states_of_other_settings_are_refused(llama, tokens, tmp_path):
    with session(llama) as s:
        logits_of(s, tokens, 90)
        s.save(tmp_path / "s")
    with session(llama, None, n_ctx=1024) as plain, session(llama, "64+192") as wider, session(llama, "0+192") as bare:
        for other in (plain, wider, bare):
            with pytest.raises((ValueError, rooflm.ContextFull), match="evicts beyond|n_ctx is"):
                other.load(tmp_path / "s")
            assert other.n_past == 0


@pytest.mark.parametrize("value", [2**40, 2**63, 1, 64 * 3])
def test_damaged_states_are_refused(llama, tokens, tmp_path, value):
    """The number of evicted tokens, and that of all tokens, as a file may have them."""
    with session(llama) as s:
        logits_of(s, tokens[:300], 90)
        s.save(tmp_path / "s")
    raw = bytearray((tmp_path / "s").read_bytes())
    header = 8 + 4 * 4 + 3 * 8
    n_tokens = int.from_bytes(raw[header - 8 : header], "little")
    assert n_tokens == 300
    dropped = header + 4 * 300 + 8 * 4 + 3 * 8
    assert int.from_bytes(raw[dropped : dropped + 8], "little") == 64
    for at in (header - 8, dropped):
        bad = bytearray(raw)
        bad[at : at + 8] = value.to_bytes(8, "little")
        (tmp_path / "bad").write_bytes(bad)
        with session(llama) as s, pytest.raises((_core.FormatError, rooflm.ContextFull)):
            s.load(tmp_path / "bad")
    for cut in range(0, len(raw), len(raw) // 60):
        (tmp_path / "bad").write_bytes(raw[:cut])
        with session(llama) as s:
            with pytest.raises(_core.FormatError):
                s.load(tmp_path / "bad")
            assert s.n_past == 0


# ---- whoever drives a session ----


def test_generation_goes_beyond_the_cache(llama):
    """Greedy, plain and with a draft: the same ids; it ends by max_tokens, not because the context is full."""
    with session(llama) as s:
        plain = s.generate("a", max_tokens=400).run()
        held = s.held
        s.rewind(0)
        drafted = s.generate("a", max_tokens=400, draft=rooflm.PromptLookup(), n_draft=6).run()
    assert plain.stop_reason in ("length", "eos")
    assert len(plain.ids) > 256 and held[0] == [0, 64]
    assert drafted.ids == plain.ids


def test_a_conversation_goes_on_from_all_that_was_said(llama):
    """A chat finds what it has in common with the whole history, not with what is left of it."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    said = "a b c d e f g h " * 40
    with session(llama) as s:
        first = s.chat([{"role": "user", "content": said}], max_tokens=0, template=template).run()
        assert s.n_past == len(first.prompt_ids) > 256 and s.evicted
        second = s.chat([{"role": "user", "content": said + "i j"}], max_tokens=0, template=template).run()
        assert len(second.prompt_ids) < 8


def test_a_batch_evicts_as_sessions_do(llama, tokens):
    """Prompts longer than the cache, and sequences of other lengths beside them."""
    options = {"kv": "f32", "compute": "f32", "n_threads": 1, "evict": EVICT}
    prompts = [tokens[:500], tokens[100:130], tokens[::-1][:300].copy()]
    with rooflm.Model(llama).batch(**options) as batch:
        sequences = [batch.join(p, max_tokens=150) for p in prompts]
        batch.run()
        got = [list(q.ids) for q in sequences]
        with pytest.raises(ValueError, match="at most .* tokens in this step"):
            batch.eval([batch.join(tokens[:3])], [np.ones(257, np.int32)])
    for prompt, ids in zip(prompts, got):
        with session(llama) as s:
            assert s.generate(prompt, max_tokens=150).run().ids == ids


def test_interrupted_evaluations_leave_what_there_was(llama, tokens, right):
    """A wrong id is found before anything is dropped."""
    with session(llama) as s:
        logits_of(s, tokens[:256], 90)
        with pytest.raises(ValueError):
            s.eval(np.array([1, 2, 10**6], np.int32))
        assert s.held == [[0, 256]]
        assert worst_row(logits_of(s, tokens[256:], 90), right(llama)[256:]) < 2e-5


def test_compare_measures_the_loss(llama, tokens):
    """Nothing where nothing is evicted, and what the full cache loses where something is."""
    with pytest.warns(UserWarning, match="evict=0[+]64 instead"):
        result = rooflm.compare(
            rooflm.Model(llama), None, tokens, ctx=400, compute="f32", n_threads=1, evict=[None, "64+192", "0+64"]
        )
    same, little, much = result
    assert same.to_dict()["kl_mean"] == 0 and little.setting.options["evict"] == "64+192"
    assert 0 < little.to_dict()["kl_mean"] < much.to_dict()["kl_mean"]
    assert (little.kl == 0).any(), "positions before the first eviction are the same"
    assert "evict 0+64" in repr(result)


# ---- what is refused ----


@pytest.mark.parametrize(
    "evict, match",
    [
        ("64", "SINKS[+]RECENT"),
        ("64+", "SINKS[+]RECENT"),
        ("-64+128", "SINKS[+]RECENT"),
        ("4+100", 'such as "64[+]128"'),
        ("64+0", 'such as "64[+]64"'),
    ],
)
def test_wrong_values_name_the_right_ones(llama, evict, match):
    with pytest.raises(ValueError, match=match):
        session(llama, evict)


def test_wrong_types_and_sizes(llama):
    with pytest.raises(TypeError, match="evict must be a str"):
        session(llama, 1024)
    with pytest.raises(ValueError, match="n_ctx=255: evict='64[+]128' needs 256"):
        session(llama, n_ctx=255)
    with session(llama, n_ctx=4096) as s:
        assert s.n_ctx == 256
    model = rooflm.Model(llama)._c
    for options in ({"n_ctx": 250, "sinks": 64}, {"n_ctx": 256, "sinks": 3}, {"n_ctx": 128, "sinks": 64}):
        with pytest.raises(ValueError, match="multiples|two pages"):
            _core.Session(model, **options)


def test_a_window_that_would_lose_its_middle_is_refused(gemma, llama):
    with pytest.raises(ValueError, match="window of 100 tokens, and eviction keeps the last 64: keep at least 128"):
        session(gemma, "64+64")
    with pytest.raises(ValueError, match="window of 200 tokens"):
        session(llama, window=200)


def test_a_turn_keeps_the_length_of_a_key(tmp_path, tokens):
    """YaRN scales cosines and sines; what has been scaled once is not scaled again."""
    keys = {".rope.scaling.type": "yarn", ".rope.scaling.factor": 8.0, ".rope.scaling.original_context_length": 64}
    with session(tiny_model(tmp_path / "yarn.gguf", n_ctx=512, metadata=keys)) as s:
        s.eval(tokens[:256], logits="none")
        before = s.kv[1].k()[:64]
        s.eval(tokens[256:], logits="none")
        after = s.kv[1].k()[:64]
    assert np.abs(after - before).max() > 0.1
    np.testing.assert_allclose(np.linalg.norm(after, axis=-1), np.linalg.norm(before, axis=-1), rtol=1e-5)
