# SPDX-License-Identifier: Apache-2.0
"""Sources against compilers and C libraries other than the ones this build used, without linking.

Headers of musl come from Debian's musl-dev packages, unpacked by tests/arm64/setup.sh into the directory that
ROOFLM_ARM64 names. bionic's headers are in no package: musl's stand in for them, so what is checked there is the
compiler's target (__ANDROID__, no __gnu_linux__) and the kernel files as a whole. That the functions exist in bionic is
checked by test_binary.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
TIERS = {
    name: (arch, flags.split())
    for name, arch, flags in re.findall(
        r'^RL_TIER\((\w+),\s*(\w+),\s*"([^"]*)"', (ROOT / "kernels" / "tiers.h").read_text(), re.M
    )
}
pytestmark = pytest.mark.unsanitized  # compilers and setup.py, not this library
TRIPLES = {"x86": "x86_64-linux", "arm": "aarch64-linux"}


def missing(what: str) -> None:
    if os.environ.get("ROOFLM_ARM64"):
        pytest.fail(what)
    pytest.skip(what)


def musl_headers(arch: str) -> Path:
    if not os.environ.get("ROOFLM_ARM64"):
        pytest.skip("ROOFLM_ARM64 is not set: no musl headers")
    path = Path(os.environ["ROOFLM_ARM64"]).resolve() / "sysroot" / "usr" / "include" / f"{TRIPLES[arch]}-musl"
    if not (path / "stdio.h").exists():
        missing(f"no musl headers in {path}")
    return path


def sources(arch: str, *folders: str) -> list[tuple[Path, list[str]]]:
    """(file, flags of its tier), those of one architecture."""
    found = []
    for path in sorted(p for folder in folders for p in (ROOT / folder).rglob("*.c")):
        tier = path.stem.rsplit("_", 1)[-1] if path.parent.name in ("x86", "arm") else None
        if tier is None or TIERS[tier][0] == arch:
            found.append((path, TIERS[tier][1] if tier else []))
    return found


def kernel_headers(arch: str, folder: Path) -> Path:
    """A folder with the headers of Linux alone, which musl and bionic rely on, too."""
    usr = Path(os.environ["ROOFLM_ARM64"]).resolve() / "sysroot" / "usr" / "include"
    asm = usr / "aarch64-linux-gnu" / "asm" if arch == "arm" else Path("/usr/include/x86_64-linux-gnu/asm")
    for name, target in {"linux": usr / "linux", "asm-generic": usr / "asm-generic", "asm": asm}.items():
        if not target.exists():
            missing(f"no {target}")
        (folder / name).symlink_to(target)
    return folder


def compile_all(command: list[str], files: list[tuple[Path, list[str]]]) -> None:
    command = [*command, "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}", f"-I{ROOT}/csrc"]

    def one(job: tuple[Path, list[str]]) -> str:
        out = subprocess.run([*command, *job[1], str(job[0])], capture_output=True, text=True)
        return "" if out.returncode == 0 else f"{job[0].relative_to(ROOT)}: {out.stderr[:1500]}"

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        failed = [said for said in pool.map(one, files) if said]
    assert not failed, f"{len(failed)} of {len(files)} files:\n" + "\n".join(failed[:5])
    assert len(files) > 15


def compiler(kind: str, arch: str) -> list[str]:
    here = {"x86_64": "x86", "aarch64": "arm"}.get(os.uname().machine)
    name = kind if kind == "clang" or here == arch else f"{TRIPLES[arch]}-gnu-gcc"
    if not shutil.which(name):
        missing(f"no {name}")
    return [name, f"--target={TRIPLES[arch]}-gnu"] if kind == "clang" else [name]


@pytest.mark.parametrize("arch", ["x86", "arm"])
@pytest.mark.parametrize("kind", ["gcc", "clang"])
def test_against_musl(kind, arch, tmp_path):
    cc = compiler(kind, arch)
    musl = musl_headers(arch)
    if kind == "clang":
        cc[1] = f"--target={TRIPLES[arch]}-musl"
        flags = ["-nostdlibinc"]
    else:
        own = subprocess.run([*cc, "-print-file-name=include"], capture_output=True, text=True, check=True)
        flags = ["-nostdinc", "-isystem", own.stdout.strip()]
    # The headers of a Python for glibc: pyconfig.h claims nothing that musl lacks.
    include = [f"-I{kernel_headers(arch, tmp_path)}", f"-I{sysconfig.get_path('include')}", f"-I{np.get_include()}"]
    compile_all([*cc, *flags, "-isystem", str(musl), *include, "-fsyntax-only"], sources(arch, "csrc", "kernels"))


def test_kernels_for_android(tmp_path):
    """With code generation: it is there that a compiler refuses an intrinsic of an instruction set it was not given."""
    cc = compiler("clang", "arm")
    cc[1] = "--target=aarch64-linux-android24"
    musl = musl_headers("arm")
    macros = subprocess.run([*cc, "-dM", "-E", "-x", "c", os.devnull], capture_output=True, text=True).stdout
    assert "#define __ANDROID__ 1" in macros and "__gnu_linux__" not in macros
    cc += ["-nostdlibinc", "-isystem", str(musl)]
    compile_all([*cc, "-O1", "-ffp-contract=off", "-c", "-o", os.devnull], sources("arm", "kernels"))
    rest = sources("arm", "csrc/base", "csrc/io", "csrc/model", "csrc/run", "csrc/probe")
    compile_all([*cc, "-fsyntax-only", f"-I{kernel_headers('arm', tmp_path)}"], rest)


def build(tmp_path: Path, cc: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "setup.py", "-q", "build", "--build-base", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "CC": cc}, capture_output=True, text=True,
    )  # fmt: skip


UNSUPPORTED = ["armv7-linux-gnueabihf", "i686-linux-gnu", "aarch64_be-linux-gnu", "powerpc64-linux-gnu",
               "x86_64-linux-gnux32"]  # fmt: skip


@pytest.mark.parametrize("target", UNSUPPORTED)
def test_other_architectures_are_refused_with_advice(tmp_path, target):
    if not shutil.which("clang"):
        missing("no clang")
    out = build(tmp_path, f"clang --target={target}")
    assert out.returncode != 0
    assert "rooflm: this compiler targets neither 64-bit x86 nor 64-bit little-endian ARM" in out.stderr
    assert "64-bit Raspberry Pi OS" in out.stderr and "Traceback" not in out.stderr


def test_no_compiler_is_a_clear_message(tmp_path):
    out = build(tmp_path, "no-such-compiler")
    assert out.returncode != 0
    assert "no-such-compiler" in out.stderr and "pkg install clang" in out.stderr and "Traceback" not in out.stderr


# A compiler that writes down how it was called, and an empty file for each output.
FAKE_CC = """#!/bin/sh
echo "$@" >>"$0.log"
case $* in *-dM*) echo "#define __aarch64__ 1"; echo "#define __ORDER_BIG_ENDIAN__ 4321"
    echo "#define __BYTE_ORDER__ __ORDER_LITTLE_ENDIAN__" ;; esac
