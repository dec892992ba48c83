# SPDX-License-Identifier: Apache-2.0
"""The diagnosis: ten planted faults are each named first, clean runs name none.

Faults that a process can have are real ones: a file of F16 under a Q4 name, a cold file, a spinning neighbour. Those of
other machines (little cores, a capped clock, swap) come from a made-up /proc and /sys. An idle /proc/stat keeps the
load of the machine that runs the tests out of every case but the neighbour's; no time decides anything.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time

import pytest

import rooflm
from rooflm._pages import drop_pages, resident_share
from rooflm.cli import main
from rooflm.device import sampler
from rooflm.diagnosis import facts
from rooflm.diagnosis.rules import RULES, judge

SHAPE = {"size": "custom", "width": 256, "layers": 3, "heads": 4, "kv_heads": 4, "ffn": 512, "vocab": 600}
OPTIONS = {"prompt": 4, "gen": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("doctor") / "small-q4_k_m.gguf"
    rooflm.synth(path, type="Q4_K_M", **SHAPE)
    return path


class Root:
    """A quiet machine whose CPUs are as many as ours; each fault changes one file."""

    def __init__(self, path):
        self.path = path
        self.n = rooflm.machine().n_cpus
        self.write("sys/devices/system/cpu/online", f"0-{self.n - 1}")
        self.write("proc/self/stat", "1 (python) R" + " 0" * 40)
        self.write("proc/vmstat", "pgpgin 5\npswpin 0\npswpout 0")
        self.write("proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull total=0")
        self.write("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB")
        self.write("proc/self/status", "VmRSS: 100000 kB\nVmSwap: 0 kB")
        for cpu in range(self.n):
            self.clock(cpu, 3000000, 3000000)

    def write(self, path, text):
        p = self.path / path
        p.parent.mkdir(parents=True, exist_ok=True)
        p.write_text(text + "\n")

    def clock(self, cpu, most, limit, capacity=None):
        base = f"sys/devices/system/cpu/cpu{cpu}/cpufreq/"
        self.write(base + "cpuinfo_max_freq", str(most))
        self.write(base + "scaling_max_freq", str(limit))
        self.write(base + "scaling_governor", "schedutil")
        if capacity:
            self.write(f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity", str(capacity))

    def __str__(self):
        return str(self.path)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Nothing here rests on times, so a moment of decoding is enough to watch."""
    monkeypatch.setattr(facts, "LEAST_SECONDS", 0.02)


@pytest.fixture
def root(tmp_path, monkeypatch):
    start = time.monotonic()

    def idle(files, cpus):
        """(busy, stolen, all) ticks of CPUs that do nothing; a file cannot count on."""
        return {cpu: (100, 0, 5000 + int(1e6 * (time.monotonic() - start))) for cpu in cpus}

    monkeypatch.setattr(sampler, "_cpu_ticks", idle)
    return Root(tmp_path / "root")


def run(path, root, **options):
    path.read_bytes()  # warm, whatever other tests left
    return rooflm.doctor(path, root=str(root), **{**OPTIONS, **options})


def named_first(d, cause):
    assert d.named[:1] == [cause], d
    first = d.findings[0]
    assert first.evidence and first.next_step and first.factor >= 1.1
    assert first.cause in repr(d) and first.next_step in repr(d) and first.evidence in d.to_table()
    return first


# --- ten planted faults ---------------------------------------------------------------------------------------


def test_f16_under_a_q4_name(tmp_path, root):
    path = tmp_path / "small-q4_k_m.gguf"
    rooflm.synth(path, type="F16", **SHAPE)
    first = named_first(run(path, root), "file claim")
    assert first.factor == pytest.approx(16 / 4.5, rel=0.2) and "says Q4_K_M" in first.evidence
    assert "F16" in first.evidence


def test_little_cores(model, root):
    allowed = rooflm.machine().allowed_cpus
    for cpu in range(root.n):
        root.clock(cpu, 1800000, 1800000, capacity=325)
    for cpu in range(root.n, root.n + 4):
        root.clock(cpu, 2800000, 2800000, capacity=1024)
    root.write("sys/devices/system/cpu/online", f"0-{root.n + 3}")
    first = named_first(run(model, root, threads=1, cpus=[allowed[0]]), "cores")
    assert first.factor == pytest.approx(1024 / 325)
    assert f'cpus="{root.n},{root.n + 1}' in first.next_step


def test_capped_frequency(model, root):
    for cpu in range(root.n):
        root.clock(cpu, 3000000, 1000000)
    first = named_first(run(model, root), "frequency")
    assert first.factor == pytest.approx(3.0) and "1.00 of 3.00 GHz" in first.evidence


def test_cold_file(tmp_path, root, model):
    path = shutil.copy(model, tmp_path / "cold.gguf")
    left = drop_pages(path)
    if left is None or left > 0.5:
        pytest.skip(f"this file system keeps its pages ({left} resident), so no file here is cold")
    first = named_first(rooflm.doctor(path, root=str(root), **OPTIONS), "loading")
    assert "was in memory before" in first.evidence and first.where == "start"
    assert resident_share(path) > 0.9


