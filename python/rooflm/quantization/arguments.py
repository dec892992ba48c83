# SPDX-License-Identifier: Apache-2.0
"""The commands of this room: their names and arguments. What they do is imported when one is used."""

from __future__ import annotations

import argparse
from typing import Callable

from rooflm.quantization.arguments_comparing import add_comparing
from rooflm.quantization.arguments_quantizing import add_quantizing


def add(command: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    """Declares each command with command(name, module below rooflm, one line about it)."""
    add_comparing(command)
    add_quantizing(command)
