# SPDX-License-Identifier: Apache-2.0
"""The device room: facts of other machines, kept measurements, latency, counters, pacing, heat; probes against outside
tools by ratios."""

from __future__ import annotations

import datetime
import errno
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from plots import drawn

import rooflm
from rooflm import _core, cli
from rooflm.device import kept
from rooflm.device.counters import EVENTS, Count, Counters
from rooflm.device.heat import change_point, heat_run
from rooflm.device.latency import capped_size
from rooflm.device.pacing import Pacer
from rooflm.device.sampler import Clocks, Sampler
from rooflm.device.sizes import parse_size, size_text


def write(root: Path, files: dict) -> Path:
    for path, text in files.items():
        p = root / path
        p.parent.mkdir(parents=True, exist_ok=True)
        p.write_text(f"{text}\n")
    return root


CPU = "sys/devices/system/cpu/"
BOARD = {
    CPU + "present": "0-1",
    CPU + "online": "0-1",
    CPU + "cpufreq/policy0/related_cpus": "0 1",
    CPU + "cpufreq/policy0/scaling_governor": "schedutil",
    CPU + "cpufreq/policy0/scaling_driver": "cpufreq-dt",
    CPU + "cpufreq/policy0/cpuinfo_min_freq": "408000",
    CPU + "cpufreq/policy0/cpuinfo_max_freq": "1800000",
    CPU + "cpufreq/policy0/scaling_max_freq": "1200000",
    "sys/class/dmi/id/bios_vendor": "Maker",
    "sys/class/dmi/id/bios_version": "F.12",
    "sys/class/dmi/id/bios_date": "03/14/2023",
    "sys/class/dmi/id/product_name": "Board 5",
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal",
    "sys/class/thermal/thermal_zone0/temp": "50000",
}


def test_facts_of_a_board(tmp_path):
    m = rooflm.machine(root=str(write(tmp_path, BOARD)))
    assert m.cpufreq == [
        {"cpus": [0, 1], "governor": "schedutil", "driver": "cpufreq-dt", "min_mhz": 408.0, "max_mhz": 1800.0,
         "limit_mhz": 1200.0, "now_mhz": None}
    ]  # fmt: skip
    assert m.firmware == {"vendor": "Maker", "version": "F.12", "date": "03/14/2023"} and m.board == "Board 5"
    assert m.sensors["found"] == {"temperature_c": ["cpu-thermal"]} and "energy_j" in m.sensors["unavailable"]
    assert "schedutil 408 to 1200 MHz" in repr(m) and m.measured is None and m.not_measured == "of another machine"
    with pytest.raises(ValueError, match="nothing to plot"):
        m.plot()


def test_nothing_of_a_board(tmp_path):
    m = rooflm.machine(root=str(write(tmp_path, {CPU + "present": "0", CPU + "online": "0"})))
    assert m.cpufreq == [] and set(m.firmware.values()) == {None} and m.sensors["found"] == {}
    assert "temperature_c" in m.sensors["unavailable"] and json.dumps(m, allow_nan=False)


# ---- kept measurements ----


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def measurement(date=None):
    return {"date": (date or now()).isoformat(timespec="seconds"), "read": [], "took_s": 1.0}


def test_a_kept_measurement_counts_while_nothing_changed(cache):
    m = rooflm.machine()
    assert m.measured is None and "never measured" in m.not_measured
    assert kept.keep(m, measurement()) is None
    assert kept.kept(m)[0]["took_s"] == 1.0
    other = rooflm.device.machine.Machine(m, kernel="5.1-other")
    found, why = kept.kept(other)
    assert found is None and "kernel was " in why and m.kernel in why
    found, why = kept.kept(m, now=now() + datetime.timedelta(days=31))
    assert found is None and "more than 30 days ago" in why


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 1, "key": {}, "measured": {"date": "x"}}'])
def test_a_damaged_file_is_no_measurement(cache, text):
    m = rooflm.machine()
    kept.keep(m, measurement())
    (path,) = cache.glob("machine-*.json")
    path.write_text(text)
    assert kept.kept(m)[0] is None


def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROOFLM_CACHE", str(tmp_path / "file"))
    assert "file" in kept.keep(rooflm.machine(), measurement())


