# SPDX-License-Identifier: Apache-2.0
"""Health check, its history, and the soak: verdicts on made-up numbers, faults of files and processes for real."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import random
import sqlite3
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from plots import drawn

import rooflm
from rooflm._synth import SIZES
from rooflm.cli import main
from rooflm.diagnosis import health as health_room
from rooflm.diagnosis.health import Health, bandwidth_class
from rooflm.diagnosis.history import History, curve, verdict
from rooflm.diagnosis.soak import Soak

TINY = {"width": 256, "layers": 4, "heads": 4, "kv_heads": 2, "ffn": 512, "vocab": 600, "tied": 1}


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(SIZES, "tiny", TINY)
    return "tiny"


def record(tps: float, **manifest) -> dict:
    return {
        "schema": 1, "kind": "health", "at": "2026-01-02T03:04:05+00:00", "decode_tps": tps, "read_gbs": 30.0,
        "share": 0.8, "tokens": 20, "bandwidth_class": "20-40 GB/s", "others_busy": 0.0,
        "manifest": {"cpu": "X", "threads": 4, **manifest}, "environment": {"kernel": "6.1", "rooflm": "1"},
        "model": {"size": "3b", "type": "Q4_K_M", "layers": 28, "full_layers": 28, "smaller": False},
    }  # fmt: skip


# --- verdicts ---------------------------------------------------------------------------------------------------


def test_regression_needs_both_five_percent_and_three_deviations():
    quiet = [10.0, 10.02, 9.98, 10.01, 9.99]  # MAD 0.01
    assert verdict(quiet, 9.4)["verdict"] == "regression"
    assert verdict(quiet, 9.6)["verdict"] == "none"  # 60 deviations, and 4 %
    noisy = [10.0, 11.0, 9.0, 10.5, 9.5]  # MAD 0.5
    assert verdict(noisy, 8.6)["verdict"] == "none"  # 14 %, and 2.8 deviations
    assert verdict(noisy, 8.4)["verdict"] == "regression"
    assert verdict(quiet, 20.0)["verdict"] == "none"  # faster is no regression


def test_regression_needs_five_runs():
    v = verdict([10.0] * 4, 1.0)
    assert v["verdict"] == "too few runs" and v["n"] == 4 and v["median_tps"] == 10.0
    assert verdict([], 1.0) == {"verdict": "too few runs", "n": 0, "median_tps": None, "mad_tps": None, "change": None}


def test_false_alarms_are_rare():
    """Without any change, by draws of a normal distribution with 2 % noise: at most 1 in 20 is called a regression."""
    rng = random.Random(7)
    draws = [[rng.gauss(10, 0.2) for _ in range(21)] for _ in range(500)]
    alarms = sum(verdict(d[:-1], d[-1])["verdict"] == "regression" for d in draws)
    found = sum(verdict(d[:-1], 0.85 * d[-1])["verdict"] == "regression" for d in draws)
    assert alarms <= 25 and found >= 475


@pytest.mark.parametrize("gbs,name", [(3, "0-5 GB/s"), (5, "5-10 GB/s"), (19.9, "10-20 GB/s"), (500, "over 320 GB/s")])
def test_bandwidth_class(gbs, name):
    assert bandwidth_class(gbs) == name


def test_curve():
    assert curve([1, 2, 3, 8]) == "▁▂▃█" and curve([5, 5]) == "▄▄" and curve([]) == ""
    assert len(curve(range(100))) == 40


# --- the check itself -------------------------------------------------------------------------------------------


def test_health_runs_and_remembers(tiny, tmp_path):
    path = tmp_path / "deep" / "h.sqlite"
    before = set(os.listdir("/proc/self/fd"))
    for n in range(6):
        h = rooflm.health(size=tiny, history=path)
        assert h.verdict["n"] == n and h.saved
    r = h.record
    assert r["tokens"] == 20 == len(r["token_times_s"]) and not r["model"]["smaller"]
    times = r["token_times_s"]
    assert r["decode_tps"] == pytest.approx(19 / (times[-1] - times[0]))
    assert r["share"] == pytest.approx(r["decode_tps"] / r["ceiling_tps"])
    assert r["ceiling_tps"] == pytest.approx(r["read_gbs"] * 1e9 / r["bytes_per_token"])
    assert h.verdict["verdict"] in ("regression", "none") and "6 runs" in h.curve() and "tok/s" in h.line()
    assert "\n" not in h.line()
    assert History(path).records()[-1] == json.loads(json.dumps(r))
    del h
    assert set(os.listdir("/proc/self/fd")) == before  # the model's nameless file is closed


def test_model_is_the_same_every_time_and_leaves_no_file(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made, model = health_room._fixed_model(tiny, None, None, print)
    again, other = health_room._fixed_model(tiny, None, None, print)
    assert made == again and list(tmp_path.iterdir()) == []
    for name, tensor in model.gguf.tensors.items():
        assert bytes(tensor.raw) == bytes(other.gguf.tensors[name].raw), name


def test_without_memfd_a_file_whose_name_is_gone(tiny, tmp_path, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _, model = health_room._fixed_model(tiny, None, None, print)
    assert list(tmp_path.iterdir()) == [] and model.session(n_ctx=8).eval([1]).shape == (600,)


def test_kept_model_is_used_again(tiny, tmp_path):
    keep = tmp_path / "m.gguf"
    rooflm.health(size=tiny, history=False, keep=keep)
    stamp = keep.stat().st_mtime_ns
    assert not rooflm.health(size=tiny, history=False, keep=keep).saved and keep.stat().st_mtime_ns == stamp
    rooflm.synth(keep, size="custom", type="Q4_K_M", **{**{k: v for k, v in TINY.items() if k != "tied"}, "layers": 2})
    with pytest.raises(ValueError, match="another model"):
        rooflm.health(size=tiny, history=False, keep=keep)


def test_short_memory_takes_fewer_layers_and_says_so():
    full = SIZES["3b"]["layers"]
    assert health_room._layers_that_fit("3b", None) == full == health_room._layers_that_fit("3b", 8 << 30)
    some = health_room._layers_that_fit("3b", 1500 << 20)
    assert 2 <= some < full
    with pytest.raises(MemoryError, match="smollm2"):
        health_room._layers_that_fit("3b", 200 << 20)
    h = Health({**record(5.0), "model": {**record(5.0)["model"], "layers": some, "smaller": True}}, [], True)
    assert f"({some} of 28 layers)" in h.line()


def test_estimate_of_the_size_is_right(tmp_path):
    """Layers are chosen by an estimate of the model's bytes: within 5 % of the file."""
    shape = {"width": 1024, "heads": 8, "kv_heads": 4, "ffn": 2816, "vocab": 8192}
    nbytes = {n: rooflm.synth(tmp_path / f"{n}", size="custom", layers=n, **shape)["nbytes"] for n in (8, 16)}
    layer = (2 * 1024 + 2 * 512 + 3 * 2816) * 1024 * 4.9 / 8
    assert (nbytes[16] - nbytes[8]) / 8 == pytest.approx(layer, rel=0.05)
    assert nbytes[16] == pytest.approx(16 * layer + 8192 * 1024 * 6.6 / 8, rel=0.05)


