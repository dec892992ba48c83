// SPDX-License-Identifier: Apache-2.0
// Searches of the quantizer: one entry per operation and tier, the operation in the place of the layout.
#include "kernels/quant.h"

#define RL_QUANT_KERNEL(op, isa)                                                                                       \
    RL_KERNEL(__typeof__(((rl_quant *)0)->op), RL_FAM_QUANT, rl_quant_##op##_##isa, RL_TYPE_NONE, 0, isa, 0, 0, #op)

#define X(op) RL_QUANT_KERNEL(op, ref)
RL_QUANT_OPS(X)
#undef X
#if defined(__x86_64__)
#define X(op) RL_QUANT_KERNEL(op, avx2)
RL_QUANT_OPS(X)
#undef X
#define X(op) RL_QUANT_KERNEL(op, avx512)
RL_QUANT_OPS(X)
#undef X
#elif defined(__aarch64__)
#define X(op) RL_QUANT_KERNEL(op, neon)
RL_QUANT_OPS(X)
#undef X
#endif
#undef RL_QUANT_KERNEL
