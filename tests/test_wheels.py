# SPDX-License-Identifier: Apache-2.0
"""Wheels made by tools/build_wheels.sh, in the directory that ROOFLM_WHEELS names: installed by pip and put to work.

AArch64 runs in the emulated Python that tests/arm64/setup.sh made (ROOFLM_ARM64). For musl there is no Python to be had
as a package: pip has to accept the wheel for such a system and each symbol has to exist in musl's own library, but the
import itself is not run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WHEELS = Path(os.environ.get("ROOFLM_WHEELS", "/nonexistent")).resolve()
ARM64 = Path(os.environ.get("ROOFLM_ARM64", "/nonexistent")).resolve()
KINDS = ["manylinux-x86_64", "manylinux-aarch64", "musllinux-x86_64", "musllinux-aarch64"]

pytestmark = pytest.mark.skipif("ROOFLM_WHEELS" not in os.environ, reason="ROOFLM_WHEELS names no directory of wheels")


def wheel(kind: str) -> tuple[Path, str]:
    """The wheel and its platform tag, which is no newer than what NumPy's own wheels ask for."""
    libc, arch = kind.split("-")
    tags = {p: re.search(rf"-({libc}_(\d+)_(\d+)_{arch})[.-]", p.name) for p in WHEELS.glob("rooflm-*.whl")}
    found = [(p, tag) for p, tag in tags.items() if tag]
    assert len(found) == 1, f"{len(found)} wheels for {kind} in {WHEELS}"
    path, tag = found[0]
    assert (int(tag[2]), int(tag[3])) <= ((2, 28) if libc == "manylinux" else (1, 2))
    return path, tag[1]


def run(*command: object, **env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_PRELOAD", "PYTHONDONTWRITEBYTECODE")}
    out = subprocess.run([str(c) for c in command], env={**clean, **env}, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout[-2000:] + out.stderr[-2000:]
    return out.stdout


def unpacked(kind: str, folder: Path) -> Path:
    """Installed by pip as on such a machine. Returns the extension."""
    path, tag = wheel(kind)
    python = re.search(r"-cp3(\d+)-", path.name)
    assert python
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, "--platform", tag,
        "--python-version", f"3.{python[1]}", "--implementation", "cp", "--only-binary=:all:", path)  # fmt: skip
    (core,) = (folder / "rooflm").glob("_core*.so")
    return core


@pytest.mark.parametrize("kind", KINDS)
def test_contents(kind, tmp_path):
    """The extension as a file: baseline instructions, segments, symbols."""
    core = unpacked(kind, tmp_path)
    libc, arch = kind.split("-")
    assert core.name.endswith(f"-{arch}-linux-{'gnu' if libc == 'manylinux' else 'musl'}.so")
    assert (tmp_path / "rooflm" / "py.typed").exists() and (tmp_path / "rooflm" / "device").is_dir()
    said = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "tests" / "test_binary.py",
               ROOFLM_BINARY=str(core), PYTHONPATH=os.environ.get("PYTHONPATH", ""))  # fmt: skip
    assert "passed" in said and "skipped" not in said


def test_x86_64_is_installed_and_works(tmp_path):
    if os.uname().machine != "x86_64":
        pytest.skip("not on x86-64")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", wheel("manylinux-x86_64")[0])
    assert "_core" in run(python, ROOT / "tests" / "wheel_smoke.py")
    assert run(tmp_path / "env" / "bin" / "rooflm", "--version").strip()


def test_aarch64_is_installed_and_works_under_emulation(tmp_path):
    python = ARM64 / "sysroot" / "usr" / "bin" / "python3-qemu"
    if not python.exists():
        pytest.skip("no emulated Python: ROOFLM_ARM64")
    unpacked("manylinux-aarch64", tmp_path)
    path = f"{tmp_path}:{ARM64 / 'site'}"
    code = "from packaging.tags import sys_tags; print(*{t.platform for t in sys_tags()})"
    assert wheel("manylinux-aarch64")[1] in run(python, "-c", code, PYTHONPATH=path).split()
    for cpu, isa in {"cortex-a53": "neon", "cortex-a76": "dotprod", "max,sve=off": "i8mm"}.items():
        said = run(python, ROOT / "tests" / "wheel_smoke.py", PYTHONPATH=path, QEMU_CPU=cpu)
        assert f", {isa}," in said, said


@pytest.mark.parametrize("kind", KINDS[2:])
def test_musl_has_every_symbol(kind, tmp_path):
    arch = kind.split("-")[1]
    libc = ARM64 / "sysroot" / "lib" / f"{arch}-linux-musl" / "libc.so"
    if not libc.exists():
        libc = ARM64 / "sysroot" / "usr" / "lib" / f"{arch}-linux-musl" / "libc.so"
    if not libc.exists() or not shutil.which("readelf"):
        pytest.skip("no musl: ROOFLM_ARM64")

    def symbols(path: Path, defined: bool) -> set[str]:
        rows = (line.split() for line in run("readelf", "--dyn-syms", "-W", path).splitlines())
        bound = ("GLOBAL", "WEAK") if defined else ("GLOBAL",)
        return {r[7].split("@")[0] for r in rows if len(r) >= 8 and r[4] in bound and (r[6] != "UND") == defined}

    core = unpacked(kind, tmp_path)
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", core)))
    assert needed <= {"libc.so", f"libc.musl-{arch}.so.1"}
    wanted = {s for s in symbols(core, False) if not s.startswith(("Py", "_Py"))}
    assert "pthread_create" in wanted
    assert sorted(wanted - symbols(libc, True)) == []
