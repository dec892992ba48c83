# SPDX-License-Identifier: Apache-2.0
"""What the command line prints: JSON objects without NaN, and plain tables."""

from __future__ import annotations

import argparse
import html
import json
import math
from typing import Any, Mapping, Sequence

import numpy as np


def plain(value: Any) -> Any:
    """The value in JSON's own types: NumPy scalars and arrays converted, NaN and infinities as null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    return str(value)


def emit(record: Any) -> None:
    """One JSON object on a line of standard output."""
    print(json.dumps(plain(record), ensure_ascii=False, allow_nan=False), flush=True)


def answer(result: Any, args: argparse.Namespace) -> None:
    """What a command found: one JSON object with --json, else its text."""
    if args.json:
        emit(result)
    else:
        print(result)


def measured_before(interrupt: KeyboardInterrupt) -> Any:
    """What was measured before Ctrl-C; where nothing was, the interrupt goes on."""
    results = getattr(interrupt, "results", None)
    if not results:
        raise interrupt
    return results


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Columns as wide as their content; numbers to the right."""
    cells = [[show(r.get(c)) for c in columns] for r in rows]
    widths = [max(len(c), *(len(row[i]) for row in cells)) if cells else len(c) for i, c in enumerate(columns)]
    right = [all(isinstance(r.get(c), (int, float)) or r.get(c) is None for r in rows) for c in columns]

    def line(parts: Sequence[str]) -> str:
        padded = [p.rjust(w) if r else p.ljust(w) for p, w, r in zip(parts, widths, right)]
        return "  ".join(padded).rstrip()

    return "\n".join([line(columns), line(["-" * w for w in widths]), *(line(c) for c in cells)])


def html_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "".join(line([show(r.get(c)) for c in columns], "td") for r in rows)
    return f"<table>{line(list(columns), 'th')}{body}</table>"


def show(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(show(v) for v in value)}]"
    return str(value)


def show_layers(value: Any) -> str:
    """A value, or a list with one for each layer, which most often are all the same."""
    if not isinstance(value, list):
        return show(value)
    if len(value) > 1 and all(v == value[0] for v in value):
        return f"{show(value[0])} in all {len(value)} layers"
    return clip(show(value))


def clip(value: Any) -> str:
    """One line of at most 80 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def megabytes(n: float) -> str:
    return f"{n / 1e6:.1f} MB" if n < 1e9 else f"{n / 1e9:.2f} GB"
