// SPDX-License-Identifier: Apache-2.0
// Types with blocks of 32 values times int16 activations, AVX-512 VNNI in vectors of 256 bits.
#if !defined(__AVX512VL__) || !defined(__AVX512VNNI__)
#error "needs AVX-512 VL and VNNI"
#endif
#define RL_ISA avx512
#define RL_OWN_Q4_1
#define RL_BITS 16
#define RL_DPBUSD _mm256_dpbusd_epi32
#define RL_DPWSSD _mm256_dpwssd_epi32
#include "kernels/x86/rows256_blocks.h"
