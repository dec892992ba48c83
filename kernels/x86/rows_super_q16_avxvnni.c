// SPDX-License-Identifier: Apache-2.0
// Types with superblocks of 256 values times int16 activations, AVX-VNNI (256 bits).
#ifndef __AVXVNNI__
#error "needs AVX-VNNI"
#endif
#define RL_ISA avxvnni
#define RL_BITS 16
#define RL_DPBUSD _mm256_dpbusd_avx_epi32
#define RL_DPWSSD _mm256_dpwssd_avx_epi32
#include "kernels/x86/rows256_super.h"
