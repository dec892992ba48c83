# SPDX-License-Identifier: Apache-2.0
"""Sweeps: what is in their records and pictures, the knee on made-up curves, saved choices that go stale, Ctrl-C."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from plots import drawn

import rooflm
from rooflm.cli import main
from rooflm.diagnosis import kernel_choice as choice_room
from rooflm.diagnosis import sweep_cache, sweep_context, sweep_kernels
from rooflm.diagnosis.sweeps import Sweep

SHAPE = {"size": "custom", "width": 256, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 512, "vocab": 600}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweeps") / "small.gguf"
    rooflm.synth(path, type="Q4_K_M", **SHAPE)
    return path


@pytest.fixture(scope="module")
def model(path):
    return rooflm.Model(path)


# --- context ----------------------------------------------------------------------------------------------------


def test_context_keeps_both_axes_apart(model):
    s = rooflm.sweep("context", model, depth=[0, 300, 700], ctx=[1024, 4096], kv=["f16", "q8_0"], gen=4, repeats=2)
    assert len(s) == 2 * 2 * 5
    used, allocated = s.select(axis="in use"), s.select(axis="allocated")
    assert {r["depth"] for r in used} == {0, 300, 700} and {r["ctx"] for r in used} == {None}
    assert {r["ctx"] for r in allocated} == {1024, 4096} and {r["depth"] for r in allocated} == {0}
    # What is allocated and not in use is neither read nor held.
    for kv in ("f16", "q8_0"):
        assert len({(r["kv_nbytes"], r["bytes_per_token"]) for r in allocated if r["kv"] == kv}) == 1
    by = {(r["kv"], r["depth"]): r["kv_bytes_per_token"] for r in used}
    positions = {d: sweep_context.SHORT + d + 3 for d in (0, 300, 700)}
    for depth, n in positions.items():
        assert by["f16", depth] == n * 2 * 2 * 2 * 64 * 2  # layers, K and V, heads, values, bytes
        assert by["q8_0", depth] / by["f16", depth] == pytest.approx(0.5625)


def test_prediction_is_the_shortest_contexts_speed_times_the_bytes(model):
    s = rooflm.sweep("context", model, depth=[0, 500], ctx=[1024], gen=4, repeats=3)
    for repeat in range(3):
        rows = s.select(repeat=repeat)
        base = rows.select(axis="in use", depth=0)[0]
        assert base["predicted_tps"] == base["decode_tps"]
        for r in rows:
            want = base["decode_tps"] * base["bytes_per_token"] / r["bytes_per_token"]
            assert r["predicted_tps"] == pytest.approx(want)


def test_forks_of_the_deepest_session_hold_the_right_past(model):
    """A session cut back to a depth gives the logits of one that was filled to it."""
    filled = sweep_context._Filled(model, [40, 200], 4, {"kv": "f16"}, print)
    ids = np.random.default_rng(0).integers(0, model.n_vocab, 200, dtype=np.int32)
    with filled.at(40, 44) as cut, model.session(n_ctx=64) as fresh:
        fresh.eval(ids[:40], logits="none")
        np.testing.assert_array_equal(cut.eval([1]), fresh.eval([1]))
    assert filled.deepest.n_past == 200


@pytest.mark.parametrize("bad", [{"depth": [-1]}, {"gen": 1}, {"ctx": [8]}])
def test_context_of_wrong_sizes(model, bad):
    with pytest.raises(ValueError):
        rooflm.sweep("context", model, repeats=1, **bad)


# --- the cache alone --------------------------------------------------------------------------------------------


def test_layouts_and_types_side_by_side(model):
    s = rooflm.sweep("kv", model, kv=["f16", "q8_0"], layout=["tile", "token", "head"], depth=200, repeats=2)
    assert len(s) == 12
    for r in s:
        assert r["attention_us"] > 0 and r["attention_gbs"] == pytest.approx(r["kv_bytes"] / r["attention_us"] / 1e3)
        part = "tile" if r["layout"] == "tile" else "row"
        assert all(f"_{part}_" in k for k in r["kernels"])
    # layers, K and V, heads, values, bytes of a value, tokens
    assert {r["kv_bytes"] for r in s if r["kv"] == "f16"} == {2 * 2 * 2 * 64 * 2 * 200}


@pytest.mark.best_tier
def test_row_layouts_run_on_the_tier_of_the_tile(model):
    """The comparison of layouts is of layouts: none of them runs a reference kernel where the others have vectors."""
    s = rooflm.sweep("kv", model, kv=["f32", "f16", "q8_0"], depth=70, repeats=1)
    tiers = {r["layout"]: {k.rsplit("_", 1)[1] for k in r["kernels"]} for r in s}
    if "avx2" in rooflm._core._isa()["available"]:
        assert tiers["token"] == tiers["head"] == tiers["tile"] and "ref" not in tiers["tile"]


def fake(points, caches=(), threads=2):
    return [
        {"kv_bytes": float(size), "attention_gbs": gbs, "repeat": i, "caches": list(caches),
         "setting": {"threads": threads}}
        for size, gbs in points
        for i in range(1)
    ]  # fmt: skip


L2 = {"level": 2, "size_bytes": 1 << 20, "count": 2, "type": "Unified"}
L3 = {"level": 3, "size_bytes": 32 << 20, "count": 1, "type": "Unified"}


def test_knee_is_where_the_cache_no_longer_fits():
    sizes = [1 << i for i in range(17, 28)]
    points = [(s, 80.0 if s <= 32 << 20 else 30.0) for s in sizes]
    k = sweep_cache.knee(fake(points, [L2, L3]))
    assert k["last_fast_bytes"] == 32 << 20 and k["first_slow_bytes"] == 64 << 20
    assert k["kv_bytes"] == pytest.approx(math.sqrt(2) * (32 << 20)) and k["cache"] == "L3"
    assert k["before_gbs"] == 80 and k["after_gbs"] == 30
    k = sweep_cache.knee(fake([(s, 90.0 if s <= 2 << 20 else 40.0) for s in sizes], [L2, L3]))
    assert k["cache"] == "L2" and k["cache_bytes"] == 2 << 20  # of two cores


def test_no_knee_without_a_fall():
    sizes = [1 << i for i in range(17, 28)]
    rng = np.random.default_rng(3)
    assert sweep_cache.knee(fake([(s, 50 + rng.normal()) for s in sizes])) is None
    assert sweep_cache.knee(fake([(s, 10.0 + i) for i, s in enumerate(sizes)])) is None  # rises: barriers
    assert sweep_cache.knee([]) is None and sweep_cache.knee(fake([(1 << 20, 10), (1 << 21, 5)])) is None


def test_small_caches_bound_by_barriers_do_not_hide_the_knee():
    points = [(1 << 16, 5.0), (1 << 17, 10.0), (1 << 18, 40.0), (1 << 20, 42.0), (1 << 22, 41.0), (1 << 26, 20.0),
              (1 << 27, 20.0)]  # fmt: skip
    assert sweep_cache.knee(fake(points))["last_fast_bytes"] == 1 << 22


def test_cache_sweep_and_its_misses(model):
    s = rooflm.sweep("cache", model, sizes=[1 << 16, 1 << 18, 1 << 20], repeats=2)
    assert len(s) == 6
    for r in s:
        assert r["kv_bytes"] == pytest.approx(r["size_bytes"], rel=0.02)
        known = r["cache_misses"] is not None
        assert known or r["cache_misses_why"].startswith("not available: ")
    assert set(s.to_dict()) >= {"knee", "records", "kind"}


def test_default_sizes_reach_past_the_last_cache():
    sizes = sweep_cache.default_sizes([L2, L3], 16 << 30)
    assert sizes[0] == 64 << 10 and sizes[-1] == 128 << 20
    assert sweep_cache.default_sizes([L2, L3], 64 << 20)[-1] <= 16 << 20
    assert sweep_cache.default_sizes([], None)[-1] == 128 << 20


# --- threads ----------------------------------------------------------------------------------------------------


def test_threads_and_placement(model):
    cpu = rooflm.machine().allowed_cpus[0]
    s = rooflm.sweep("threads", model, threads=[1, 2], cpus=[str(cpu)], gen=4, repeats=2)
    assert len(s) == 2 and {r["threads"] for r in s} == {1}  # two do not fit one CPU
    assert all(r["resolved"]["placement"]["cpus"] == [cpu] for r in s)
    with pytest.raises(ValueError, match="more than the CPUs"):
        rooflm.sweep("threads", model, threads=[2], cpus=[str(cpu)])


# --- kernels and the saved choice -------------------------------------------------------------------------------


@pytest.fixture
def saved(model, tmp_path):
    file = tmp_path / "kernels.json"
    sweep = rooflm.sweep("kernels", model, tokens=[1], threads=1, repeats=1, save=True, choices=file)
    return sweep, file


@pytest.mark.best_tier
def test_kernels_of_every_shape_and_openblas(model):
    s = rooflm.sweep("kernels", model, tokens=[1, 17], threads=1, repeats=1)
    shapes = {(t, rows, columns) for t, rows, columns, _ in sweep_kernels.shapes(model)}
    assert {(r["type"], r["rows"], r["columns"]) for r in s} == shapes
    one = s.select(tokens=1)
    want = {k.name for k in rooflm.kernels().select(family="rows", type="Q4_K", available=True) if k.isa != "ref"}
    assert {r["kernel"] for r in one if r["type"] == "Q4_K"} - {"openblas"} == want
    assert all(r["time_us"] > 0 for r in s) and s.fastest


def test_openblas_computes_the_product(model):
    blas = sweep_kernels.OpenBlas.find()
    if blas is None:
        pytest.skip("no OpenBLAS here")
    tensor = model.gguf.tensors["blk.0.ffn_up.weight"]
    x = np.random.default_rng(0).standard_normal((5, tensor.shape[1]), np.float32)
    out = np.full((5, tensor.shape[0]), np.nan, np.float32)
    assert blas.multiply(tensor, x, out, 1)(2) > 0
    np.testing.assert_allclose(out, x @ tensor.dequantize().T, rtol=1e-4, atol=1e-4)


def test_saved_choice_runs(model, saved):
    sweep, file = saved
    got = rooflm.kernel_choice(model, threads=1, choices=file)
    assert got["missing"] == [] and got["stale"] == [] and got["options"]["n_threads"] == 1
    with model.session(n_ctx=16, **got["options"]) as s:
        s.eval([1])
        ran = {r["kernel"] for r in s.kernels(1)}
    assert ran == set(got["options"]["kernel"].split(","))
    best = {r["kernel"] for r in sweep.fastest if r["compute"] == "int16"}
    assert ran <= best


@pytest.mark.parametrize("key,value", [("cpu", "another"), ("isa", "mmx"), ("rooflm", "0.0.1"), ("threads", 64)])
def test_stale_choice_is_ignored_and_said(model, saved, key, value):
    _, file = saved
    text = json.loads(file.read_text())
    for e in text["entries"]:
        e[key] = value
    file.write_text(json.dumps(text))
    with pytest.warns(rooflm.FallbackWarning, match=f"are ignored: {key} {value} is"):
        got = rooflm.kernel_choice(model, threads=1, choices=file)
    assert got["options"] == {} and got["used"] == [] and got["stale"]
    assert all(key in e["why"] for e in got["stale"])


def test_choice_of_another_shape_does_not_count(model, saved, tmp_path):
    other = tmp_path / "other.gguf"
    rooflm.synth(other, type="Q4_K_M", **{**SHAPE, "ffn": 768})
    got = rooflm.kernel_choice(rooflm.Model(other), threads=1, choices=saved[1])
    assert ("Q4_K", 768, 256) in got["missing"] and all(e["rows"] != 512 for e in got["used"])


def test_new_measurements_replace_old_ones(model, saved):
    _, file = saved
    before = json.loads(file.read_text())["entries"]
    rooflm.sweep("kernels", model, tokens=[1], threads=1, repeats=1, save=True, choices=file)
    assert len(json.loads(file.read_text())["entries"]) == len(before)
    assert [p.name for p in file.parent.iterdir()] == ["kernels.json"]


def test_damaged_file_of_choices(model, tmp_path):
    (tmp_path / "k.json").write_text("{")
    with pytest.raises(ValueError, match="no file of kernel choices"):
        rooflm.kernel_choice(model, choices=tmp_path / "k.json")
    assert rooflm.kernel_choice(model, choices=tmp_path / "none.json")["options"] == {}


def test_type_is_decided_by_the_shape_that_takes_longest(model, saved, monkeypatch):
    _, file = saved
    text = json.loads(file.read_text())
    mine = [e for e in text["entries"] if e["type"] == "Q4_K" and e["compute"] == "int16"]
    for i, e in enumerate(mine):
        e.update(kernel="big" if i == 0 else "small", time_us=1000.0 if i == 0 else 1.0)
    file.write_text(json.dumps(text))
    assert "big" in rooflm.kernel_choice(model, threads=1, choices=file)["options"]["kernel"].split(",")


# --- all kinds --------------------------------------------------------------------------------------------------


def test_interrupted_sweep_keeps_what_was_measured(model, tmp_path):
    seen = []

    def stop(text):
        if "repetition" in text:
            seen.append(text)
        if len(seen) == 4:
            raise KeyboardInterrupt

    out = tmp_path / "s.jsonl"
    with pytest.raises(KeyboardInterrupt) as e:
        rooflm.sweep("kv", model, depth=70, repeats=5, out=out, progress=stop)
    assert len(e.value.results) == 3 and isinstance(e.value.results, Sweep)
    assert len(rooflm.Results.load(out)) == 3


def test_interrupted_command_prints_what_was_measured(path, capsys, monkeypatch):
    real, calls = sweep_cache._walk, []

    def walk(*args, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(sweep_cache, "_walk", walk)
    assert main(["sweep", "kv", str(path), "--depth", "70", "--json"]) == 130
    assert len(json.loads(capsys.readouterr().out)["records"]) == 2


def test_wrong_arguments(model):
    with pytest.raises(ValueError, match="kind must be one of context, kv"):
        rooflm.sweep("nothing", model)
    with pytest.raises(TypeError, match="takes depth, ctx, kv"):
        rooflm.sweep("context", model, sizes=[1])
    with pytest.raises(TypeError, match="needs a model"):
        rooflm.sweep("threads")
    with pytest.raises(TypeError, match="did you mean 'depth'"):
        rooflm.sweep("context", model, deph=3)
    with pytest.raises(ValueError, match="no knee"):
        Sweep("kv", []).knee  # noqa: B018


@pytest.mark.parametrize(
    "args,keys",
    [
        (["kv", "--depth", "70", "--kv", "f16,q8_0", "--layout", "tile", "--repeats", "1"], {"attention_us", "layout"}),
        (["cache", "--sizes", "64k,128k", "--repeats", "1"], {"size_bytes", "cache_misses"}),
        (["threads", "--threads", "1", "--repeats", "1"], {"decode_tps", "ceiling_share"}),
        (["context", "--depth", "0,64", "--ctx", "1k", "--repeats", "1"], {"predicted_tps", "axis"}),
    ],
)
def test_commands(path, args, keys, capsys):
    assert main(["sweep", args[0], str(path), *args[1:], "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["kind"] == f"sweep {args[0]}" and keys <= set(record["records"][0])
    assert main(["sweep", args[0], str(path), *args[1:]]) == 0
    assert capsys.readouterr().out.strip()


def test_command_with_a_wrong_option(path, capsys):
    assert main(["sweep", "kv", str(path), "--sizes", "1k"]) == 2
    assert "--sizes is not of kv" in capsys.readouterr().err
    assert main(["sweep", "threads"]) == 2


# --- pictures ---------------------------------------------------------------------------------------------------


@pytest.fixture
def agg():
    pytest.importorskip("matplotlib").use("Agg")


def test_plot_of_the_context(model, agg):
    ax = drawn(rooflm.sweep("context", model, depth=[0, 100], ctx=[512], gen=4, repeats=2).plot)
    assert ax.get_xlabel() == "context (tokens)" and ax.get_ylabel() == "decode (tokens/s)"
    assert "range of n = 2 runs" in ax.get_title()
    labels = [t.get_text() for t in ax.get_legend().get_texts()]
    assert any("predicted" in t for t in labels) and any("allocated" in t for t in labels)


def test_plot_of_threads_names_the_model(path, agg):
    run = {"decode_tps": 9.0, "ceiling_tps": 12.0, "model": path.name}
    ax = drawn(Sweep("threads", [{"setting": {"threads": n}, "repeat": 0, **run} for n in (1, 2)]).plot)
    assert ax.get_title().startswith(f"{path.name}\n") and "n = 1 runs" in ax.get_title()
    assert list(ax.get_xticks()) == [1, 2] and ax.get_xlabel() == "threads (count)"
    s = rooflm.sweep("threads", path, threads=[1], gen=2, repeats=1)
    assert s.records[0]["model"] == path.name


def test_plot_of_the_knee(agg):
    points = [(1 << i, 80.0 if i <= 25 else 30.0) for i in range(17, 28)]
    ax = drawn(Sweep("cache", [{**r, "read_gbs": 90.0} for r in fake(points, [L2, L3])]).plot)
    assert ax.get_xlabel() == "KV cache (bytes)" and ax.get_ylabel() == "attention (GB/s)"
    labels = [t.get_text() for t in ax.get_legend().get_texts()]
    assert "knee at 47.5 MB" in labels and [t.get_text() for t in ax.texts] == [" L2", " L3"]
    assert "n = 1 runs" in ax.get_title()


def test_plot_of_layouts_and_kernels(model, agg):
    ax = drawn(rooflm.sweep("kv", model, depth=70, repeats=2).plot)
    assert ax.get_xlabel() == "attention per token (µs)" and "n = 2 runs" in ax.get_title()
    assert [t.get_text() for t in ax.get_yticklabels()][:1] and len(ax.patches) == 6
    ax = drawn(rooflm.sweep("kernels", model, tokens=[1], repeats=1).plot)
    assert ax.get_xlabel() == "time of one product (µs)" and "n = 1 runs" in ax.get_title()


def test_choices_module_is_not_hidden_by_the_function():
    assert rooflm.kernel_choice is choice_room.kernel_choice
