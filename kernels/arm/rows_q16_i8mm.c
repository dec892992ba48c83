// SPDX-License-Identifier: Apache-2.0
// Quantized weights times int16 activations of several tokens, with smmla.
#if !defined(__ARM_FEATURE_MATMUL_INT8) || !defined(__ARM_FEATURE_DOTPROD)
#error "needs i8mm and dotprod"
#endif
#define RL_BITS 16
#include "kernels/arm/rows_mm.h"
