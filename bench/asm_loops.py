# SPDX-License-Identifier: Apache-2.0
"""Finding loops in the AArch64 assembly that compilers write (gcc and clang)."""

from __future__ import annotations

import re
from dataclasses import dataclass

FUNCTION = re.compile(r"^([A-Za-z_]\w*):")
LABEL = re.compile(r"^(\.L\w+):")
BRANCH = re.compile(r"^\s+(?:b|b\.?[a-z]{2}|cbn?z|tbn?z)\s+(?:.*,\s*)?(\.L\w+)\s*(?://.*)?$")
INSTRUCTION = re.compile(r"^\s+[a-z]")
MARK = re.compile(r"//\s*rl-loop (\d+) (\d+)")


@dataclass
class Loop:
    instructions: list[str]
    marks: list[tuple[int, int]]  # tokens and bytes of each mark inside

    @property
    def tokens(self) -> int:
        return self.marks[0][0]

    @property
    def bytes(self) -> int:
        """Of one round; a compiler that unrolls a loop repeats its mark."""
        return sum(b for _, b in self.marks)


def functions(asm: str) -> dict[str, list[str]]:
    """Name of each function and its lines."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in asm.splitlines():
        if m := FUNCTION.match(line):
            lines = found[m[1]] = []
        else:
            lines.append(line)
    return found


def innermost_loops(lines: list[str]) -> list[Loop]:
    """Stretches from a label to the last branch back to it that hold no other such stretch."""
    labels = {m[1]: i for i, line in enumerate(lines) if (m := LABEL.match(line))}
    ends: dict[int, int] = {}
    for i, line in enumerate(lines):
        if (m := BRANCH.match(line)) and labels.get(m[1], i) < i:
            ends[labels[m[1]]] = i
    spans = ends.items()
    inner = [(a, b) for a, b in spans if not any((a, b) != (c, d) and a <= c and d <= b for c, d in spans)]
    return [loop_of(lines[a : b + 1]) for a, b in sorted(inner)]


def loop_of(lines: list[str]) -> Loop:
    marks = [(int(m[1]), int(m[2])) for line in lines if (m := MARK.search(line))]
    plain = [readable(line.split("//")[0].rstrip()) for line in lines if INSTRUCTION.match(line)]
    return Loop(plain, marks)


def readable(instruction: str) -> str:
    """gcc writes a byte below zero in 64 bits, which its assembler takes and LLVM's does not."""
    return re.sub(r"(movi\s+v\d+\.(?:8|16)b, 0x)f{14}([0-9a-f]{2})$", r"\1\2", instruction)


def marked_loop(lines: list[str], tokens: int) -> Loop:
    """The innermost loop around the mark of that many tokens; ValueError when there is none."""
    found = [loop for loop in innermost_loops(lines) if loop.marks and loop.tokens == tokens]
    if not found:
        raise ValueError(f"no innermost loop is marked with {tokens} tokens")
    return max(found, key=lambda loop: loop.bytes)


def dot_loop(lines: list[str]) -> tuple[Loop, int]:
    """The innermost loop with the most products of bytes, and how many weights one round of it multiplies."""

    def weights(loop: Loop) -> int:
        dots = sum(bool(re.match(r"\s+sdot\s", i)) for i in loop.instructions)
        halves = sum(bool(re.match(r"\s+sm[ul]l?a?l2?\s+v\d+\.8h", i)) for i in loop.instructions)
        return 16 * dots or 8 * halves

    loops = innermost_loops(lines)
    if not loops or not max(map(weights, loops)):
        raise ValueError("no loop multiplies bytes")
    best = max(loops, key=weights)
    return best, weights(best)
