# SPDX-License-Identifier: Apache-2.0
"""Wheels made by tools/build_wheels.sh, in the directory that ROOFLM_WHEELS names: installed by pip and put to work.

AArch64 runs in the emulated Python that tests/arm64/setup.sh made (ROOFLM_ARM64), musl in the ones that
tests/arm64/musl.sh made there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from golden_files import golden
from maker import tiny_model

ROOT = Path(__file__).resolve().parent.parent
WHEELS = Path(os.environ.get("ROOFLM_WHEELS", "/nonexistent")).resolve()
ARM64 = Path(os.environ.get("ROOFLM_ARM64", "/nonexistent")).resolve()
SAME = 1e-6  # of the largest logit
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


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Call with a Python: runs tests/wheel_smoke.py in it, as env says. Returns what it printed, and logits."""
    folder = tmp_path_factory.mktemp("work")
    shutil.copy(golden("llama").path, folder / "golden.gguf")
    types = {"*ffn_down*": "Q6_K", "*ffn*": "Q4_K", "*attn*": "Q4_1", "*": "Q8_0"}
    tiny_model(folder / "quantized.gguf", width=256, ffn=512, n_kv=2, types=types)

    def run_smoke(python: Path, **env: str) -> tuple[str, np.ndarray]:
        logits = folder / "logits.npy"
        logits.unlink(missing_ok=True)
        said = run(python, ROOT / "tests" / "wheel_smoke.py", "--golden", folder / "golden.gguf",
                   "--logits", folder / "quantized.gguf", logits, **env)  # fmt: skip
        return said, np.load(logits)

    return run_smoke


@pytest.fixture(scope="module")
def glibc_x86_64(work, tmp_path_factory) -> np.ndarray:
    if os.uname().machine != "x86_64":
        pytest.skip("not on x86-64")
    env = tmp_path_factory.mktemp("glibc") / "env"
    venv.create(env, with_pip=True)
    run(env / "bin" / "python", "-m", "pip", "install", "-q", wheel("manylinux-x86_64")[0])
    assert run(env / "bin" / "rooflm", "--version").strip()
    said, logits = work(env / "bin" / "python")
    assert "_core" in said and "x86_64-linux-gnu" in said
    return logits


@pytest.fixture(scope="module")
def glibc_aarch64(work, tmp_path_factory) -> np.ndarray:
    python = ARM64 / "sysroot" / "usr" / "bin" / "python3-qemu"
    if not python.exists():
        pytest.skip("no emulated Python: ROOFLM_ARM64")
    folder = tmp_path_factory.mktemp("glibc-aarch64")
    unpacked("manylinux-aarch64", folder)
    path = f"{folder}:{ARM64 / 'site'}"
    code = "from packaging.tags import sys_tags; print(*{t.platform for t in sys_tags()})"
    assert wheel("manylinux-aarch64")[1] in run(python, "-c", code, PYTHONPATH=path).split()
    logits = np.empty(0)
    for cpu, isa in {"cortex-a53": "neon", "cortex-a76": "dotprod", "max,sve=off": "i8mm"}.items():
        said, logits = work(python, PYTHONPATH=path, QEMU_CPU=cpu)
        assert f", {isa}," in said, said
    return logits


def musl_python(arch: str, name: str) -> Path:
    python = ARM64 / "musl" / arch / "bin" / name
    if not python.exists():
        pytest.skip("no Python for musl: tests/arm64/musl.sh")
    return python


def check_same(musl: np.ndarray, glibc: np.ndarray) -> None:
    """The same code on another C library: what of libm is used here may round otherwise in the last bit."""
    assert np.isfinite(musl).all() and musl.std() > 0.1
    np.testing.assert_array_equal(musl.argmax(1), glibc.argmax(1))
    assert np.abs(musl - glibc).max() <= SAME * np.abs(glibc).max()


def test_x86_64_is_installed_and_works(glibc_x86_64):
    assert np.isfinite(glibc_x86_64).all() and glibc_x86_64.std() > 0.1


def test_aarch64_is_installed_and_works_under_emulation(glibc_aarch64):
    assert np.isfinite(glibc_aarch64).all() and glibc_aarch64.std() > 0.1


def test_x86_64_works_on_musl(work, glibc_x86_64, tmp_path):
    python = musl_python("x86_64", "python3.11")
    unpacked("musllinux-x86_64", tmp_path)
    said, logits = work(python, PYTHONPATH=str(tmp_path))
    assert "x86_64-linux-musl" in said
    check_same(logits, glibc_x86_64)


def test_aarch64_works_on_musl_under_emulation(work, glibc_aarch64, tmp_path):
    python = musl_python("aarch64", "python3-qemu")
    unpacked("musllinux-aarch64", tmp_path)
    said, logits = work(python, PYTHONPATH=str(tmp_path), QEMU_CPU="max,sve=off")
    assert "aarch64-linux-musl" in said and ", i8mm," in said
    check_same(logits, glibc_aarch64)


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
