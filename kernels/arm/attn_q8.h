// SPDX-License-Identifier: Apache-2.0
// What the kernels of attention over q8_0 pages share: weights of V as integers.
#ifndef RL_KERNELS_ARM_ATTN_Q8_H
#define RL_KERNELS_ARM_ATTN_Q8_H

#ifndef __ARM_NEON
#error "needs NEON"
#endif
#include <arm_neon.h>
#include <string.h>

#include "kernels/arm/loop.h"
#include "kernels/attn_parts.h"

#define INLINE static inline __attribute__((always_inline))

// Weights of one row times the scales of one group, rounded to integers of at most `most` times the step returned.
// Scales from token n_tok on are not looked at.
INLINE float weights16(const float *p, const float *scales, size_t n_tok, const float most, int16x8_t out[8]) {
    float used[64] = {0};
    if (n_tok < 64) {
        memcpy(used, scales, n_tok * sizeof *scales);
        scales = used;
    }
    float32x4_t w[16], max = vdupq_n_f32(0);
    uint32x4_t good = vdupq_n_u32(0xFFFFFFFFu);
    for (int i = 0; i < 16; i++) {
        w[i] = vmulq_f32(vld1q_f32(p + 4 * i), vld1q_f32(scales + 4 * i));
        good = vandq_u32(good, vceqq_f32(w[i], w[i]));
        max = vmaxnmq_f32(max, w[i]);
    }
    float top = vmaxvq_f32(max), inv = top > 0x1p-100f ? most / top : 0.0f;
    for (int i = 0; i < 8; i++) {
        int16x4_t a = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(w[2 * i], inv)));
        int16x4_t b = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(w[2 * i + 1], inv)));
        out[i] = vcombine_s16(a, b);
    }
    return vminvq_u32(good) ? top * (1.0f / most) : __builtin_nanf("");
}

#endif
