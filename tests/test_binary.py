# SPDX-License-Identifier: Apache-2.0
"""The built extension as a file: it must load on every CPU of its architecture, on Android and with 16 KB pages.

Runs on the imported build, or on the one that ROOFLM_BINARY names, also of the other architecture.
"""

from __future__ import annotations

import bisect
import os
import re

import pytest
from elf import Function, arch, functions, instructions, read, refused_by_baseline, tier_of

# What Android 7 (API 24, the oldest that Termux runs on) exports from libc, libm and libdl, of the names that a
# library like this has use for. Add a name only after finding it in bionic's libc.map.txt or libm.map.txt.
BIONIC = set("""
access bsearch calloc clock_getres clock_gettime clock_nanosleep close closedir dlclose dlerror dlopen dlsym eventfd
exit fclose fcntl fdatasync fdopen feof ferror fflush fgets fileno fnmatch fopen fopen64 fputs fread free fseek fseeko
fstat fstat64 fstatfs fstatvfs fsync ftell ftello ftruncate fwrite getauxval getenv geteuid getpagesize getpid getrlimit
getrusage gettid gettimeofday ioctl isatty isspace lseek lseek64 lstat madvise malloc memchr memcmp memcpy memmem
memmove memset mincore mkdir mlock mmap mmap64 mprotect mremap msync munlock munmap nanosleep open open64 openat opendir
posix_fadvise posix_memalign prctl pread pread64 pwrite pwrite64 qsort read readdir readlink realloc realpath rename
rmdir sched_getaffinity sched_getcpu sched_setaffinity sched_yield setpriority sigaction sigemptyset sigfillset
snprintf sscanf stat stat64 statvfs strcasecmp strcat strchr strcmp strcpy strcspn strdup strerror strerror_r strlen
strncasecmp strncat strncmp strncpy strndup strnlen strpbrk strrchr strspn strstr strtod strtof strtok_r strtol
strtoll strtoul strtoull syscall sysconf uname unlink vsnprintf write pthread_attr_destroy pthread_attr_init
pthread_attr_setstacksize pthread_cond_broadcast pthread_cond_destroy pthread_cond_init pthread_cond_signal
pthread_cond_timedwait pthread_cond_wait pthread_condattr_destroy pthread_condattr_init pthread_condattr_setclock
pthread_create pthread_detach pthread_equal pthread_join pthread_key_create pthread_getspecific pthread_setspecific
pthread_kill pthread_mutex_destroy pthread_mutex_init pthread_mutex_lock pthread_mutex_trylock pthread_mutex_unlock
pthread_once pthread_self pthread_setname_np pthread_sigmask acosf asinf atan2f atanf cbrt ceil ceilf cos cosf cosh
coshf erf erff erfc exp exp2 exp2f expf expm1 expm1f fabs fabsf floor floorf fma fmaf fmax fmaxf fmin fminf fmod fmodf
frexp frexpf ldexp ldexpf lgamma log log10 log10f log1p log1pf log2 log2f logf lrint lrintf lround lroundf llrint
llrintf modf nearbyint nearbyintf pow powf rint rintf round roundf scalbn scalbnf sin sincos sincosf sinf sqrt sqrtf
tan tanf tanh tanhf trunc truncf __cxa_finalize __cxa_atexit __sched_cpualloc __sched_cpucount __sched_cpufree
""".split())  # fmt: skip

# What headers and compilers for glibc or musl put in place of a plain name, and that name.
ALIASES = {"__errno_location": "memset", "___errno_location": "memset",  # bionic: __errno
           "__isoc99_sscanf": "sscanf", "__isoc23_sscanf": "sscanf", "__isoc23_strtol": "strtol",
           "__isoc23_strtoul": "strtoul", "__isoc23_strtoll": "strtoll", "__isoc23_strtoull": "strtoull",
           "__fxstat": "fstat", "__fxstat64": "fstat64", "__xstat": "stat", "__xstat64": "stat64",
           "__xpg_strerror_r": "strerror_r", "bcmp": "memcmp",
           "__assert_fail": "exit",  # Python's and NumPy's headers, where they are built for debugging
           "__getauxval": "getauxval",  # of libgcc, to choose atomic instructions
           "__stack_chk_fail": "exit", "__tls_get_addr": "dlsym"}  # fmt: skip
