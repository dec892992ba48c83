# SPDX-License-Identifier: Apache-2.0
"""What compute="auto" takes for one token: the rule, where its rates come from, and what the engine makes of it."""

import json
import os

import numpy as np
import pytest

import rooflm
from rooflm import _auto, _core, _rates
from rooflm._rates import Rate, Sample

SIMD = _core._isa()["in_use"] != "ref"
pytestmark = pytest.mark.skipif(not SIMD, reason="auto has a choice only where there are SIMD kernels")
CORE, INT8, INT16 = Sample(40.0), Sample(25.0), Sample(19.5)
BUSY = "its threads had a core 11 % of the time"


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A machine of which no rates are kept."""
    monkeypatch.delenv("ROOFLM_CORE_GBS")
    monkeypatch.setenv("ROOFLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_auto, "_process", None)
    return tmp_path / "cache" / "rates.json"


@pytest.fixture
def process(cache, monkeypatch):
    """A function that decides as a new process would, measuring what it is given; and counts what was measured."""

    def run(core=CORE, int8=INT8, int16=INT16):
        def measure_core(known=""):
            run.measured.append("core")
            return core

        def measure_kernels(names, type, cols):
            run.measured.append((type, cols))
            return dict(zip(names, (int8, int16)))

        run.measured = []
        monkeypatch.setattr(_auto, "_process", None)
        monkeypatch.setattr(_rates, "measure_core", measure_core)
        monkeypatch.setattr(_rates, "measure_kernels", measure_kernels)
        return _auto.decide([("Q4_K", 2048)])

    return run


def taken(record):
    [matrix] = record["matrices"]
    return matrix["compute"]


@pytest.mark.parametrize(
    "core,int8,int16,want",
    [
        (10.0, 25.0, 19.5, "int16"),  # hides behind memory
        (18.5, 25.0, 19.5, "int16"),
        (19.0, 25.0, 19.5, "int8"),  # within the margin of memory: it would be seen
        (25.0, 25.0, 19.5, "int8"),
        (50.0, 20.0, 19.5, "int16"),  # no worse than int8, whatever the memory does
        (50.0, 20.0, 19.3, "int8"),
    ],
)
def test_int16_only_where_it_is_free(process, core, int8, int16, want):
    [record] = process(Sample(core), Sample(int8), Sample(int16))["matrices"]
    assert (record["type"], record["cols"], record["compute"]) == ("Q4_K", 2048, want)
    assert record["int16_gbs"] == int16 and f"{int16:.1f} GB/s" in record["why"].replace(" and 20.0", "")


def test_types_without_a_choice_are_left_out(process):
    process()
    assert _auto.choose([("F32", 64), ("F16", 64)], None, _auto._process) == []


# ---- what is believed ----


@pytest.mark.parametrize(
    "samples,want",
    [
        ([Sample(2.1, BUSY)] * 3, Rate(0.0, 0, 3)),
        ([Sample(2.1, BUSY), Sample(17.0), Sample(90.0, BUSY)], Rate(17.0, 1, 3)),
        ([Sample(17.0), Sample(17.9), Sample(16.9)], Rate(17.9, 3, 3)),
        ([Sample(9.0), Sample(9.1), Sample(17.0)], Rate(17.0, 1, 3)),  # what was lower does not confirm it
        ([Sample(17.0), Sample(9.0), Sample(9.0)], Rate(17.0, 1, 3)),  # nor does noise lower it
    ],
)
def test_a_rate_is_the_largest_of_what_was_undisturbed(samples, want):
    rate = Rate()
    for sample in samples:
        rate.add(sample)
    assert rate == want and rate.settled == (want.agree == 3)


def test_measuring_ends():
    rate = Rate()
    for _ in range(_rates.TRIES):
        assert not rate.settled
        rate.add(Sample(1.0, BUSY))
    assert rate.settled and rate.gbs == 0


def test_what_is_judged_disturbed():
    assert _rates.judged(17.123, 0.99, 1.05, "k") == Sample(17.12, "", "k")
    assert "11 %" in _rates.judged(2.09, 0.11, 1.0).disturbed
    assert "1.40" in _rates.judged(12.0, 1.0, 1.4).disturbed
    assert _rates.best_of([Sample(9.0), Sample(30.0, BUSY), Sample(8.0)]) == Sample(9.0)
    assert _rates.best_of([Sample(2.0, BUSY), Sample(3.0, BUSY)]).gbs == 3.0


def test_a_busy_machine_is_not_believed(process, cache):
    """Memory at 2.09 GB/s a core would make int16 look free for ever."""
    busy = process(core=Sample(2.09, BUSY))
    assert taken(busy) == "int8" and busy["disturbed"] == BUSY and busy["core_gbs"] == 2.09
    assert busy["source"] == "this process alone, disturbed"
    assert "never slower" in busy["matrices"][0]["why"] and not busy["settled"] and busy["agreeing"] == 0
    as_fast = process(core=Sample(2.09, BUSY), int16=INT8)
    assert taken(as_fast) == "int16" and "as fast as int8" in as_fast["matrices"][0]["why"]
    [kept] = json.loads(cache.read_text())["machines"].values()
    assert kept["core"] == {"gbs": 0.0, "agree": 0, "tries": 2, "kernel": ""}
    calm = process(core=Sample(17.5))
    assert taken(calm) == "int16" and calm["disturbed"] is None and calm["core_gbs"] == 17.5


@pytest.mark.parametrize("which,core", [("int8", 40.0), ("int16", 17.5)])
def test_a_disturbed_kernel_is_not_believed(process, which, core):
    found = process(core=Sample(core), **{which: Sample(15.0, BUSY)})
    assert taken(found) == "int8" and f"rate of {which} was disturbed" in found["matrices"][0]["why"]


@pytest.mark.parametrize("which", ["int8", "int16"])
def test_a_disturbed_kernel_that_is_fast_enough_is_taken(process, which):
    assert taken(process(core=Sample(10.0), **{which: Sample(15.0, BUSY)})) == "int16"


def test_bandwidth_rises_and_never_falls_until_processes_agree(process):
    first = process(core=Sample(15.0))
    assert taken(first) == "int16" and not first["settled"] and "measured" not in first["source"]
    second = process(core=Sample(22.0))  # the first one had a neighbour
    assert taken(second) == "int8" and second["core_gbs"] == 22.0 and second["agreeing"] == 1
    for core in (9.0, 21.0, 21.5):
        found = process(core=Sample(core))
        assert taken(found) == "int8" and found["core_gbs"] == 22.0
    assert found["settled"] and found["agreeing"] == 3
    process(core=Sample(50.0))
    assert process.measured == []


def test_a_process_decides_once(process, monkeypatch):
    first = process(core=Sample(17.5))
    monkeypatch.setattr(_rates, "measure_core", lambda known: Sample(50.0))
    monkeypatch.setattr(_rates, "measure_kernels", lambda names, *_: {n: Sample(1.0) for n in names})
    again = _auto.decide([("Q4_K", 2048), ("Q8_0", 64)])
    assert [m for m in again["matrices"] if m["type"] == "Q4_K"] == first["matrices"]
    assert again["core_gbs"] == 17.5 and len(again["matrices"]) == 2


def test_a_given_bandwidth_is_not_measured(process, monkeypatch):
    monkeypatch.setenv("ROOFLM_CORE_GBS", "3")
    found = process(core=Sample(40.0))
    assert (found["core_gbs"], found["source"], found["settled"]) == (3.0, "ROOFLM_CORE_GBS", True)
    assert taken(found) == "int16" and "core" not in process.measured


# ---- the file ----


def test_rates_of_two_processes_at_once_are_joined(process, cache):
    process(core=Sample(17.5))
    key = _rates.machine_key()
    _rates.save(key, {"core": Rate(12.0, 1, 1), "other/64": Rate(5.0, 1, 1)})
    kept = _rates.load(key)
    assert kept["core"].gbs == 17.5 and kept["other/64"].gbs == 5.0 and len(kept) == 4


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"schema": 2}', '{"schema": 2, "machines": 3}', '{"schema": 2, "machines": {"KEY": {"core": 5}}}',
     '{"schema": 1, "machines": {"KEY": {"core_gbs": 2.09, "kernels": {}}}}'],
)  # fmt: skip
def test_a_damaged_or_older_file_is_measured_anew(process, cache, text):
    cache.parent.mkdir()
    cache.write_text(text.replace("KEY", _rates.machine_key()))
    assert process(core=Sample(17.5))["core_gbs"] == 17.5
    assert json.loads(cache.read_text())["schema"] == 2


def test_a_place_that_cannot_be_written_is_said(process, cache):
    cache.parent.write_text("a file where the folder should be")
    found = process()
    assert "cannot be written" in found["source"] and found["matrices"]


# ---- measured for real ----


def test_rates_are_measured(cache):
    core = _rates.measure_core()
    assert 0.05 < core.gbs < 2000 and core.kernel.startswith("rl_read_")
    assert _rates.measure_core(core.kernel).kernel == core.kernel
    names = [k.name for k in rooflm.kernels().select(family="rows", type="Q4_K", chosen=True) if k.act != "f32"]
    found = _rates.measure_kernels(names, "Q4_K", 512)
    assert sorted(found) == sorted(names) and all(0.01 < s.gbs < 2000 for s in found.values())
    record = _auto.decide([("Q4_K", 512)])
    assert record["matrices"] and json.loads(cache.read_text())["schema"] == 2
    assert (str(cache) in record["source"]) != bool(record["disturbed"])
    assert _auto.decide([("Q4_K", 512)]) == record


def test_time_on_a_core_shows_that_others_had_it():
    """Four times as many threads as cores: together they have a quarter of the time."""
    data = np.ones(32 << 20, np.uint8)
    crowded = _core.read_bandwidth([data], threads=4 * len(os.sched_getaffinity(0)), passes=3)
    assert max(crowded["passes_busy"]) < 0.8 and min(crowded["passes_busy"]) > 0


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("auto") / "m.gguf"
    rooflm.synth(path, size="custom", width=256, layers=1, heads=4, kv_heads=2, ffn=512, vocab=300, type="Q4_K_M")
    return rooflm.Model(path)


def acts(session, n_tokens=1):
    return {k["op"]: ("q16" if "_q16_" in k["kernel"] else "q8") for k in session.kernels(n_tokens)}


def test_the_engine_takes_what_was_decided(monkeypatch, model):
    ids = list(range(20, 32))
    kernels = {n: Sample(g) for n, g in (("_q8_", 25.0), ("_q16_", 19.5))}
    monkeypatch.setattr(_auto, "_process", None)
    monkeypatch.setattr(_rates, "load", lambda key: {})
    monkeypatch.setattr(_rates, "save", lambda key, rates: "")
    monkeypatch.setattr(
        _rates, "measure_kernels", lambda names, *_: {n: s for n in names for act, s in kernels.items() if act in n}
    )

    def logits(compute):
        s = model.session(n_ctx=32, compute=compute, kv="f32")
        return np.stack([s.eval([i], logits="last") for i in ids]), s

    slow, s = logits("auto")  # memory as slow as conftest says
    assert set(acts(s).values()) == {"q16"} and {m["compute"] for m in s.auto["matrices"]} == {"int16"}
    assert np.array_equal(slow, logits("int16")[0])
    monkeypatch.setenv("ROOFLM_CORE_GBS", "1e6")
    fast, s = logits("auto")
    assert set(acts(s).values()) == {"q8"} and {m["compute"] for m in s.auto["matrices"]} == {"int8"}
    assert np.array_equal(fast, logits("int8")[0])
    assert not np.array_equal(fast, slow)
    assert s.fork().auto == s.auto
    mixed = model.session(n_ctx=32, compute={"attn_q": "int16"})
    assert acts(mixed)["attn_q"] == "q16" and acts(mixed)["ffn_up"] == "q8"
    assert model.session(n_ctx=32, compute="int16").auto is None


@pytest.mark.parametrize("bad", [[("Q4_K",)], "Q4_K", [("Q4_K", "x")], [3]])
def test_what_the_extension_is_given_is_checked(model, bad):
    with pytest.raises(TypeError):
        _core.Session(model._c, n_ctx=16, int8_single=bad)
