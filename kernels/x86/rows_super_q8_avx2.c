// SPDX-License-Identifier: Apache-2.0
// Types with superblocks of 256 values times int8 activations, AVX2.
#define RL_ISA avx2
#define RL_BITS 8
#include "kernels/x86/rows256_super.h"
