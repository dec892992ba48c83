// SPDX-License-Identifier: Apache-2.0
// The loops of peak.h, written once. The including file defines CHAINS (independent sums that hide the latency) and
// HIDE(x), which keeps a register's value from the compiler, so that it can neither see it nor drop the work.
#include "kernels/peak.h"

#define PEAK(NAME, V, ZERO, OP, PER)                                                                                   \
    double NAME(size_t n, float *sink) {                                                                               \
        V acc[CHAINS], a = ZERO, b = ZERO;                                                                             \
        HIDE(a);                                                                                                       \
        HIDE(b);                                                                                                       \
        _Pragma("GCC unroll 16") for (int i = 0; i < CHAINS; i++) acc[i] = ZERO;                                       \
        for (size_t k = 0; k < n; k++) {                                                                               \
            _Pragma("GCC unroll 16") for (int i = 0; i < CHAINS; i++) {                                                \
                HIDE(a); /* or the product moves out of the loop */                                                    \
                acc[i] = OP(acc[i], a, b);                                                                             \
                HIDE(acc[i]);                                                                                          \
            }                                                                                                          \
        }                                                                                                              \
        V sum = acc[0];                                                                                                \
        _Pragma("GCC unroll 16") for (int i = 1; i < CHAINS; i++) sum += acc[i];                                       \
        *sink = (float)sum[0];                                                                                         \
        return (double)n * CHAINS * (PER);                                                                             \
    }
