# SPDX-License-Identifier: Apache-2.0
"""What a built extension holds, asked of binutils: symbols with the source file they come from, instructions, segments.

`ROOFLM_BINARY` names another build than the one that is imported, of this or the other architecture.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from rooflm import _core

ROOT = Path(__file__).resolve().parent.parent
BINARY = Path(os.environ.get("ROOFLM_BINARY") or _core.__file__)
TIERS = re.findall(r"^RL_TIER\((\w+),\s*(\w+),", (ROOT / "kernels" / "tiers.h").read_text(), re.M)
MACHINES = {62: "x86", 183: "arm"}


class Function(NamedTuple):
    name: str
    source: str  # base name of the C file for a static one, "" for one that other files call
    start: int
    size: int


@functools.cache
def arch() -> str:
    """The architecture the binary is for, from its ELF header."""
    with open(BINARY, "rb") as f:
        head = f.read(20)
    assert head[:6] == b"\x7fELF\x02\x01", f"{BINARY} is no 64-bit little-endian ELF file"
    return MACHINES[int.from_bytes(head[18:20], "little")]


def tool(name: str, *args: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a tool of binutils made for the binary's architecture."""
    here = {"x86_64": "x86", "aarch64": "arm"}.get(os.uname().machine)
    prefix = "" if here == arch() else {"x86": "x86_64-linux-gnu-", "arm": "aarch64-linux-gnu-"}[arch()]
    if not shutil.which(prefix + name):
        if os.environ.get("CI"):
            pytest.fail(f"{prefix}{name} is missing")
        pytest.skip(f"needs {prefix}{name}")
    return subprocess.run([prefix + name, *args], input=text, capture_output=True, text=True)


def read(name: str, *args: str) -> str:
    out = tool(name, *args, str(BINARY))
    assert out.returncode == 0, out.stderr
    return out.stdout


def functions() -> list[Function]:
    """Functions of the symbol table. A file's static ones follow the entry with its name; the linker lists what is
    shared between files apart, before all of them or under an empty name."""
    found, source = [], ""
    for line in read("readelf", "-sW").splitlines():
        f = line.split()
        if len(f) < 7 or not f[0].rstrip(":").isdigit():
            source = ""  # the heading of another table
            continue
        if f[3] == "FILE":
            source = f[7] if len(f) > 7 else ""
        elif f[3] == "FUNC" and f[6] not in ("UND", "ABS") and f[2] != "0":
            owner = source if f[4] == "LOCAL" else ""
            found.append(Function(f[7], owner, int(f[1], 16), int(f[2], 0)))
    return found


def tier_of(f: Function) -> str | None:
    """The ISA tier that a function is compiled for, None for the baseline that every CPU runs."""
    stem = Path(f.source).stem if f.source else f.name.split(".")[0]
    last = stem.rsplit("_", 1)[-1]
    return last if (last, arch()) in TIERS and last != "neon" else None


def instructions() -> list[tuple[int, str]]:
    """(address, assembly text) of everything executable."""
    flags = ("-M", "no-aliases") if arch() == "arm" else ()
    lines = read("objdump", "-d", "--no-show-raw-insn", *flags).splitlines()
    parts = (line.split("\t", 1) for line in lines if re.match(r"\s*[0-9a-f]+:\t", line))
    return [(int(at.strip().rstrip(":"), 16), text.strip()) for at, text in parts]


def refused_by_baseline(texts: set[str]) -> dict[str, str]:
    """{instruction: what the assembler says}, of those that x86-64 without extensions or ARMv8.0 does not have.

    The assembler is the judge: it gets each instruction again, with the baseline as its architecture.
    """
    again = {}
    for text in texts:
        code = re.sub(r"\s*(//|#(?=\s)).*", "", text)  # comments
        code = re.sub(r"\b[0-9a-f]+ <[^>]*>", ".", code)  # addresses of code
        if arch() == "x86":
            # Padding, with one prefix more than can be written; and what older CPUs run as bsf, which is why compilers
            # use it without being asked.
            if re.match(r"(data16 |cs )*(nopw|nopl|nop)\b", code) or code.startswith("tzcnt"):
                continue
        elif code.startswith((".inst", ".word", "udf")):
            continue  # data between functions
        again.setdefault(code, text)
    flags = ["--64", "-march=generic64"] if arch() == "x86" else ["-march=armv8-a"]
    codes = sorted(again)
    with tempfile.TemporaryDirectory() as tmp:
        out = tool("as", *flags, "-o", f"{tmp}/out.o", "-", text="\n".join(codes) + "\n")
    bad = {}
    for number, said in re.findall(r"^\{standard input\}:(\d+): Error: (.*)$", out.stderr, re.M):
        bad[again[codes[int(number) - 1]]] = said
    assert bad or out.returncode == 0, out.stderr[:2000]
    return bad
