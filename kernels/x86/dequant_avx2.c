// SPDX-License-Identifier: Apache-2.0
// Dequantizers, AVX2: the same bits as the references.
#include "kernels/x86/dequant256.h"

#define DEQUANT(T)                                                                                                     \
    void rl_dequant_##T##_avx2(const void *blocks, float *out, size_t n);                                              \
    void rl_dequant_##T##_avx2(const void *blocks, float *out, size_t n) {                                             \
        deq_##T(blocks, out, n);                                                                                       \
    }
RL_FOR_EACH_TYPE(DEQUANT)