# ---- latency ----


def test_latency_record():
    r = rooflm.random_latency(1 << 20, stride=4096, iters=5000, huge=False)
    assert r["nodes"] == 256 and r["order"] == "random" and r["pages"] == "small"
    assert r["page_bytes"] == os.sysconf("SC_PAGE_SIZE")
    assert 0 < r["ns_range"][0] <= r["ns"] <= r["ns_range"][1]
    assert rooflm.random_latency(4096, stride=64, iters=100)["pages"] == "small", "no huge page fits: none was refused"
    with pytest.raises(TypeError, match="did you mean 'iters'"):
        rooflm.random_latency(4096, iter=3)


def test_parts_of_short_walks():
    for iters in (1, 4, 5, 7):
        assert len(_core.random_latency(4096, 64, iters)["parts_ns"]) == min(iters, 5)


def test_ladders_and_their_pictures(monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    ladder = rooflm.latency_ladder(largest=4 << 20)
    lines = {(r["order"], r["pages"]) for r in ladder.records}
    assert ("random", "small") in lines and ("sequential", "small") in lines
    small = [r["size_bytes"] for r in ladder.records if r["pages"] == "small" and r["order"] == "random"]
    assert small == [4096 << i for i in range(11)]
    shown = [parse_size(line.split("  ")[0]) for line in repr(ladder).splitlines()[2:]]
    assert shown == sorted(shown) and shown[0] == 4096 and shown[-1] == 4 << 20
    ax = ladder.plot()
    assert ax.get_ylabel() == "ns per access" and ax.get_xlabel() == "working set (bytes)"
    assert "n = 5 stretches" in ax.get_title() and "stride 64 bytes" in ax.get_title()
    page = size_text(os.sysconf("SC_PAGE_SIZE"))
    assert any(f"pages of {page}" in t.get_text() for t in ax.get_legend().get_texts())
    strides = rooflm.stride_ladder(size=1 << 20, strides=(64, 4096), orders=("random",))
    assert [r["nodes"] for r in strides.records] == [1 << 14, 256]
    assert strides.plot().get_xlabel() == "stride (bytes)" and "4 KB" in repr(strides)
    matplotlib.pyplot.close("all")
    with pytest.raises(ValueError, match="'huges' is none of huge, small"):
        rooflm.latency_ladder(pages=["huges"])


def test_sizes_are_capped_by_the_memory(monkeypatch):
    size, why = capped_size(1 << 60)
    assert size < 1 << 50 and "half of the memory available" in why
    assert capped_size(4096) == (4096, None)


@pytest.mark.parametrize("text, n", [("1G", 1 << 30), ("64 MB", 64 << 20), ("4k", 4096), ("4KiB", 4096), ("12", 12)])
def test_sizes(text, n):
    assert parse_size(text) == n and parse_size(size_text(n).replace("bytes", "")) == n


@pytest.mark.parametrize("text", ["", "G", "1X", "-1", "1e9"])
def test_no_sizes(text):
    with pytest.raises(ValueError, match="no size"):
        parse_size(text)


def test_randmem_takes_the_flags_of_the_report(capsys):
    assert cli.main(["randmem", "--size", "1M", "--stride", "4096", "--iter", "2000", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [w["order"] for w in record["walks"]] == ["random", "sequential"] * 2
    assert all(w["size_bytes"] == 1 << 20 and w["stride_bytes"] == 4096 and w["iters"] == 2000 for w in record["walks"])
    assert cli.main(["randmem", "--size", "1M", "--iter", "2000"]) == 0
    assert "256 nodes" in capsys.readouterr().out
    assert cli.main(["randmem", "--size", "16K", "--stride", "64", "--ladder"]) == 0
    assert "16 KB" in capsys.readouterr().out
    assert cli.main(["randmem", "--plot", "x.png"]) == 2
    assert cli.main(["sensors", "--json"]) == 0
    assert "unavailable" in json.loads(capsys.readouterr().out.splitlines()[-1])


# ---- counters ----


@pytest.mark.parametrize(
    "number, paranoid, text",
    [
        (errno.EACCES, "3", "perf_event_paranoid is 3"),
        (errno.EPERM, "1", "a filter of the container"),
        (errno.ENOENT, None, "does not offer the event"),
        (errno.ENOSYS, None, "no perf_event_open"),
        (errno.EMFILE, None, "ulimit -n"),
        (errno.EINVAL, None, "Invalid argument"),
    ],
)
def test_refused_counters_say_why(tmp_path, number, paranoid, text):
    if paranoid:
        write(tmp_path, {"proc/sys/kernel/perf_event_paranoid": paranoid})
    with Counters(open_counter=lambda *_: -number, root=str(tmp_path)) as c:
        pass
    assert set(c.unavailable) == set(EVENTS) and c.counts == {}
    assert all(text in why for why in c.unavailable.values()), c.unavailable
    assert "not available" in repr(c) and "not available" in c._repr_html_()
    judged = c.judge()
    assert judged["memory_stalls"]["share"] is None and text in judged["memory_stalls"]["source"]
    assert json.dumps(c.to_dict(), allow_nan=False)


def test_some_counters_refused_leave_the_others_and_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))

    def only_software(kind, config, tid, kernel):
        return _core._counter_open(kind, config, tid, kernel) if kind == 1 else -errno.ENOENT

    with Counters(open_counter=only_software) as c:
        sum(range(200_000))
        with pytest.raises(RuntimeError, match="run already"):
            c.__enter__()
    assert "cycles" in c.unavailable and len(os.listdir("/proc/self/fd")) == before
    if "task_clock_ns" in c.unavailable:
        pytest.skip(f"no software counters here: {c.unavailable['task_clock_ns']}")
    assert 0 < c.value("task_clock_ns") * 1e-9 < c.elapsed_s * 4 * (os.cpu_count() or 1)


def test_a_counter_that_fails_for_one_thread_leaves_no_descriptor():
    other_ends = threading.Event()
    other = threading.Thread(target=other_ends.wait)
    other.start()
    calls = []

    def full_at_the_second(kind, config, tid, kernel):
        calls.append(tid)
        return os.open(os.devnull, os.O_RDONLY) if len(calls) % 2 else -errno.EMFILE

    before = len(os.listdir("/proc/self/fd"))
    try:
        with Counters(open_counter=full_at_the_second) as c:
            pass
    finally:
        other_ends.set()
        other.join()
    assert set(c.unavailable) == set(EVENTS) and len(os.listdir("/proc/self/fd")) == before


def test_counters_that_took_turns_are_scaled_and_one_that_never_ran_is_none(monkeypatch):
    monkeypatch.setattr(_core, "_counter_run", lambda fd, on: 0)
    values = {100: (500, 4_000_000, 1_000_000), 101: (7, 4_000_000, 0)}
    monkeypatch.setattr(_core, "_counter_read", lambda fd: values[fd])
    monkeypatch.setattr("rooflm.device.counters._close", lambda fds: None)
    monkeypatch.setattr(os, "listdir", lambda path: ["1"])
    fds = {(0, 0): 100, (0, 1): 101}
    with Counters(open_counter=lambda k, c, t, kernel: fds.get((k, c), -errno.ENOENT)) as c:
        pass
    assert c.counts["cycles"] == Count(2000.0, 500, pytest.approx(0.004), pytest.approx(0.001))
    assert "taken by others" in c.unavailable["instructions"]


def test_thresholds():
    c = Counters(threads=2)
    c.elapsed_s = 1.0

    def put(**values):
        c.counts = {n: Count(v, int(v), 1.0, 1.0) for n, v in values.items()}
        return c.judge()

    well = put(cycles=100, instructions=250, stalled_backend=14, stalled_frontend=7, task_clock_ns=1.5e9)
    assert [well[k]["healthy"] for k in ("memory_stalls", "issue_stalls", "utilisation")] == [True] * 3
    assert well["instructions_per_cycle"] == 2.5 and well["advice"] is None
    ill = put(cycles=100, stalled_backend=41, stalled_frontend=9, task_clock_ns=1.3e9)
    assert [ill[k]["healthy"] for k in ("memory_stalls", "issue_stalls", "utilisation")] == [False] * 3
    assert ill["advice"].startswith("41 % of the time waits for memory")

    class Estimate:
        def memory_bound_share(self):
            return 0.5

    c.counts = {}
    model = c.judge(Estimate())
    assert model["memory_stalls"] == {"share": 0.5, "healthy": False, "source": "model"} and model["advice"]


@pytest.mark.skipif(not shutil.which("perf"), reason="no perf here")
def test_faults_and_time_agree_with_perf(tmp_path):
    """The same program under perf and under our counters; counts of faults by the kernel's own count of them."""
    code = "x = bytearray(64 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1"
    said = subprocess.run(["perf", "stat", "-x", ",", "-e", "page-faults:u,task-clock:u", sys.executable, "-c", code],
                          capture_output=True, text=True)  # fmt: skip
    rows = {r.split(",")[2].partition(":")[0]: r.split(",")[0] for r in said.stderr.splitlines() if r.count(",") > 3}
    if said.returncode or not rows.get("page-faults", "").isdigit():
        pytest.skip(f"perf counts nothing here: {said.stderr[:200]}")
    ours = (
        "import rooflm.device.counters as c\nimport sys\nwith c.Counters() as k:\n    "
        + code.replace("\n", "\n    ")
        + "\nprint(k.value('page_faults'))"
    )
    counted = subprocess.run([sys.executable, "-c", ours], capture_output=True, text=True, check=True).stdout
    if counted.strip() == "None":
        pytest.skip("no software counters here")
    startup = subprocess.run(["perf", "stat", "-x", ",", "-e", "page-faults:u", sys.executable, "-c", "0"],
                             capture_output=True, text=True).stderr  # fmt: skip
    theirs = int(rows["page-faults"]) - int(startup.split(",")[0])
    assert float(counted) == pytest.approx(theirs, rel=0.1, abs=200)


# ---- pacing and heat ----


class FakeTime:
    def __init__(self):
        self.t, self.slept = 100.0, []

    def clock(self):
        return self.t

    def sleep(self, s):
        self.slept.append(s)
        self.t += s


class FakeSensors:
    """Heats up with work and cools down with sleep."""

    unavailable: dict = {}

    def __init__(self, time):
        self.time, self.c = time, 40.0

    def temperature(self):
        return self.c


def work(time, n, seconds, sensors=None, degrees=0.0):
    for i in range(n):
        time.t += seconds
        if sensors:
            sensors.c += degrees
        yield i


def test_a_rate_is_kept():
    t = FakeTime()
    p = Pacer(per_second=10, clock=t.clock, sleep=t.sleep)
    assert list(p(work(t, 20, 0.02))) == list(range(20))
    assert t.t - 100 == pytest.approx(2.0, abs=0.05) and p.paused == 20
    slow = FakeTime()
    p = Pacer(per_second=10, clock=slow.clock, sleep=slow.sleep)
    list(p(work(slow, 5, 1.0)))
    assert p.idle_s == pytest.approx(0, abs=0.2), "what is slower than the rate is not paced"


def test_a_temperature_is_kept():
    t = FakeTime()
    s = FakeSensors(t)
    free = 40.0

    def sleep(seconds):
        t.sleep(seconds)
        s.c -= 0.5 * seconds  # a short pause is not enough

    p = Pacer(below_c=60, sensors=s, clock=t.clock, sleep=sleep)
    peak = 0.0
    for _ in p(work(t, 2000, 0.1, s, degrees=0.1)):
        free += 0.1
        peak = max(peak, s.c)
    assert free > 200 and peak < 65 and p.hottest_c <= peak and p.idle_s > 0
    cool = Pacer(below_c=99, sensors=FakeSensors(t), clock=t.clock, sleep=t.sleep)
    list(cool(work(t, 50, 0.1)))
    assert cool.idle_s == 0


def test_pacing_refuses_what_it_cannot_do(tmp_path):
    from rooflm.device.sensors import Sensors

    with pytest.raises(ValueError, match="no thermal zone.*use per_second"):
        Pacer(below_c=60, sensors=Sensors(tmp_path))
    with pytest.raises(ValueError, match="below_c .a temperature. or per_second"):
        Pacer()
    with pytest.raises(ValueError, match="per_second=0"):
        Pacer(per_second=0)
    with pytest.raises(TypeError, match="did you mean 'below_c'"):
        Pacer(belowc=3)


def test_change_points_are_found_where_they_are_and_only_there():
    rng = np.random.default_rng(3)
    flat = rng.normal(1.0, 0.1, 60)
    assert change_point(list(flat)).p > 0.05
    step = np.concatenate([rng.normal(1.0, 0.1, 40), rng.normal(3.0, 0.3, 20)])
    step[5] = 50.0  # an outlier decides nothing
    c = change_point(list(step))
    assert abs(c.index - 40) <= 1 and c.p <= 0.002 and c.size == pytest.approx(2.0, rel=0.15)
    assert change_point([1.0] * 9) is None and change_point([1.0] * 20).p == 1.0
    # In 100 flat sequences about one in twenty looks like a change at 5 %.
    false = sum(change_point(list(rng.normal(size=30)), permutations=99, seed=i).p <= 0.05 for i in range(100))
    assert false <= 12


def hot_run(tmp_path, *, cliff_w=8.0, factor=3.0, power=True):
    """Power rises by steps; above the cliff each item takes longer."""
    zone, fan, ina = (f"sys/class/{p}" for p in ("thermal/thermal_zone0", "thermal/cooling_device0", "hwmon/hwmon0"))
    write(tmp_path, {f"{zone}/type": "cpu", f"{zone}/temp": 40000, f"{fan}/type": "cpufreq", f"{fan}/cur_state": 0})
    if power:
        write(tmp_path, {f"{ina}/name": "ina", f"{ina}/power1_input": 5000000})
    t, times = 0.0, [0.0]
    sampler = Sampler(root=tmp_path, clocks=lambda: Clocks(t, t, t))
    sampler.sample()
    rng = np.random.default_rng(0)
    for i in range(60):
        watts = 5.0 + 0.1 * i
        slow = watts > cliff_w
        t += 0.1 * (factor if slow else 1.0) * rng.uniform(0.95, 1.05)
        times.append(t)
        write(tmp_path, {f"{zone}/temp": int(40000 + 500 * i), f"{fan}/cur_state": int(slow)})
        if power:
            write(tmp_path, {f"{ina}/power1_input": int(watts * 1e6)})
        sampler.sample()
    return heat_run(times, sampler)


def test_the_cliff_is_found_with_its_size(tmp_path):
    run = hot_run(tmp_path)
    c = run.cliff
    assert c["by"] == "power_w" and c["x_before"] <= 8.1 and c["x_after"] >= 7.9
    assert c["size"] == pytest.approx(2.0, rel=0.1) and c["n"] == 60
    th = run.throttle
    first_slow = next(p["time_s"] for p in run.points if p["power_w"] > 8.0)
    assert th["time_to_throttle_s"] == pytest.approx(first_slow) and th["signs_s"] == pytest.approx(first_slow)
    assert th["rate_before"] == pytest.approx(10, rel=0.03) and th["rate_sustained"] == pytest.approx(10 / 3, rel=0.03)
    assert "cliff x_before" in repr(run) and json.dumps(run.to_dict(), allow_nan=False)


def test_without_power_the_temperature_tells_and_a_flat_run_has_no_cliff(tmp_path):
    assert hot_run(tmp_path / "a", power=False).cliff["by"] == "temperature_c"
    flat = hot_run(tmp_path / "b", factor=1.0)
    assert flat.cliff is None and flat.throttle["time_to_throttle_s"] is None
    assert flat.throttle["rate_sustained"] == pytest.approx(10, rel=0.03)


def test_the_scatter_says_what_it_shows(tmp_path):
    warm = drawn(hot_run(tmp_path / "warm", power=False).plot)
    assert warm.get_xlabel() == "temperature (°C)" and " °C: " in warm.get_title()
    ax = drawn(hot_run(tmp_path / "hot").plot)
    assert ax.get_xlabel() == "power (W)" and ax.get_ylabel() == "delay (ms)"
    shown = r"n = 60\ncliff at 8\.\d\d W: (9\d|10\d)(\.\d)? to (29|30)\d ms, \+\d+ % \(p = 0.001\)"
    assert re.search(shown, ax.get_title())


# ---- outside tools ----

STREAM = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
int main(int argc, char **argv) {
    (void)argc;
    size_t n = strtoull(argv[1], 0, 10) / 8;
    double *a = malloc(n * 8), *b = malloc(n * 8), best_read = 1e9, best_copy = 1e9, sum = 0;
    for (size_t i = 0; i < n; i++) a[i] = i, b[i] = 1;
    for (int k = 0; k < 5; k++) {
        double t = now(), s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
        for (size_t i = 0; i + 8 <= n; i += 8)
            s0 += a[i], s1 += a[i + 1], s2 += a[i + 2], s3 += a[i + 3], s4 += a[i + 4], s5 += a[i + 5], s6 += a[i + 6],
                s7 += a[i + 7];
        sum += s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7;
        if ((t = now() - t) < best_read) best_read = t;
        t = now();
        for (size_t i = 0; i < n; i++) { b[i] = a[i]; __asm__ volatile("" ::: "memory"); }
        if ((t = now() - t) < best_copy) best_copy = t;
    }
    size_t nodes = n / 512, at = 0, steps = 200000; /* a random cycle, one node a page */
    uint64_t *c = (uint64_t *)a, seed = 1;
    for (size_t i = 0; i < nodes; i++) c[i * 512] = i;
    for (size_t i = nodes - 1; i > 0; i--) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t j = (seed >> 33) % i;
        uint64_t x = c[i * 512]; c[i * 512] = c[j * 512]; c[j * 512] = x;
    }
    double t = now();
    for (size_t i = 0; i < steps; i++) at = c[at * 512];
    t = now() - t;
    printf("%g %g %g %g\n", 8e-9 * n / best_read, 16e-9 * n / best_copy, 1e9 * t / steps, sum + at);
}
"""


@pytest.mark.slow
def test_bandwidth_and_latency_agree_with_a_program_of_plain_c(tmp_path):
    """Best of interleaved rounds, more of them while the machine is busy. Our kernels are faster than a loop, so ratios
    have room; the last word is only that no unit and no count of bytes is wrong, for no timing may decide."""
    cc = os.environ.get("CC", "cc").split()[-1]
    if not shutil.which(cc):
        pytest.skip("no C compiler")
    (tmp_path / "stream.c").write_text(STREAM)
    subprocess.run([cc, "-O2", "-o", tmp_path / "stream", tmp_path / "stream.c"], check=True)
    size = 128 << 20
    theirs, ours, ratios = [], [], []
    for done in range(1, 13):
        out = subprocess.run([tmp_path / "stream", str(size)], capture_output=True, text=True, check=True).stdout
        theirs.append([float(x) for x in out.split()[:3]])
        read = rooflm.memory_bandwidth(size, threads=1, huge=False)
        copy = rooflm.memory_bandwidth(2 * size, threads=1, huge=False, copy="plain")
        walk = rooflm.random_latency(size, stride=4096, iters=200_000, huge=False)
        ours.append([1e-9 * r["size_bytes"] / min(r["passes_s"]) for r in (read, copy)] + [walk["ns_range"][0]])
        ratios = [f(x[i] for x in ours) / f(x[i] for x in theirs) for i, f in enumerate((max, max, min))]
        if done >= 3 and 0.5 < ratios[0] < 3 and 0.5 < ratios[1] < 3 and 0.4 < ratios[2] < 2:
            break
    assert all(0.15 < r < 7 for r in ratios), (ratios, ours, theirs)


def test_facts_agree_with_proc():
    m = rooflm.machine()
    total = next(x for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("MemTotal"))
    assert m.memory_bytes == int(total.split()[1]) * 1024
    if hasattr(os, "sched_getaffinity"):
        assert m.allowed_cpus == sorted(os.sched_getaffinity(0))
    assert m.kernel == os.uname().release and not math.isnan(m.default_threads)


def test_a_missing_library_is_named_with_the_way_to_get_it(monkeypatch):
    from rooflm._optional import need

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pandas"):
        need("pandas")
    with pytest.raises(ImportError, match=r"this needs not_installed: pip install 'rooflm\[plot\]'"):
        need("not_installed.at_all")
