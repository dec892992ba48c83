# SPDX-License-Identifier: Apache-2.0
"""The commands of this room: their names and arguments. What they do is imported when one is used."""

from __future__ import annotations

import argparse
from typing import Callable

from rooflm._arguments import MODEL_HELP, natural, positive, session_arguments
from rooflm.device.sizes import parse_size


def add(command: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    """Declares each command with command(name, module below rooflm, one line about it)."""
    p = command("machine", "device.commands", "what this machine is; with --measure, what its memory does")
    p.add_argument("--measure", action="store_true", help="load the machine for some twenty seconds to measure it")
    p.add_argument("--plot", metavar="FILE", help="write the ladder of latencies as a picture")

    p = command("randmem", "device.commands", "time of a dependent access, random and in order, huge and small pages")
    p.add_argument("--size", type=parse_size, default=parse_size("1G"), help="working set, such as 64M (default 1G)")
    p.add_argument("--stride", type=parse_size, default=4096, help="bytes between nodes (default 4096)")
    p.add_argument("--iter", type=positive, default=1_000_000, metavar="N", help="steps of a walk (default 1000000)")
    p.add_argument("--seed", type=natural, default=0, help="of the random cycle (default 0)")
    p.add_argument("--ladder", action="store_true", help="all sizes from 4 KB to --size instead of --size alone")
    p.add_argument("--plot", metavar="FILE", help="with --ladder, write it as a picture, too")

    p = command("trace", "device.commands", "time by operation beside the limits of memory and arithmetic")
    p.add_argument("model", help=MODEL_HELP)
    p.add_argument("--prompt", type=positive, default=256, metavar="TOKENS", help="prompt tokens (default 256)")
    p.add_argument("--gen", type=positive, default=32, metavar="TOKENS", help="tokens one by one (default 32)")
    p.add_argument("--chrome", metavar="FILE", help="write it for chrome://tracing or ui.perfetto.dev")
    p.add_argument("--plot", metavar="FILE", help="write the roofline picture")
    session_arguments(p, "auto", "f16")

    command("sensors", "device.commands", "temperatures, clocks, power and signs of throttling, or why there are none")
