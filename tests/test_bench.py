# SPDX-License-Identifier: Apache-2.0
"""The benchmark itself, on a tiny model: which runs there are, what a record says, what an interruption leaves."""

from __future__ import annotations

import json

import numpy as np
import pytest
from maker import tiny_model

import rooflm
from rooflm.measuring import bench as bench_module
from rooflm.measuring.cooling import check_cooldown, cool_down
from rooflm.measuring.grid import settings_of, zip_grid
from rooflm.measuring.manifest import machine_manifest, model_hash
from rooflm.measuring.token_times import token_statistics

FAST = {"prompt": 8, "gen": 4, "threads": 1, "progress": False}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("bench") / "tiny.gguf", n_kv=2, types="Q8_0")


@pytest.fixture(scope="module")
def result(tiny):
    return rooflm.bench(tiny, repeats=2, kv=["f16", "q8_0"], depth=[0, 8], **FAST)


# ---- which runs ----


def test_lists_sweep_and_settings_take_turns(result):
    assert [(r["kv"], r["depth"], r["repeat"]) for r in result] == [
        (kv, depth, n) for depth in (0, 8) for kv in ("f16", "q8_0") for n in (0, 1)
    ]
    ran = sorted(result, key=lambda r: r["order"])
    assert [r["repeat"] for r in ran] == [0] * 4 + [1] * 4  # a whole round before the next
    grid = [(depth, kv) for depth in (0, 8) for kv in ("f16", "q8_0")]
    drawn = [grid[i] for repeat in (0, 1) for i in bench_module.shuffled(4, 0, repeat)]
    assert [(r["depth"], r["kv"]) for r in ran] == drawn != grid * 2
    assert len({r["block"] for r in result}) == 1


def test_order_is_drawn_from_the_seed():
    orders = {tuple(bench_module.shuffled(6, seed, repeat)) for seed in range(3) for repeat in range(3)}
    assert len(orders) > 5 and all(sorted(o) == list(range(6)) for o in orders)
    assert bench_module.shuffled(6, 1, 2) == bench_module.shuffled(6, 1, 2)


