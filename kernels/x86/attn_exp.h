// SPDX-License-Identifier: Apache-2.0
// The polynomial of the softmax's exponential, for all vector widths.
#ifndef RL_KERNELS_X86_ATTN_EXP_H
#define RL_KERNELS_X86_ATTN_EXP_H

// 2^f for |f| <= 1/2 within a relative error of 1.1e-7 (minimax), by Horner's rule. An expression: a loop over an
// array costs registers in the loop around it.
#define ATTN_EXP2(f, set, fma)                                                                                         \
    fma(fma(fma(fma(fma(set(0x1.5bba14p-10f), f, set(0x1.3cea88p-7f)), f, set(0x1.c6b752p-5f)), f,                     \
                set(0x1.ebf9bcp-3f)),                                                                                  \
            f, set(0x1.62e42ap-1f)),                                                                                   \
        f, set(1.0f))

#endif
