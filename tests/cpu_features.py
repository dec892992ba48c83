# SPDX-License-Identifier: Apache-2.0
"""Features of this CPU, asked of the system and not of the library, in the names of kernels/tiers.h."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from pathlib import Path

X86 = platform.machine().lower() in ("x86_64", "amd64")


def cpu_has() -> set[str]:
    if X86:
        flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M).group(1).split()
        found = {f.replace("avx512_vnni", "avx512vnni").replace("avx_vnni", "avxvnni") for f in flags}
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
