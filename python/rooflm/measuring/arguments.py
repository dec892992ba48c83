# SPDX-License-Identifier: Apache-2.0
"""The commands of this room: their names and arguments. What they do is imported when one is used."""

from __future__ import annotations

import argparse
from typing import Callable

from rooflm._arguments import COMPUTE, MODEL_HELP, listed, natural, positive, tokens

COMMANDS = "measuring.commands"


def compute(text: str) -> str:
    if text not in COMPUTE:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(COMPUTE)}")
    return text


def add(command: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    """Declares each command with command(name, module below rooflm, one line about it)."""
    p = command("bench", COMMANDS, "prefill and decode speed beside the ceiling, measured around each run")
    p.add_argument("model", nargs="+", help=MODEL_HELP)
    sizes = listed(tokens)
    p.add_argument("--prompt", type=sizes, default=[512], metavar="N[,N]", help="prompt tokens (default 512)")
    p.add_argument("--gen", type=sizes, default=[64], metavar="N[,N]", help="generated tokens (default 64)")
    p.add_argument("--depth", type=sizes, default=[0], metavar="N[,N]", help="context before the prompt (default 0)")
    p.add_argument("--threads", type=listed(positive), metavar="N[,N]", help="default: the free big cores")
    p.add_argument("--kv", type=listed(str), default=["f16"], help="f32, f16, q8_0, or K/V apart (default f16)")
    p.add_argument("--evict", type=listed(str), metavar="S+R[,S+R]", help="keep the first S and latest R positions")
    p.add_argument("--compute", type=listed(compute), default=["auto"], help=f"of {', '.join(COMPUTE)} (default auto)")
    p.add_argument("--load", type=listed(str), default=["auto"], help="auto, mmap, copy (default auto)")
    p.add_argument("--repeats", type=positive, default=10, help="measured runs after one warm-up (default 10)")
    p.add_argument("--cooldown", metavar="S|50C", help="pause before each run: seconds, or down to a temperature")
    p.add_argument("--seed", type=natural, default=0, help="draws the order of runs and the prompts (default 0)")
    p.add_argument("--cpus", help='pin the workers, such as "0-3,6"')
    p.add_argument("--kernel", help="kernel to use, see rooflm kernels")
    p.add_argument("--blas", help="openblas, or the path of one, multiplies prompts (with --compute f32)")
    p.add_argument("--out", metavar="FILE", help="record each run as a line of JSON when it is measured")
    p.add_argument("--resume", action="store_true", help="go on with an --out file that exists")
    p.add_argument("--full-hash", action="store_true", help="hash whole model files, not samples of each tensor")
    p.epilog = "Comma-separated values sweep: all combinations run, in interleaved random order."

    p = command("bytes", COMMANDS, "bytes that one token reads, by tensor type and for the KV cache")
    p.add_argument("model", help=MODEL_HELP)
    p.add_argument("--depth", type=tokens, default=0, metavar="N", help="context before the token (default 0)")
    p.add_argument("--kv", default="f16", help="f32, f16, q8_0, or K/V apart (default f16)")
    p.add_argument("--evict", metavar="S+R", help="the session keeps the first S and latest R positions alone")

    p = command("forecast", COMMANDS, "memory that a model and its context will take, before loading it")
    p.add_argument("model", help=MODEL_HELP)
    p.add_argument("--ctx", type=tokens, metavar="N", help="positions, 8k for 8192 (default the model's, at most 4096)")
    p.add_argument("--kv", default="f16", help="f32, f16, q8_0, or K/V apart (default f16)")
    p.add_argument("--evict", metavar="S+R", help="a talk without end: the first S and latest R positions are kept")
    p.add_argument("--threads", type=positive, help="default: the free big cores of this machine")
    p.add_argument("--load", choices=("auto", "mmap", "copy"), default="auto", help="default auto")

    p = command("load", COMMANDS, "time to load a model: cold and warm, mapped, buffered, copied into huge pages")
    p.add_argument("model", help=MODEL_HELP)
    p.add_argument("--ways", type=listed(str), metavar="W[,W]", help="of mmap, buffered, copy (default all)")
    p.add_argument("--states", type=listed(str), metavar="S[,S]", help="of cold, warm (default both)")
    p.add_argument("--threads", type=positive, help="default: the free big cores of this machine")
    p.add_argument("--repeats", type=positive, default=3, help="runs of each (default 3)")

    p = command("explain", COMMANDS, "split the gap between two files of records into factors and a rest")
    p.add_argument("a", help="records of the first side, from bench --out")
    p.add_argument("b", help="records of the second side")
    p.add_argument("--plot", metavar="PNG", help="draw the factors as a waterfall")

    p = command("whatif", COMMANDS, "ceilings of a model on a device of given bandwidth")
    p.add_argument("model", help=MODEL_HELP)
    p.add_argument("--bandwidth", type=listed(str), required=True, metavar="B[,B]", help="such as 17GB/s")
    p.add_argument("--depth", type=sizes, default=[0], metavar="N[,N]", help="context, 4k for 4096 (default 0)")
    p.add_argument("--kv", type=listed(str), default=["f16"], help="f32, f16, q8_0, or K/V apart (default f16)")
