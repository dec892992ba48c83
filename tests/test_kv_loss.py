# SPDX-License-Identifier: Apache-2.0
"""kv_loss: its KL is that of the logits themselves, its bytes those of the sessions; what is wrong is an error."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rooflm

pytest.importorskip("gguf")
from maker import tiny_model

CTX = 512


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    # Weights as they come attend to everything alike; keys of a few directions and of full rank both show.
    return tiny_model(tmp_path_factory.mktemp("loss") / "m.gguf", n_kv=2, n_ctx=4096, seed=11)


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(12).integers(3, 300, 3 * CTX, dtype=np.int32)


@pytest.fixture(scope="module")
def loss(path, tokens):
    settings = [
        {"kv": "f32"},
        {"kv": "q8_0"},
        {"evict": "64+192"},
        {"rank": "16", "recent": 100},
        {"rank": "5/4", "recent": 0, "name": "short"},
    ]
    return rooflm.kv_loss(
        path, tokens, settings, ctx=CTX, kv="f32", compute="f32", gen=2, repeats=2, n_threads=1, progress=False
    )


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def test_kl_is_that_of_the_logits(path, tokens, loss):
    """By hand: both sessions, half a window, compress, the other half."""
    model = rooflm.Model(path)
    half = CTX // 2
    kls = []
    for i in range(3):
        window = tokens[i * CTX : (i + 1) * CTX]
        rows = []
        for rank in (None, "5/4"):
            with model.session(n_ctx=CTX, kv="f32", compute="f32", n_threads=1) as s:
                s.eval(window[:half], logits="none")
                if rank:
                    assert s.compress(rank=rank, recent=0)["tokens"] == 192
                rows.append(log_softmax(s.eval(window[half:-1], logits="all")))
        p, q = rows
        kls.append((np.exp(p) * (p - q)).sum(1))
    record = loss.records[4]
    assert record["kl_mean"] == pytest.approx(np.mean(kls), rel=1e-4)
    np.testing.assert_allclose(loss.contrasts[4].kl, kls, rtol=1e-3, atol=1e-9)


def test_what_each_setting_costs(loss):
    same, q8, evicted, full_rank, short = loss.records
    assert same["kl_mean"] == 0 and same["kv_share"] == 1 and same["top1"] == 1
    assert 0 < q8["kl_mean"] < evicted["kl_mean"]
    assert full_rank["kl_mean"] < 1e-9 and full_rank["k_error"] < 1e-6
    assert short["kl_mean"] > q8["kl_mean"] and short["k_error"] > 0.1
    for r in loss.records:
        assert r["kl_ci95"][0] <= r["kl_mean"] <= r["kl_ci95"][1] and r["decode_tps"] > 0
        assert len(r["token_times_s"]) == 4 and r["windows"] == 3


def test_bytes_are_those_of_the_session(path, tokens, loss):
    with rooflm.Model(path).session(n_ctx=CTX, kv="f32", n_threads=1) as s:
        s.eval(tokens[:CTX], logits="none")
        assert loss.full["kv_nbytes"] == s.kv_nbytes
        s.compress(rank="5/4", recent=0)
        assert loss.records[4]["kv_nbytes"] == s.kv_nbytes
        assert loss.records[4]["kv_share"] == s.kv_nbytes / loss.full["kv_nbytes"]


def test_prints_and_exports(loss):
    text = repr(loss)
    for name in ("full, f32", "kv q8_0", "evict 64+192", "rank 16 but for the last 100", "short"):
        assert name in text
    assert "3 windows of 512 tokens" in text
    assert json.loads(loss.to_json())["records"][2]["settings"]["evict"] == "64+192"
    assert "<table" in loss._repr_html_()


def test_plot_shows_bytes_and_kl(loss):
    plt = pytest.importorskip("matplotlib.pyplot")
    ax = loss.plot()
    assert "MB" in ax.get_xlabel() and "nats" in ax.get_ylabel() and "3 windows" in ax.get_title()
    assert {t.get_text() for t in ax.get_legend().get_texts()} >= {"short", "evict 64+192", "full, f32"}
    plt.close(ax.figure)


def test_defaults_are_four_ways(path, tokens):
    result = rooflm.kv_loss(path, tokens[:CTX], ctx=CTX, gen=1, repeats=1, n_threads=1, progress=False)
    assert [c.name for c in result.contrasts] == [
        "kv q8_0",
        "evict 64+128",
        "rank 12/12 but for the last 256",
        "rank 8/8 but for the last 256",
    ]


@pytest.mark.parametrize(
    "setting, kind, match",
    [
        ({"kvv": "q8_0"}, TypeError, "did you mean .*kv"),
        ({"rank": "a"}, ValueError, "a number, or two"),
        ({"rank": 17}, ValueError, "1 to 16"),
        ({"recent": 64}, ValueError, "goes with rank="),
        ({"evict": "64+4096"}, ValueError, "n_ctx=512"),
        ({"evict": "64+64", "rank": 8}, ValueError, "evicts old positions"),
    ],
)
def test_wrong_settings(path, tokens, setting, kind, match):
    with pytest.raises(kind, match=match):
        rooflm.kv_loss(path, tokens[:CTX], [setting], ctx=CTX, gen=1, repeats=1, n_threads=1, progress=False)


def test_the_command_prints_the_same_record(path, tmp_path, command):
    (tmp_path / "t.txt").write_text("one two three four five six seven " * 40)
    args = ("kv-loss", path, "--text", tmp_path / "t.txt", "--ctx", 256, "--windows", 1, "--repeats", 1, "--threads", 1)
    code, out, _ = command(*args, "--kv", "q8_0", "--evict", "0+64", "--rank", "8,4/8", "--recent", 0, "--json")
    assert code == 0
    record = json.loads(out)
    assert record["kind"] == "kv_loss" and [r["rank"] for r in record["records"]] == [None, None, "8/8", "4/8"]
    assert record["records"][1]["settings"]["evict"] == "0+64"
    code, out, _ = command(*args, "--evict", "0+64")
    assert code == 0 and "evict 0+64" in out
