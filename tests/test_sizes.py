# SPDX-License-Identifier: Apache-2.0
"""Bytes before anything is measured: per token, of caches, of a whole process; ceilings from them; loading."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from maker import tiny_model

import rooflm
from rooflm import _core
from rooflm._synth import synth
from rooflm.measuring.ceilings import needed_bytes, read_gbs, roof_name
from rooflm.measuring.forecasting import process_memory
from rooflm.measuring.loading import file_system, prepare
from rooflm.measuring.roofs import parse_bandwidth

MEASURE = """
import json, sys
import numpy as np, rooflm
from rooflm.measuring.forecasting import process_memory
path, n_ctx, kv, load, evict = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5] or None
f = rooflm.forecast(path, n_ctx=n_ctx, kv=kv, evict=evict, threads=2, load=load)
m = rooflm.Model(path, load=load)
s, t, out = m.session(n_ctx=n_ctx, kv=kv, evict=evict, n_threads=2), m.tokenizer, None
n = 2 * n_ctx if evict else n_ctx - 4
ids = np.random.default_rng(0).integers(0, m.n_vocab, n, dtype=np.int32)
for at in range(0, n, 512):
    out = s.eval(ids[at : at + 512], out=out)
for i in range(4):
    out = s.eval(ids[:1], out=out)
print(json.dumps({"forecast": f.to_dict(), "measured": process_memory()}))
"""


def forecast_and_truth(path, n_ctx, kv="f16", load="auto", evict=""):
    arguments = [str(path), str(n_ctx), kv, load, evict]
    out = subprocess.run([sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


needs_smaps = pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="no /proc/self/smaps_rollup")


def check_forecast(r):
    for key, measured in r["measured"].items():
        assert r["forecast"][key] == pytest.approx(measured, rel=0.05), key


@needs_smaps
@pytest.mark.unsanitized
@pytest.mark.parametrize(("n_ctx", "kv", "load"), [(700, "f16", "auto"), (260, "q8_0", "copy")])
def test_forecast_of_smollm2(smollm2, n_ctx, kv, load):
    check_forecast(forecast_and_truth(smollm2, n_ctx, kv, load))


@needs_smaps
@pytest.mark.unsanitized
def test_forecast_with_sliding_windows(gemma3):
    """At 1300 positions three of four layers hold a window of 512 only."""
    check_forecast(forecast_and_truth(gemma3, 1300, "q8_0"))


@needs_smaps
@pytest.mark.unsanitized
def test_forecast_of_a_talk_beyond_its_cache(smollm2):
    """f32 caches, so that the sinks kept twice count: 12 MB of 59."""
    check_forecast(forecast_and_truth(smollm2, 576, "f32", evict="256+256"))


@needs_smaps
@pytest.mark.unsanitized
def test_forecast_of_a_wide_model_with_its_own_output_matrix(tmp_path):
    path = tmp_path / "w.gguf"
    synth(path, size="custom", type="Q4_K_M", width=1024, layers=4, heads=16, kv_heads=4, ffn=4096, vocab=8192)
    check_forecast(forecast_and_truth(path, 600, "f32"))


@needs_smaps
@pytest.mark.unsanitized
def test_forecast_reads_no_weights(tmp_path):
    """The 200 MB of weights stay outside: what the forecast itself takes is a small part of them."""
    path = tmp_path / "w.gguf"
    synth(path, size="custom", type="Q8_0", width=2048, layers=4, heads=16, kv_heads=4, ffn=8192, vocab=2048)
    code = """
