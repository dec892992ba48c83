# SPDX-License-Identifier: Apache-2.0
"""Records what llama.cpp's own programs say, for tests/test_llamacpp_programs.py.

- `llama-perplexity --kl-divergence` on SmolLM2 in F32 (the reference), and Q4_K_M and Q8_0 made from it by rooflm: once
  with their values written as F32, so that only the weights differ, once as the files are, where llama.cpp rounds
  activations to 8 bits as well.
- `llama-imatrix` on SmolLM2 in F16: the figures of --show-statistics; on two tiny models: whole files, in both forms.

How the programs are built: CONTRIBUTING.md. Files of 2 GB come and go in the scratch directory:
    python tests/oracle/llamacpp_programs.py DIRECTORY_OF_PROGRAMS SMOLLM2.gguf TEXT SCRATCH_DIRECTORY
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import rooflm

GOLDEN = Path(__file__).parents[1] / "golden"
CTX, WINDOWS, IMATRIX_WINDOWS, TINY_CTX = 512, 4, 2, 128
RECIPES = ("Q4_K_M", "Q8_0")
TINY = ("llama", "llama-moe")
TINY_TEXT = "The limit of decoding is the memory: every token reads every weight once, and nothing else counts. " * 12
# Caches in F32 and no fused attention: what is left of the arithmetic is float32.
EXACT = ["-t", "2", "-ctk", "f32", "-ctv", "f32", "-fa", "off"]

# What a line of the program begins with: our name for it, and what it is divided by.
LINES = {
    "Mean PPL(Q) ": ("ppl", 1), "Mean PPL(base) ": ("ppl_ref", 1), "Mean PPL(Q)/PPL(base) ": ("ppl_ratio", 1),
    "Mean    KLD": ("kl_mean", 1), "Maximum KLD": ("kl_max", 1), "99.9%   KLD": ("kl_p99_9", 1),
    "99.0%   KLD": ("kl_p99", 1), "95.0%   KLD": ("kl_p95", 1), "90.0%   KLD": ("kl_p90", 1),
    "Median  KLD": ("kl_median", 1), "10.0%   KLD": ("kl_p10", 1), " 5.0%   KLD": ("kl_p5", 1),
    " 1.0%   KLD": ("kl_p1", 1), "Mean    \u0394p": ("dp_mean", 100), "99.0%   \u0394p": ("dp_p99", 100),
    "95.0%   \u0394p": ("dp_p95", 100), "75.0%   \u0394p": ("dp_p75", 100), "Median  \u0394p": ("dp_p50", 100),
    "25.0%   \u0394p": ("dp_p25", 100), " 5.0%   \u0394p": ("dp_p5", 100), " 1.0%   \u0394p": ("dp_p1", 100),
    "RMS \u0394p": ("dp_rms", 100), "Same top p": ("top1", 100),
}  # fmt: skip


def parsed(log: str) -> dict[str, float]:
    """Figures of --kl-divergence by the names of rooflm.compare's record."""
    out = {}
    for line in log.splitlines():
        for start, (name, unit) in LINES.items():
            if line.startswith(start):
                found = re.search(r":\s*(-?[\d.]+)", line)
                assert found is not None, line
                out[name] = round(float(found.group(1)) / unit, 9)
    assert set(out) == {name for name, _ in LINES.values()}
    return out


def statistics(log: str) -> dict[str, list[float]]:
    """{tensor: [sum of mean squares, largest, entropy as a share, cosine with the layer before]}"""
    row = re.compile(r"(\d+)\t\s*(\w+)\s*\t" + r"\s*([\d.]+)%?\s*\t" * 10 + r"\s*([\d.]+)")
    out = {}
    for line in log.splitlines():
        m = row.search(line)
        if m:
            v = [float(x) for x in m.groups()[2:]]
            out[f"blk.{m.group(1)}.{m.group(2)}.weight"] = [v[0], v[2], round(v[8] / 100, 6), v[10]]
    return out


