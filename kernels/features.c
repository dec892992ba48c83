// SPDX-License-Identifier: Apache-2.0
#include "kernels/features.h"

static const rl_cpu_feature names[] = {
    {RL_CPU_AVX2, "avx2"},         {RL_CPU_FMA, "fma"},           {RL_CPU_F16C, "f16c"},
    {RL_CPU_AVXVNNI, "avxvnni"},   {RL_CPU_AVX512F, "avx512f"},   {RL_CPU_AVX512BW, "avx512bw"},
    {RL_CPU_AVX512VL, "avx512vl"}, {RL_CPU_AVX512DQ, "avx512dq"}, {RL_CPU_AVX512VNNI, "avx512vnni"},
    {RL_CPU_AMXTILE, "amxtile"},   {RL_CPU_AMXINT8, "amxint8"},   {RL_CPU_NEON, "neon"},
    {RL_CPU_DOTPROD, "dotprod"},   {RL_CPU_I8MM, "i8mm"},
};

const rl_cpu_feature *rl_cpu_feature_names(size_t *n) {
    *n = sizeof names / sizeof *names;
    return names;
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <string.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

// What the operating system saves on a context switch. A register file that it does not save must not be
// used, whatever CPUID says.
static uint64_t xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

// Tiles are 8 KB more to save for each thread, so that Linux wants to be asked, once in the life of a process, and may
// refuse: before 5.16 it does not know the question, and a signal stack may be too small. By syscall(), because no C
// library has a name for it; children of a fork have the permission, too.
static int tiles_permitted(void) {
#if defined(__linux__) && defined(SYS_arch_prctl)
    const int request = 0x1023, tile_data = 18; // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request, tile_data) == 0;
#else
    return 0;
#endif
}

uint64_t rl_cpu_features(void) {
    uint32_t a, b, c, d;
    uint64_t f = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & (1u << 27))) return 0; // OSXSAVE
    uint64_t saved = xcr0();
    if ((saved & 0x6) != 0x6 || !(c & (1u << 28))) return 0; // XMM and YMM state, AVX
    if (c & (1u << 12)) f |= RL_CPU_FMA;
    if (c & (1u << 29)) f |= RL_CPU_F16C;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
    uint32_t subleaves = a;
    if (b & (1u << 5)) f |= RL_CPU_AVX2;
    if ((saved & 0xE6) == 0xE6 && (b & (1u << 16))) { // opmask, upper halves, ZMM16 to 31
        f |= RL_CPU_AVX512F;
        if (b & (1u << 17)) f |= RL_CPU_AVX512DQ;
        if (b & (1u << 30)) f |= RL_CPU_AVX512BW;
        if (b & (1u << 31)) f |= RL_CPU_AVX512VL;
        if (c & (1u << 11)) f |= RL_CPU_AVX512VNNI;
    }
    const uint32_t tile = 1u << 24, int8 = 1u << 25;
    const uint64_t tile_state = 3u << 17; // configuration and data
    if ((d & tile) && (saved & tile_state) == tile_state && tiles_permitted()) {
        f |= RL_CPU_AMXTILE;
        if (d & int8) f |= RL_CPU_AMXINT8;
    }
#ifdef RL_AVXVNNI_AS_EVEX // a build for tests, see setup.py
    if (f & RL_CPU_AVX512VL && f & RL_CPU_AVX512VNNI) f |= RL_CPU_AVXVNNI;
#endif
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 4))) f |= RL_CPU_AVXVNNI;
    return f;
}

// Intel's prefetcher into the second-level cache follows each 4 KB page by itself and has more requests under way than
// the first-level cache has buffers for, so it needs several pages to follow at a time: docs/performance.md. AMD's does
// as well with one.
bool rl_cpu_wants_strips(void) {
    uint32_t a, name[3];
    if (!__get_cpuid(0, &a, &name[0], &name[2], &name[1])) return false;
    return memcmp(name, "GenuineIntel", sizeof name) == 0;
}

#elif defined(__aarch64__)
#include <sys/auxv.h>

// bionic may not define the names.
#define HWCAP_BIT_ASIMDDP (1ul << 20)
#define HWCAP2_BIT_I8MM (1ul << 13)

uint64_t rl_cpu_features(void) {
    uint64_t f = RL_CPU_NEON; // part of the AArch64 baseline
    if (getauxval(AT_HWCAP) & HWCAP_BIT_ASIMDDP) f |= RL_CPU_DOTPROD;
    if (getauxval(AT_HWCAP2) & HWCAP2_BIT_I8MM) f |= RL_CPU_I8MM;
    return f;
}

bool rl_cpu_wants_strips(void) {
    return false;
}

#else
uint64_t rl_cpu_features(void) {
    return 0;
}

bool rl_cpu_wants_strips(void) {
    return false;
}
#endif
