# SPDX-License-Identifier: Apache-2.0
"""Decode with a draft against decode without: what guesses that are checked in one pass gain, by turns.

The task is to write a text once more, from its first words: what summaries, corrections and code do in part. A draft
of another kind: --draft MODEL, a smaller model of the same vocabulary.

    python bench/drafting.py smollm2.gguf --text topics.txt --threads 2 --n-draft 2,4,7 --repeats 5
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import rooflm


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--text", required=True, help="a UTF-8 file whose first 1,500 characters are the text")
    p.add_argument("--draft", help="a GGUF file; default: what followed the same tokens before (PromptLookup)")
    p.add_argument("--threads", type=int)
    p.add_argument("--n-draft", default="2,4,7")
    p.add_argument("--gen", type=int, default=128)
    p.add_argument("--repeats", type=int, default=5)
    a = p.parse_args()
    text = Path(a.text).read_text(encoding="utf-8")[:1500]
    prompt = f"The text:\n{text}\n\nThe same text once more:\n{text[:200]}"
    options = {"compute": "int8", "n_threads": a.threads, "n_ctx": 2048}
    small = rooflm.Model(a.draft).session(**options) if a.draft else None
    counts = [0, *map(int, a.n_draft.split(","))]
    rates: dict[int, list[float]] = {n: [] for n in counts}
    last: dict[int, rooflm.Generation] = {}
    with rooflm.Model(a.model).session(**options) as session:
        for _ in range(a.repeats + 1):  # the first is a warm-up
            for n in counts:
                session.rewind(0)
                draft = None if not n else rooflm.DraftModel(small) if small else rooflm.PromptLookup()
                last[n] = session.generate(prompt, max_tokens=a.gen, draft=draft, n_draft=n).run()
                rates[n].append(last[n].decode_tps or 0.0)
    plain = statistics.median(rates[0][1:])
    for n in counts:
        g, median = last[n], statistics.median(rates[n][1:])
        passes = f"{g.tokens_per_pass or 0:5.2f} tokens a pass"
        same = "" if g.ids == last[0].ids else "   ANOTHER TEXT"
        print(
            f"n_draft {n:2d} {median:8.1f} tok/s   {median / plain:5.2f} x   {passes}   "
            f"{g.n_accepted} of {g.n_proposed} accepted{same}"
        )


if __name__ == "__main__":
    main()
