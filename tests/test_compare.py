# SPDX-License-Identifier: Apache-2.0
"""Distributions against a reference: the reduction in C against NumPy in double, and what compare() makes of it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from maker import tiny_model

import rooflm
from rooflm import _core, stats
from rooflm.quality import cut_windows

TOKENS = np.random.default_rng(3).integers(3, 320, 400)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    d = tmp_path_factory.mktemp("compare")
    return {k: tiny_model(d / f"{k}.gguf", types=k) for k in ("F32", "Q8_0", "Q4_0")}


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


# ---- the reduction ----


@pytest.mark.parametrize("noise", [1e-4, 0.3, 8.0])
@pytest.mark.parametrize("vocab", [1, 3, 255, 257, 5003])
def test_rows_against_numpy_in_double(noise, vocab):
    """Also large logits (430, R33) and vocabularies that are no multiple of anything."""
    rng = np.random.default_rng(vocab)
    p = (rng.normal(size=(7, vocab)) * 5 + 430).astype(np.float32)
    q = (p + rng.normal(size=p.shape) * noise).astype(np.float32)
    following = rng.integers(0, vocab, 7)
    got = _core._contrast_rows(p, q, following)
    lp, lq = log_softmax(p), log_softmax(q)
    rows = np.arange(7)
    np.testing.assert_allclose(got["kl"], (np.exp(lp) * (lp - lq)).sum(axis=1), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(got["logp"], lp[rows, following], rtol=0, atol=1e-12)
    np.testing.assert_allclose(got["logq"], lq[rows, following], rtol=0, atol=1e-12)
    assert (got["top_p"] == p.argmax(axis=1)).all() and (got["top_q"] == q.argmax(axis=1)).all()
    k = min(5, vocab)
    best = [set(np.argsort(-x, kind="stable")[:k].tolist()) for x in (*p, *q)]
    assert got["shared"].tolist() == [len(best[i] & best[7 + i]) for i in range(7)]


def test_equal_rows_have_a_kl_of_exactly_zero_and_none_is_negative():
    rng = np.random.default_rng(0)
    p = (rng.normal(size=(50, 1000)) * 20).astype(np.float32)
    assert (_core._contrast_rows(p, p.copy(), np.zeros(50, int))["kl"] == 0).all()
    shifted = (p + np.float32(2)).astype(np.float32)  # the same distributions but for rounding
    kl = _core._contrast_rows(p, shifted, np.zeros(50, int))["kl"]
    assert (kl >= 0).all() and kl.max() < 1e-9


def test_far_apart_and_not_finite():
    p = np.full((1, 4), -1000, np.float32)
    q = p.copy()
    p[0, 0], q[0, 3] = 1000, 1000
    assert _core._contrast_rows(p, q, [0])["kl"][0] == 2000
    q[0, 1] = np.nan
    assert not np.isfinite(_core._contrast_rows(p, q, [0])["kl"][0])


@pytest.mark.parametrize(
    "p, q, following",
    [
        (np.zeros((2, 3)), np.zeros((2, 3), np.float32), [0, 0]),  # double
        (np.zeros((2, 6), np.float32)[:, ::2], np.zeros((2, 3), np.float32), [0, 0]),  # strided
        (np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32), [0, 0]),
        (np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32), [0, 3]),
        (np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32), [0]),
    ],
)
def test_wrong_rows_are_errors(p, q, following):
    with pytest.raises((TypeError, ValueError)):
        _core._contrast_rows(p, q, following)


# ---- the whole ----


def by_hand(reference, model, tokens, ctx, compute="int16"):
    """KL and log-probabilities from whole logits, in NumPy."""
    out = []
    for window in cut_windows(tokens, ctx, None):
        logits = []
        for path in (reference, model):
            with rooflm.Model(path).session(n_ctx=ctx, compute=compute, kv="f32") as s:
                logits.append(log_softmax(s.eval(window, logits="all")[ctx // 2 : ctx - 1]))
        lp, lq = logits
        rows, following = np.arange(len(lp)), window[ctx // 2 + 1 :]
        out.append(((np.exp(lp) * (lp - lq)).sum(axis=1), lp[rows, following], lq[rows, following]))
    return [np.array(x) for x in zip(*out)]


def test_record_is_what_whole_logits_say(files):
    kl, lp, lq = by_hand(files["F32"], files["Q4_0"], TOKENS, 64)
    d = rooflm.compare(files["F32"], files["Q4_0"], TOKENS, ctx=64)[0].to_dict()
    assert d["windows"] == 6 and d["tokens"] == kl.size == 6 * 31 and d["scored_positions"] == [32, 62]
    assert d["kl_mean"] == pytest.approx(kl.mean(), rel=1e-6) and d["kl_mean"] > 1e-4
    assert d["kl_max"] == pytest.approx(kl.max(), rel=1e-6)
    assert d["kl_median"] == pytest.approx(np.median(kl), rel=1e-6)
    assert d["kl_p99"] == pytest.approx(np.percentile(kl, 99), rel=1e-6)
    assert d["ppl_ref"] == pytest.approx(math.exp(-lp.mean()), rel=1e-9)
    assert d["ppl"] == pytest.approx(math.exp(-lq.mean()), rel=1e-9)
    assert d["ppl_ratio"] == pytest.approx(d["ppl"] / d["ppl_ref"], rel=1e-9)
    assert d["dp_rms"] == pytest.approx(np.sqrt(((np.exp(lq) - np.exp(lp)) ** 2).mean()), rel=1e-6)
    assert d["kl_ci95"] == pytest.approx(list(stats.t_interval(kl.mean(axis=1).tolist())), rel=1e-6)
    lo, hi = stats.t_interval((lp - lq).mean(axis=1).tolist())
    assert d["ppl_ratio_ci95"] == pytest.approx([math.exp(lo), math.exp(hi)], rel=1e-6)
    assert [w["kl_mean"] for w in d["per_window"]] == pytest.approx(kl.mean(axis=1).tolist(), rel=1e-6)
    positions = d["per_position"]
    assert positions[0]["position"][0] == 32 and positions[-1]["position"][1] == 62
    json.dumps(d, allow_nan=False)


def test_perplexity_agrees_with_perplexity(files):
    c = rooflm.compare(files["F32"], files["Q8_0"], TOKENS, ctx=64)[0].to_dict()
    p = rooflm.perplexity(files["Q8_0"], TOKENS, ctx=64, compute="int16", kv="f32")
    assert c["ppl"] == pytest.approx(p.ppl, rel=1e-7) and c["ppl_ci95"] == pytest.approx(p.ppl_interval, rel=1e-7)


@pytest.mark.parametrize("compute", ["auto", "int8", "int16", "f32"])
def test_a_model_against_itself_is_zero(files, compute):
    c = rooflm.compare(files["Q4_0"], files["Q4_0"], TOKENS, ctx=64, compute=compute, kv="q8_0")[0]
    assert (c.kl == 0).all() and c.top1.all() and (c.dp == 0).all() and (c.top5 == 1).all()


def test_blocks_of_reference_logits_change_nothing(files, monkeypatch):
    whole = rooflm.compare(files["F32"], files["Q4_0"], TOKENS, ctx=128)[0]
    monkeypatch.setattr("rooflm.quantization.settings.REFERENCE_BYTES", 1)  # 16 positions at a time
    cut = rooflm.compare(files["F32"], files["Q4_0"], TOKENS, ctx=128)[0]
    np.testing.assert_allclose(cut.kl, whole.kl, rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(cut.logp_ref, whole.logp_ref, atol=1e-5)


def test_threads_change_no_bit(files):
    one, three = (rooflm.compare(files["F32"], files["Q4_0"], TOKENS, ctx=64, n_threads=n)[0] for n in (1, 3))
    assert (one.kl == three.kl).all() and (one.logp == three.logp).all()


def test_lists_sweep_and_the_reference_takes_the_first(files):
    r = rooflm.compare(files["Q4_0"], None, TOKENS, ctx=64, kv=["f32", "q8_0"], compute=["f32", "int8"])
    assert [c.name for c in r] == ["the reference itself", "kv q8_0", "compute int8", "compute int8, kv q8_0"]
    assert r[0].kl.max() == 0 and all(c.kl.mean() > 0 for c in r[1:])
    assert r[0].reference.options["compute"] == "f32" and r[0].reference.options["kv"] == "f32"
    p = r.paired(0, 3)
    assert p["kl_change"] == pytest.approx(float(r[3].kl.mean())) and p["enough"] is False


def test_settings_of_one_model(files):
    """Each option reaches the session: all of them move the distribution."""
    head = {"*": "f32", "output": "int8"}
    settings = [{"rope_base": 5e3}, {"window": 40}, {"kv": "q8_0"}, {"compute": "int8"}, {"compute": head}]
    r = rooflm.compare({"model": files["F32"], "compute": "f32"}, settings, TOKENS, ctx=64)
    assert [c.kl.mean() > 0 for c in r] == [True, True, True, False, False]  # float weights have one path
    q = rooflm.compare({"model": files["Q4_0"], "compute": "f32"}, settings[3:], TOKENS, ctx=64)
    assert 0 < q[1].kl.mean() < q[0].kl.mean()


def test_a_named_reference_setting_reaches_the_models_that_say_nothing(files):
    r = rooflm.compare({"model": files["Q4_0"], "kv": "q8_0"}, [files["Q4_0"], {"kv": "f32"}], TOKENS, ctx=64)
    assert r[0].kl.max() == 0 and r[1].kl.max() > 0


def test_a_window_is_what_it_says(files):
    """A window of the whole context changes nothing; a window of 1 sees only itself, so order before is forgotten."""
    m = rooflm.Model(files["F32"])
    ids = TOKENS[:40]

    def last(ids, **kw):
        with m.session(n_ctx=64, compute="f32", kv="f32", **kw) as s:
            return s.eval(ids)

    assert (last(ids, window=40) == last(ids)).all()
    assert np.allclose(last(ids, window=1), last(ids[-1:]), atol=1e-3)  # RoPE cancels where only one key is seen
    shuffled = np.concatenate([ids[:20][::-1], ids[20:]])
    assert np.allclose(last(ids, window=4), last(shuffled, window=4), atol=1e-5)
    assert not np.allclose(last(ids), last(shuffled), atol=1e-3)
    with pytest.raises(ValueError, match="window=0"):
        m.session(window=0)


def test_a_costly_rope_base_is_warned_about_from_the_measured_kl(files, monkeypatch):
    monkeypatch.setattr("rooflm.quantization.compare.WARN_KL", 1e-6)
    with pytest.warns(UserWarning, match="rope_base=100.0 instead of the file's own.*mean KL"):
        r = rooflm.compare(files["F32"], [{"rope_base": 100.0}], TOKENS, ctx=64)
    assert r[0].to_dict()["warnings"]


def test_no_verdict_below_twenty_windows(files):
    long = np.random.default_rng(1).integers(3, 320, 20 * 16)
    few = rooflm.compare(files["F32"], files["Q4_0"], long[: 19 * 16], ctx=16)[0]
    enough = rooflm.compare(files["F32"], files["Q4_0"], long, ctx=16)[0]
    assert few.verdict() is None and "no verdict: 19 windows" in repr(few)
    assert enough.verdict() and enough.to_dict()["verdict"] == enough.verdict()


def test_one_window_has_no_interval(files):
    d = rooflm.compare(files["F32"], files["Q4_0"], TOKENS, ctx=64, windows=1)[0].to_dict()
    assert d["kl_ci95"] is None and d["ppl_ratio_ci95"] is None and d["nll_se"] is None
    assert "nan" not in repr(rooflm.compare(files["F32"], files["Q4_0"], TOKENS, ctx=64, windows=1))


def test_other_vocabularies_are_refused(files, tmp_path):
    small = tiny_model(tmp_path / "s.gguf", n_vocab=300)
    with pytest.raises(ValueError, match="same vocabulary"):
        rooflm.compare(files["F32"], small, TOKENS, ctx=64)
    spm = tiny_model(tmp_path / "spm.gguf", vocab="spm")
    with pytest.raises(ValueError, match="other tokens"):
        rooflm.compare(files["F32"], spm, TOKENS, ctx=64)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"ctx": 3}, "ctx=3"),
        ({"windows": 0}, "windows=0"),
        ({"windows": 99}, "99 windows of 64 tokens were asked for"),
        ({"ctx": 512}, "at least one window of 512 tokens, the text has 400"),
        ({"kv": []}, "kv=\\[\\] leaves nothing"),
        ({"kv": "q7"}, "q7"),
    ],
)
def test_wrong_requests_say_what_is_wrong(files, change, message):
    with pytest.raises(ValueError, match=message):
        rooflm.compare(files["F32"], files["Q4_0"], TOKENS, **{"ctx": 64, **change})


def test_unknown_keywords_suggest_the_right_one(files):
    with pytest.raises(TypeError, match="did you mean 'windows'"):
        rooflm.compare(files["F32"], files["Q4_0"], TOKENS, chunks=3)
    with pytest.raises(TypeError, match="did you mean 'compute'"):
        rooflm.compare(files["F32"], [{"dtype": "f32"}], TOKENS, ctx=64)


def test_logits_that_are_not_finite_are_named(tmp_path, files):
    bad = rooflm.Model(files["F32"])
    row = bad.gguf.tensors["token_embd.weight"].dequantize()
    row[7] = np.inf
    broken = rooflm.Model(files["F32"], replace={"token_embd.weight": ("F32", row)})
    with pytest.raises(rooflm.Error, match="not finite in window 0 at position"):
        rooflm.compare(files["F32"], broken, TOKENS, ctx=64)


# ---- compute by operation ----


def kinds(session, n=64):
    return {r["op"]: r["kernel"] for r in session.kernels(n) if r["layer"] in (None, 1)}


def test_rules_choose_the_path_of_each_operation(files):
    m = rooflm.Model(files["Q4_0"])
    one = {c: kinds(m.session(n_ctx=64, compute=c)) for c in ("f32", "int8", "int16")}
    mixed = m.session(n_ctx=64, compute={"*": "f32", "attn_*": "int8", "blk.1.attn_output": "int16", "output": "int16"})
    got = kinds(mixed)
    assert got["attn_q"] == one["int8"]["attn_q"] and got["attn_output"] == one["int16"]["attn_output"]
    assert got["ffn_down"] == one["f32"]["ffn_down"] and got["output"] == one["int16"]["output"]
    first = {r["op"]: r["kernel"] for r in mixed.kernels(64) if r["layer"] == 0}
    assert first["attn_output"] == one["int8"]["attn_output"]


def test_a_rule_for_everything_is_that_path_to_the_bit(files):
    m = rooflm.Model(files["Q4_0"])
    for c in ("f32", "int8", "int16"):
        with m.session(n_ctx=64, compute=c) as a, m.session(n_ctx=64, compute={"*": c}) as b:
            assert (a.eval(TOKENS[:50], logits="all") == b.eval(TOKENS[:50], logits="all")).all()


@pytest.mark.parametrize("rules, message", [({"attn_x": "f32"}, "attn_x"), ({"attn_q": "int4"}, "int4")])
def test_rules_that_mean_nothing_are_errors(files, rules, message):
    with pytest.raises(ValueError, match=message):
        rooflm.Model(files["F32"]).session(n_ctx=64, compute=rules)


# ---- tensors in memory ----


def test_all_tensors_replaced_are_the_other_file(files):
    other = rooflm.GGUF(files["Q4_0"])
    swapped = rooflm.Model(files["F32"], replace=dict(other.tensors.items()))
    whole = rooflm.Model(files["Q4_0"])
    with swapped.session(n_ctx=64) as a, whole.session(n_ctx=64) as b:
        assert (a.eval(TOKENS[:50], logits="all") == b.eval(TOKENS[:50], logits="all")).all()
    assert swapped.weight_bytes_per_token == whole.weight_bytes_per_token


def test_one_replaced_tensor_of_raw_blocks(files):
    other = rooflm.GGUF(files["Q4_0"]).tensors["blk.1.ffn_up.weight"]
    a = rooflm.Model(files["F32"], replace={other.name: ("Q4_0", other.raw.copy())})
    b = rooflm.Model(files["F32"], replace={other.name: ("F32", other.dequantize())})
    base = rooflm.Model(files["F32"])
    logits = []
    for m in (a, b, base):
        with m.session(n_ctx=64, compute="f32", kv="f32") as s:
            logits.append(s.eval(TOKENS[:40]))
    assert np.allclose(logits[0], logits[1], atol=1e-4) and not np.allclose(logits[0], logits[2], atol=1e-3)
    assert [r["type"] for r in a.session(n_ctx=8).kernels() if r["tensor"] == other.name] == ["Q4_0"]


def test_tied_output_can_be_set_apart(files):
    embed = rooflm.GGUF(files["F32"]).tensors["token_embd.weight"].dequantize()
    apart = rooflm.Model(files["F32"], replace={"output.weight": ("F32", 2 * embed)})
    base = rooflm.Model(files["F32"])
    assert base.hparams["tied_output"] and not apart.hparams["tied_output"]
    with apart.session(n_ctx=8) as a, base.session(n_ctx=8) as b:
        assert np.allclose(a.eval(TOKENS[:5]), 2 * b.eval(TOKENS[:5]), rtol=1e-5)


def test_replaced_memory_lives_as_long_as_it_is_read(files):
    raw = rooflm.GGUF(files["Q4_0"]).tensors["blk.0.ffn_down.weight"].raw.copy()
    m = rooflm.Model(files["F32"], replace={"blk.0.ffn_down.weight": ("Q4_0", raw)})
    s = m.session(n_ctx=64)
    want = s.eval(TOKENS[:20]).copy()
    del m, raw
    np.random.default_rng(0).bytes(1 << 20)  # somebody else may want the memory
    s.rewind(0)
    assert (s.eval(TOKENS[:20]) == want).all()


@pytest.mark.parametrize(
    "replace, message",
    [
        ({"blk.0.ffn_dwn.weight": ("Q4_0", np.zeros(9, np.uint8))}, "did you mean 'blk.0.ffn_down.weight'"),
        ({"blk.0.ffn_down.weight": ("Q4_0", np.zeros(9, np.uint8))}, "takes 4608 bytes, not 9"),
        ({"blk.0.ffn_down.weight": ("Q9", np.zeros(9, np.uint8))}, "type 'Q9' is not known"),
        ({"blk.0.ffn_norm.weight": ("Q8_0", np.zeros(34, np.uint8))}, "takes 68 bytes, not 34"),
    ],
)
def test_replacements_that_do_not_fit_name_the_tensor(files, replace, message):
    with pytest.raises(ValueError, match=message):
        rooflm.Model(files["F32"], replace=replace)


def test_a_replacement_that_nothing_reads_is_an_error(files):
    norm = rooflm.GGUF(files["F32"]).tensors["blk.0.ffn_norm.weight"]
    with pytest.raises(ValueError, match="reads none of that name"):
        rooflm.Model(files["F32"], replace={"blk.9.ffn_norm.weight": norm})
