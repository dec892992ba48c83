# SPDX-License-Identifier: Apache-2.0
"""Features of this CPU, asked of the system and not of the library, in the names of kernels/tiers.h."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from pathlib import Path

X86 = platform.machine().lower() in ("x86_64", "amd64")


def tiles_permitted() -> bool:
    """Whether Linux lets this process use AMX: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)."""
    return ctypes.CDLL(None).syscall(ctypes.c_long(158), ctypes.c_long(0x1023), ctypes.c_long(18)) == 0


def cpu_has() -> set[str]:
    if X86:
        flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M).group(1).split()
        found = {f.replace("avx512_vnni", "avx512vnni").replace("avx_vnni", "avxvnni") for f in flags}
        if "amx_tile" in found and tiles_permitted():
            found |= {"amxtile"} | ({"amxint8"} if "amx_int8" in found else set())
        # The build that has the AVX-VNNI tier in AVX-512's encoding (setup.py).
        if os.environ.get("ROOFLM_AVXVNNI_AS_EVEX") and {"avx512vl", "avx512vnni"} <= found:
            found.add("avxvnni")
        return found
    # Not /proc/cpuinfo: under emulation it shows the host.
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    found = {"neon"}
    if getauxval(16) >> 20 & 1:
        found.add("dotprod")
    if getauxval(26) >> 13 & 1:
        found.add("i8mm")
    return found
