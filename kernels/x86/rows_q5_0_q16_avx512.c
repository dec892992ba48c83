// SPDX-License-Identifier: Apache-2.0
// Q5_0 times int16 activations, AVX-512 VNNI.
#define RL_ISA avx512
#define RL_BITS 16
#define RL_DPBUSD _mm256_dpbusd_epi32
#define RL_DPWSSD _mm256_dpwssd_epi32
#include "kernels/x86/rows512_q5_0.h"