def test_buffered_load(model, root):
    first = named_first(run(model, root, load="copy"), "loading")
    assert "private memory" in first.evidence and "mapping it takes" in first.evidence


def test_refused_mapping_is_a_buffered_load(model, root, monkeypatch):
    monkeypatch.setenv("ROOFLM_FAULT", "mmap")
    with pytest.warns(rooflm.FallbackWarning):
        d = run(model, root)
    named_first(d, "loading")


def test_swap(model, root):
    root.write("proc/self/status", "VmRSS: 100000 kB\nVmSwap: 900000 kB")
    first = named_first(run(model, root), "swap")
    assert "921.6 MB of this process in swap" in first.evidence


def test_busy_neighbour(model, monkeypatch):
    monkeypatch.setattr(facts, "LEAST_SECONDS", 0.3)  # the system counts in hundredths of a second
    spin = "import os\nos.nice(0)\nwhile True: pass"
    n = rooflm.machine().n_cpus
    neighbours = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(n)]
    try:
        first = named_first(run(model, "/"), "background")
        assert "other processes took" in first.evidence
    finally:
        for p in neighbours:
            p.kill()
            p.wait()


def test_long_depth(model, root):
    first = named_first(run(model, root, depth=2000, kv="f32"), "context")
    assert "depth 2000" in first.evidence and "q8_0" in first.next_step and first.where == "ceiling"


def test_forced_reference_kernel(model, root):
    d = run(model, root, isa="ref")
    first = named_first(d, "kernel")
    assert "_ref ran" in first.evidence and d.facts["tried"]["kernel"]["default"] == {"kernel": None, "isa": None}


def test_reference_kernel_by_the_environment(model, root, monkeypatch):
    monkeypatch.setenv("ROOFLM_ISA", "ref")
    assert "ROOFLM_ISA" in named_first(run(model, root), "kernel").next_step


def test_over_subscription(model, root):
    n = 4 * len(rooflm.machine().allowed_cpus)
    first = named_first(run(model, root, threads=n), "threads")
    assert first.factor >= 4 and f"{n} threads on" in first.evidence


# --- and none --------------------------------------------------------------------------------------------------


def test_twenty_clean_runs_name_none(model, root):
    for _ in range(20):
        d = run(model, root)
        assert d.named == [], d
        assert "nothing at fault" in repr(d)
        assert {f.cause for f in d.findings if f.factor == 1.0} == {f.cause for f in d.findings}


def test_rules_never_judge_by_speed_alone(model, root):
    """A run a hundred times slower than its ceiling, with nothing else to see, is a gap left unexplained."""
    seen = json.loads(json.dumps(run(model, root).to_dict()["facts"]))
    seen["speed"].update(decode_tps=seen["speed"]["ceiling_tps"] / 100, share=0.01)
    d = rooflm.doctor(facts=seen)
    assert d.named == [] and d.verdict == "far" and d.unexplained == pytest.approx(100)
    assert "no cause shows itself" in d.next_step


@pytest.mark.parametrize("seed", range(5))
def test_two_faults_are_ranked_by_what_they_cost(model, root, seed):
    seen = run(model, root).facts
    cap, deep = random.Random(seed).sample([1.5, 2.5, 6.0], 2)
    seen["frequency"][0]["limit_khz"] = int(seen["frequency"][0]["max_khz"] / cap)
    speed = seen["speed"]
    speed["bytes_per_token"] = deep * speed["weight_bytes_per_token"]
    d = rooflm.doctor(facts=seen)
    assert d.named == (["frequency", "context"] if cap > deep else ["context", "frequency"])


# --- where the time goes: information, never a fault ---------------------------------------------------------------


def test_time_of_a_token_adds_up(model, root):
    d = run(model, root)
    t = d.token_time
    assert sum(t["parts"].values()) == pytest.approx(t["token_s"]) and min(t["parts"].values()) >= 0
    assert t["parts"]["attention"] > 0 and t["parts"]["others"] > 0
    timed = d.facts["token"]["kernels"]["kernels"]
    with rooflm.Model(model).session(n_ctx=8) as session:
        wanted = sum(op["nbytes"] for op in session.kernels(1))
    assert sum(k["bytes"] for k in timed) == wanted and min(k["gbs"] for k in timed) > 0
    assert {k["kernel"] for k in timed} == {k["kernel"] for k in d.facts["ran"]["kernels"]}


def made_up(facts, reading_s, in_cache_s, matrices_s):
    """The facts of a token whose weights take so long to read, and its matrices so long in a cache and as they ran."""
    facts = json.loads(json.dumps(facts))
    decode_tps = 1 / (matrices_s + 2e-3)
    facts["speed"].update(weight_bytes_per_token=1e8, read_gbs=0.1 / reading_s, decode_tps=decode_tps, share=0.5)
    facts["token"].update(matrices_s=matrices_s, attention_s=1e-3, others_s=5e-4, outside_s=5e-4)
    facts["token"]["kernels"].update(token_s=in_cache_s, gbs=0.1 / in_cache_s)
    return facts


