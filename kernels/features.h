// SPDX-License-Identifier: Apache-2.0
// What the CPU under us can do: CPUID with XCR0 on x86-64, AT_HWCAP and AT_HWCAP2 on AArch64.
#ifndef RL_KERNELS_FEATURES_H
#define RL_KERNELS_FEATURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RL_CPU_AVX2 (1ull << 0)
#define RL_CPU_FMA (1ull << 1)
#define RL_CPU_F16C (1ull << 2)
#define RL_CPU_AVXVNNI (1ull << 3)
#define RL_CPU_AVX512F (1ull << 4)
#define RL_CPU_AVX512BW (1ull << 5)
#define RL_CPU_AVX512VL (1ull << 6)
#define RL_CPU_AVX512DQ (1ull << 7)
#define RL_CPU_AVX512VNNI (1ull << 8)
#define RL_CPU_AMXTILE (1ull << 9) // with the system's permission to use them
#define RL_CPU_AMXINT8 (1ull << 10)
#define RL_CPU_NEON (1ull << 32)
#define RL_CPU_DOTPROD (1ull << 33)
#define RL_CPU_I8MM (1ull << 34)

uint64_t rl_cpu_features(void);

typedef struct rl_cpu_feature {
    uint64_t bit;
    const char *name;
} rl_cpu_feature;

/// All features, of every architecture.
const rl_cpu_feature *rl_cpu_feature_names(size_t *n);

/// Whether rows come faster from several places by turns (rl_rows_args.apart) than one after the other.
bool rl_cpu_wants_strips(void);

#endif
