// SPDX-License-Identifier: Apache-2.0
// Dequantizers, NEON: the same bits as the references.
#include "kernels/arm/dequant.h"

#define DEQUANT(T)                                                                                                     \
    void rl_dequant_##T##_neon(const void *blocks, float *out, size_t n);                                              \
    void rl_dequant_##T##_neon(const void *blocks, float *out, size_t n) {                                             \
        deq_##T(blocks, out, n);                                                                                       \
    }
RL_FOR_EACH_TYPE(DEQUANT)
