// SPDX-License-Identifier: Apache-2.0
// Quantized weights times int8 activations, NEON.
#define RL_ISA neon
#define RL_BITS 8
#define RL_DOTPROD 0
#include "kernels/arm/rows.h"
