# SPDX-License-Identifier: Apache-2.0
"""Finding hot loops in assembly, as bench/arm_mca.py does: on text, and on the real kernels where a compiler is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
from arm_mca import ACTS, LAYOUTS, Toolbox  # noqa: E402
from asm_loops import dot_loop, functions, innermost_loops, loop_of, marked_loop  # noqa: E402

GCC = "aarch64-linux-gnu-gcc"
TWO_LOOPS = """
one:
.L1:
\tadd\tx0, x0, 1
.L2:
\tldr\tq0, [x1], 16
// rl-loop 1 34
\tsdot\tv1.4s, v0.16b, v2.16b
\tcbz\tx3, .L4
\tsdot\tv1.4s, v0.16b, v3.16b
\tb.ne\t.L2
\tcmp\tx0, x2
\tbls\t.L1
.L3:
// rl-loop 4 34
// rl-loop 4 34
\tsmull\tv1.8h, v0.8b, v2.8b
\tsmlal2\tv1.8h, v0.16b, v2.16b
\tsmull\tv5.4s, v0.4h, v2.4h
\ttbnz\tw0, #3, .L3
.L4:
\tret
two:
\tb\t.L9
.L9:
\tret
"""


def test_loops_are_innermost_and_end_at_their_last_branch():
    found = functions(TWO_LOOPS)
    assert set(found) == {"one", "two"}
    first, second = innermost_loops(found["one"])
    assert [i.split()[0] for i in first.instructions] == ["ldr", "sdot", "cbz", "sdot", "b.ne"]
    assert (first.tokens, first.bytes) == (1, 34)
    assert (second.tokens, second.bytes) == (4, 68), "an unrolled loop repeats its mark"
    assert innermost_loops(found["two"]) == []


def test_bytes_below_zero_are_written_for_llvm():
    """gcc writes them in 64 bits."""
    loop = loop_of(["\tmovi\tv2.16b, 0xffffffffffffff80", "\tmovi\tv3.2d, 0xffffffffffffff80"])
    assert loop.instructions == ["\tmovi\tv2.16b, 0x80", "\tmovi\tv3.2d, 0xffffffffffffff80"]


def test_marks_and_products_pick_a_loop():
    one, two = functions(TWO_LOOPS).values()
    assert marked_loop(one, 4).bytes == 68
    with pytest.raises(ValueError, match="2 tokens"):
        marked_loop(one, 2)
    loop, weights = dot_loop(one)
    assert loop.tokens == 1 and weights == 32
    with pytest.raises(ValueError, match="multiplies"):
        dot_loop(two)


@pytest.mark.skipif(not shutil.which(GCC), reason=f"needs {GCC}")
def test_marks_are_found_in_real_kernels_and_only_on_request(tmp_path):
    asm = {}
    for mark in ("", "-DRL_MARK_LOOPS"):
        out = tmp_path / "out.s"
        flags = ["-std=gnu11", "-O3", "-march=armv8.2-a+dotprod", f"-I{ROOT}", f"-I{ROOT}/csrc", *mark.split()]
        source = ROOT / "kernels" / "arm" / "rows_q8_dotprod.c"
        subprocess.run([GCC, *flags, "-S", "-o", str(out), str(source)], check=True)
        asm[mark] = out.read_text()
    assert "rl-loop" not in asm[""]
    marked = functions(asm["-DRL_MARK_LOOPS"])
    for name, nbytes, dots in (("q8_0", 4 * 4 * 34, 4 * 8), ("q4k", 2 * 144, 2 * 16), ("q6k", 2 * 210, 2 * 16)):
        loop = marked_loop(marked[f"rl_rows_{name}_q8_dotprod"], 1)
        assert loop.bytes == nbytes
        assert sum("sdot" in i for i in loop.instructions) == dots


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which(GCC), reason=f"needs {GCC}")
@pytest.mark.parametrize("tier", ["neon", "dotprod", "i8mm"])
def test_every_tile_and_attention_kernel_has_one_loop_to_count(tier):
    """All its steps unrolled in it: an inner loop would be counted once for many rounds."""
    tools = Toolbox(GCC, "unused")
    kernels = [(f"tile_mul_{tier}.c", f"rl_tile_mul_{lay}_{act}_{tier}", 6) for lay in LAYOUTS for act in ACTS.values()]
    if tier != "i8mm":
        kernels += [(f"attn_q8_{tier}.c", f"rl_attn_{side}_q8_0_tile_{tier}", 3) for side in "kv"]
    for source, name, tokens in kernels:
        loop = tools.own(source, tier, name, tokens)
        assert loop.bytes >= 32 and len(loop.instructions) > 40, name
