// SPDX-License-Identifier: Apache-2.0
// Attention over q8_0 pages, AVX2.
#if !defined(__AVX2__) || !defined(__FMA__)
#error "compile with the flags of the avx2 tier"
#endif
#define RL_ISA avx2
#include "kernels/x86/attn_q8_256.h"
