# SPDX-License-Identifier: Apache-2.0
"""Whether a mix for a decode speed has that speed.

    python bench/mix_speed.py MODEL SCRATCH_DIRECTORY [--times 1.2] [--rounds 5]

MODEL is what is quantized, best in F16. The target is so many times the speed of its Q8_0 file, measured first; then
the files of the mix and Q8_0 take turns. Prints target, what the mix expects of itself, and the medians of both speeds;
the ratio to Q8_0 tells a wrong prediction from a machine whose bandwidth has moved.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import rooflm
from rooflm.quantization.mixing import token_seconds


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("scratch", type=Path)
    p.add_argument("--times", type=float, default=1.2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    args = p.parse_args()
    args.scratch.mkdir(parents=True, exist_ok=True)
    plain, mixed = args.scratch / "q8_0.gguf", args.scratch / "mixed.gguf"
    if not plain.exists():
        rooflm.quantize(args.model, plain, "Q8_0")
    q8 = rooflm.Model(plain)
    target = args.times / token_seconds(q8, args.threads)
    m = rooflm.mix(args.model, speed_tps=target, rows=8, threads=args.threads)
    rooflm.quantize(args.model, mixed, m)
    model = rooflm.Model(mixed)
    tps: dict[str, list[float]] = {"mix": [], "q8_0": []}
    for _ in range(args.rounds):
        for name, each in (("mix", model), ("q8_0", q8)):
            tps[name].append(1 / token_seconds(each, args.threads))
    got = {k: statistics.median(v) for k, v in tps.items()}
    print(json.dumps({
        "target_tps": target, "expected_tps": m.tps, "tps": got["mix"], "tps_q8_0": got["q8_0"],
        "off_target": got["mix"] / target - 1, "times_q8_0": got["mix"] / got["q8_0"], "times_wanted": args.times,
        "bits_per_weight": m.bits_per_weight, "samples": tps,
    }))  # fmt: skip
    mixed.unlink()


main()
