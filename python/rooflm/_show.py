# SPDX-License-Identifier: Apache-2.0
"""How the objects of the extension look in a notebook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rooflm._core import GGUF


def table(rows: Sequence[tuple[str, ...]], head: tuple[str, ...] | None = None) -> str:
    def line(cells: tuple[str, ...], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag} style='text-align:left'>{escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "".join(line(r, "td") for r in rows)
    return f"<table>{line(head, 'th') if head else ''}{body}</table>"


def gguf_html(g: GGUF) -> str:
    if g.closed:
        return f"<p>{escape(repr(g))}</p>"
    types: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    for t in g.tensors.values():
        n = 1
        for d in t.shape:
            n *= d
        types[t.type] += 1
        elements[t.type] += n
    rows = [
        ("architecture", str(g.architecture)),
        ("name", str(g.metadata.get("general.name", ""))),
        ("version", str(g.version)),
        ("size", f"{g.nbytes / 1e6:.1f} MB in {len(g.shards)} file(s), {'mapped' if g.mapped else 'copied'}"),
        ("tensors", str(len(g.tensors))),
        *((f"  {name}", f"{count} tensors, {elements[name]:,} weights") for name, count in types.most_common()),
    ]
    return f"<b>rooflm.GGUF</b> {escape(str(g.path))}" + table(rows)
