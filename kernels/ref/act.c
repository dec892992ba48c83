// SPDX-License-Identifier: Apache-2.0
// Activations to int8 per 32 values and int16 per 256: the definition of right. The SIMD versions do the same
// operations in the same order and must agree to the bit.
#include <math.h>

#include "kernels/api.h"

// The largest magnitude of n values, or NaN when one of them is NaN or infinite.
static float max_abs(const float *x, size_t n) {
    float m = 0;
    for (size_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        if (!(a <= 3.402823466e38f)) return NAN;
        if (a > m) m = a;
    }
    return m;
}

// Below this the reciprocal of the scale would overflow: such a group counts as zeros.
#define TINY 0x1p-110f

void rl_act_q8_ref(const float *x, size_t cols, int8_t *q, float *d, float *s) {
    size_t padded = (cols + 255) / 256 * 256;
    for (size_t b = 0; b < padded; b += 32, q += 32, d++, s++) {
        size_t n = b >= cols ? 0 : cols - b < 32 ? cols - b : 32;
        float m = max_abs(x + (n ? b : 0), n);
        float inv = m > TINY ? RL_ACT_Q8_MAX / m : 0;
        int sum = 0;
        for (size_t i = 0; i < 32; i++) {
            q[i] = i < n && inv > 0 ? (int8_t)lrintf(x[b + i] * inv) : 0;
            sum += q[i];
        }
        *d = m > TINY ? m / RL_ACT_Q8_MAX : m != m ? m : 0;
        *s = *d * (float)sum;
    }
}

void rl_act_q16_ref(const float *x, size_t cols, int16_t *q, float *d, float *s) {
    size_t padded = (cols + 255) / 256 * 256;
    for (size_t b = 0; b < padded; b += 256, q += 256, d++, s += 8) {
        size_t n = cols - b < 256 ? cols - b : 256;
        float m = max_abs(x + b, n);
        float inv = m > TINY ? RL_ACT_Q16_MAX / m : 0;
        *d = m > TINY ? m / RL_ACT_Q16_MAX : m != m ? m : 0;
        for (size_t j = 0; j < 8; j++) {
            int sum = 0;
            for (size_t i = 32 * j; i < 32 * j + 32; i++) {
                q[i] = i < n && inv > 0 ? (int16_t)lrintf(x[b + i] * inv) : 0;
                sum += q[i];
            }
            s[j] = *d * (float)sum;
        }
    }
}
