# SPDX-License-Identifier: Apache-2.0
"""What compute="auto" takes for one token: the rule, where its rates come from, and what the engine makes of it."""

import json

import numpy as np
import pytest

import rooflm
from rooflm import _auto, _core

SIMD = _core._isa()["in_use"] != "ref"
pytestmark = pytest.mark.skipif(not SIMD, reason="auto has a choice only where there are SIMD kernels")


def rates(core_gbs, int8, int16, cols=2048):
    table = rooflm.kernels()
    names = {a: table.select(family="rows", type="Q4_K", act=a, chosen=True)[-1].name for a in ("int8", "int16")}
    return _auto.Rates("k", core_gbs, {f"{names['int8']}/{cols}": int8, f"{names['int16']}/{cols}": int16}, "given")


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
def test_int16_only_where_it_is_free(core, int8, int16, want):
    [record] = _auto.choose([("Q4_K", 2048)], None, rates(core, int8, int16))
    assert (record["type"], record["cols"], record["compute"]) == ("Q4_K", 2048, want)
    assert record["int16_gbs"] == int16 and f"{int16:.1f} GB/s" in record["why"].replace(" and 20.0", "")


def test_types_without_a_choice_are_left_out():
    assert _auto.choose([("F32", 64), ("F16", 64)], None, rates(10, 1, 1)) == []


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A machine of which no rates are kept."""
    monkeypatch.setenv("ROOFLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_auto, "_kept", {})
    return tmp_path / "cache" / "rates.json"


def test_rates_are_measured_once_for_a_machine(fresh, monkeypatch):
    first = _auto.decide([("Q4_K", 512)])
    kept = json.loads(fresh.read_text())
    assert kept["schema"] == 1 and len(kept["machines"]) == 1
    [record] = first["matrices"]
    assert record["int8_gbs"] > 0 and record["int16_gbs"] > 0 and str(fresh) in first["source"]

    def measured_again(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr(_auto, "_kept", {})  # another process
    monkeypatch.setattr(_auto, "kernel_gbs", measured_again)
    monkeypatch.setattr(_auto, "core_gbs", measured_again)
    assert _auto.decide([("Q4_K", 512)]) == first
    # What is measured later joins what is kept; another bandwidth is another machine.
    monkeypatch.setattr(_auto, "kernel_gbs", lambda *_: 7.0)
    assert len(_auto.decide([("Q4_K", 512), ("Q8_0", 64)])["matrices"]) == 2
    monkeypatch.setenv("ROOFLM_CORE_GBS", "3")
    monkeypatch.setattr(_auto, "core_gbs", lambda: 3.0)
    assert _auto.decide([("Q4_K", 512)])["core_gbs"] == 3.0
    kept = json.loads(fresh.read_text())["machines"]
    assert sorted(len(m["kernels"]) for m in kept.values()) == [2, 4]


def test_a_damaged_file_is_measured_anew(fresh):
    fresh.parent.mkdir()
    fresh.write_text("{")
    assert _auto.decide([("Q4_K", 512)])["matrices"]
    assert json.loads(fresh.read_text())["schema"] == 1


def test_a_place_that_cannot_be_written_is_said(fresh):
    fresh.parent.write_text("a file where the folder should be")
    found = _auto.decide([("Q4_K", 512)])
    assert "cannot be written" in found["source"] and found["matrices"]


def test_bandwidth_is_measured_when_not_given(monkeypatch):
    monkeypatch.delenv("ROOFLM_CORE_GBS")
    assert 0.05 < _auto.core_gbs() < 2000


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("auto") / "m.gguf"
    rooflm.synth(path, size="custom", width=256, layers=1, heads=4, kv_heads=2, ffn=512, vocab=300, type="Q4_K_M")
    return rooflm.Model(path)


def acts(session, n_tokens=1):
    return {k["op"]: ("q16" if "_q16_" in k["kernel"] else "q8") for k in session.kernels(n_tokens)}


def test_the_engine_takes_what_was_decided(fresh, monkeypatch, model):
    ids = list(range(20, 32))

    def logits(compute):
        s = model.session(n_ctx=32, compute=compute, kv="f32")
        return np.stack([s.eval([i], logits="last") for i in ids]), s

    slow, s = logits("auto")  # memory as slow as conftest says
    assert set(acts(s).values()) == {"q16"} and {m["compute"] for m in s.auto["matrices"]} == {"int16"}
    assert np.array_equal(slow, logits("int16")[0])
    monkeypatch.setenv("ROOFLM_CORE_GBS", "1e6")
    monkeypatch.setattr(_auto, "ALIKE", 10.0)
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
