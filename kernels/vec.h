// SPDX-License-Identifier: Apache-2.0
// The operations of rl_vec, each named once. In the table the entries of one operation share a layout string, the
// operation's name, which is how rl_vec_init asks for the best of them.
#ifndef RL_KERNELS_VEC_H
#define RL_KERNELS_VEC_H

#define RL_VEC_OPS(X)                                                                                                  \
    X(rmsnorm)                                                                                                         \
    X(layernorm)                                                                                                       \
    X(add)                                                                                                             \
    X(scale)                                                                                                           \
    X(silu_mul)                                                                                                        \
    X(gelu_mul)                                                                                                        \
    X(gelu)                                                                                                            \
    X(silu)                                                                                                            \
    X(softcap)                                                                                                         \
    X(rope_norm)                                                                                                       \
    X(rope_neox)                                                                                                       \
    X(max)                                                                                                             \
    X(exp_sum)                                                                                                         \
    X(logsumexp)                                                                                                       \
    X(argmax)

#endif
