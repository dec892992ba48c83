// SPDX-License-Identifier: Apache-2.0
// Quantized weights times int8 activations of several tokens, with smmla.
#if !defined(__ARM_FEATURE_MATMUL_INT8) || !defined(__ARM_FEATURE_DOTPROD)
#error "needs i8mm and dotprod"
#endif
#define RL_BITS 8
#include "kernels/arm/rows_mm.h"