def test_zip_grid_advances_together():
    axes = {"prompt": 1, "gen": 2, "kv": ["f16", "q8_0"]}
    rows = list(settings_of(axes, zip_grid(prompt=[64, 512], gen=[16, 4])))
    assert [(r["prompt"], r["gen"], r["kv"]) for r in rows] == [
        (64, 16, "f16"), (512, 4, "f16"), (64, 16, "q8_0"), (512, 4, "q8_0"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="lists of one length"):
        zip_grid(prompt=[1, 2], gen=[1])
    with pytest.raises(TypeError, match="did you mean 'prompt'"):
        list(settings_of(axes, zip_grid(promt=[1])))
    with pytest.raises(ValueError, match=r"kv=\[\] leaves nothing"):
        list(settings_of({"kv": []}))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompt": 0}, "prompt=0"),
        ({"gen": [4, 0]}, "gen=0"),
        ({"depth": -1}, "depth=-1"),
        ({"prompt": "many"}, "prompt='many': must be a whole number"),
        ({"kv": "q4_0"}, "kv='q4_0'"),
        ({"evict": [None, "64+100"]}, "pages have 64 tokens"),
        ({"repeats": 0}, "repeats=0"),
        ({"cooldown": "cold"}, "cooldown='cold'"),
        ({"cooldown": -1}, "cooldown=-1"),
        ({"repeat": 3}, "did you mean 'repeats'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(tiny, wrong, message):
    with pytest.raises((ValueError, TypeError), match=message):
        rooflm.bench(tiny, **{**FAST, **wrong})


# ---- what a record says ----


def test_figures_follow_from_each_other(result, tiny):
    hp = rooflm.Model(tiny).hparams
    for r in result:
        assert r["ceiling_tps"] == pytest.approx(r["read_gbs"] * 1e9 / r["bytes_per_token"])
        assert r["ceiling_share"] == pytest.approx(r["decode_tps"] / r["ceiling_tps"])
        assert r["used_gbs"] == pytest.approx(r["decode_tps"] * r["bytes_per_token"] / 1e9)
        times = r["token_times_s"]
        assert r["decode_tps"] == pytest.approx(3 / (times[-1] - times[0])) and r["ttft_ms"] == 1e3 * times[0]
        assert r["token_n"] == 3 and r["token_p99_s"] is None and r["token_longest_s"] >= r["token_p95_s"]
        value = {"f16": 2, "q8_0": 1.125}[r["kv"]]
        assert r["kv_bytes_per_token"] == pytest.approx((r["depth"] + 8 + 2.5) * hp["n_layer"] * 2 * 32 * value)
        assert r["roof"] == "memory" or r["roof"].startswith("L")  # a tiny model lives in a cache
        assert r["roof"] != "memory" or not rooflm.machine()["caches"]


def test_bytes_of_a_cache_that_evicts_are_of_what_it_keeps(tiny):
    """64+64 holds 192 positions at most, and a page fewer just after one is evicted."""
    r = rooflm.bench(tiny, evict=[None, "64+64"], depth=[8, 440], **{**FAST, "prompt": 4, "gen": 12}, repeats=1)
    by = {(x["evict"], x["depth"]): x for x in r}
    hp = rooflm.Model(tiny).hparams
    position = hp["n_layer"] * 2 * 32 * 2
    assert by["64+64", 8]["kv_bytes_per_token"] == by[None, 8]["kv_bytes_per_token"] == (8 + 4 + 6.5) * position
    assert by[None, 440]["kv_bytes_per_token"] == (440 + 4 + 6.5) * position
    kept = [n - 256 if n <= 448 else n - 320 for n in range(445, 457)]  # one more page goes at 449
    assert sum(kept) / 12 == pytest.approx(by["64+64", 440]["kv_bytes_per_token"] / position)
    for x in r:
        assert x["bytes_per_token"] == x["weight_bytes_per_token"] + x["kv_bytes_per_token"]
        assert x["ceiling_tps"] == pytest.approx(x["read_gbs"] * 1e9 / x["bytes_per_token"])
        assert x["manifest"]["engine"]["evict"] == x["evict"] == x["setting"]["evict"]
        assert x["manifest"]["engine"]["n_ctx"] == (192 if x["evict"] else x["depth"] + 16)
        assert "evict" not in x["manifest"]["defaults"]
    assert "evict" in repr(r).splitlines()[0]
    sides = r.select(depth=440).contrast(None, "64+64", by="evict")
    assert [m.name for m in sides.moved][0] == "evict" and "context" not in [m.name for m in sides.confounded]


def test_manifest_has_what_f1_lists(result, tiny):
    m = result[0]["manifest"]
    g = rooflm.GGUF(tiny)
    assert m["model"]["sha256"] == model_hash(g)[0] and "metadata" in m["model"]["sha256_of"]
    nbytes = sum(t.nbytes for t in g.tensors.values())
    weights = sum(int(np.prod(t.shape)) for t in g.tensors.values())
    assert m["model"]["bits_per_weight"] == pytest.approx(8 * nbytes / weights)
    assert sum(m["model"]["types"].values()) == pytest.approx(1.0) and m["model"]["types"]["Q8_0"] > 0.9
    assert m["engine"]["kernels"]["decode"]["attn_q"] == result[0]["kernels"]["decode"]["attn_q"]
    assert m["engine"]["kernels"]["decode"]["attention"] and m["engine"]["mapped"] is True
    assert m["placement"]["n_threads"] == 1 and m["placement"]["reason"] == "as asked"
    assert {"cpu", "governor", "os", "libc", "board", "firmware_date", "cgroup", "container"} <= set(m["machine"])
    assert "-O" in m["build"]["flags"] and "/" not in m["build"]["flags"] and m["build"]["compiler"][:3] in "gcc clang"
    assert m["build"]["rooflm"] == rooflm.__version__
    assert {"compute", "load"} <= set(m["defaults"]) and not {"kv", "prompt", "depth"} & set(m["defaults"])


def test_tensors_replaced_in_memory_are_another_model(tiny, tmp_path):
    name = "blk.0.ffn_up.weight"
    own = rooflm.GGUF(tiny).tensors[name].dequantize()
    swapped = rooflm.Model(tiny, replace={name: ("Q4_0", rooflm._core.quantize_rows(own, "Q4_0"))})
    out = tmp_path / "r.jsonl"
    plain = rooflm.bench(tiny, repeats=1, out=out, **FAST)
    both = rooflm.bench(swapped, repeats=1, out=out, resume=True, **FAST)  # measured, though the file is the same
    assert [r["manifest"]["model"]["replaced"] for r in both] == [{name: "Q4_0"}, None]
    moved = plain.contrast(plain, both[:1], by="kernel").confounded
    assert "replaced tensors" in [m.name for m in moved]


def test_conditions_are_sampled_beside_each_run(result):
    for r in result:
        sensors = r["sensors"]
        assert sensors["clock_ghz"]["start"] > 0 and sensors["n_samples"] >= 2
        for key in ("temperature_c", "throttled"):
            assert sensors[key] is not None or sensors["unavailable"][key]


def test_records_are_plain_json(result):
    text = json.dumps(result.records, allow_nan=False)
    assert json.loads(text) == result.records


def test_hash_sees_one_changed_weight_of_any_tensor(tiny, tmp_path):
    """Samples of each tensor, so that no whole tensor can change unseen; full=True sees every byte."""
    g = rooflm.GGUF(tiny)
    copy = tmp_path / "c.gguf"
    data = bytearray(tiny.read_bytes())
    copy.write_bytes(data)
    assert model_hash(rooflm.GGUF(copy)) == model_hash(g)
    first = bytes(g.tensors["blk.1.ffn_down.weight"].raw[:64])
    data[data.index(first) + 5] ^= 1
    copy.write_bytes(data)
    assert model_hash(rooflm.GGUF(copy))[0] != model_hash(g)[0]
    assert model_hash(rooflm.GGUF(copy), full=True)[0] != model_hash(g, full=True)[0]


def test_machine_manifest_of_another_machines_files(tmp_path):
    def put(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    put("sys/devices/system/cpu/online", "0-1\n")
    put("sys/devices/system/cpu/present", "0-1\n")
    put("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "powersave\n")
    put("sys/devices/system/cpu/cpufreq/policy1/scaling_governor", "performance\n")
    put("sys/class/dmi/id/bios_date", "04/01/2019\n")
    put("run/.containerenv", "")
    m = machine_manifest(rooflm.machine(root=str(tmp_path)), tmp_path)
    assert (m["governor"], m["firmware_date"], m["container"]) == ("performance, powersave", "04/01/2019", "podman")
    assert machine_manifest({}, tmp_path / "none")["governor"] is None


def test_a_refused_mapping_is_a_fallback_of_the_record(tiny, monkeypatch):
    monkeypatch.setenv("ROOFLM_FAULT", "mmap")
    with pytest.warns(rooflm.FallbackWarning):
        r = rooflm.bench(tiny, repeats=1, **FAST)
    assert any("could not be mapped" in f for f in r[0]["fallbacks"]) and not r[0]["manifest"]["engine"]["mapped"]
    r = rooflm.bench(tiny, repeats=1, load="copy", **FAST)
    assert r[0]["fallbacks"] == []  # asked for


# ---- times of tokens ----


def test_spread_is_taken_without_the_trend():
    rng = np.random.default_rng(0)
    gaps = 0.010 + 0.00002 * np.arange(600) + rng.normal(0, 0.0005, 600)
    s = token_statistics(np.concatenate([[1.0], 1.0 + np.cumsum(gaps)]))
    assert s["token_n"] == 600 and s["token_trend_s"] == pytest.approx(0.00002, rel=0.02)
    assert s["token_spread_s"] == pytest.approx(0.0005, rel=0.1) and s["token_spread_s"] < gaps.std() / 5
    assert s["token_mad_s"] == pytest.approx(0.6745 * 0.0005, rel=0.15)
    for key, q in (("token_p5_s", 5), ("token_median_s", 50), ("token_p95_s", 95), ("token_p99_s", 99)):
        assert s[key] == pytest.approx(np.percentile(gaps, q))
    assert s["token_mean_s"] == pytest.approx(gaps.mean()) and s["token_longest_s"] == pytest.approx(gaps.max())


@pytest.mark.parametrize(("tokens", "p99"), [(500, None), (501, 1.0)])
def test_p99_from_500_gaps_on(tokens, p99):
    assert token_statistics(np.arange(float(tokens)))["token_p99_s"] == p99


def test_few_tokens_have_no_spread():
    assert token_statistics([1.0])["token_n"] == 0 and token_statistics([1.0])["token_mean_s"] is None
    two = token_statistics([1.0, 1.5, 2.5])
    assert two["token_mean_s"] == 0.75 and two["token_spread_s"] is None


# ---- interruptions ----


def test_ctrl_c_keeps_what_was_measured(tiny, tmp_path, monkeypatch):
    once, calls = bench_module.run_once, []

    def third(*args, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return once(*args, **options)

    monkeypatch.setattr(bench_module, "run_once", third)
    out = tmp_path / "r.jsonl"
    with pytest.raises(KeyboardInterrupt) as e:
        rooflm.bench(tiny, repeats=3, kv=["f16", "q8_0"], out=out, **FAST)
    assert len(e.value.results) == 2 and len(rooflm.Results.load(out)) == 2
    resumed = rooflm.bench(tiny, repeats=3, kv=["f16", "q8_0"], out=out, resume=True, **FAST)
    assert len(calls) == 3 + 4 and len(resumed) == len(rooflm.Results.load(out)) == 6
    assert {(r["kv"], r["repeat"]) for r in resumed} == {(kv, n) for kv in ("f16", "q8_0") for n in range(3)}
    with pytest.raises(ValueError, match="out= must name it"):
        rooflm.bench(tiny, resume=True, **FAST)
    again = rooflm.bench(tiny, repeats=3, kv=["f16", "q8_0"], out=out, resume=True, **FAST)
    assert len(calls) == 7 and again.records == resumed.records
    rooflm.bench(tiny, repeats=1, kv="f32", out=out, resume=True, **FAST)  # another setting is not what is there
    assert len(calls) == 8


def test_command_sweeps_records_and_resumes(answer, command, tiny, tmp_path):
    out = tmp_path / "r.jsonl"
    form = f"bench {tiny} --threads 1 --prompt 8 --gen 3 --depth 0,8 --kv f16,q8_0 --repeats 1 --out {out}".split()
    record = answer(*form, "--json")
    assert len(record["records"]) == 4 and len(record["summary"]) == 4 and record["machine"]["cpu"]
    code, _, err = command(*form, "--json")
    assert code == 1 and "resume=True" in err
    assert answer(*form, "--resume", "--json")["records"] == record["records"]
    code, text, _ = command(*form, "--resume")
    assert code == 0 and "ceiling_share" in text and text.count("q8_0") == 2
    assert command("bench", tiny, "--compute", "int4")[0] == 2
    explained = answer("explain", out, out, "--json")
    assert explained["ratio"] == pytest.approx(1.0) and explained["pairs"] == 4


# ---- cooling ----


def test_cooling_down_to_a_temperature(tmp_path):
    zone = tmp_path / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "type").write_text("x86_pkg_temp\n")
    (zone / "temp").write_text("61000\n")
    check_cooldown("50C", tmp_path)
    hot = cool_down("50C", tmp_path, longest_s=0.3)
    assert hot["reached"] is False and hot["waited_s"] >= 0.3
    (zone / "temp").write_text("49000\n")
    assert cool_down("50 C", tmp_path)["reached"] is True
    assert cool_down(0.01) == {"asked": 0.01, "waited_s": pytest.approx(0.01, abs=0.5), "reached": None}
    with pytest.raises(rooflm.Error, match="no temperature can be read"):
        check_cooldown("50C", tmp_path / "none")


def test_progress_tells_each_run(tiny):
    lines = []
    rooflm.bench(tiny, repeats=2, **{**FAST, "progress": lines.append})
    assert lines[0].startswith("warm-up") and lines[-1] == "run 2 of 2: setting 1 of 1, repetition 2 of 2"
