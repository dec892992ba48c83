# SPDX-License-Identifier: Apache-2.0
"""What tests/arm64/run.sh runs emulated CPUs with, on commands in place of them: no failure and no log gets lost."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "arm64" / "each_cpu.sh"
CPUS = ["cortex-a53", "cortex-a76", "max,sve=off"]

pytestmark = pytest.mark.skipif(not all(map(shutil.which, ("bash", "xargs", "flock"))), reason="no bash or util-linux")


def run(folder: Path, at_once: int, cpus: list[str], command: str) -> tuple[int, list[str]]:
    full = [SCRIPT, str(at_once), folder, " ".join(cpus), "bash", "-c", command, "bash", folder]
    out = subprocess.run(full, capture_output=True, text=True, timeout=60)
    return out.returncode, out.stdout.splitlines()


@pytest.mark.parametrize("at_once", [1, 2, 9])
@pytest.mark.parametrize("bad,ends,says", [
    (CPUS[0], "exit 3", 3), (CPUS[1], "exit 255", 255), (CPUS[2], "kill -ILL $$", 132), (CPUS[2], "kill -KILL $$", 137),
])  # fmt: skip
def test_a_failing_cpu_fails_all_and_shows_its_log(tmp_path, at_once, bad, ends, says):
    command = f'echo "log of $QEMU_CPU"; [ "$QEMU_CPU" != {bad} ] || {ends}'
    status, said = run(tmp_path, at_once, CPUS, command)
    assert status != 0
    for cpu in CPUS:
        at = said.index(f"== {cpu}: passed" if cpu != bad else f"== {cpu}: FAILED with status {says}")
        assert said[at + 1] == f"log of {cpu}", said


@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_all_pass(tmp_path, at_once):
    status, said = run(tmp_path, at_once, CPUS, 'echo "log of $QEMU_CPU"; echo error >&2')
    assert status == 0
    heads = [said.index(f"== {cpu}: passed") for cpu in CPUS]
    assert [said[i + 1 : i + 3] for i in heads] == [[f"log of {cpu}", "error"] for cpu in CPUS]
    assert at_once > 1 or heads == sorted(heads)


def test_the_next_starts_when_any_ends(tmp_path):
    """The oldest waits for the last: with two places, that one must get the place of the second."""
    command = """case $QEMU_CPU in
    oldest) for _ in $(seq 500); do [ ! -e "$1/last" ] || exit 0; sleep 0.02; done; exit 1 ;;
    last) : >"$1/last" ;; esac"""
    status, said = run(tmp_path, 2, ["oldest", "second", "last"], command)
    assert status == 0
    assert said[0] == "== second: passed"
    assert sorted(said) == ["== last: passed", "== oldest: passed", "== second: passed"]
