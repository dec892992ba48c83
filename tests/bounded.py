# SPDX-License-Identifier: Apache-2.0
"""Runs steps in a process of their own, each with a budget of CPU time that only another order of growth exceeds.

No clock decides here: what is linear takes a fraction of a second for half a megabyte, what is quadratic takes 10^11
steps. The kernel ends the process then, and the test says at which step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BUDGET_S = 20 * (10 if "asan" in os.environ.get("LD_PRELOAD", "") else 1)
PRELUDE = f"""
import resource, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
def step(name):
    print(name, flush=True)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + {BUDGET_S}, resource.RLIM_INFINITY))
"""


def run_steps(code: str, *args: str) -> None:
    """`code` calls step(name) before each step; a crash, an exception or an exceeded budget fails the test."""
    done = subprocess.run([sys.executable, "-c", PRELUDE + code, *args], capture_output=True, text=True)
    last = (done.stdout.splitlines() or ["the first step"])[-1]
    assert done.returncode == 0, f"status {done.returncode} at {last}: {done.stderr[-2000:]}"
    assert done.stdout
