# SPDX-License-Identifier: Apache-2.0
"""The table of kernels: names, files, tiers and the CPU agree; overrides are met or refused."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import rooflm
from cpu_features import X86, cpu_has

ROOT = Path(__file__).resolve().parents[1]
TABLE = rooflm.kernels(isa=None)
TIER_LINE = re.compile(r'^RL_TIER\((\w+),\s*(\w+),\s*"([^"]*)",\s*([^)]*)\)', re.M)
TIERS = {
    name: (arch, flags.split(), set(re.findall(r"RL_CPU_(\w+)", mask.replace("\n", " "))))
    for name, arch, flags, mask in TIER_LINE.findall((ROOT / "kernels" / "tiers.h").read_text())
}
HERE = {name: row for name, row in TIERS.items() if row[0] == ("x86" if X86 else "arm")}
TYPE_NAMES = {"Q2_K": "q2k", "Q3_K": "q3k", "Q4_K": "q4k", "Q5_K": "q5k", "Q6_K": "q6k", "Q8_K": "q8k",
              "IQ4_NL": "iq4nl", "IQ4_XS": "iq4xs"}  # fmt: skip
ACT_NAMES = {"f32": "f32", "int8": "q8", "int16": "q16"}


@pytest.fixture(scope="module")
def no_env():
    with pytest.MonkeyPatch.context() as m:
        m.delenv("ROOFLM_ISA", raising=False)
        m.delenv("ROOFLM_KERNELS", raising=False)
        yield


def test_tables_were_read():
    assert len(TIERS) >= 7 and len(HERE) == (4 if X86 else 3)
    assert all(features for _, _, features in TIERS.values())


@pytest.mark.best_tier
def test_available_is_what_the_cpu_has(no_env):
    """A capable CPU that would run no entry of a tier is a failure: tests walk the available entries."""
    has = cpu_has()
    for k in rooflm.kernels():
        assert k.available == (set(k.needs) <= has), k
    for tier, (_, _, features) in HERE.items():
        if {f.lower() for f in features} <= has:
            for family in ("tile_mul",) if tier == "amx" else ("rows", "tile_mul"):
                assert TABLE.select(isa=tier, family=family, available=True), (tier, family)


def slots_of(arch, tmp_path):
    """Family, type, arithmetic and layout of every entry that is no reference, as that machine would compile them."""
    for header in ("assert.h", "math.h", "stdbool.h", "stddef.h", "stdint.h", "string.h"):
        (tmp_path / header).touch()  # the system's own are not for another machine
    text = f"""
