# SPDX-License-Identifier: Apache-2.0
"""The commands of this room: their names and arguments. What they do is imported when one is used."""

from __future__ import annotations

import argparse
from typing import Callable

from rooflm._arguments import MODEL_HELP, listed, positive, session_arguments, tokens
from rooflm.device.sizes import parse_size


def add(command: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    """Declares each command with command(name, module below rooflm, one line about it)."""
    p = command("doctor", "diagnosis.commands", "is a model near its ceiling, and if not, what is at fault")
    p.add_argument("model", help=MODEL_HELP)
    session_arguments(p, "auto", "f16")
    p.add_argument("--cpus", help='pin the workers, such as "0-3,6"')
    p.add_argument("--kernel", help="kernel to use, see rooflm kernels")
    p.add_argument("--isa", help="best instruction-set tier to use")
    p.add_argument("--load", choices=("auto", "mmap", "copy"), default="auto", help="default auto")
    p.add_argument("--depth", type=tokens, default=0, metavar="TOKENS", help="context before the answer (default 0)")
    p.add_argument("--gen", type=positive, default=32, metavar="TOKENS", help="tokens to decode at least (default 32)")
    p.add_argument("--all", action="store_true", help="what is not at fault, too, with its evidence")

    p = command("health", "diagnosis.commands", "one line: machine, bandwidth, a fixed 3B model, against its history")
    p.add_argument("--size", default="3b", help="shape of the model: 3b (default), 1b, smollm2 for a quicker check")
    p.add_argument("--threads", type=positive, help="default: the free big cores of this machine")
    p.add_argument("--history", metavar="FILE", help="SQLite file (default health.sqlite in rooflm's cache)")
    p.add_argument("--no-history", action="store_true", help="neither compare nor keep this run")
    p.add_argument("--keep", metavar="FILE", help="keep the model in this file and use it again")
    p.add_argument("--curve", action="store_true", help="the history as a line of text, too")
    p.add_argument("--plot", metavar="PNG", help="the history as a picture")

    p = command("soak", "diagnosis.commands", "load for minutes or days: memory, descriptors, temperature, speed")
    p.add_argument("model", help=MODEL_HELP)
    p.add_argument("--minutes", type=float, required=True, help="ends by itself after these")
    p.add_argument("--threads", type=positive, help="default: the free big cores of this machine")
    p.add_argument("--kv", default="f16", help="f32, f16, q8_0, or K/V apart as q8_0/f16 (default f16)")
    p.add_argument("--gen", type=positive, default=64, metavar="TOKENS", help="per cycle of load and free (default 64)")
    p.add_argument("--out", metavar="FILE", help="each sample as a line of JSON while it runs")
    p.add_argument("--plot", metavar="PNG", help="the speed over time as a picture")

    p = command("sweep", "diagnosis.commands", "vary one thing: context, kv, cache, threads or kernels")
    p.add_argument("kind", choices=("context", "kv", "cache", "threads", "kernels"), help="what to vary")
    p.add_argument("model", nargs="?", help=MODEL_HELP + "; kv and cache take a 3B shape without one")
    p.add_argument("--depth", type=listed(tokens), metavar="N,N", help="context, kv: in use, such as 0,4k,32k")
    p.add_argument("--ctx", type=listed(tokens), metavar="N,N", help="context: tokens allocated, such as 4k,32k")
    p.add_argument("--kv", type=listed(str), metavar="T,T", help="types of the cache, such as f16,q8_0")
    p.add_argument("--layout", type=listed(str), metavar="L,L", help="kv, cache: tile,token,head")
    p.add_argument("--sizes", type=listed(parse_size), metavar="B,B", help="cache: bytes, such as 64k,1M,64M")
    p.add_argument("--threads", type=listed(positive), metavar="N,N", help="threads: counts; else one number")
    p.add_argument("--cpus", action="append", metavar="LIST", help='threads: pin to these, such as "0-3"; repeatable')
    p.add_argument("--tokens", type=listed(positive), metavar="N,N", help="kernels: tokens at once (default 1,64)")
    p.add_argument("--save", action="store_true", help="kernels: keep the fastest for this machine")
    p.add_argument("--choices", metavar="FILE", help="kernels: where to (default kernels.json in rooflm's cache)")
    p.add_argument("--repeats", type=positive, default=5, help="runs of each setting (default 5)")
    p.add_argument("--out", metavar="FILE", help="each record as a line of JSON as it is measured")
    p.add_argument("--plot", metavar="PNG", help="the sweep as a picture")

    p = command("tune", "diagnosis.commands", "try steps one by one, keep those that gain, multiply the gains")
    p.add_argument("model", help=MODEL_HELP)
    session_arguments(p, "auto", "f16")
    p.add_argument("--cpus", help='pin the workers, such as "0-3,6"')
    p.add_argument("--kernel", help="kernel to start from, see rooflm kernels")
    p.add_argument("--isa", help="instruction-set tier to start from")
    p.add_argument("--load", choices=("auto", "mmap", "copy"), default="auto", help="default auto")
    p.add_argument("--depth", type=tokens, default=0, metavar="TOKENS", help="context in use (default 0)")
    p.add_argument("--context", type=tokens, metavar="TOKENS", help="try this much context instead, last of all")
    p.add_argument("--file", action="append", default=[], metavar="FILE", help="try this file instead; repeatable")
    p.add_argument("--repeats", type=positive, default=3, help="runs of each side of a step (default 3)")
    p.add_argument("--plot", metavar="PNG", help="the gains as a waterfall")
