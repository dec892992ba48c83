// SPDX-License-Identifier: Apache-2.0
// Attention over q8_0 pages, AVX-VNNI (256 bits): the sums of AVX2 in 12 instructions a line and three rows, not 24.
#ifndef __AVXVNNI__
#error "needs AVX-VNNI"
#endif
#define RL_DPWSSD _mm256_dpwssd_avx_epi32
#include "kernels/x86/attn_q8_256.h"

ATTN_Q8_KERNELS(avxvnni)
