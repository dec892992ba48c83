# SPDX-License-Identifier: Apache-2.0
"""Arguments of quantize and imatrix."""

from __future__ import annotations

import argparse
from typing import Callable

from rooflm._arguments import COMPUTE, MODEL_HELP, plot_argument, positive


def size(text: str) -> int:
    """Bytes: 250000000, 250M or 2.5G (powers of 1000)."""
    scale = {"K": 10**3, "M": 10**6, "G": 10**9}.get(text[-1:].upper(), 1)
    value = float(text[:-1] if scale > 1 else text) * scale
    if not 1 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is no size of a file")
    return int(value)


size.__name__ = "size"


def add_quantizing(command: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    where = "quantization.quantizing_commands"
    p = command("quantize", where, "write a model in other types, by a recipe, patterns or a target")
    p.add_argument("src", help=MODEL_HELP)
    p.add_argument("dst", help="file to write; it appears when it is whole")
    p.add_argument("type", nargs="?", metavar="RECIPE", help="the same as --recipe, where llama-quantize has it")
    p.add_argument("--recipe", help="Q4_K_M (default), Q8_0, Q2_K, ...; a file of patterns as JSON")
    p.add_argument("--tensor", action="append", default=[], metavar="PATTERN=TYPE", help="overrides; may be repeated")
    p.add_argument("--imatrix", metavar="FILE", help="importance of columns, see rooflm imatrix")
    target = p.add_mutually_exclusive_group()
    target.add_argument("--size", type=size, metavar="BYTES", help="mix types for a file of this size (90M, 2.5G)")
    target.add_argument("--bits", type=float, help="mix types for so many bits per weight")
    target.add_argument("--speed", type=float, metavar="TPS", help="mix types for a decode speed in tokens/s")
    p.add_argument("--by", metavar="FILE", help="for a mix: JSON of rooflm sensitivity, or {pattern: norm}")
    p.add_argument("--strict", action="store_true", help="fail where a tensor cannot have the type asked for")
    p.add_argument("--split", type=size, metavar="BYTES", help="several files of at most this size (2G, 500M)")
    p.add_argument("--no-vocabulary", action="store_true", help="allow a source without a vocabulary")
    p.add_argument("--tensors", action="store_true", help="list every tensor")
    p.add_argument("--threads", type=positive, help="default: the free big cores of this machine")

    p = command("imatrix", where, "how large the inputs of every matrix are over a text, or statistics of such files")
    p.add_argument("model", help=MODEL_HELP)
    p.add_argument("--text", metavar="FILE", help="UTF-8 text to run through the model")
    p.add_argument("--out", metavar="FILE", help="file to write, in llama.cpp's GGUF form")
    p.add_argument("--add", action="append", default=[], metavar="FILE", help="add what is in this file")
    p.add_argument("--ctx", type=positive, default=512, help="tokens per window (default 512)")
    p.add_argument("--chunks", type=positive, help="how many windows from the start (default all)")
    p.add_argument("--compute", choices=COMPUTE, default="auto", help="default auto")
    p.add_argument("--threads", type=positive, help="default: the free big cores of this machine")

    p = command("formats", where, "the same weights in every type: error, bits and speed")
    p.add_argument("model", nargs="?", help=f"{MODEL_HELP}; without it, a distribution")
    p.add_argument("--tensor", metavar="NAME", help="tensor of the model (default: the first ffn_down)")
    p.add_argument("--distribution", default="normal", help="normal (default), laplace, uniform, skewed")
    p.add_argument("--cols", type=positive, default=4096, help="columns of the distribution (default 4096)")
    p.add_argument("--no-speed", action="store_true", help="errors only")
    p.add_argument("--weights", type=float, default=1e9, help="size of model that tokens/s are for (default 1e9)")
    p.add_argument("--threads", type=positive, help="default: the free big cores of this machine")
    plot_argument(p, "quality against bits and speed")