def blocks_hash(path: Path) -> str:
    """Of all blocks of a file, in the order of the names."""
    h = hashlib.sha256()
    with rooflm.GGUF(path) as g:
        for name in sorted(g.tensors):
            h.update(g.tensors[name].raw)
    return h.hexdigest()[:16]


def run(program: Path, *args: Any, cwd: Path | None = None) -> str:
    done = subprocess.run([str(program), *map(str, args)], capture_output=True, check=True, cwd=cwd)
    return (done.stdout + done.stderr).decode()


def divergences(programs: Path, smollm2: str, text: str, scratch: Path) -> dict[str, Any]:
    reference, logits = scratch / "f32.gguf", scratch / "logits"
    rooflm.quantize(smollm2, reference, "F32")
    common = ["-f", text, "-c", CTX, "-b", CTX, "--chunks", WINDOWS, *EXACT, "--kl-divergence-base", logits]
    log = run(programs / "llama-perplexity", "-m", reference, *common)
    out: dict[str, Any] = {"made_by": build_of(log), "ctx": CTX, "windows": WINDOWS}
    for recipe in RECIPES:
        file, same = scratch / f"{recipe}.gguf", scratch / "same.gguf"
        rooflm.quantize(reference, file, recipe)
        rooflm.quantize(file, same, "F32")
        weights, whole = (
            parsed(run(programs / "llama-perplexity", "-m", path, *common, "--kl-divergence")) for path in (same, file)
        )
        out[recipe] = {"blocks": blocks_hash(file), "weights": weights, "file": whole}
    return out


def build_of(log: str) -> str:
    found = re.search(r"build\D+(\d+) \((\w+)\)|commit (\w+)", log)
    return "llama.cpp " + (found.group(0) if found else "of an unknown build")


def imatrices(programs: Path, smollm2: str, text: str, scratch: Path) -> dict[str, Any]:
    program, source, kept = programs / "llama-imatrix", scratch / "f16.gguf", scratch / "i.gguf"
    rooflm.quantize(smollm2, source, "F16")
    own = ["--no-ppl", *EXACT]
    run(program, "-m", source, "-f", text, "-c", CTX, "-b", CTX, "--chunks", IMATRIX_WINDOWS, *own, "-o", kept)
    wanted, found = len(rooflm.IMatrix.load(kept).entries), {}
    for _ in range(50):  # its log ends when the program ends, written or not
        found.update(statistics(run(program, "-m", source, "--in-file", kept, "--show-statistics")))
        if len(found) == wanted:
            break
    assert len(found) == wanted
    return {"ctx": CTX, "windows": IMATRIX_WINDOWS, "tensors": dict(sorted(found.items()))}


def tiny_imatrices(programs: Path, scratch: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from golden_files import golden

    text = scratch / "t.txt"
    text.write_text(TINY_TEXT)
    for name in TINY:
        model = golden(name).path
        for form in ("gguf", "dat"):
            out = scratch / f"{name}.{form}"
            arguments = ["-m", model, "-f", text.name, "-c", TINY_CTX, "-b", TINY_CTX, *EXACT, "--no-ppl"]
            arguments += ["--process-output", "--output-format", form, "-o", out.name]
            run(programs / "llama-imatrix", *arguments, cwd=scratch)
            (GOLDEN / "imatrix" / f"{name}.{form}.xz").write_bytes(lzma.compress(out.read_bytes()))


def main() -> None:
    programs, smollm2, text, scratch = Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
    tiny_imatrices(programs, scratch)
    statistics = imatrices(programs, smollm2, text, scratch)
    (GOLDEN / "real" / "smollm2_imatrix.json").write_text(dense(statistics))
    found = divergences(programs, smollm2, text, scratch)
    (GOLDEN / "real" / "smollm2_programs.json").write_text(json.dumps(found, indent=1) + "\n")


def dense(record: dict[str, Any]) -> str:
    """One line of JSON for each tensor."""
    rows = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in record["tensors"].items())
    head = json.dumps({k: v for k, v in record.items() if k != "tensors"})
    return f'{head[:-1]}, "tensors": {{\n{rows}\n}}}}\n'


if __name__ == "__main__":
    main()