#undef __x86_64__
#undef __aarch64__
#define __{arch}__ 1
#define RL_X86(...) {"__VA_ARGS__" * (arch == "x86_64")}
#define RL_ARM(...) {"__VA_ARGS__" * (arch == "aarch64")}
#define RL_KERNEL(fn, family, name, type, act, isa, rows, cols, layout) SLOT family:type:act:isa:layout;
#include "kernels/lists.h"
"""
    cc = shlex.split(os.environ.get("CC", "cc"))
    flags = ["-E", "-P", "-nostdinc", f"-I{tmp_path}", f"-I{ROOT}", f"-I{ROOT}/csrc", "-xc", "-"]
    out = subprocess.run([*cc, *flags], input=text, check=True, stdout=subprocess.PIPE, text=True).stdout
    slots = set()
    for family, kind, act, isa, layout in re.findall(r"SLOT (\w+):(\w+):([^:;]*):(\w+):([^:;]*);", out):
        arithmetic = re.search(r"RL_ACT_(F32|Q8|Q16)\b", act)  # further bits are orders of values
        if family == "RL_FAM_TILE_UNPACK":
            layout = ""  # each tier unpacks into the one that it multiplies best
        if isa != "ref":
            slots.add((family, kind, arithmetic[1] if arithmetic else "", layout.strip('" ')))
    return slots


def test_aarch64_has_a_kernel_wherever_x86_has_one(tmp_path):
    x86, arm = slots_of("x86_64", tmp_path), slots_of("aarch64", tmp_path)
    assert len(x86) > 120
    assert x86 - arm == set()


def test_every_slot_has_a_reference_and_one_choice(no_env):
    slots = {}
    for k in rooflm.kernels():
        slots.setdefault((k.family, k.type, k.act, k.layout, k.name.rsplit("_", 1)[0]), []).append(k)
    for slot, entries in slots.items():
        assert TABLE.select(family=slot[0], type=slot[1], act=slot[2], isa="ref"), slot
        assert len({k.isa for k in entries}) == len(entries), slot
        ranks = [["ref", *TIERS].index(k.isa) for k in entries]
        assert ranks == sorted(ranks), f"best tier last: {slot}"
    assert len({k.name for k in TABLE}) == len(TABLE)
    for family, kind in {(k.family, k.type) for k in TABLE if k.family == "rows"}:
        for act in {k.act for k in TABLE.select(family=family, type=kind)}:
            chosen = rooflm.kernels().select(family=family, type=kind, act=act, chosen=True)
            # On i8mm one more, for tokens in pairs.
            assert len({k.layout for k in chosen}) == len(chosen) and chosen.select(layout="")


def test_rows_asked_for_by_name_are_the_only_ones(no_env):
    """For pairs of tokens as well, which i8mm has kernels of its own for."""
    for k in TABLE.select(family="rows", layout="", available=True):
        chosen = rooflm.kernels(kernels=k.name).select(family="rows", type=k.type, act=k.act, chosen=True)
        assert [c.name for c in chosen] == [k.name]


@pytest.mark.parametrize("k", TABLE, ids=lambda k: k.name)
def test_name_file_and_table_agree(k):
    assert k.name.endswith("_" + k.isa)
    if k.family in ("rows", "dequant"):
        kind = TYPE_NAMES.get(k.type, k.type.lower())
        act = f"_{ACT_NAMES[k.act]}" if k.family == "rows" else ""
        assert k.name == f"rl_{k.family}_{kind}{act}_{k.isa}"
    if k.family == "act":
        assert k.name == f"rl_act_{ACT_NAMES[k.act]}_{k.isa}"
    if k.isa == "ref":
        assert k.needs == ()
        assert list((ROOT / "kernels" / "ref").glob("*.c"))
        return
    arch, _, features = TIERS[k.isa]
    assert set(k.needs) == {f.lower() for f in features}
    prefix = k.family.split("_")[0]
    assert list((ROOT / "kernels" / arch).glob(f"{prefix}*_{k.isa}.c")), "no source file"


FILES = sorted([*ROOT.glob("kernels/x86/*.c"), *ROOT.glob("kernels/arm/*.c")])


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_kernel_files(path):
    """One tier per file, refused by the preprocessor without the flags of the tier."""
    tier = path.stem.rsplit("_", 1)[1]
    arch, flags, _ = TIERS[tier]
    assert path.parent.name == arch
    if arch != ("x86" if X86 else "arm") or not flags:
        return
    base = [f for f in flags if not f.startswith(("-mprefer", "-march"))]
    cmd = [*shlex.split(os.environ.get("CC", "cc")), "-std=gnu11", "-E", f"-I{ROOT}", f"-I{ROOT}/csrc", str(path)]
    try:
        with_flags = subprocess.run([*cmd, *flags], capture_output=True, text=True)
    except OSError:
        pytest.skip("no C compiler here")
    assert with_flags.returncode == 0, with_flags.stderr
    # The flags that this tier has and no lower one: without them the file must not compile.
    lower = {f for t in ("avx2", "dotprod") if t != tier for f in TIERS[t][1]}
    own = [f for f in base if f not in lower]
    reduced = [f for f in flags if f not in own] if own else []
    without = subprocess.run([*cmd, *reduced], capture_output=True, text=True)
    assert without.returncode != 0 and "#error" in without.stderr, f"compiles without {own or flags}"


def test_limits_and_overrides(no_env, monkeypatch):
    ref = rooflm.kernels(isa="ref")
    assert {k.isa for k in ref if k.chosen} == {"ref"}
    assert not [k for k in ref if k.available and k.isa != "ref"]
    best = rooflm.kernels()
    name = "rl_rows_q4k_q8_ref"
    forced = rooflm.kernels(kernels=[name, "rl_rows_q6k_q16_ref"])
    for k in forced.select(type="Q4_K", act="int8", family="rows", layout=forced.select(name=name)[0].layout):
        assert k.chosen == (k.name == name)
    assert forced.select(name=name)[0].why == "asked for by name"
    assert forced.select(name="rl_rows_q6k_q16_ref")[0].chosen
    assert [k.chosen for k in forced if k.type == "Q8_0"] == [k.chosen for k in best if k.type == "Q8_0"]
    monkeypatch.setenv("ROOFLM_ISA", "ref")
    assert {k.isa for k in rooflm.kernels() if k.chosen} == {"ref"}
    monkeypatch.setenv("ROOFLM_KERNELS", "rl_rows_q4k_q8_nothing")
    with pytest.raises(rooflm.KernelUnavailable, match="rl_rows_q4k_q8_nothing"):
        rooflm.kernels()
    assert {k.isa for k in rooflm.kernels(kernels="") if k.chosen} == {"ref"}


@pytest.mark.parametrize("tier", [*TIERS, "sse9"])
def test_impossible_limits_are_errors(no_env, tier):
    if tier in HERE and {f.lower() for f in HERE[tier][2]} <= cpu_has():
        k = rooflm.kernels(isa=tier)
        assert any(e.chosen and e.isa == tier for e in k)
        assert not any(e.available for e in k if ["ref", *TIERS].index(e.isa) > ["ref", *TIERS].index(tier))
        above = [e for e in k if not e.available and set(e.needs) <= cpu_has()]
        assert all("limited to" in e.why for e in above)
        if above:
            with pytest.raises(rooflm.KernelUnavailable, match="limited"):
                rooflm.kernels(isa=tier, kernels=above[0].name)
    else:
        with pytest.raises(rooflm.KernelUnavailable, match=tier):
            rooflm.kernels(isa=tier)
    for k in TABLE:
        if not set(k.needs) <= cpu_has():
            with pytest.raises(rooflm.KernelUnavailable, match=k.isa):
                rooflm.kernels(kernels=k.name)
            break


def test_it_prints(no_env):
    k = rooflm.kernels()[:3]
    assert "available" in repr(k) and k[0].name in repr(k) and "<table>" in k._repr_html_()
    with pytest.raises(TypeError, match="no field 'tier'"):
        k.select(tier="avx2")


def test_environment_reaches_a_fresh_process():
    code = "import rooflm; print({k.isa for k in rooflm.kernels() if k.chosen})"
    out = subprocess.run([sys.executable, "-c", code], env={**os.environ, "ROOFLM_ISA": "ref"},
                         capture_output=True, text=True, check=True)  # fmt: skip
    assert out.stdout.strip() == "{'ref'}"