def test_regression_names_what_changed():
    before = [record(10 + 0.01 * i) for i in range(6)]
    now = {**record(8.0), "environment": {"kernel": "6.2", "rooflm": "1"}}
    h = Health(now, before, True)
    assert h.changed == {"kernel": ["6.1", "6.2"]}
    assert "REGRESSION: -20" in h.line() and "kernel 6.1 -> 6.2" in repr(h)


# --- the history file -------------------------------------------------------------------------------------------

ADD = """
import sys
from rooflm.diagnosis.history import History
sys.path.insert(0, {tests!r})
from test_health import record
for i in range(25):
    History(sys.argv[1]).add(record(float(sys.argv[2]) + i))
"""


def test_two_processes_share_the_history(tmp_path):
    path = tmp_path / "h.sqlite"
    code = ADD.format(tests=os.path.dirname(__file__))
    both = [subprocess.Popen([sys.executable, "-c", code, str(path), str(n)]) for n in (100, 200)]
    assert [p.wait(timeout=120) for p in both] == [0, 0]
    speeds = [r["decode_tps"] for r in History(path).records()]
    assert sorted(speeds) == [100.0 + i for i in range(25)] + [200.0 + i for i in range(25)]


def test_manifests_are_kept_apart(tmp_path):
    h = History(tmp_path / "h.sqlite")
    assert h.records() == [] and not h.path.exists()
    h.add(record(1.0))
    h.add(record(2.0, threads=8))
    h.add(record(3.0))
    assert [r["decode_tps"] for r in h.records(record(0.0)["manifest"])] == [1.0, 3.0]


