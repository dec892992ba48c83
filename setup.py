# SPDX-License-Identifier: Apache-2.0
"""Builds rooflm._core from a C compiler, the Python headers and NumPy alone.

Each kernel file belongs to one ISA tier, told by the end of its name; kernels/tiers.h is the one table of
tiers, read here for the compiler flags and by the C side for the run-time feature masks. Objects are
rebuilt only when one of their includes changed, several at a time.

ROOFLM_AVXVNNI_AS_EVEX=1 makes a build for tests: it runs the AVX-VNNI tier on CPUs that have the same two instructions
in AVX-512's encoding only, which is what differs then from the code that is shipped.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
TIER = re.compile(r'^\s*RL_TIER\((\w+),\s*(\w+),\s*"([^"]*)"', re.M)


def tiers():
    """{tier: (architecture, flags)} from the table in kernels/tiers.h."""
    text = (ROOT / "kernels" / "tiers.h").read_text()
    return {name: (arch, flags.split()) for name, arch, flags in TIER.findall(text)}


def sources():
    found = sorted(str(p.relative_to(ROOT)) for d in ("csrc", "kernels") for p in (ROOT / d).rglob("*.c"))
    return found


class BuildExt(build_ext):
    def target_arch(self):
        """The architecture the compiler makes code for, so that cross builds take the right kernels."""
        machine = self.probe_macro()
        if machine is None:
            raise SystemExit(
                "rooflm: this compiler targets neither 64-bit x86 nor 64-bit little-endian ARM. 32-bit and "
                "big-endian systems are not supported: install a 64-bit system (on a Raspberry Pi, the "
                "64-bit Raspberry Pi OS)."
            )
        return machine

    def probe_macro(self):
        # With all its flags: --target of clang is one of them.
        cmd = [*self.compiler.compiler_so, "-dM", "-E", "-x", "c", os.devnull]
        try:
            done = subprocess.run(cmd, capture_output=True, text=True)
        except OSError as e:
            raise SystemExit(
                f"rooflm: the C compiler {cmd[0]} cannot be run ({e.strerror}). Install one (Debian, Ubuntu, "
                "Raspberry Pi OS: apt install gcc python3-dev; Termux: pkg install clang), or name it in CC."
            ) from None
        if done.returncode:
            raise SystemExit(f"rooflm: {shlex.join(cmd)} failed: {done.stderr.strip()[-500:]}")
        out = done.stdout
        little = "__ORDER_BIG_ENDIAN__" in out and "#define __BYTE_ORDER__ __ORDER_LITTLE_ENDIAN__" in out
        if "#define __x86_64__ 1" in out and "#define __ILP32__" not in out:
            return "x86"
        if "#define __aarch64__ 1" in out and "#define __ILP32__" not in out and little:
            return "arm"
        return None

    def build_extension(self, ext):
        arch = self.target_arch()
        table = tiers()
        cc = list(self.compiler.compiler_so)
        # NDEBUG off or on is the caller's CFLAGS; optimisation defaults to -O3 but the caller's -O wins.
        base = ["-std=gnu11", "-O3", "-fvisibility=hidden", "-ffp-contract=off", "-fno-strict-aliasing"]
        # Line tables only: what Python's own -g adds, the place of every variable, is a third of the build's time.
        base += ["-g1", "-Wall", "-Wextra"]
        base += shlex.split(os.environ.get("CFLAGS", "")) + shlex.split(os.environ.get("ROOFLM_CFLAGS", ""))
        includes = [f"-I{ROOT}", f"-I{ROOT}/csrc"] + [f"-I{d}" for d in ext.include_dirs + self.include_dirs]
        evex = bool(os.environ.get("ROOFLM_AVXVNNI_AS_EVEX"))
        if evex:
            base.append("-DRL_AVXVNNI_AS_EVEX")
        # What a result's manifest says about the build; without the paths of this machine.
        said = shlex.join(f for f in cc + base if f.startswith("-") and not f.startswith("-I"))
        told = [f"-DRL_BUILD_FLAGS={json.dumps(said)}"]
        jobs = []
        out_dir = Path(self.build_temp)
        for src in sources():
            flags = list(base)
            parts = Path(src).parts
            if parts[0] == "kernels" and parts[1] in ("x86", "arm"):
                if parts[1] != arch:
                    continue
                tier = Path(src).stem.rsplit("_", 1)[-1]
                if tier not in table:
                    raise SystemExit(f"rooflm: {src}: no tier '{tier}' in kernels/tiers.h")
                flags += table[tier][1]
            if parts[-1] == "build.c":
                flags += told
            obj = out_dir / Path(src).with_suffix(".o")
            outputs = ["-MMD", "-MF", str(obj.with_suffix(".d")), "-c", src, "-o", str(obj)]
            jobs.append((src, obj, cc + flags + includes + outputs))

        def compile_one(job):
            src, obj, cmd = job
            stamp = obj.with_suffix(".cmd")
            line = shlex.join(cmd)
            if not self.force and fresh(obj, stamp, line):
                return
            obj.parent.mkdir(parents=True, exist_ok=True)
            if evex and src.endswith("_avxvnni.c"):
                assembly = obj.with_suffix(".s")
                self.spawn([*(a if a != "-c" else "-S" for a in cmd[:-1]), str(assembly)])
                assembly.write_text(re.sub(r"\{vex\}(\s+vpdp)", r"{evex}\1", assembly.read_text()))
                self.spawn([*cc, "-c", str(assembly), "-o", str(obj)])
            else:
                self.spawn(cmd)
            stamp.write_text(line)

        workers = int(os.environ.get("ROOFLM_BUILD_JOBS", os.cpu_count() or 1))
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            list(pool.map(compile_one, jobs))
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        link = list(self.compiler.linker_so) + [str(j[1]) for j in jobs] + ["-o", str(target), "-pthread", "-lm"]
        # Android's loader looks for Python's symbols only in libraries that the extension itself names; get_libraries
        # knows that, and says nothing elsewhere.
        libraries = self.get_libraries(ext)
        if libraries:
            link += [f"-L{d}" for d in [*self.library_dirs, sysconfig.get_config_var("LIBDIR")] if d]
            link += [f"-l{name}" for name in libraries]
        if sys.platform.startswith(("linux", "android")):
            link += ["-ldl", "-Wl,-z,max-page-size=16384"]
        self.spawn(link + shlex.split(os.environ.get("LDFLAGS", "")))


def fresh(obj, stamp, line):
    """True when the object was made by the same command from files that have not changed since."""
    try:
        if stamp.read_text() != line:
            return False
        made = obj.stat().st_mtime
        deps = obj.with_suffix(".d").read_text().replace("\\\n", " ").split(":", 1)[1].split()
        return all(os.stat(d).st_mtime <= made for d in deps)
    except (OSError, IndexError):  # IndexError: the dependency file was cut short
        return False


def numpy_include():
    """NumPy's headers, or None: of the NumPy that can be imported, else of the one installed where this will be.

    pip hides the latter from an isolated build. Where it comes from the system's own packages and PyPI has no wheel of
    it, as on Termux, building against it is what saves compiling NumPy.
    """
    try:
        import numpy

        return numpy.get_include()
    except ImportError:
        pass
    include = Path(sysconfig.get_path("platlib"), "numpy", "_core", "include")
    config = include / "numpy" / "numpyconfig.h"
    # What is built against NumPy 2 runs with older ones, too, but not the other way round.
    return str(include) if config.exists() and "NPY_2_0_API_VERSION" in config.read_text() else None


NUMPY = numpy_include()
setup(
    ext_modules=[Extension("rooflm._core", sources=sources(), include_dirs=[NUMPY] if NUMPY else [])],
    cmdclass={"build_ext": BuildExt},
    setup_requires=[] if NUMPY else ["numpy>=2.0"],
)
