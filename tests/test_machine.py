# SPDX-License-Identifier: Apache-2.0
"""The machine: core classes, limits and default threads on fake trees of other machines; the probes on this one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from maker import tiny_model
from plots import drawn

import rooflm
from rooflm import _core


class Tree:
    """A fake /proc and /sys."""

    def __init__(self, root: Path):
        self.root = root

    def write(self, path, text):
        p = self.root / path
        p.parent.mkdir(parents=True, exist_ok=True)
        p.write_text(str(text) + "\n")

    def cpus(self, specs, online=None):
        """specs: (max_khz, capacity) or (max_khz, capacity, siblings) per CPU; None leaves a file out."""
        n = len(specs)
        self.write("sys/devices/system/cpu/present", f"0-{n - 1}" if n > 1 else "0")
        self.write("sys/devices/system/cpu/online", online or (f"0-{n - 1}" if n > 1 else "0"))
        for i, (khz, capacity, *siblings) in enumerate(specs):
            base = f"sys/devices/system/cpu/cpu{i}/"
            if khz:
                self.write(base + "cpufreq/cpuinfo_max_freq", khz)
            if capacity:
                self.write(base + "cpu_capacity", capacity)
            if siblings:
                self.write(base + "topology/thread_siblings_list", siblings[0])
        return self

    def affinity(self, text):
        self.write("proc/self/status", f"Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{text}\nMems:\t1")
        return self

    def machine(self):
        return rooflm.machine(root=str(self.root))


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


LITTLE, BIG, PRIME = (1804800, 325), (2419200, 870), (2841600, 1024)


def test_four_and_four(tree):
    m = tree.cpus([LITTLE] * 4 + [(2803200, 1024)] * 4).machine()
    assert [c["cpus"] for c in m.classes] == [[4, 5, 6, 7], [0, 1, 2, 3]]
    assert [c["big"] for c in m.classes] == [True, False]
    assert m.classes[0]["max_khz"] == 2803200 and m.classes[1]["capacity"] == 325
    assert m.default_threads == 4 and m.default_cpus == [4, 5, 6, 7]
    assert "4 little cores left out" in m.default_threads_reason


def test_one_three_four(tree):
    m = tree.cpus([LITTLE] * 4 + [BIG] * 3 + [PRIME]).machine()
    assert [c["cpus"] for c in m.classes] == [[7], [4, 5, 6], [0, 1, 2, 3]]
    assert [c["big"] for c in m.classes] == [True, True, False]
    assert m.default_threads == 4 and m.default_cpus == [4, 5, 6, 7]


def test_clocks_alone_tell_the_classes(tree):
    m = tree.cpus([(1800000, None)] * 4 + [(2800000, None)] * 4).machine()
    assert [len(c["cpus"]) for c in m.classes] == [4, 4] and m.default_cpus == [4, 5, 6, 7]


def test_capacities_win_over_clocks(tree):
    # A little core that clocks nearly as high as a big one.
    m = tree.cpus([(2000000, 480)] * 6 + [(2200000, 1024)] * 2).machine()
    assert m.default_cpus == [6, 7] and [c["big"] for c in m.classes] == [True, False]


def test_equal_capacities_say_nothing(tree):
    m = tree.cpus([(1800000, 1024)] * 2 + [(2800000, 1024)] * 2).machine()
    assert m.default_cpus == [2, 3]


def test_favoured_cores_are_one_class(tree):
    m = tree.cpus([(5000000, None), (5100000, None), (4900000, None), (5000000, None)]).machine()
    assert len(m.classes) == 1 and m.default_threads == 4


def test_offline_cores(tree):
    m = tree.cpus([LITTLE] * 4 + [BIG] * 3 + [PRIME], online="0-3,5,7").machine()
    assert m.n_cpus == 6 and m.n_present == 8
    assert [c["cpus"] for c in m.classes] == [[7], [5], [0, 1, 2, 3]]
    assert m.default_cpus == [5, 7] and m.default_threads_reason.startswith("6 CPUs online")


def test_affinity_limits(tree):
    tree.cpus([LITTLE] * 4 + [(2803200, 1024)] * 4)
    m = tree.affinity("2-5").machine()
    assert m.allowed_cpus == [2, 3, 4, 5] and m.default_cpus == [4, 5]
    assert "affinity allows 4" in m.default_threads_reason
    m = tree.affinity("0-2").machine()  # only little ones: they are used
    assert m.default_cpus == [0, 1, 2] and m.default_threads == 3


def test_one_thread_per_core(tree):
    m = tree.cpus(
        [(4000000, None, "0,2"), (4000000, None, "1,3")] + [(4000000, None, s) for s in ("0,2", "1,3")]
    ).machine()
    assert m.default_cpus == [0, 1] and "one thread per core" in m.default_threads_reason
    # The first sibling is not ours: the second is the core's only thread.
    assert tree.affinity("1-3").machine().default_cpus == [1, 2]


def test_nothing_but_online(tree):
    tree.write("sys/devices/system/cpu/online", "0-3")
    m = tree.machine()
    assert m.default_threads == 4 and len(m.classes) == 1 and m.cgroup["version"] is None
    assert m.cpu is None and m.memory_bytes is None and m.caches == []
    assert "4 online" in repr(m)


@pytest.mark.parametrize("text", ["", "x", "3-1", "0-", "2,1", "0,,1", "-1", "0-99999999999999999999"])
def test_no_list_of_cpus_is_an_error(tree, text):
    tree.write("sys/devices/system/cpu/online", text)
    with pytest.raises((OSError, rooflm.Error), match="online"):
        tree.machine()


@pytest.mark.parametrize(
    "quota,threads", [("150000 100000", 1), ("200000 100000", 2), ("20000 100000", 1), ("max 100000", 8)]
)
def test_quota_of_cgroup_2(tree, quota, threads):
    tree.cpus([(3000000, None)] * 8)
    tree.write("proc/self/cgroup", "0::/user.slice/app.scope")
    tree.write("sys/fs/cgroup/user.slice/app.scope/cpu.max", "max 100000")
    tree.write("sys/fs/cgroup/user.slice/cpu.max", quota)  # an ancestor's limit binds too
    tree.write("sys/fs/cgroup/user.slice/memory.max", "1073741824")
    tree.write("sys/fs/cgroup/user.slice/app.scope/memory.max", "max")
    m = tree.machine()
    assert m.default_threads == threads and m.cgroup["version"] == 2
    assert m.cgroup["memory_limit_bytes"] == 1 << 30
    assert ("quota" in m.default_threads_reason) == (threads < 8)
    assert len(m.default_cpus) == threads


@pytest.mark.parametrize("controllers", ["cpu,cpuacct", "cpu"])
def test_quota_of_cgroup_1(tree, controllers):
    tree.cpus([(3000000, None)] * 8)
    tree.write("proc/self/cgroup", f"4:{controllers}:/docker/abc\n5:memory:/docker/abc\n3:cpuset:/\n0::/")
    # As in a container: the host's path is not visible, the mount itself is the group.
    tree.write(f"sys/fs/cgroup/{controllers}/cpu.cfs_quota_us", "250000")
    tree.write(f"sys/fs/cgroup/{controllers}/cpu.cfs_period_us", "100000")
    tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    m = tree.machine()
    assert m.cgroup == {"version": 1, "quota": 2.5, "memory_limit_bytes": None} and m.default_threads == 2
    tree.write(f"sys/fs/cgroup/{controllers}/cpu.cfs_quota_us", "-1")
    assert tree.machine().cgroup["quota"] is None


def test_arm_names_caches_and_memory(tree):
    tree.cpus([LITTLE] * 2 + [BIG] * 2)
    part = "processor\t: {}\nCPU implementer\t: 0x41\nCPU part\t: {}\n"
    tree.write(
        "proc/cpuinfo",
        "\n".join(part.format(i, p) for i, p in enumerate(["0xd05", "0xd05", "0xd0b", "0xd0b"])),
    )
    tree.write("proc/device-tree/model", "Raspberry Pi 5 Model B\0")
    tree.write("proc/meminfo", "MemTotal:        8000000 kB\nMemAvailable:    5000000 kB")
    for cpu in range(4):
        base = f"sys/devices/system/cpu/cpu{cpu}/cache/index"
        for i, (level, kind, size, shared) in enumerate(
            [(1, "Data", "64K", cpu), (1, "Instruction", "64K", cpu), (3, "Unified", "2048K", "0-3")]
        ):
            tree.write(f"{base}{i}/level", level)
            tree.write(f"{base}{i}/type", kind)
            tree.write(f"{base}{i}/size", size)
            tree.write(f"{base}{i}/shared_cpu_list", shared)
    m = tree.machine()
    assert m.cpu == "2 x Cortex-A55 + 2 x Cortex-A76" and m.board == "Raspberry Pi 5 Model B"
    assert m.memory_bytes == 8000000 * 1024 and m.memory_available_bytes == 5000000 * 1024
    assert [(c["level"], c["size_bytes"], c["count"]) for c in m.caches] == [
        (1, 65536, 4),
        (1, 65536, 4),
        (3, 2 << 20, 1),
    ]
    text = repr(m)
    for part in ("Raspberry Pi 5", "2 big", "2 little", "2.42 GHz", "L1d 64 KB x 4", "L3 2 MB"):
        assert part in text
    assert "<table>" in m._repr_html_()


def test_this_machine():
    m = rooflm.machine()
    json.dumps(m, allow_nan=False)
    if hasattr(os, "sched_getaffinity"):
        assert m.allowed_cpus == sorted(os.sched_getaffinity(0))
    assert 1 <= m.default_threads <= len(m.allowed_cpus)
    assert (m.measured is None) == bool(m.not_measured)
    assert m.isa["in_use"] in m.isa["available"] and m.page_bytes == os.sysconf("SC_PAGE_SIZE")
    assert m.libc if sys.platform == "linux" else True
    with pytest.raises(AttributeError, match="default_threads"):
        m.nothing  # noqa: B018
    with pytest.raises(TypeError, match="measure"):
        rooflm.machine(mesure=True)
    with pytest.raises(ValueError, match="root"):
        rooflm.machine(True, root="/tmp")


def test_affinity_of_this_process(tmp_path):
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(before)})
        m = rooflm.machine()
        assert m.default_threads == 1 and m.default_cpus == [max(before)]
        assert "affinity allows 1" in m.default_threads_reason
    finally:
        os.sched_setaffinity(0, before)


# The probes.


def xor_of(*arrays):
    total = 0
    for a in arrays:
        raw = np.frombuffer(a, np.uint8)
        total ^= int(
            np.bitwise_xor.reduce(np.append(raw, np.zeros(-raw.size % 8, np.uint8)).view(np.uint64), initial=0)
        )
    return total


def read_kernels():
    return [k.name for k in rooflm.kernels() if k.family == "read" and k.available]


@pytest.mark.parametrize("name", read_kernels())
def test_every_read_kernel_reads_every_byte(name):
    rng = np.random.default_rng(1)
    for n in (1, 7, 8, 9, 63, 64, 511, 512, 513, 4096, 10007, 300_001):
        room = rng.integers(0, 256, n + 64, dtype=np.uint8)
        for offset in (0, 3):
            a = room[offset : offset + n]
            r = _core.read_bandwidth([a], threads=1, passes=1, kernel=name)
            assert r["checksum"] == xor_of(a) and r["bytes"] == n and r["kernel"] == name


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_read_bandwidth_over_several_buffers(threads):
    rng = np.random.default_rng(2)
    arrays = [rng.integers(0, 256, n, dtype=np.uint8) for n in (5, 0, 1_000_003, 64 << 10, 200_000)]
    r = _core.read_bandwidth(arrays, threads=threads, passes=3)
    assert r["checksum"] == xor_of(*arrays) and r["bytes"] == sum(a.size for a in arrays)
    assert r["threads"] == threads and len(r["passes_s"]) == 3 and min(r["passes_s"]) > 0
    assert r["median_s"] == sorted(r["passes_s"])[1]
    assert r["gbs"] == pytest.approx(r["bytes"] / r["median_s"] / 1e9)
    again = _core.read_bandwidth(arrays, threads=threads, repeat=4)
    assert again["checksum"] == r["checksum"] and again["bytes"] == 4 * r["bytes"]


def xor_of_pages(layers):
    parts = [x for layer in layers for p in layer.pages for x in (p.k, p.k_scales, p.v, p.v_scales) if x is not None]
    return xor_of(*(np.frombuffer(x.tobytes(), np.uint8) for x in parts))


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_read_bandwidth_of_a_session_reads_its_pages(tmp_path, arch, kv):
    """Those that a step would read: pages that lie apart after a fork, of a window what it still holds."""
    options = {"n_layer": 6, "window": 64, "vocab": "spm"} if arch == "gemma3" else {}
    m = rooflm.Model(tiny_model(tmp_path / "m.gguf", arch, n_ctx=1024, **options))
    a = np.random.default_rng(3).integers(0, 256, 5000, dtype=np.uint8)
    with m.session(kv=kv, n_ctx=1024, n_batch=64, n_threads=1) as s:
        assert _core.read_bandwidth([a], kv=s._c, threads=2)["bytes"] == a.size
        s.eval(np.arange(400) % 300, logits="none")
        f = s.fork()
        s.eval([5] * 100, logits="none")
        f.eval([6] * 200, logits="none")
        for each in (s, f):
            r = _core.read_bandwidth([a], kv=each._c, threads=2, passes=1)
            assert r["bytes"] == a.size + each.kv_nbytes and r["checksum"] == xor_of(a) ^ xor_of_pages(each.kv)
            assert _core.read_bandwidth([], kv=each._c, passes=1, repeat=3)["bytes"] == 3 * each.kv_nbytes
        f.close()
        core = s._c
    with pytest.raises(ValueError, match="closed"):
        _core.read_bandwidth([a], kv=core)


def test_read_bandwidth_of_a_cache():
    c = _core.KVCache(2, n_head_kv=3, head_dim=64, n_ctx=512, kv="q8_0")
    x = np.random.default_rng(4).standard_normal((2, 300, 3, 64), np.float32)
    c.append(x, x)
    r = _core.read_bandwidth([], kv=c, threads=2)
    assert r["bytes"] == c.nbytes and r["checksum"] != 0
    with pytest.raises(TypeError, match="Session or KVCache"):
        _core.read_bandwidth([x], kv=x)


def test_read_bandwidth_is_of_the_right_size():
    # 64 MB cannot be read at under 0.1 or over 2000 GB/s by anything that runs this.
    a = np.ones(64 << 20, np.uint8)
    assert 0.1 < _core.read_bandwidth([a], threads=1)["gbs"] < 2000


def test_isa_limit_chooses_the_read_kernels():
    a = np.ones(1 << 16, np.uint8)
    assert _core.read_bandwidth([a], threads=1, isa="ref")["kernel"].endswith("_ref")
    if "avx2" in rooflm.machine().isa["available"]:
        assert _core.read_bandwidth([a], threads=1, isa="avx2")["kernel"].endswith("_avx2")


@pytest.mark.parametrize(
    "kw,error,match",
    [
        (dict(passes=0), ValueError, "passes"),
        (dict(passes=65), ValueError, "passes"),
        (dict(threads=0), ValueError, "threads"),
        (dict(threads=257), ValueError, "threads"),
        (dict(threads=1.5), TypeError, "threads"),
        (dict(repeat=0), ValueError, "repeat"),
        (dict(kernel="rl_vec_add_ref"), rooflm.KernelUnavailable, "not a read kernel"),
        (dict(kernel="nothing"), rooflm.KernelUnavailable, "nothing"),
        (dict(cpus="0"), ValueError, "1 CPUs for 2 threads"),
        (dict(cpus="1-0"), ValueError, "cpus"),
        (dict(cpus=[0, -1]), ValueError, "no CPU -1"),
        (dict(thread=2), TypeError, "threads"),
    ],
    ids=str,
)
def test_read_bandwidth_refuses(kw, error, match):
    with pytest.raises(error, match=match):
        _core.read_bandwidth([np.ones(100, np.uint8)], **{"threads": 2, **kw} if "thread" not in kw else kw)


def test_read_bandwidth_wants_buffers():
    with pytest.raises(ValueError, match="no bytes"):
        _core.read_bandwidth([])
    with pytest.raises(TypeError):
        _core.read_bandwidth([1])
    with pytest.raises((ValueError, BufferError)):
        _core.read_bandwidth([np.ones((4, 4))[:, ::2]])


def test_pinning_is_reported():
    a = np.ones(1 << 20, np.uint8)
    cpus = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_getaffinity") else [0]
    cpus = (cpus * 2)[:2]
    _core.read_bandwidth([a], threads=2, cpus=cpus)
    (_, mine), (cpu, why) = _core._last_threads()
    assert mine is None and (why is not None or cpu == cpus[1])
    _core.read_bandwidth([a], threads=2, cpus=[0, 1000])
    assert _core._last_threads()[1][1] is not None  # refused, and said so


def test_memory_and_copy_bandwidth():
    for huge in (True, False):
        r = _core.memory_bandwidth(8 << 20, threads=2, huge=huge, passes=2)
        assert r["bytes"] == 8 << 20 and r["gbs"] > 0.1
        assert huge or r["huge_bytes"] == 0
    for how in ("plain", "stream"):
        r = _core.memory_bandwidth(8 << 20, threads=2, copy=how, passes=2)
        assert r["bytes"] == 8 << 20 and r["kernel"].startswith(f"rl_copy_{how}_")
    with pytest.raises(ValueError, match="'plain' or 'stream', not 'fast'"):
        _core.memory_bandwidth(8 << 20, copy="fast")


@pytest.mark.parametrize("name", [k.name for k in rooflm.kernels() if k.family == "copy" and k.available])
@pytest.mark.parametrize("n", [1, 63, 64, 1000, 4096 + 8])
def test_every_copy_kernel_copies_every_byte(name, n):
    source = np.random.default_rng(n).integers(0, 256, n, dtype=np.uint8)
    room = np.full(n + 192, 7, np.uint8)
    at = -room.ctypes.data % 64 + 64
    _core._copy(name, room[at : at + n], source)
    assert np.array_equal(room[at : at + n], source)
    assert (room[:at] == 7).all() and (room[at + n :] == 7).all()
    with pytest.raises(ValueError, match="aligned"):
        _core._copy(name, room[at + 1 : at + 1 + n], source)


def test_peaks_on_several_threads():
    one, two = _core._peaks(0.005), _core._peaks(0.005, 2)
    assert set(one) == set(two) and all(v > 0 for v in two.values())
    with pytest.raises(ValueError, match="seconds"):
        _core._peaks(0.0)
    with pytest.raises(ValueError, match="size"):
        _core.memory_bandwidth(8)
    with pytest.raises(MemoryError):
        _core.memory_bandwidth(1 << 62)


def test_latency_walks_one_cycle_through_everything():
    for random in (True, False):
        # A walk of as many steps as there are nodes, after a warm-up of the same length, ends where it began.
        r = _core.random_latency(64 * 1000, 64, 1000, random=random)
        assert r["nodes"] == 1000 and r["end"] == 0
        ends = {_core.random_latency(8 * 37, 8, n, random=random, seed=4)["end"] for n in range(37, 74)}
        assert ends == set(range(37)), "the cycle leaves nodes out"
    assert _core.random_latency(8 * 37, 8, 50, seed=1)["end"] != _core.random_latency(8 * 37, 8, 50, seed=2)["end"]


def test_latency_grows_out_of_the_cache():
    # Sizes far apart, so that a loaded machine cannot hide it.
    small = min(_core.random_latency(16 << 10, 64, 100_000)["ns"] for _ in range(3))
    large = _core.random_latency(64 << 20, 4096, 100_000, huge=False)["ns"]
    assert 0.1 < small < large / 3 < 10_000
    assert _core.random_latency(64 << 20, 64, 100_000, random=False)["ns"] < large


@pytest.mark.parametrize(
    "args,match",
    [
        ((1 << 16, 4), "stride"),
        ((1 << 16, 12), "stride"),
        ((1 << 16, 0), "stride"),
        ((64, 64), "two strides"),
        ((1 << 16, 64, 0), "iters"),
        ((-5,), "size"),
    ],
)
def test_latency_refuses(args, match):
    with pytest.raises(ValueError, match=match):
        _core.random_latency(*args)


def test_clock():
    assert 0.1 < _core.core_clock(5.0) < 10
    with pytest.raises(ValueError):
        _core.core_clock(0)


def test_measuring(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLM_CACHE", str(tmp_path))
    monkeypatch.setattr("rooflm.device.measure.LADDER_BYTES", 1 << 20)
    monkeypatch.setattr("rooflm.device.measure.capped_size", lambda wanted: (4 << 20, None))
    lines = []
    m = rooflm.machine(measure=True, progress=lines.append)
    json.dumps(m, allow_nan=False)
    reads = [r for r in m.measured["read"] if r["where"] == "memory"]
    assert {r["threads"] for r in reads} >= {1, m.default_threads}
    assert all(r["kernel"] and r["gbs"] > 0 for r in m.measured["read"])
    assert lines and "GB/s" in repr(m) and m.not_kept is None
    assert {c["how"] for c in m.measured["copy"]} == {"plain", "stream"}
    assert {p["kind"] for p in m.measured["peak"]} == {"int8", "int16", "f32"}
    assert max(r["size_bytes"] for r in m.measured["latency"]["records"]) == 1 << 20
    again = rooflm.machine()
    assert again.measured == m.measured and again.not_measured == ""
    for kind in ("latency", "strides", "read"):
        pytest.importorskip("matplotlib").use("Agg")
        title = drawn(m.plot, kind=kind).get_title()
        assert "n = 5" in title
