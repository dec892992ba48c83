# SPDX-License-Identifier: Apache-2.0
"""The commands of this room: their names and arguments. What they do is imported when one is used."""

from __future__ import annotations

import argparse
from typing import Callable

from rooflm._arguments import MODEL_HELP, natural, positive, session_arguments


def add(command: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    """Declares each command with command(name, module below rooflm, one line about it)."""
    p = command("doctor", "diagnosis.commands", "is a model near its ceiling, and if not, what is at fault")
    p.add_argument("model", help=MODEL_HELP)
    session_arguments(p, "auto", "f16")
    p.add_argument("--cpus", help='pin the workers, such as "0-3,6"')
    p.add_argument("--kernel", help="kernel to use, see rooflm kernels")
    p.add_argument("--isa", help="best instruction-set tier to use")
    p.add_argument("--load", choices=("auto", "mmap", "copy"), default="auto", help="default auto")
    p.add_argument("--depth", type=natural, default=0, metavar="TOKENS", help="context before the answer (default 0)")
    p.add_argument("--gen", type=positive, default=32, metavar="TOKENS", help="tokens to decode at least (default 32)")
    p.add_argument("--all", action="store_true", help="what is not at fault, too, with its evidence")
