// SPDX-License-Identifier: Apache-2.0
// Quantized weights times int16 activations, with sdot.
#ifndef __ARM_FEATURE_DOTPROD
#error "needs dotprod"
#endif
#define RL_ISA dotprod
#define RL_BITS 16
#define RL_DOTPROD 1
#include "kernels/arm/rows.h"
