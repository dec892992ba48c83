// SPDX-License-Identifier: Apache-2.0
// THE table of ISA tiers: RL_TIER(name, architecture, "compiler flags", run-time feature mask), best last.
// setup.py reads the flags for files named *_<name>.c; dispatch reads the masks. One row serves both, so that
// a file can never be compiled for more than is asked of the CPU. Not included twice: it is an X-macro list.
RL_TIER(avx2, x86, "-mavx2 -mfma -mf16c", RL_CPU_AVX2 | RL_CPU_FMA | RL_CPU_F16C)
RL_TIER(avxvnni, x86, "-mavx2 -mfma -mf16c -mavxvnni", RL_CPU_AVX2 | RL_CPU_FMA | RL_CPU_F16C | RL_CPU_AVXVNNI)
RL_TIER(avx512, x86,
        "-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mprefer-vector-width=512",
        RL_CPU_AVX2 | RL_CPU_FMA | RL_CPU_F16C | RL_CPU_AVX512F | RL_CPU_AVX512BW | RL_CPU_AVX512VL | RL_CPU_AVX512DQ |
            RL_CPU_AVX512VNNI)
RL_TIER(amx, x86, "-mfma -mf16c -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mamx-int8 -mprefer-vector-width=512",
        RL_CPU_AVX2 | RL_CPU_FMA | RL_CPU_F16C | RL_CPU_AVX512F | RL_CPU_AVX512BW | RL_CPU_AVX512VL | RL_CPU_AVX512DQ |
            RL_CPU_AVX512VNNI | RL_CPU_AMXTILE | RL_CPU_AMXINT8)
RL_TIER(neon, arm, "", RL_CPU_NEON)
RL_TIER(dotprod, arm, "-march=armv8.2-a+dotprod", RL_CPU_NEON | RL_CPU_DOTPROD)
RL_TIER(i8mm, arm, "-march=armv8.2-a+dotprod+i8mm", RL_CPU_NEON | RL_CPU_DOTPROD | RL_CPU_I8MM)
