# SPDX-License-Identifier: Apache-2.0
"""Mixes of types by every rule against Q4_K_M at equal bytes, judged on text that the mixes have not seen.

    python bench/mixed_precision.py MODEL TEXT SCRATCH_DIRECTORY [--norms norms.json] [--windows 20] [--bits 4.5]

The first half of TEXT gives importance and sensitivities, the second half the verdict. The reference is MODEL in F16. A
quantized MODEL holds values that its own types give back without any error, which says nothing about other models: so
the values of the reference are first spread evenly over the steps they were once rounded to (--as-is leaves them).
--budget is of this run: another one goes on with the sensitivities that are left, --budget 0 takes what is there.

--norms is what tools/gradient_norms.py wrote for SCRATCH_DIRECTORY/reference.gguf; that file is made first and kept, as
are importance and sensitivities. Prints sizes, KL with 95 % intervals, and differences to Q4_K_M paired by window.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Optional

import numpy as np

import rooflm
from rooflm._gguf_write import Writer
from rooflm._output import plain, table
from rooflm.quantization import recipes

COLUMNS = ("file", "MB", "bits", "off target", "KL expected", "KL", "95 %", "less Q4_K_M", "95 % of that")
BLOCK = 16  # values that have a scale in common in every type
ROWS = 1 << 14


def spread(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The values with noise that is even over the step between them: the least difference of two in a block."""
    blocks = x.reshape(-1, BLOCK)
    gaps = np.diff(np.sort(blocks))
    step = np.where(gaps > 0, gaps, np.inf).min(axis=1, keepdims=True)
    noise = rng.random(blocks.shape, np.float32) - np.float32(0.5)
    return (blocks + noise * np.where(np.isfinite(step), step, 0)).reshape(x.shape)


def write_reference(model: str, path: Path, as_is: bool) -> None:
    rng = np.random.default_rng(0)
    with rooflm.GGUF(model) as g, Writer(path) as w:
        w.copy_keys(g)
        w.key("general.file_type", "u32", recipes.NAMED["F16"][1])
        matrices = {n for n, t in g.tensors.items() if recipes.is_quantized_here(n, t.shape)}
        for name, t in g.tensors.items():
            w.declare(name, "F16" if name in matrices else t.type, t.shape)
        for name, t in g.tensors.items():
            if name not in matrices:
                w.write(t.raw)
                continue
            for first in range(0, t.shape[0], ROWS):
                x = t.dequantize(rows=slice(first, first + ROWS))
                if not as_is and t.type not in ("F32", "F16", "BF16"):
                    x = spread(x, rng)
                w.write(x.astype(np.float16))


