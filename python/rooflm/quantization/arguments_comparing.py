# SPDX-License-Identifier: Apache-2.0
"""Arguments of the commands that compare and explain."""

from __future__ import annotations

import argparse
from typing import Callable

from rooflm._arguments import COMPUTE, MODEL_HELP, listed, natural, plot_argument, positive, session_arguments

WHERE = "quantization.commands"


def add_comparing(command: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    p = command("compare", WHERE, "perplexity, KL and agreement of models with a reference, on one text")
    p.add_argument("reference", metavar="REF", help=f"what is right: {MODEL_HELP}")
    p.add_argument("models", nargs="+", metavar="MODEL", help="what is judged; the reference itself under a sweep")
    _text(p)
    p.add_argument("--compute", default="int16", help="int16 (default), f32, int8 or auto; a,b,c sweeps")
    p.add_argument("--kv", default="f32", help="f32 (default), f16, q8_0, or K/V apart as q8_0/f16; a,b,c sweeps")
    p.add_argument("--ref-compute", choices=COMPUTE, help="of the reference alone; default as --compute")
    p.add_argument("--ref-kv", help="of the reference alone; default as --kv")
    p.add_argument("--window", type=positive, help="of the models: attend to no more than so many tokens")
    p.add_argument("--evict", metavar="S+R", help="of the models: keep the first S and latest R tokens, such as 64+448")
    p.add_argument("--rope-base", type=float, help="of the models: another base for RoPE")
    _threads(p)
    plot_argument(p, "KL by position, or of each model")

    p = command("kv-loss", WHERE, "what smaller KV caches cost and save: types, eviction, compressed pages")
    p.add_argument("model", help=MODEL_HELP)
    p.set_defaults(function="kv_loss")
    _text(p, ctx=2048)
    p.add_argument("--full", default="f16", metavar="TYPE", help="type of the full cache (default f16)")
    p.add_argument("--kv", type=listed(str), default=[], metavar="T,T", help="types, such as q8_0,q8_0/f16")
    p.add_argument("--evict", type=listed(str), default=[], metavar="S+R,...", help="keep the first S, latest R tokens")
    p.add_argument("--rank", type=listed(str), default=[], metavar="R,...", help="of old pages, K/V as in 48/32")
    p.add_argument("--recent", type=natural, default=256, help="tokens that --rank leaves whole (default 256)")
    p.add_argument("--compute", choices=COMPUTE, default="int16", help="default int16")
    p.add_argument("--repeats", type=positive, default=5, help="turns of 16 timed tokens (default 5)")
    _threads(p)
    plot_argument(p, "KL over bytes")

    p = command("diff", WHERE, "what differs between two files: metadata, types, and the values of each tensor")
    p.add_argument("a", metavar="A", help=MODEL_HELP)
    p.add_argument("b", metavar="B", help="the file whose errors against A are shown")
    p.add_argument("--types", action="store_true", help="types and bytes alone, which reads less")

    p = command("budget", WHERE, "splits the loss of a file and setting: weights, activations, KV cache, window")
    p.add_argument("model", help=MODEL_HELP)
    p.add_argument("--reference", help="the file it was made from; default: its own weights count as right")
    _text(p)
    p.add_argument("--by-operation", action="store_true", help="activations by operation, K, V and query apart")
    p.add_argument("--window", type=positive, help="attend to no more than so many tokens")
    session_arguments(p, "auto", "f16")
    plot_argument(p, "the sources")

    p = command("sensitivity", WHERE, "KL of swapping one tensor's type, by kind and by tensor")
    p.add_argument("model", help=MODEL_HELP)
    p.add_argument("--text", required=True, metavar="FILE", help="UTF-8 text")
    p.add_argument("--types", metavar="A,B", help="types to swap to, such as Q4_K,Q2_K")
    p.add_argument(
        "--reference", help="the file it was made from: without --types, its tensors are swapped in as they are"
    )
    p.add_argument(
        "--tensors", default="*", metavar="PATTERNS", help="names, such as blk.0.*,output.weight (default *)"
    )
    p.add_argument("--kinds", action="store_true", help="whole kinds alone (q, k, v, o, gate, up, down, ...)")
    p.add_argument("--ctx", type=positive, default=256, help="tokens per window (default 256)")
    p.add_argument("--windows", type=positive, default=4, help="how many windows from the start (default 4)")
    p.add_argument("--budget", type=float, metavar="SECONDS", help="begin no swap after so many seconds")
    p.add_argument("--imatrix", metavar="FILE", help="importance of columns for --types, see rooflm imatrix")
    p.add_argument("--out", metavar="FILE", help="the record of --json, written after every swap")
    p.add_argument("--resume", metavar="FILE", help="go on from an earlier record; may be the file of --out")
    _threads(p)
    plot_argument(p, "KL by layer and kind")

    p = command("evaluate", WHERE, "the same tasks on several models: choices by likelihood, texts side by side")
    p.add_argument("models", nargs="+", metavar="MODEL", help="the first is the reference")
    p.add_argument(
        "--items", metavar="FILE", help="JSONL with prompt, and choices and answer; default: the bundled set"
    )
    p.add_argument("--domains", metavar="A,B", help="only these, such as arithmetic,code,facts,format")
    p.add_argument("--limit", type=positive, help="at most so many items of each domain")
    p.add_argument("-n", type=positive, default=64, metavar="TOKENS", help="most tokens of a text (default 64)")
    p.add_argument("--chat", action="store_true", help="through the chat template")
    session_arguments(p, "auto", "f16")

    p = command("layers", WHERE, "errors of B against A by layer and operation, where born and how grown")
    p.add_argument("a", metavar="A", help=f"on the exact path: {MODEL_HELP}")
    p.add_argument("b", metavar="B", help="the same file with other settings, or another one")
    p.add_argument("--text", required=True, metavar="FILE", help="UTF-8 text")
    p.add_argument("--tokens", type=positive, default=128, help="how many from its beginning (default 128)")
    p.add_argument("--no-isolate", action="store_true", help="without changing each layer alone")
    session_arguments(p, "f32", "f32")
    plot_argument(p, "errors by layer")


def _text(p: argparse.ArgumentParser, windows: str = "all", ctx: int = 512) -> None:
    p.add_argument("--text", required=True, metavar="FILE", help="UTF-8 text")
    p.add_argument("--ctx", type=positive, default=ctx, help=f"tokens per window (default {ctx})")
    p.add_argument("--windows", type=positive, help=f"how many windows from the start (default {windows})")


def _threads(p: argparse.ArgumentParser) -> None:
    p.add_argument("--threads", type=positive, help="default: the free big cores of this machine")
