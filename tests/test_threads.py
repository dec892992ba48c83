# SPDX-License-Identifier: Apache-2.0
"""The thread pool, driven from C, plain and under ThreadSanitizer and AddressSanitizer; and from Python."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from rooflm import _core

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ["tests/c/threads_driver.c", "csrc/base/threads.c", "csrc/base/clock.c", "csrc/base/status.c"]


def compiler() -> str:
    for name in (os.environ.get("CC", "").split() or [""])[-1:] + ["cc", "gcc", "clang"]:
        if name and shutil.which(name):
            return name
    pytest.skip("no C compiler: the driver of the pool cannot be built")


def build(out: Path, *flags: str) -> Path:
    if not (ROOT / SOURCES[0]).exists():
        pytest.skip("needs the source tree")
    cmd = [
        compiler(),
        "-std=gnu11",
        "-g",
        "-Wall",
        "-Wextra",
        "-Icsrc",
        "-I.",
        *flags,
        *SOURCES,
        "-o",
        str(out),
        "-pthread",
    ]
    made = subprocess.run(cmd, cwd=ROOT, capture_output=True, text=True)
    if made.returncode and any("sanitize" in f for f in flags):
        pytest.skip(f"this compiler cannot build with {flags}: {made.stderr.strip()[-200:]}")
    assert made.returncode == 0, made.stderr
    return out


def run(*cmd: str, **kw) -> subprocess.CompletedProcess:
    return subprocess.run(cmd, capture_output=True, text=True, timeout=120, **kw)


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("threads") / "driver", "-O2")


def test_promises_of_the_header(driver):
    r = run(str(driver), "check", "5")
    assert r.returncode == 0 and r.stdout == "ok\n", r.stderr


def test_on_one_cpu(driver):
    if not shutil.which("taskset"):
        pytest.skip("no taskset")
    cpu = min(os.sched_getaffinity(0))
    r = run("taskset", "-c", str(cpu), str(driver), "check", "1")
    assert r.returncode == 0, r.stderr


@pytest.mark.unsanitized  # it brings its own
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_under_sanitizer(tmp_path, sanitizer):
    binary = build(tmp_path / "driver", "-O1", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    # Without address randomization: older ThreadSanitizer runtimes refuse some layouts. A child of fork() cannot
    # start threads under ThreadSanitizer.
    prefix = ["setarch", "-R"] if shutil.which("setarch") else []
    env = {**os.environ, "TSAN_OPTIONS": "exitcode=66", "ASAN_OPTIONS": "exitcode=67"}
    r = run(*prefix, str(binary), "check", "1", "0" if sanitizer == "thread" else "1", env=env)
    if "unexpected memory mapping" in r.stderr:
        pytest.skip("ThreadSanitizer cannot map its shadow memory here")
    assert r.returncode == 0 and "WARNING" not in r.stderr, r.stderr[-3000:]


@pytest.mark.unsanitized
def test_thread_sanitizer_would_notice(tmp_path):
    """The same sources with the barrier's release taken away must fail, else the test above proves nothing."""
    source = (ROOT / "csrc/base/threads.c").read_text()
    broken = source.replace(
        "atomic_store_explicit(&team->phase, next, memory_order_release)",
        "atomic_store_explicit(&team->phase, next, memory_order_relaxed)",
    ).replace("&team->arrived, 1, memory_order_acq_rel", "&team->arrived, 1, memory_order_relaxed")
    assert broken != source
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "threads.c").write_text(broken)
    files = [str(tmp_path / "base" / "threads.c") if s.endswith("base/threads.c") else s for s in SOURCES]
    out = tmp_path / "broken"
    cmd = [
        compiler(),
        "-std=gnu11",
        "-g",
        "-O1",
        "-fsanitize=thread",
        "-Icsrc",
        "-I.",
        *files,
        "-o",
        str(out),
        "-pthread",
    ]
    if subprocess.run(cmd, cwd=ROOT, capture_output=True).returncode:
        pytest.skip("no ThreadSanitizer")
    prefix = ["setarch", "-R"] if shutil.which("setarch") else []
    r = run(*prefix, str(out), "check", "1", "0", env={**os.environ, "TSAN_OPTIONS": "exitcode=66"})
    if "unexpected memory mapping" in r.stderr:
        pytest.skip("ThreadSanitizer cannot map its shadow memory here")
    assert r.returncode == 66 and "data race" in r.stderr


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_more_threads_than_cpus_give_way(driver, threads):
    """On one CPU a thread that waits at a barrier keeps the others from arriving: it has to yield, not spin until its
    time slice is over, which is hundreds of times slower. bench/threads.py measures what that is worth."""
    cpu = min(os.sched_getaffinity(0))
    barriers = 500
    r = run(
        str(driver), "yields", str(threads), str(barriers), preexec_fn=lambda: os.sched_setaffinity(0, {cpu})
    )
    assert r.returncode == 0, r.stderr
    # All but the last to arrive wait; some may lose their time slice while they still spin.
    assert int(r.stdout) > barriers * (threads - 1) // 2


def test_python_threads_queue_up():
    a = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
    want = _core.read_bandwidth([a], threads=1, passes=1)["checksum"]
    got: list[int] = []

    def work(n):
        for _ in range(10):
            got.append(_core.read_bandwidth([a], threads=n, passes=1)["checksum"])

    threads = [threading.Thread(target=work, args=(1 + i % 3,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert got == [want] * 60


def test_a_forked_child_has_threads_of_its_own():
    a = np.ones(1 << 20, np.uint8)
    _core.read_bandwidth([a], threads=3, passes=1)
    pid = os.fork()
    if pid == 0:
        try:
            ok = _core.read_bandwidth([a], threads=3, passes=1)["checksum"] == 0
            os._exit(0 if ok else 1)
        except BaseException:
            os._exit(2)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail("the child hangs")


@pytest.mark.parametrize("threads", [1, 2])
def test_control_c_stops_parallel_work(threads):
    code = f"""
import numpy as np, sys
from rooflm import _core
a = np.ones(1 << 20, np.uint8)
print("ready", flush=True)
try:
    _core.read_bandwidth([a], threads={threads}, passes=64, repeat=100000)
except KeyboardInterrupt:
    r = _core.read_bandwidth([a], threads={threads}, passes=1)
    print("stopped", r["checksum"], flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as p:
        try:
            assert p.stdout is not None and p.stdout.readline() == "ready\n"
            time.sleep(0.3)
            p.send_signal(signal.SIGINT)
            out, _ = p.communicate(timeout=60)
        finally:
            p.kill()
    assert out == "stopped 0\n"  # else it would work for an hour


def test_workers_leave_signals_to_the_program():
    """A signal to the process must run the handler in the main thread, not be swallowed by a worker."""
    a = np.ones(1 << 20, np.uint8)
    _core.read_bandwidth([a], threads=4, passes=1)
    seen = []
    old = signal.signal(signal.SIGUSR1, lambda *_: seen.append(threading.current_thread()))
    try:
        for _ in range(20):
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.001)
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert seen and all(t is threading.main_thread() for t in seen)


def test_the_caller_gets_its_cpus_back():
    a = np.ones(1 << 20, np.uint8)
    before = os.sched_getaffinity(0)
    _core.read_bandwidth([a], threads=2, cpus=[0, 0], passes=1)
    assert os.sched_getaffinity(0) == before
    masks = []
    t = threading.Thread(target=lambda: masks.append(os.sched_getaffinity(0)))
    t.start()
    t.join()
    assert masks == [before]
