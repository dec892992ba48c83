// SPDX-License-Identifier: Apache-2.0
// Attention over q8_0 pages, AVX2.
#if !defined(__AVX2__) || !defined(__FMA__)
#error "compile with the flags of the avx2 tier"
#endif
#include "kernels/x86/attn_q8_256.h"

ATTN_Q8_KERNELS(avx2)