WEAK = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__", "__register_frame_info",
        "__deregister_frame_info"}  # fmt: skip
SANITIZED = any(s in os.environ.get("LD_PRELOAD", "") for s in ("libasan", "libtsan"))

pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer's build calls its own run-time library")


def test_every_symbol_exists_in_bionic():
    wanted = set()
    for line in read("readelf", "--dyn-syms", "-W").splitlines():
        f = line.split()
        if len(f) >= 8 and f[6] == "UND" and not f[7].startswith(("Py", "_Py")):
            name = f[7].split("@")[0]
            wanted.add(ALIASES.get(name, name))
    assert {"malloc", "pthread_create", "getenv"} <= wanted  # the table was read
    lacking = sorted(wanted - BIONIC - WEAK)
    assert not lacking, f"not known to be in Android's C library (see BIONIC above): {lacking}"


def test_exports_nothing_but_its_entry():
    exported = set()
    for line in read("readelf", "--dyn-syms", "-W").splitlines():
        f = line.split()
        if len(f) >= 8 and f[4] in ("GLOBAL", "WEAK") and f[6] != "UND":
            exported.add(f[7].split("@")[0])
    assert exported - {"_init", "_fini"} == {"PyInit__core"}


def test_segments_suit_pages_of_16_kb():
    loads = [line.split() for line in read("readelf", "-lW").splitlines() if line.split()[:1] == ["LOAD"]]
    assert len(loads) >= 2
    rights = []
    for load in loads:
        offset, address, memory, align = (int(load[i], 16) for i in (1, 2, 5, -1))
        assert align >= 16384 and align % 16384 == 0, f"aligned to {align}"
        assert (address - offset) % 16384 == 0
        rights.append((address // 16384, (address + memory - 1) // 16384, "W" in "".join(load[6:-1])))
    # Neighbours with different rights never share a page.
    for (_, last, writes), (first, _, more) in zip(rights, rights[1:]):
        assert last < first or writes == more


def test_no_executable_stack_and_no_text_relocations():
    assert re.search(r"GNU_STACK.*\bRW\b", read("readelf", "-lW"))
    assert "TEXTREL" not in read("readelf", "-dW")


# Instructions of the dispatch itself: asked for only after CPUID has said that they exist.
DISPATCH = {"rl_cpu_features": {"xgetbv"}, "xcr0": {"xgetbv"}}


def helper_of_the_compiler(f: Function) -> bool:
    """libgcc's and compiler-rt's atomics of AArch64, which look at the hardware capabilities before they use LSE."""
    return re.match(r"__aarch64_(cas|swp|ldadd|ldclr|ldeor|ldset)\d+_", f.name) is not None


def test_instructions_outside_dispatched_functions_run_everywhere():
    table = sorted(functions(), key=lambda f: f.start)
    starts = [f.start for f in table]
    dispatch = [tier_of(f) is not None or helper_of_the_compiler(f) for f in table]
    assert any(dispatch), "no function of a tier was recognised: stripped, or names have changed"
    owner_of: dict[str, set[str]] = {}
    dispatched: set[str] = set()
    n_baseline = 0
    for at, text in instructions():
        i = bisect.bisect_right(starts, at) - 1
        f = table[i] if i >= 0 and at < table[i].start + table[i].size else None
        if f and dispatch[i]:
            dispatched.add(text)
            continue
        if f and text.split()[0] in DISPATCH.get(f.name, ()):
            continue
        n_baseline += 1
        owner_of.setdefault(text, set()).add(f.name if f else "(no function)")
    assert n_baseline > 20_000 and dispatched
    # endbr64 marks targets of indirect jumps; before it had a meaning it was a no-op.
    bad = {t: said for t, said in refused_by_baseline(set(owner_of) - {"endbr64"}).items()}
    assert not bad, {t: (sorted(owner_of[t]), said) for t, said in sorted(bad.items())[:10]}
    # The judge does refuse what the kernels are made of.
    assert len(refused_by_baseline(dispatched)) > 50


def test_which_tiers_are_in():
    names = {f.name for f in functions()}
    for tier in ("avx2", "avx512", "avxvnni", "amx") if arch() == "x86" else ("neon", "dotprod", "i8mm"):
        assert any(n.endswith(f"_{tier}") for n in names), f"no function of {tier}"
