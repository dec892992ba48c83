# SPDX-License-Identifier: Apache-2.0
"""Speed of the AArch64 kernels by analysis: nothing is timed, so no ARM machine is needed.

    python bench/arm_mca.py                              rows kernels, one token: the table of docs/performance.md
    python bench/arm_mca.py --part tile,attention
    python bench/arm_mca.py --cpu cortex-a76 --type Q4_K,Q8_0 --llamacpp llama.cpp --json out.json

Each kernel file is compiled with the flags of its tier and with marks in its loops (kernels/arm/loop.h); the innermost
loop around a mark goes to llvm-mca, which computes the cycles of one round from a model of the core. Data is taken to
lie in the first-level cache, so GB/s is what a core could take if memory delivered it: what memory must deliver before
the kernel is the slower part. The models are LLVM's. It describes A76 and A78 as A57; neoverse-n1, a sister of the A76,
has a model of its own from LLVM 17 on.

--llamacpp: a directory with llama.cpp's sources (the sdist of llama-cpp-python has them in vendor/llama.cpp). The loops
of its dot products for ARM, found by their multiplications, are compiled and counted in the same way.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from asm_loops import Loop, dot_loop, functions, marked_loop

ROOT = Path(__file__).resolve().parents[1]

# Usual clock in GHz and best tier. A53: Raspberry Pi 3; A72: Pi 4; A76: Pi 5; N1: Graviton 2; N2: Cobalt 100.
CPUS = {
    "cortex-a53": (1.4, "neon"),
    "cortex-a55": (1.8, "dotprod"),
    "cortex-a72": (1.8, "neon"),
    "cortex-a76": (2.4, "dotprod"),
    "cortex-a78": (2.4, "dotprod"),
    "neoverse-n1": (2.5, "dotprod"),
    "neoverse-n2": (3.4, "i8mm"),
}
MEMORIES = (10, 17, 34)  # GB/s: a board with LPDDR4, a Pi 5 or a phone with LPDDR4X, a phone with LPDDR5
BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
TYPES = [*BLOCK_BYTES, "F16"]
ACTS = {"int8": "q8", "int16": "q16"}
LAYOUTS = ("u8b128_g32", "u5_g32_min", "u6b32_g16", "u5_g16_min")


@dataclass
class Record:
    cpu: str
    clock_ghz: float
    kernel: str
    type: str
    act: str
    tokens: int
    cycles: float  # of one round of the loop
    bytes: int  # of weights (or of the cache) of one round
    macs_per_cycle: float | None  # tiles
    cycles_per_byte: float
    gbs: float  # one core at its usual clock
    saturates: dict[int, bool]  # GB/s of memory: four cores can take all of it
    llamacpp_gbs: float | None = None


class Toolbox:
    """A compiler for AArch64 and llvm-mca."""

    def __init__(self, cc: str, mca: str | None):
        self.cc = shlex.split(cc)
        self.mca = mca or newest_mca()
        self.tiers = {
            m[1]: m[2].split()
            for m in re.finditer(r'RL_TIER\((\w+), arm,\s*"([^"]*)"', (ROOT / "kernels" / "tiers.h").read_text())
        }

    @cache  # noqa: B019 - one toolbox for the whole run
    def functions(self, source: Path, tier: str, flags: tuple[str, ...]) -> dict[str, list[str]]:
        """The assembly of one file, optimised as setup.py does."""
        base = ["-std=gnu11", "-O3", "-DNDEBUG", "-ffp-contract=off", "-fno-strict-aliasing", "-w"]
        with tempfile.TemporaryDirectory() as d:
            out = Path(d) / "out.s"
            cmd = [*self.cc, *base, *self.tiers[tier], *flags, "-S", "-o", str(out), str(source)]
            subprocess.run(cmd, check=True)
            return functions(out.read_text())

    def own(self, source: str, tier: str, name: str, tokens: int) -> Loop:
        flags = ("-DRL_MARK_LOOPS", f"-I{ROOT}", f"-I{ROOT}/csrc")
        found = self.functions(ROOT / "kernels" / "arm" / source, tier, flags)
        try:
            return marked_loop(found[name], tokens)
        except (KeyError, ValueError) as e:
            raise SystemExit(f"{source}: {name}: {e}") from None

    def cycles(self, cpu: str, loop: Loop) -> float:
        """Cycles of one round in the steady state: what 40 more rounds cost."""

        def total(n: int) -> int:
            cmd = [self.mca, "-mtriple=aarch64", f"-mcpu={cpu}", "-mattr=+dotprod,+i8mm"]
            cmd += [f"-iterations={n}", "-json", "-"]
            run = subprocess.run(cmd, input="\n".join(loop.instructions) + "\n", capture_output=True, text=True)
            if run.returncode:
                raise SystemExit(f"{shlex.join(cmd)}: {run.stderr}")
            return json.loads(run.stdout)["CodeRegions"][0]["SummaryView"]["TotalCycles"]

        return (total(60) - total(20)) / 40


def newest_mca() -> str:
    """Newer versions describe more cores."""
    names = [f"llvm-mca-{v}" for v in range(40, 13, -1)] + ["llvm-mca"]
    path = next((p for p in map(shutil.which, names) if p), None)
    if not path:
        raise SystemExit("llvm-mca not found: install LLVM (Debian: apt install llvm-19, or llvm) or give --mca PATH")
    return path


def record(tools: Toolbox, cpu: str, name: str, kind: str, act: str, loop: Loop, macs: float | None = None) -> Record:
    clock = CPUS[cpu][0]
    n = tools.cycles(cpu, loop)
    gbs = loop.bytes / n * clock
    return Record(
        cpu=cpu,
        clock_ghz=clock,
        kernel=name,
        type=kind,
        act=act,
        tokens=loop.tokens,
        cycles=n,
        bytes=loop.bytes,
        macs_per_cycle=macs / n if macs else None,
        cycles_per_byte=n / loop.bytes,
        gbs=gbs,
        saturates={m: 4 * gbs >= m for m in MEMORIES},
    )


def rows(tools: Toolbox, args: argparse.Namespace) -> list[Record]:
    made = []
    for cpu in args.cpu:
        best = args.isa or CPUS[cpu][1]
        for kind in args.type:
            if kind == "F16":
                name = "rl_rows_f16_f32_neon"
                loop = tools.own("rows_f32_neon.c", "neon", name, args.tokens)
                made.append(record(tools, cpu, name, kind, "f32", loop))
                continue
            for act in args.act:
                tier = "dotprod" if best == "i8mm" and args.tokens == 1 else best  # smmla wants two tokens
                name = f"rl_rows_{kind.lower().replace('_k', 'k')}_{ACTS[act]}_{tier}"
                loop = tools.own(f"rows_{ACTS[act]}_{tier}.c", tier, name, args.tokens)
                made.append(record(tools, cpu, name, kind, act, loop))
                if args.llamacpp and act == "int8":
                    made[-1].llamacpp_gbs = llamacpp_gbs(tools, args.llamacpp, cpu, tier, kind)
    return made


def llamacpp_gbs(tools: Toolbox, directory: Path, cpu: str, tier: str, kind: str) -> float:
    ggml = directory / "ggml"
    flags = tuple(f"-I{ggml / d}" for d in ("include", "src", "src/ggml-cpu"))
    found = tools.functions(ggml / "src/ggml-cpu/arch/arm/quants.c", tier, flags)
    other = "K" if kind.endswith("_K") else kind[-1]
    loop, weights = dot_loop(found[f"ggml_vec_dot_{kind.replace('Q', 'q')}_q8_{other}"])
    size = weights * BLOCK_BYTES[kind] / (256 if other == "K" else 32)
    return size / tools.cycles(cpu, loop) * CPUS[cpu][0]


def tiles(tools: Toolbox, args: argparse.Namespace) -> list[Record]:
    """Six tokens; the mark counts the products of one round."""
    made = []
    for cpu in args.cpu:
        tier = args.isa or CPUS[cpu][1]
        for layout in LAYOUTS:
            for act in args.act:
                name = f"rl_tile_mul_{layout}_{ACTS[act]}_{tier}"
                loop = tools.own(f"tile_mul_{tier}.c", tier, name, 6)
                made.append(record(tools, cpu, name, layout, act, loop, macs=6 * loop.bytes))
    return made


def attention(tools: Toolbox, args: argparse.Namespace) -> list[Record]:
    """Three query rows of one KV head."""
    made = []
    for cpu in args.cpu:
        tier = "neon" if (args.isa or CPUS[cpu][1]) == "neon" else "dotprod"
        kinds = (("q8_0", "int16", tier, f"attn_q8_{tier}.c"), ("f16", "f32", "neon", "attn_float_neon.c"))
        for side in "kv":
            for kind, act, t, source in kinds:
                name = f"rl_attn_{side}_{kind}_tile_{t}"
                made.append(record(tools, cpu, name, f"{side} {kind}", act, tools.own(source, t, name, 3)))
    return made


def print_table(records: list[Record]) -> None:
    saturates = " ".join(f"{m:>4}" for m in MEMORIES)
    print(f"{'':<58}{'cycles':>8}{'GB/s of':>9}   four cores saturate, GB/s:")
    print(f"{'cpu':<12}{'GHz':>5}  {'kernel':<35}{'tok':>4}{'/byte':>8}{'one core':>9}   {saturates}   also")
    for r in records:
        also = [f"{r.macs_per_cycle:.1f} multiply-adds/cycle"] if r.macs_per_cycle else []
        also += [f"llama.cpp {r.llamacpp_gbs:.2f} GB/s"] if r.llamacpp_gbs else []
        takes = " ".join(f"{'yes' if r.saturates[m] else 'no':>4}" for m in MEMORIES)
        speed = f"{r.cycles_per_byte:>8.3f}{r.gbs:>9.2f}"
        print(f"{r.cpu:<12}{r.clock_ghz:>5.1f}  {r.kernel:<35}{r.tokens:>4}{speed}   {takes}   {', '.join(also)}")


PARTS = {"rows": rows, "tile": tiles, "attention": attention}


def listed(allowed) -> object:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for n in names:
            if n not in allowed:
                raise argparse.ArgumentTypeError(f"{n}: not one of {', '.join(allowed)}")
        return names

    return parse


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--part", type=listed(PARTS), default=["rows"], help="of rows, tile, attention (default: rows)")
    p.add_argument("--cpu", type=listed(CPUS), default=[c for c in CPUS if c != "neoverse-n2"], help=", ".join(CPUS))
    p.add_argument("--type", type=listed(TYPES), default=TYPES, help="weight types (default: all)")
    p.add_argument("--act", type=listed(ACTS), default=list(ACTS), help="int8,int16")
    p.add_argument("--isa", choices=["neon", "dotprod", "i8mm"], help="tier (default: the best of the core)")
    p.add_argument("--tokens", type=int, choices=[1, 2, 4], default=1, help="of rows kernels (default: 1)")
    p.add_argument("--cc", default="aarch64-linux-gnu-gcc", help='or "clang --target=aarch64-linux-gnu"')
    p.add_argument("--mca", help="llvm-mca to use (default: the newest on PATH)")
    p.add_argument("--llamacpp", type=Path, metavar="DIR", help="llama.cpp's sources, to count its loops too")
    p.add_argument("--json", type=Path, help="also write the records there")
    args = p.parse_args()
    tools = Toolbox(args.cc, args.mca)
    records = [r for part in args.part for r in PARTS[part](tools, args)]
    text = subprocess.run([tools.mca, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"LLVM version \S+", text)
    mca = version[0] if version else tools.mca
    print(f"# {args.cc}, {mca}")
    print_table(records)
    if args.json:
        record_of_all = {"schema": 1, "cc": args.cc, "mca": mca, "records": [asdict(r) for r in records]}
        args.json.write_text(json.dumps(record_of_all, indent=1))


if __name__ == "__main__":
    main()
