// SPDX-License-Identifier: Apache-2.0
// Vector operations: one entry per operation and tier, the operation in the place of the layout.
#include "kernels/vec.h"

#define RL_VEC_KERNEL(op, isa)                                                                                         \
    RL_KERNEL(__typeof__(((rl_vec *)0)->op), RL_FAM_VEC, rl_vec_##op##_##isa, RL_TYPE_NONE, 0, isa, 0, 0, #op)

#define X(op) RL_VEC_KERNEL(op, ref)
RL_VEC_OPS(X)
#undef X
#if defined(__x86_64__)
#define X(op) RL_VEC_KERNEL(op, avx2)
RL_VEC_OPS(X)
#undef X
#define X(op) RL_VEC_KERNEL(op, avx512)
RL_VEC_OPS(X)
#undef X
#elif defined(__aarch64__)
#define X(op) RL_VEC_KERNEL(op, neon)
RL_VEC_OPS(X)
#undef X
#endif
#undef RL_VEC_KERNEL