def test_kernels_slower_than_memory_are_said_and_not_named(model, root):
    facts = made_up(run(model, root).facts, reading_s=2e-3, in_cache_s=3e-3, matrices_s=3.5e-3)
    d = rooflm.doctor(facts=facts)
    t = d.token_time
    assert d.named == [] and t["bound"] == "arithmetic" and t["token_s"] == pytest.approx(5.5e-3)
    assert [t["parts"][k] for k in ("reading", "arithmetic", "unhidden")] == pytest.approx([2e-3, 1e-3, 5e-4])
    assert "kernel-bound: memory (50.0 GB/s) is faster" in repr(d) and "33.3 GB/s out of a cache" in repr(d)
    assert "more or faster cores" in d.next_step and "no cause" not in repr(d)
    assert ('compute="int8"' in d.next_step) == any("_q16_" in k["kernel"] for k in facts["ran"]["kernels"])


def test_memory_slower_than_kernels_is_not_kernel_bound(model, root):
    facts = made_up(run(model, root).facts, reading_s=3e-3, in_cache_s=2e-3, matrices_s=3.5e-3)
    d = rooflm.doctor(facts=facts)
    assert d.token_time["bound"] == "memory" and "kernel-bound" not in repr(d) and "no cause shows" in d.next_step
    assert d.token_time["parts"]["arithmetic"] == 0 and "reading weights 55%" in repr(d)
    faster = rooflm.doctor(facts=made_up(facts, reading_s=4e-3, in_cache_s=2e-3, matrices_s=3.5e-3))
    assert faster.token_time["parts"]["reading"] == 3.5e-3 and faster.token_time["parts"]["unhidden"] == 0


def test_what_explains_little_is_not_the_bound(model, root):
    facts = made_up(run(model, root).facts, reading_s=2e-3, in_cache_s=3e-3, matrices_s=3.5e-3)
    facts["speed"]["decode_tps"] = 100
    d = rooflm.doctor(facts=facts)
    assert d.token_time["bound"] is None and "kernel-bound" not in repr(d) and "no cause shows" in d.next_step


def test_facts_of_earlier_releases_lack_it(model, root):
    facts = run(model, root).facts
    del facts["token"]
    d = rooflm.doctor(facts=facts)
    assert d.token_time is None and d.where_time_goes() == "" and d.summary() in repr(d)


@pytest.mark.parametrize(("threads", "cost"), [(2, 2.0), (1, 1.1)])
def test_neighbours_cost_the_cpus_that_are_needed(model, root, threads, cost):
    facts = json.loads(json.dumps(run(model, root).facts))
    facts["system"].update(others_busy=0.5, steal=0.0, wait_share=0.01)
    facts["machine"]["allowed_cpus"], facts["ran"]["threads"] = [0, 1], threads
    assert named_first(rooflm.doctor(facts=facts), "background").factor == pytest.approx(cost)


# --- what a system does not show --------------------------------------------------------------------------------


def test_absent_files_are_not_judged(model, tmp_path):
    """Only the list of CPUs: nothing is assumed to be well, and nothing to be wrong."""
    bare = tmp_path / "bare"
    (bare / "sys/devices/system/cpu").mkdir(parents=True)
    (bare / "sys/devices/system/cpu/online").write_text("0-1\n")
    d = run(model, bare)
    unknown = {f.cause for f in d.findings if f.factor is None}
    assert {"frequency", "swap"} <= unknown and d.named in ([], ["background"])
    assert "not judged: " in repr(d)


def test_facts_go_through_json(model, root):
    d = run(model, root)
    again = rooflm.doctor(facts=json.loads(json.dumps(d.to_dict()["facts"])))
    assert [f.to_dict() for f in again.findings] == [f.to_dict() for f in d.findings]
    assert len(judge(d.facts)) == len(RULES)


def test_an_open_model_is_judged_without_its_loading_time(model, root):
    d = rooflm.doctor(rooflm.Model(model), root=str(root), **OPTIONS)
    assert d.facts["load"]["open_s"] is None and "loading" not in d.named


def test_wrong_arguments(model):
    with pytest.raises(TypeError, match="did you mean 'threads'"):
        rooflm.doctor(model, n_threads=2)
    with pytest.raises(TypeError, match="model, or facts"):
        rooflm.doctor()
    with pytest.raises(ValueError, match="gen=1"):
        rooflm.doctor(model, gen=1)


def test_command(model, capsys):
    assert main(["doctor", str(model), "--gen", "8", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["schema"] == 1 and len(record["findings"]) == len(RULES)
    assert record["facts"]["speed"]["share"] == record["share"]
    assert main(["doctor", str(model), "--gen", "8", "--all"]) == 0
    out = capsys.readouterr().out
    assert "GB/s" in out and "tok/s" in out and "file claim" in out
