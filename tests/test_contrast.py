# SPDX-License-Identifier: Apache-2.0
"""What tells two results apart (F1), and the gap as a product of factors (F16)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from plots import drawn, says
from records import record, runs

import rooflm
from rooflm import Results
from rooflm.measuring.contrast import ConfoundedError, effect_of, fact_name
from rooflm.measuring.explain import shapley


def contrast(a, b, by, **options):
    return Results([]).contrast(Results(a), Results(b), by=by, **options)


def test_an_effect_where_one_fact_moved():
    r = Results([*runs(values=[20.0, 21.0, 19.0, 20.5]), *runs(kv="q8_0", values=[22.0, 23.1, 20.9, 22.55])])
    c = r.contrast("f16", "q8_0", by="kv")
    assert [m.name for m in c.moved] == ["kv"] and c.confounded == []
    assert c.effect.paired and c.effect.n == 4 and c.effect.ratio == pytest.approx(1.1)
    assert c.effect.interval == pytest.approx([1.1, 1.1])  # each pair has the same ratio, whatever the level
    assert "x 1.100" in repr(c) and "n = 4 pairs" in repr(c) and "the named one" in c._repr_html_()


# One change for each fact that F1 lists, and what has to be named.
MOVES = {
    "model": {"manifest__model__sha256": "bb"},
    "depth": {"depth": 64},
    "threads": {"threads": 4},
    "compute": {"compute": "int8"},
    "isa": {"isa": "avx512"},
    "kernels of decode": {"kernels__decode": {"attn_q": ["rows_ref"]}},
    "file mapped": {"manifest__engine__mapped": False},
    "cpus": {"manifest__placement__cpus": [0, 4]},
    "governor": {"manifest__machine__governor": "powersave"},
    "system": {"manifest__machine__os": "Android"},
    "library": {"manifest__build__rooflm": "0.2.0"},
    "compiler": {"manifest__build__compiler": "clang 14"},
    "fallbacks": {"fallbacks": ["copied"]},
    "throttled": {"sensors__throttled": True},
    "temperature": {"sensors__temperature_c": {"start": 70.0}},
    "clock": {"sensors__clock_ghz": {"start": 2.0, "end": 1.9}},
    "load of others": {"sensors__others_busy": 0.5},
    "read bandwidth": {"read_gbs": 12.0},
}


@pytest.mark.parametrize("name", MOVES)
def test_whatever_else_moves_is_named_and_refused(name):
    c = contrast(runs(), runs(kv="q8_0", **MOVES[name]), "kv")
    if name == "kernels of decode":  # another cache takes other kernels
        assert [m.follows for m in c.moved if m.name == name] == ["kv"]
        return
    assert name in [m.name for m in c.confounded]
    with pytest.raises(ConfoundedError, match=name) as e:
        c.effect  # noqa: B018
    assert name in e.value.moved and c.to_dict()["effect"] is None and "CONFOUNDS" in repr(c)


def test_what_follows_from_the_named_fact_does_not_confound():
    other = {"manifest__model__sha256": "bb", "manifest__model__types": {"Q8_0": 1.0}, "model": "n.gguf"}
    c = contrast(runs(), runs(manifest__model__bits_per_weight=8.5, **other), "quantization")
    assert c.confounded == [] and {m.name for m in c.moved} >= {"model", "bits per weight", "tensor types"}
    assert c.effect.ratio == pytest.approx(1.0)


def test_hardware_is_strict_and_a_device_is_taken_with_its_system():
    other = runs(manifest__machine__cpu="Y", manifest__machine__os="Android", read_gbs=12.0, isa="neon")
    assert [m.name for m in contrast(runs(), other, "hardware").confounded] == ["system"]
    c = contrast(runs(), other, "device")
    assert c.confounded == [] and c.moved[0].name == "device"
    throttled = [{**r, "sensors": {**r["sensors"], "throttled": True}} for r in other]
    assert [m.name for m in contrast(runs(), throttled, "device").confounded] == ["throttled"]


def test_noise_of_a_condition_is_no_move():
    a, b = runs(6), runs(6, kv="q8_0")
    for i, r in enumerate((*a, *b)):
        # medians of 30 and 36, which is more than 10 % apart, and median deviations of 10
        r["read_gbs"] = (20.0, 40.0, 30.0)[i % 3] + (6.0 if r["kv"] == "q8_0" else 0.0)
        r["sensors"]["others_busy"] = 0.05 * (i % 4)
    assert contrast(a, b, "kv").confounded == []


def test_the_same_values_in_other_combinations_confound():
    a = [*runs(depth=0), *runs(depth=64, threads=4)]
    b = [*runs(kv="q8_0", depth=64), *runs(kv="q8_0", depth=0, threads=4)]
    assert [m.name for m in contrast(a, b, "kv").confounded] == ["combination of settings"]


def test_nothing_moved_and_unknown_names():
    with pytest.raises(rooflm.Error, match="kv did not move"):
        contrast(runs(), runs(), "kv").effect  # noqa: B018
    with pytest.raises(ValueError, match="did you mean 'threads'"):
        contrast(runs(), runs(), "thread")
    with pytest.raises(ValueError, match="no record has kv 'q4'; there are f16"):
        Results(runs()).contrast("f16", "q4", by="kv")
    assert fact_name("quantization") == "model"


def test_welch_interval_against_scipy():
    """Runs of different benches are independent samples; SciPy's interval of the difference of logarithms."""
    stats = pytest.importorskip("scipy.stats")
    x, y = [20.0, 21.0, 19.0, 20.5, 22.0], [23.0, 22.0, 25.0]
    e = effect_of(runs(values=x, block="p"), runs(values=y, block="q", kv="q8_0"), "decode_tps")
    assert not e.paired and e.n == 3
    want = stats.ttest_ind(np.log(y), np.log(x), equal_var=False).confidence_interval(0.95)
    assert [math.log(v) for v in e.interval] == pytest.approx([want.low, want.high], rel=1e-6)


