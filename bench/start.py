# SPDX-License-Identifier: Apache-2.0
"""What comes before the first token: import with the extension, opening files, cutting text into tokens.

    python bench/start.py [--json FILE]        fetches both models

Best of several rounds, since everything else is what the neighbours did. Goals: import 150 ms, a file opened
in 20 ms, an English line of 128 bytes cut in 10 us, and growth in proportion on a text that is one word.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import rooflm

LINE = (
    "The memory of a computer is read more often than it is written, "
    "so that caches keep what was read last and drop the rest, as we "
)  # 128 bytes
WORD = 4_000  # bytes of the shorter one-word text; the longer has 256 times as many


def best(f, rounds: int = 7) -> float:
    times = []
    for _ in range(rounds):
        t0 = time.perf_counter()
        f()
        times.append(time.perf_counter() - t0)
    return min(times)


def import_s() -> float:
    code = "import time; t = time.process_time(); import rooflm; rooflm.GGUF; print(time.process_time() - t)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(7))


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", metavar="FILE")
    args = p.parse_args()
    load = os.getloadavg()[0]
    path, gemma = rooflm.fetch("smollm2"), rooflm.fetch("gemma3-270m")
    tok = rooflm.Tokenizer.from_gguf(path)
    text = LINE * 500
    short, long = best(lambda: tok.encode("a" * WORD)), best(lambda: tok.encode("a" * (256 * WORD)), 3)
    rows = [
        ("import and first use, CPU time", import_s(), 0.150, "s"),
        ("open SmolLM2", best(lambda: rooflm.GGUF(path)), 0.020, "s"),
        ("open Gemma 3, 262144 tokens", best(lambda: rooflm.GGUF(gemma)), 0.020, "s"),
        ("tokens of a 128-byte line", best(lambda: tok.encode(text)) / 500, 10e-6, "s"),
        ("256 times as long a word takes", long / short, 1500.0, "times as long"),
    ]
    print(f"load average {load:.2f} before")
    for name, value, goal, unit in rows:
        print(f"{name:32}{value:12.6f} {unit:14} goal {goal:g}: {'reached' if value <= goal else 'MISSED'}")
    if args.json:
        fields = ("name", "value", "goal", "unit")
        record = {"schema": 1, "load_before": load, "rows": [dict(zip(fields, row)) for row in rows]}
        Path(args.json).write_text(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