while [ $# -gt 1 ]; do case $1 in -o | -MF) : >"$2" ;; esac; shift; done
"""
RUN_AS = """
import runpy, sys, sysconfig
sysconfig.get_config_vars().update({variables!r})
for name, value in {attributes!r}.items():
    setattr(sys, name, value)
if sys.platform == "android":
    sys.getandroidapilevel = lambda: 24
sys.argv = ["setup.py", "-q", "build", "--build-base", {base!r}]
runpy.run_path("setup.py", run_name="__main__")
"""


@pytest.mark.parametrize("platform", ["linux", "android"])
def test_links_with_python_where_the_loader_wants_it(tmp_path, platform):
    """Termux before and after Python 3.13, which calls itself android. Without libpython the import would fail there;
    with it elsewhere, a statically linked Python would load a second one."""
    pytest.importorskip("setuptools")
    cc = tmp_path / "cc"
    cc.write_text(FAKE_CC)
    cc.chmod(0o755)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    variables = {"Py_ENABLE_SHARED": 1, "LDVERSION": version, "LIBDIR": "/data/data/com.termux/files/usr/lib"}
    code = RUN_AS.format(variables=variables, attributes={"platform": platform}, base=str(tmp_path))
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                         env={**os.environ, "CC": str(cc), "LDSHARED": f"{cc} -shared"})  # fmt: skip
    assert out.returncode == 0, out.stderr
    calls = (tmp_path / "cc.log").read_text().splitlines()
    assert any("rows_q8_dotprod.c" in c and "-march=armv8.2-a+dotprod" in c for c in calls)
    link = [c for c in calls if "-shared" in c]
    assert len(link) == 1 and "max-page-size=16384" in link[0]
    assert (f"-lpython{version}" in link[0].split()) == (platform == "android")
    assert ("-L/data/data/com.termux/files/usr/lib" in link[0].split()) == (platform == "android")


@pytest.mark.parametrize("installed", ["NPY_2_0_API_VERSION", "NPY_1_25_API_VERSION", None])
def test_numpy_is_fetched_for_the_build_only_where_there_is_none(tmp_path, installed):
    """In pip's isolated build NumPy cannot be imported, but its headers lie where the package will be installed."""
    pytest.importorskip("setuptools")
    include = tmp_path / "numpy" / "_core" / "include" / "numpy"
    if installed:
        include.mkdir(parents=True)
        (include / "numpyconfig.h").write_text(f"#define {installed} 0x12\n")
    code = f"""
import sys, sysconfig
from setuptools import build_meta
sys.modules["numpy"] = None
real = sysconfig.get_path
sysconfig.get_path = lambda name, *a, **kw: {str(tmp_path)!r} if name == "platlib" else real(name, *a, **kw)
options = ["--quiet", "egg_info", "--egg-base", {str(tmp_path)!r}]
print(build_meta.get_requires_for_build_wheel({{"--global-option": options}}))
"""
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    wanted = out.stdout.strip().splitlines()[-1]
    assert ("numpy>=2.0" in wanted) == (installed != "NPY_2_0_API_VERSION"), wanted
