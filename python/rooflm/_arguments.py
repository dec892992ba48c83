# SPDX-License-Identifier: Apache-2.0
"""Arguments that several commands share, and the checks of their values."""

from __future__ import annotations

import argparse
from typing import Any, Callable, TypeVar

MODEL_HELP = "path of a GGUF file, or a name that fetch knows (smollm2, gemma3-270m, ...)"
COMPUTE = ("auto", "int8", "int16", "f32")


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


for _check, _name in ((positive, "positive integer"), (natural, "integer")):
    _check.__name__ = _name  # argparse shows it: "invalid positive integer value"


def tokens(text: str) -> int:
    """A count of tokens: 4096, or 4k for 4096."""
    scale = 1024 if text[-1:].lower() == "k" else 1
    return natural(text[:-1] if scale > 1 else text) * scale


tokens.__name__ = "number of tokens"

T = TypeVar("T")


def listed(kind: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Comma-separated values, each of kind."""

    def parse(text: str) -> list[T]:
        return [kind(part) for part in text.split(",")]

    parse.__name__ = f"list of {kind.__name__}"
    return parse


def single(values: Any) -> Any:
    """The value of a list of one, so that it does not count as a sweep."""
    return values[0] if isinstance(values, list) and len(values) == 1 else values


def session_arguments(p: argparse.ArgumentParser, compute: str, kv: str) -> None:
    p.add_argument("--threads", type=positive, help="default: the free big cores of this machine")
    p.add_argument("--kv", default=kv, help=f"f32, f16, q8_0, or K/V apart as q8_0/f16 (default {kv})")
    p.add_argument("--compute", choices=COMPUTE, default=compute, help=f"default {compute}")


def generation_arguments(p: argparse.ArgumentParser, n: int) -> None:
    p.add_argument("-n", type=natural, default=n, metavar="TOKENS", help=f"most tokens to generate (default {n})")
    p.add_argument("--ctx", type=positive, help="positions of the session (default the model's own, at most 4096)")
    p.add_argument(
        "--evict", metavar="S+R", help="no end of context: keep the first S and the latest R positions, such as 64+960"
    )
    p.add_argument("--temp", type=float, default=0.0, help="temperature; 0, the default, takes the likeliest token")
    p.add_argument("--top-k", type=natural, help="keep the k likeliest tokens (default 40, 0 for all)")
    p.add_argument("--top-p", type=float, help="keep the likeliest up to this probability (default 0.95)")
    p.add_argument("--min-p", type=float, help="drop tokens below this share of the likeliest one (default 0.05)")
    p.add_argument("--repeat-penalty", type=float, help="above 1 makes repeating less likely")
    p.add_argument("--seed", type=natural, help="the same seed gives the same text; default: drawn, --json shows it")
    p.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end at this text; may be repeated")
    p.add_argument("--draft", metavar="MODEL", help="guess tokens, checked in one pass: lookup (what followed the same "
                   "words before) or a smaller model of the same vocabulary")  # fmt: skip
    p.add_argument("--n-draft", type=positive, default=4, help="most tokens proposed at once (default 4)")
    p.add_argument("--overlap", choices=("auto", "on", "off"), default="auto",
                   help="run the next step beside the output; auto, the default: where that takes long")  # fmt: skip
    p.add_argument("--cpus", help='pin the workers, such as "0-3,6"')
    p.add_argument("--kernel", help="kernel to use, see rooflm kernels")
    p.add_argument("--stats", action="store_true", help="a closing line with the speeds on standard error")
    p.add_argument("--trace", metavar="FILE", help="write operations and stages for ui.perfetto.dev")


def plot_argument(p: argparse.ArgumentParser, what: str) -> None:
    p.add_argument("--plot", metavar="FILE", help=f"draw {what} (png, svg, pdf)")


def text_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument("-p", "--prompt", metavar="TEXT", help="the text itself")
    p.add_argument("--file", metavar="FILE", help="a UTF-8 file with the text; - is standard input")
