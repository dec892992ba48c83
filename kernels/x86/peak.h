// SPDX-License-Identifier: Apache-2.0
// The loops of peak.h (one level up) for x86. CHAINS (independent sums that hide the
// latency) is defined by the including file.
#include "kernels/peak.h"

// The compiler must neither see the values nor drop the work.
#define HIDE(x) __asm__ volatile("" : "+v"(x))

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