import sys, rooflm
from rooflm.measuring.forecasting import process_memory
f = rooflm.forecast(sys.argv[1], n_ctx=4096)
print(f.file_bytes, process_memory()["peak_bytes"])
"""
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    file_bytes, peak = map(int, out.stdout.split())
    assert file_bytes > 200e6 > 2 * peak


def test_a_copy_is_anonymous_and_what_does_not_fit_is_said(tmp_path):
    path = tiny_model(tmp_path / "t.gguf")
    mapped, copied = (rooflm.forecast(path, n_ctx=64, load=load) for load in ("mmap", "copy"))
    weights = [next(p for p in f.parts if p["part"].startswith("weights")) for f in (mapped, copied)]
    assert [w["kind"] for w in weights] == ["file", "anonymous"]
    assert [w["bytes"] for w in weights] == [path.stat().st_size] * 2
    assert mapped.fits is True and "fits" in repr(mapped) and "<table>" in mapped._repr_html_()
    huge = rooflm.forecast(path, n_ctx=1 << 28, kv="f32")
    assert huge.fits is False and "DOES NOT FIT" in repr(huge)


def test_no_context_is_wrong_not_the_default(tmp_path, command):
    path = tiny_model(tmp_path / "t.gguf")
    with pytest.raises(ValueError, match="n_ctx=0"):
        rooflm.forecast(path, n_ctx=0)
    code, _, err = command("forecast", path, "--ctx", 0)
    assert code and "n_ctx=0" in err


def test_memory_of_another_proc(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/smaps_rollup").write_text("0-1 ---p 00000000 00:00 0 [rollup]\nRss: 9 kB\nAnonymous: 4 kB\n")
    assert process_memory(tmp_path) is None
    (tmp_path / "proc/self/status").write_text("VmHWM:\t 12 kB\n")
    assert process_memory(tmp_path) == {"anonymous_bytes": 4096, "file_bytes": 5 * 1024, "peak_bytes": 12 * 1024}


# ---- bytes per token and caches ----


def test_tensors_and_layers_add_up(smollm2, gemma3):
    for path in (smollm2, gemma3):
        b = rooflm.bytes_per_token(path, n_ctx=1000, kv="q8_0/f16")
        m = rooflm.Model(path)
        assert sum(t["read_bytes"] for t in b.tensors) == b.weights == m.weight_bytes_per_token
        assert sum(x["read_bytes"] for x in b.layers) == b.kv and float(b) == b.total == b.weights + b.kv
        assert sum(r["bytes"] for r in b.by_type()) == pytest.approx(b.total)
        assert sum(r["share"] for r in b.by_type()) == pytest.approx(1.0)


def test_gqa_and_windows_by_hand(gemma3):
    b = rooflm.bytes_per_token(gemma3, n_ctx=4000)
    position = 1 * 2 * 256 * 2  # one KV head, K and V of 256, two bytes
    assert b.kv == position * (3 * 4000 + 15 * 512)
    assert b.cache.windows_save_bytes == position * 15 * (4000 - 512)
    assert b.cache.gqa_saves_bytes == 3 * b.kv  # four query heads read one KV head
    assert "sliding windows save" in repr(b)


def test_an_embedding_that_is_not_the_output_counts_one_row(tmp_path):
    tied, untied = (rooflm.bytes_per_token(tiny_model(tmp_path / f"{t}.gguf", tied=t)) for t in (True, False))
    by_name = {t["name"]: t for t in untied.tensors}
    row = by_name["token_embd.weight"]["nbytes"] // 320
    assert by_name["token_embd.weight"]["read_bytes"] == row
    assert by_name["output.weight"]["read_bytes"] == by_name["output.weight"]["nbytes"]
    assert tied.weights == untied.weights
    assert untied.weights == rooflm.Model(tmp_path / "False.gguf").weight_bytes_per_token


def test_kv_size_of_a_shape():
    """F8: 32 layers, head size 128: 32 KV heads against 8 at 32K positions."""
    full = rooflm.kv_size(n_layer=32, n_head=32, head_dim=128, n_ctx=32768)
    grouped = rooflm.kv_size(n_layer=32, n_head=32, n_head_kv=8, head_dim=128, n_ctx=32768)
    assert full.read_bytes == 32 * 32 * 2 * 128 * 2 * 32768 and full.gqa_saves_bytes == 0
    assert grouped.read_bytes * 4 == full.read_bytes and grouped.gqa_saves_bytes == full.read_bytes * 3 / 4
    assert grouped.held_bytes == grouped.read_bytes  # 32768 is whole pages
    q8 = rooflm.kv_size(n_layer=32, n_head=32, n_head_kv=8, head_dim=128, n_ctx=32768, kv="q8_0")
    assert q8.read_bytes / grouped.read_bytes == pytest.approx(1.125 / 2)
    windows = rooflm.kv_size(n_layer=2, n_head=4, head_dim=64, n_ctx=10000, window=[None, 512])
    assert [x["positions"] for x in windows.layers] == [10000, 512]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_layer": 2, "n_head": 4}, "needs head_dim"),
        ({"n_layer": 2, "n_head": 4, "head_dim": 64, "n_ctx": 0}, "n_ctx=0"),
        ({"n_layer": 2, "n_head": 4, "head_dim": 64, "window": [1]}, "window has 1 entries"),
        ({"n_layer": 2, "n_head": 4, "head_dim": 64, "kv": "f16/q4"}, "kv='f16/q4'"),
        ({"layers": 2}, "did you mean 'n_layer'"),
    ],
)
def test_wrong_shapes(wrong, message):
    with pytest.raises((ValueError, TypeError), match=message):
        rooflm.kv_size(**{"n_ctx": 100, **wrong})


# ---- ceilings ----


def test_the_ceiling_reads_what_a_token_reads(smollm2, monkeypatch):
    """At depth keys and values, too: weights alone, again and again, would stay in a large cache in part."""
    plain, seen = _core.read_bandwidth, []
    monkeypatch.setattr(_core, "read_bandwidth", lambda *a, **k: seen.append(plain(*a, **k)) or seen[-1])
    m = rooflm.Model(smollm2)
    for n, kv in ((1, "f16"), (500, "f16"), (1000, "q8_0/f32")):
        with m.session(kv=kv, n_ctx=1024, n_threads=1) as s:
            s.eval(np.arange(n) % 300, logits="none")
            assert read_gbs(s, passes=1) == seen[-1]["gbs"]
            least, most = (needed_bytes(m, kv=kv, n_attended=x) for x in (n, (n + 63) // 64 * 64))
            assert 0.999 * least < seen[-1]["bytes"] < 1.001 * most


def test_ceiling_of_a_given_bandwidth(smollm2):
    c = rooflm.ceiling(smollm2, n_ctx=101, kv="f16", bandwidth="20 GB/s")
    assert c.tps == pytest.approx(20e9 / rooflm.bytes_per_token(smollm2, n_ctx=101).total) and not c.measured
    assert "tokens/s" in repr(c)


def test_ceiling_measured_here(tmp_path):
    c = rooflm.ceiling(tiny_model(tmp_path / "t.gguf"), threads=1)
    assert c.measured and c.threads == 1 and c.tps == pytest.approx(c.gbs * 1e9 / c.bytes.total)


@pytest.mark.parametrize(
    ("text", "gbs"),
    [("17GB/s", 17), (17, 17), ("800 MB/s", 0.8), ("1GiB/s", 1.0737), ("25.6", 25.6), ("2TB/s", 2000), ("5GBps", 5)],
)
def test_bandwidths(text, gbs):
    assert parse_bandwidth(text) == pytest.approx(gbs, rel=1e-4)


@pytest.mark.parametrize("text", ["", "fast", "0", "-3", "17 Gbit/s", float("nan"), float("inf")])
def test_wrong_bandwidths(text):
    with pytest.raises(ValueError, match="not a positive number of GB/s"):
        parse_bandwidth(text)


def test_whatif_is_f2s_rule_of_thumb(answer, smollm2):
    record = answer("whatif", smollm2, "--bandwidth", "20GB/s,40GB/s", "--depth", "0,4k", "--kv", "f16,q8_0", "--json")
    rows = {(r["bandwidth_gbs"], r["kv"], r["depth"]): r for r in record["rows"]}
    assert len(rows) == 8 and {d for _, _, d in rows} == {0, 4096}
    assert rows[40, "f16", 0]["ceiling_tps"] == pytest.approx(2 * rows[20, "f16", 0]["ceiling_tps"])
    assert rows[20, "q8_0", 4096]["ceiling_tps"] > rows[20, "f16", 4096]["ceiling_tps"]


def test_the_roof_is_the_smallest_cache_that_holds_the_bytes():
    caches = [
        {"level": 1, "type": "Instruction", "size_bytes": 1 << 30, "count": 2},
        {"level": 2, "type": "Unified", "size_bytes": 1 << 20, "count": 2},
        {"level": 3, "type": "Unified", "size_bytes": 32 << 20, "count": 1},
    ]
    assert roof_name(1.5e6, 2, caches) == "L2" and roof_name(1.5e6, 1, caches) == "L3"
    assert roof_name(40e6, 2, caches) == "memory" and roof_name(1.0, 1, []) == "memory"


# ---- loading ----


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("load") / "l.gguf"
    synth(path, size="custom", type="Q8_0", width=512, layers=8, heads=8, kv_heads=2, ffn=2048, vocab=4096)
    return path, rooflm.load_times(path, repeats=1, threads=1, progress=False)


@pytest.mark.unsanitized
def test_each_way_and_state_is_measured(loaded):
    path, r = loaded
    ways, states = ("mmap", "buffered", "copy"), ("cold", "warm")
    assert {(x["load"], x["state"]) for x in r} == {(w, s) for w in ways for s in states}
    by = {(x["load"], x["state"]): x for x in r}
    size = path.stat().st_size
    for way in ways:
        assert by[way, "warm"]["state_reached"] and by[way, "warm"]["resident_before"] > 0.98
        assert by[way, "warm"]["resident_after"] > 0.98 and by[way, "cold"]["read_gbs"] > 0
    assert by["mmap", "warm"]["first_touch_s"] is not None and by["mmap", "warm"]["major_faults"] == 0
    mapped, small = by["mmap", "warm"], by["buffered", "warm"]
    assert small["anonymous_bytes"] - mapped["anonymous_bytes"] > 0.7 * size
    assert small["minor_faults"] > 0.9 * size / 4096 / max(1, os.sysconf("SC_PAGE_SIZE") // 4096)
    assert "mmap" in repr(r) and r.summary()[0]["ready_s"] > 0
    r.save(path.with_suffix(".jsonl"))
    assert repr(rooflm.Results.load(path.with_suffix(".jsonl"))) == repr(r)


def test_cold_is_verified_or_said(loaded, tmp_path):
    path, r = loaded
    for x in (x for x in r if x["state"] == "cold"):
        if x["state_reached"]:
            assert x["resident_before"] < 0.02
        else:
            assert x["state_why"]
    g = rooflm.GGUF(path)
    total = sum(int(t.raw.sum()) for t in g.tensors.values())  # mapped and touched: these pages stay
    share, reached, why = prepare(str(path), "cold")
    if file_system(str(path)) not in ("tmpfs", "ramfs"):
        assert total and reached is False and share > 0.5 and "mapped" in why
    with pytest.warns(rooflm.FallbackWarning, match="cold was not reached: "):
        again = rooflm.load_times(path, ways="mmap", states="cold", repeats=1, threads=1, progress=False)
    assert again.records[0]["state_reached"] is not True


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm to write to")
def test_tmpfs_is_never_cold():
    path = f"/dev/shm/rooflm-test-{os.getpid()}"
    with open(path, "wb") as f:
        f.write(bytes(1 << 20))
    try:
        assert file_system(path) == "tmpfs"
        assert prepare(path, "cold")[1:] == (False, "tmpfs lives in memory: it is never cold")
        assert prepare(path, "warm")[1] is True
    finally:
        os.unlink(path)


def test_wrong_ways_and_files(tmp_path):
    path = tiny_model(tmp_path / "t.gguf")
    with pytest.raises(ValueError, match="'mapp' is not one of mmap, buffered, copy"):
        rooflm.load_times(path, ways="mapp")
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    with pytest.raises(rooflm.FormatError):
        rooflm.load_times(tmp_path / "x.gguf")


@pytest.mark.parametrize("arch, window", [("llama", None), ("gemma3", 100), ("gemma3", 300)])
@pytest.mark.parametrize("evict", ["64+128", "0+128", "128+192"])
def test_a_cache_that_evicts_holds_what_is_said(tmp_path, arch, window, evict):
    """By the byte, at every length (of layers that forget by themselves, what they need at most): layers whose window
    reaches the sinks keep those twice."""
    vocab = "bpe" if arch == "llama" else "spm"
    path = tiny_model(tmp_path / "t.gguf", arch, n_layer=6, n_kv=1, window=window, vocab=vocab)
    m = rooflm.Model(path)
    if (window, evict) == (300, "128+192"):
        with pytest.raises(ValueError, match="window of 300"):
            m.session(evict=evict)
        return
    with m.session(evict=evict, kv="f32", n_batch=64, n_threads=1) as s:
        for n in range(32, 1000, 32):
            s.eval([5] * 32, logits="none")
            size = rooflm.kv_size(m, n_ctx=n, evict=evict, kv="f32", n_batch=64)
            assert size.held == sum(end - first for first, end in s.held), n
            forget = window is not None and window < s.n_ctx and n > window
            assert size.held_bytes >= s.kv_nbytes if forget else size.held_bytes == s.kv_nbytes, n
        plain = rooflm.kv_size(m, n_ctx=s.n_ctx, kv="f32", n_batch=64)
        reach = sum(w is None or w >= s.n_ctx for w in windows_of(m))
        assert size.held_bytes - plain.held_bytes == reach * int(evict.split("+")[0]) * 2 * 16 * 4
        assert size.read_bytes == sum(min(size.held, w or size.held) for w in windows_of(m)) * 2 * 16 * 4
        assert size.to_dict()["evict"] == evict and f"kept by evict {evict}" in repr(size)
        f = rooflm.forecast(m, evict=evict, kv="f32", n_batch=64)
        assert next(p["bytes"] for p in f.parts if p["part"] == "KV cache") == size.held_bytes
        assert f.about["n_ctx"] == s.n_ctx and f"evict {evict}" in repr(f)


def windows_of(m):
    return [m.hparams["window"] if sliding else None for sliding in m.hparams["sliding"]]


def test_commands_give_the_same_records(answer, tmp_path):
    path = tiny_model(tmp_path / "t.gguf")
    assert answer("bytes", path, "--depth", "31", "--json") == rooflm.bytes_per_token(path, n_ctx=32).to_dict()
    evicting = answer("bytes", path, "--depth", "999", "--evict", "64+64", "--json")
    assert evicting == rooflm.bytes_per_token(path, n_ctx=1000, evict="64+64").to_dict()
    assert evicting["kv_bytes"] == rooflm.bytes_per_token(path, n_ctx=1000 - 832).kv
    assert answer("forecast", path, "--evict", "64+64", "--json")["n_ctx"] == 192
    f = answer("forecast", path, "--ctx", "1k", "--kv", "q8_0", "--json")
    assert (f["n_ctx"], f["kv"]) == (1024, "q8_0") and f["anonymous_bytes"] > 0
    r = answer("load", path, "--ways", "mmap", "--states", "warm", "--repeats", 1, "--json")["records"]
    assert len(r) == 1 and r[0]["ready_s"] > 0 and r[0]["kind"] == "load"