FULL = """
import resource, signal, sys, warnings
sys.path.insert(0, {tests!r})
from rooflm.diagnosis.health import _with_history
from test_health import record
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
size = __import__("os").path.getsize(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))  # the disk is full from here on
big = {{**record(9.0), "padding": "x" * 200000}}
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    h = _with_history(big, sys.argv[1])
print(h.saved, len(h.earlier), [str(w.message) for w in seen])
"""


def test_full_disk_loses_neither_the_result_nor_the_history(tmp_path):
    path = tmp_path / "h.sqlite"
    for i in range(3):
        History(path).add(record(10.0 + i))
    code = FULL.format(tests=os.path.dirname(__file__))
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert out.stdout.startswith("False 3 "), out
    assert "was not added to the history" in out.stdout
    assert [r["decode_tps"] for r in History(path).records()] == [10.0, 11.0, 12.0]
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_damaged_history_is_said_and_left_alone(tmp_path, tiny):
    path = tmp_path / "h.sqlite"
    path.write_bytes(b"this is no database" * 100)
    with pytest.warns(rooflm.FallbackWarning, match="history cannot be read"):
        h = rooflm.health(size=tiny, history=path)
    assert not h.saved and h.record["tokens"] == 20 and path.read_bytes().startswith(b"this is no")


def test_a_history_without_a_place_says_how_to_give_it_one(tmp_path, tiny):
    (tmp_path / "file").write_text("no directory")
    with pytest.warns(rooflm.FallbackWarning, match="h.sqlite: the history cannot be kept: .*--history FILE"):
        assert not rooflm.health(size=tiny, history=tmp_path / "file" / "h.sqlite").saved


# --- pictures ---------------------------------------------------------------------------------------------------


def test_equal_values_are_not_drawn_at_the_edge():
    pytest.importorskip("matplotlib").use("Agg")
    before = [record(40.0) for _ in range(7)]
    low, high = drawn(Health(record(40.0), before, True).plot).get_ylim()
    assert low == 0 and 1.04 * 40 < high < 1.2 * 40


def test_plot_of_the_history():
    pytest.importorskip("matplotlib").use("Agg")
    before = [record(10 + 0.1 * (i % 3)) for i in range(7)]
    ax = drawn(Health(record(7.0), before, True).plot)
    assert ax.get_ylabel() == "decode (tok/s)" and ax.get_xlabel() == "run"
    assert "n = 8 runs" in ax.get_title() and "regression" in ax.get_title()
    labels = [t.get_text() for t in ax.get_legend().get_texts()]
    assert "median of earlier runs" in labels and any("5 % or 3 MAD" in t for t in labels)
    assert list(ax.lines[0].get_ydata()) == [*(r["decode_tps"] for r in before), 7.0]


# --- commands ---------------------------------------------------------------------------------------------------


