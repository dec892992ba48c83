// SPDX-License-Identifier: Apache-2.0
// Quantizing activations, NEON: the same operations as kernels/ref/act.c, so equal to the bit. Groups that reach
// beyond the vector are copied first: nothing is read behind its end.
#ifndef __ARM_NEON
#error "needs NEON"
#endif
#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "kernels/api.h"

#define TINY 0x1p-110f // as in the reference: the reciprocal of the scale would overflow below

void rl_act_q8_neon(const float *x, size_t cols, int8_t *q, float *d, float *s);
void rl_act_q16_neon(const float *x, size_t cols, int16_t *q, float *d, float *s);

// The largest magnitude of n values (a multiple of 16), or NaN when one of them is NaN or infinite.
static inline float max_abs(const float *x, size_t n) {
    float32x4_t m[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    for (size_t i = 0; i < n; i += 16)
        for (size_t j = 0; j < 4; j++) m[j] = vmaxq_f32(m[j], vabsq_f32(vld1q_f32(x + i + 4 * j))); // hands NaN on
    float top = vmaxvq_f32(vmaxq_f32(vmaxq_f32(m[0], m[1]), vmaxq_f32(m[2], m[3])));
    return top <= 3.402823466e38f ? top : NAN;
}

static inline int16x8_t round8(const float *x, float inv) {
    int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x), inv));
    int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4), inv));
    return vcombine_s16(vmovn_s32(a), vmovn_s32(b));
}

static void group_q8(const float *x, int8_t *q, float *d, float *s) {
    float m = max_abs(x, 32);
    if (!(m > TINY)) {
        memset(q, 0, 32);
        *d = *s = m != m ? m : 0;
        return;
    }
    float inv = RL_ACT_Q8_MAX / m;
    int16x8_t sum = vdupq_n_s16(0);
    for (int i = 0; i < 32; i += 8) {
        int16x8_t v = round8(x + i, inv);
        sum = vaddq_s16(sum, v);
        vst1_s8(q + i, vmovn_s16(v));
    }
    *d = m / RL_ACT_Q8_MAX;
    *s = *d * (float)vaddlvq_s16(sum);
}

void rl_act_q8_neon(const float *x, size_t cols, int8_t *q, float *d, float *s) {
    size_t padded = (cols + 255) / 256 * 256, b = 0;
    for (; b + 32 <= cols; b += 32) group_q8(x + b, q + b, d++, s++);
    if (b < cols) {
        float tail[32] = {0};
        memcpy(tail, x + b, (cols - b) * sizeof *x);
        group_q8(tail, q + b, d++, s++);
        b += 32;
    }
    memset(q + b, 0, padded - b);
    memset(d, 0, (padded - b) / 32 * sizeof *d);
    memset(s, 0, (padded - b) / 32 * sizeof *s);
}

static void group_q16(const float *x, int16_t *q, float *d, float *s) {
    float m = max_abs(x, 256);
    if (!(m > TINY)) {
        memset(q, 0, 512);
        *d = m != m ? m : 0;
        for (int j = 0; j < 8; j++) s[j] = *d;
        return;
    }
    float inv = RL_ACT_Q16_MAX / m;
    *d = m / RL_ACT_Q16_MAX;
    for (int j = 0; j < 8; j++, x += 32, q += 32) {
        int32x4_t sum = vdupq_n_s32(0);
        for (int i = 0; i < 32; i += 8) {
            int16x8_t v = round8(x + i, inv);
            sum = vpadalq_s16(sum, v);
            vst1q_s16(q + i, v);
        }
        s[j] = *d * (float)vaddvq_s32(sum);
    }
}

void rl_act_q16_neon(const float *x, size_t cols, int16_t *q, float *d, float *s) {
    size_t b = 0;
    for (; b + 256 <= cols; b += 256, s += 8) group_q16(x + b, q + b, d++, s);
    if (b < cols) {
        float tail[256] = {0};
        memcpy(tail, x + b, (cols - b) * sizeof *x);
        group_q16(tail, q + b, d, s);
    }
}