def swaps(reference: Path, seen: str, kept: Path, importance: Any, budget_s: float, threads: Optional[int]) -> Any:
    """rooflm.sensitivity, going on from what an earlier run kept."""
    s = rooflm.sensitivity(
        reference, seen, types=["Q4_0"], ctx=256, windows=3, imatrix=importance, budget_s=budget_s,
        resume=kept if kept.exists() else None, out=kept, n_threads=threads, progress=True,
    )  # fmt: skip
    print(f"{len(s.rows)} swaps in {s.head['seconds']:.0f} s, {len(s.not_measured)} left out")
    return s


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("text", type=Path)
    p.add_argument("scratch", type=Path)
    p.add_argument("--norms", type=Path, help="JSON of tools/gradient_norms.py")
    p.add_argument("--types", help="to choose from, such as Q8_0,Q4_K")
    p.add_argument("--bits", type=float, help="a mix by sensitivity for so many bits per weight, too")
    p.add_argument("--budget", type=float, default=600, metavar="SECONDS", help="for sensitivities (default 600)")
    p.add_argument("--threads", type=int)
    p.add_argument("--windows", type=int, default=20)
    p.add_argument("--ctx", type=int, default=512)
    p.add_argument("--as-is", action="store_true", help="do not spread the values of a quantized model")
    p.add_argument("--reference-only", action="store_true")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    text = args.text.read_text(encoding="utf-8")
    seen, held_out = text[: len(text) // 2], text[len(text) // 2 :]
    args.scratch.mkdir(parents=True, exist_ok=True)
    reference, collected = args.scratch / "reference.gguf", args.scratch / "imatrix.gguf"
    if not reference.exists():
        write_reference(args.model, reference, args.as_is)
    if args.reference_only:
        return
    if not collected.exists():
        rooflm.imatrix(reference, seen, chunks=16, n_threads=args.threads, progress=True).save(collected)
    importance = rooflm.IMatrix.load(collected)
    kept = args.scratch / "sensitivity.json"
    rules: dict[str, Any] = {
        "sensitivity": swaps(reference, seen, kept, importance, args.budget, args.threads),
        "importance": None,
    }
    if args.norms:
        rules["gradient norm"] = json.loads(args.norms.read_text(encoding="utf-8"))

    made: dict[str, Any] = {}
    usual = rooflm.quantize(reference, args.scratch / "q4_k_m.gguf", "Q4_K_M", imatrix=importance)
    made["Q4_K_M"] = (usual, None, None)
    wanted: list[tuple[str, str, float]] = [(rule, "size_bytes", usual.nbytes) for rule in rules]
    if args.bits:
        wanted.append(("sensitivity", "bits", args.bits))
    types: Optional[list[str]] = args.types.split(",") if args.types else None
    for rule, target, value in wanted:
        options: dict[str, Any] = {target: value, "by": rules[rule], "types": types, "imatrix": importance}
        m = rooflm.mix(reference, **options)
        name = f"{rule}, {'its size' if target == 'size_bytes' else f'{value:g} bits'}"
        q = rooflm.quantize(reference, args.scratch / f"{name.replace(' ', '_')}.gguf", m, imatrix=importance)
        got = q.nbytes if target == "size_bytes" else q.bits_per_weight
        made[name] = (q, m, got / value - 1)
    models = [{"model": q.path, "name": name} for name, (q, _, _) in made.items()]
    shape: dict[str, Any] = {"ctx": args.ctx, "windows": args.windows, "n_threads": args.threads}
    c = rooflm.compare(reference, models, held_out, **shape, progress=True)
    rows = []
    for i, (name, (q, m, off)) in enumerate(made.items()):
        record, paired = c[i].to_dict(), c.paired(0, i)
        rows.append({
            "file": name, "nbytes": q.nbytes, "bits_per_weight": q.bits_per_weight, "off_target": off,
            "kl_expected": m.loss if m and m.by != "norms" else None,
            "kl_mean": record["kl_mean"], "kl_ci95": record["kl_ci95"], "ppl": record["ppl"],
            "kl_change": paired["kl_change"], "kl_change_ci95": paired["kl_change_ci95"], "types": q.types,
            "bits_by_kind": by_kind(q),
        })  # fmt: skip
        Path(q.path).unlink()
    if args.json:
        windows = {"ctx": args.ctx, "windows": args.windows, "ppl_ref": c[0].to_dict()["ppl_ref"]}
        print(json.dumps(plain({"model": Path(args.model).name, **windows, "rows": rows})))
        return
    print(f"{Path(args.model).name}: {args.windows} windows of {args.ctx} tokens of text not used for the mixes")
    print(table([shown(r) for r in rows], COLUMNS))
    for r in rows:
        print(f"{r['file']}: bits " + ", ".join(f"{k} {b:.2f}" for k, b in r["bits_by_kind"].items()))


def by_kind(q: rooflm.Quantized) -> dict[str, float]:
    """Bits per weight of each kind of matrix."""
    from rooflm.quantization.losses import kind_of

    sums: dict[str, list[float]] = {}
    for r in q.rows:
        if recipes.is_quantized_here(r["tensor"], tuple(r["shape"])):
            s = sums.setdefault(kind_of(r["tensor"]), [0.0, 0.0])
            s[0] += 8 * r["nbytes"]
            s[1] += float(np.prod(r["shape"]))
    return {k: bits / n for k, (bits, n) in sums.items()}


def shown(r: dict[str, Any]) -> dict[str, Any]:
    def interval(ci: list[float]) -> str:
        return f"[{ci[0]:.4f}, {ci[1]:.4f}]"

    first = r["off_target"] is None
    return {
        "file": r["file"], "MB": round(r["nbytes"] / 1e6, 1), "bits": round(r["bits_per_weight"], 3),
        "off target": None if first else f"{100 * r['off_target']:+.2f} %", "KL expected": r["kl_expected"],
        "KL": f"{r['kl_mean']:.4f}", "95 %": interval(r["kl_ci95"]),
        "less Q4_K_M": None if first else f"{r['kl_change']:+.4f}",
        "95 % of that": None if first else interval(r["kl_change_ci95"]),
    }  # fmt: skip


main()