def test_health_command(tiny, tmp_path, capsys):
    args = ["health", "--size", tiny, "--history", str(tmp_path / "h.sqlite")]
    assert main([*args, "--json"]) == 0
    r = json.loads(capsys.readouterr().out)
    assert r["saved"] and r["verdict"] == "too few runs" and r["kind"] == "health"
    pytest.importorskip("matplotlib").use("Agg")
    assert main([*args, "--curve", "--plot", str(tmp_path / "h.png")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert (tmp_path / "h.png").read_bytes()[:4] == b"\x89PNG"


def test_health_command_fails_on_a_regression(tiny, tmp_path, capsys):
    path = tmp_path / "h.sqlite"
    now = rooflm.health(size=tiny, history=False).record
    for _ in range(5):
        History(path).add({**now, "decode_tps": now["decode_tps"] * 1e3})
    assert main(["health", "--size", tiny, "--history", str(path)]) == 1
    assert "REGRESSION" in capsys.readouterr().out


# --- soak -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("soak") / "small.gguf"
    rooflm.synth(path, type="Q4_0", size="custom", **{k: v for k, v in TINY.items() if k != "tied"})
    return path


SHORT = {"minutes": 0.01, "interval_s": 0.03, "gen": 4, "prompt": 4}


@pytest.fixture
def steady(monkeypatch):
    """A clock that each cycle moves on by one interval: as many samples on a busy machine."""
    clock = SimpleNamespace(monotonic=itertools.count(0.0, 0.031).__next__, perf_counter=time.perf_counter)
    monkeypatch.setattr("rooflm.diagnosis.soak.time", clock)


def test_soak_ends_by_itself_and_finds_no_leak(model, tmp_path, steady):
    for _ in range(2):  # the first run in a process warms up its allocators
        s = rooflm.soak(model, out=tmp_path / f"{_}.jsonl", **SHORT)
    assert s.leaks == [] and s.samples[-1]["time_s"] >= 0.6 and "nothing leaks" in s.verdict
    lines = [json.loads(line) for line in (tmp_path / "1.jsonl").read_text().splitlines()]
    assert [r["time_s"] for r in lines] == [x["time_s"] for x in s.samples]
    assert s.samples[-1]["cycles"] > len(s.samples) / 2


@pytest.mark.unsanitized  # whose allocator gives freed memory back when it likes
def test_soak_finds_leaking_memory_and_descriptors(model, steady):
    kept = []

    def leak(session):  # pages of its own: the heap may have room that was touched long ago
        kept.append(mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        kept[-1].write(b"x" * (1 << 20))

    s = rooflm.soak(model, each=leak, **SHORT)
    assert s.leaks == ["memory"] and "memory leak" in repr(s)
    kept = []
    s = rooflm.soak(model, each=lambda session: kept.append(open(model, "rb")), **SHORT)
    assert "descriptors" in s.leaks
    for f in kept:
        f.close()


def test_memory_that_comes_back_is_no_leak():
    def samples(values):
        return [{"time_s": i, "cycles": i, "anonymous_bytes": v, "descriptors": 5, "threads": 2, "decode_tps": 10.0,
                 "temperature_c": None} for i, v in enumerate(values)]  # fmt: skip

    up = [10e6 + 1e6 * i for i in range(40)]
    saw = [10e6 + 1e6 * (i % 10) for i in range(40)]
    step = [10e6] * 5 + [50e6] * 35  # one warm-up
    assert Soak(samples(up), 1, "m").leaks == ["memory"]
    assert Soak(samples(saw), 1, "m").leaks == [] == Soak(samples(step), 1, "m").leaks
    assert Soak(samples(up[:7]), 1, "m").leaks is None
    slow = samples([1e6] * 40)
    for s in slow[20:]:
        s["decode_tps"] = 6.0
    assert "speed fell to 60%" in Soak(slow, 1, "m").verdict


def test_interrupted_soak_keeps_what_it_saw(model):
    calls = []

    def each(session):
        calls.append(1)
        if len(calls) == 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as e:
        rooflm.soak(model, each=each, **{**SHORT, "minutes": 60, "interval_s": 0.001})
    assert 1 <= len(e.value.results.samples) <= 60


def test_soak_without_proc_knows_nothing_and_says_so(model, tmp_path):
    s = rooflm.soak(model, root=tmp_path, **SHORT)
    assert s.samples[0]["anonymous_bytes"] is None and s.samples[0]["descriptors"] is None
    assert s.growth["anonymous_bytes"] is None and s.leaks is None
    assert "this system shows neither memory nor descriptors" in s.verdict


@pytest.mark.parametrize("what,label", [("decode_tps", "decode (tok/s)"), ("anonymous_bytes", "anonymous memory (MB)")])
def test_plot_of_the_soak(model, what, label):
    pytest.importorskip("matplotlib").use("Agg")
    s = rooflm.soak(model, **SHORT)
    ax = drawn(s.plot, what)
    assert ax.get_xlabel() == "time (min)" and ax.get_ylabel() == label
    assert f"n = {len(s.samples)} samples" in ax.get_title()
    assert len(ax.lines[0].get_xdata()) == len(s.samples)


def test_soak_command(model, capsys):
    assert main(["soak", str(model), "--minutes", "0.005", "--gen", "4", "--json"]) == 0
    r = json.loads(capsys.readouterr().out)
    assert r["kind"] == "soak" and r["samples"] and r["asked_minutes"] == 0.005
    with pytest.raises(ValueError, match="more than 0"):
        rooflm.soak(model, minutes=0)