def test_paired_interval_against_scipy():
    stats = pytest.importorskip("scipy.stats")
    x, y = [20.0, 30.0, 25.0, 40.0], [22.0, 31.0, 27.0, 45.0]
    e = effect_of(runs(values=x), runs(values=y, kv="q8_0"), "decode_tps")
    want = stats.ttest_rel(np.log(y), np.log(x)).confidence_interval(0.95)
    assert e.paired and [math.log(v) for v in e.interval] == pytest.approx([want.low, want.high], rel=1e-6)


def test_one_run_a_side_has_no_interval():
    e = effect_of(runs(1, values=[20.0]), runs(1, values=[10.0], kv="q8_0"), "decode_tps")
    assert e.ratio == pytest.approx(0.5) and e.interval is None and "no interval" in repr(e)


# ---- explain ----


def side(gbs, weights, bits, kv, share, n=3, **more):
    """Records of a device whose decode speed follows from the others."""
    tps = share * gbs * 1e9 / (weights + kv)
    figures = {"read_gbs": gbs, "weight_bytes_per_token": weights, "kv_bytes_per_token": kv, **more}
    return Results(runs(n, values=[tps] * n, manifest__model__bits_per_weight=bits, **figures))


def test_factors_multiply_to_the_ratio():
    a, b = side(34.0, 0.6e9, 4.5, 0.1e9, 0.8), side(17.0, 1.2e9, 9.0, 0.3e9, 0.6)
    e = rooflm.explain(a, b)
    f = {x["name"]: x["factor"] for x in e.factors}
    assert math.prod(f.values()) == pytest.approx(e.ratio) == pytest.approx(b[0]["decode_tps"] / a[0]["decode_tps"])
    assert f["bandwidth"] == 0.5 and f["rest"] == pytest.approx(0.75) == e.rest
    assert f["parameters read"] == pytest.approx(1.0)  # twice the bytes at twice the bits
    assert f["bits per weight"] * f["context (KV)"] == pytest.approx(0.7 / 1.5)
    back = {x["name"]: x["factor"] for x in rooflm.explain(b, a).factors}
    assert all(back[k] == pytest.approx(1 / v) for k, v in f.items())


def test_two_devices_that_differ_in_bandwidth_alone():
    """The report's own finding: what was left of a gap of two was the ratio of the memory bandwidths."""
    e = rooflm.explain(side(34.0, 1e9, 4.5, 0.1e9, 0.7), side(17.0, 1e9, 4.5, 0.1e9, 0.7))
    assert e.ratio == pytest.approx(0.5) and e.rest == pytest.approx(1.0)
    assert [m.name for m in e.moved] == ["read bandwidth"] and "read bandwidth: 34 -> 17" in repr(e)


def test_settings_are_matched():
    a = side(34.0, 1e9, 4.5, 0.1e9, 0.7) + side(34.0, 1e9, 4.5, 0.9e9, 0.7, depth=64)
    b = side(17.0, 1e9, 4.5, 0.1e9, 0.7)
    assert rooflm.explain(a, b).pairs == 1 and rooflm.explain(a, b).ratio == pytest.approx(0.5)
    with pytest.raises(ValueError, match="no setting in common"):
        rooflm.explain(a, side(17.0, 1e9, 4.5, 0.1e9, 0.7, prompt=7))
    with pytest.raises(ValueError, match="side b has no record"):
        rooflm.explain(a, Results([record(read_gbs=None)]))


def test_shapley_factors_of_a_product_are_its_ratios():
    assert shapley(lambda x, y: x * y, (2.0, 3.0), (4.0, 9.0)) == pytest.approx([2.0, 3.0])
    x, y = shapley(lambda x, y: x + y, (1.0, 1.0), (3.0, 3.0))
    assert x == pytest.approx(y) == pytest.approx(math.sqrt(3.0))


def test_waterfall_says_what_it_shows():
    e = rooflm.explain(side(34.0, 0.6e9, 4.5, 0.1e9, 0.8), side(17.0, 1.2e9, 9.0, 0.3e9, 0.6))
    ax = drawn(e.plot)
    says(ax, x="factor", y=r"decode \(tokens/s\)", title=r"x 0\.\d+ as a product")
    assert [p.get_height() for p in ax.patches[-2:]] == pytest.approx([e.a_tps, e.b_tps])
