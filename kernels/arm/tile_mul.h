// SPDX-License-Identifier: Apache-2.0
// What the ARM tiles share: the vectors that kernels/tile_mul_body.h asks for, in 128 bits. One vector of weights is
// 4 rows by 4 columns. Biased bytes (u8b128) become signed by flipping their top bit, so no bias is left to add.
#ifndef __ARM_NEON
#error "needs NEON"
#endif
#include <arm_neon.h>
#include <stdint.h>

#include "kernels/arm/loop.h"
#include "kernels/tile.h"

#define LANES 4
#define VI int32x4_t
#define VF float32x4_t
#define v_set1i(x) vdupq_n_s32(x)
#define v_set1f(x) vdupq_n_f32(x)
#define v_loadf(p) vld1q_f32(p)
#define v_storef(p, x) vst1q_f32(p, x)
#define v_cvt(x) vcvtq_f32_s32(x)
#define v_mul(a, b) vmulq_f32(a, b)
#define v_fma(a, b, c) vfmaq_f32(c, a, b)
#define OFF32(p, b) ((const int32_t *)0)

#define NT32 6
#define NT16 6
#define NT_MAX 6
#define STEP_W 128 // bytes of weights from one step of 4 columns to the next

static inline __attribute__((always_inline)) int8x16_t weights(const uint8_t *p, const int bits) {
    uint8x16_t v = vld1q_u8(p);
    return vreinterpretq_s8_u8(bits == 8 ? veorq_u8(v, vdupq_n_u8(0x80)) : v);
}

// 4 columns of 6 tokens as bytes: tokens 0 to 3, and 4 and 5.
typedef struct {
    int8x16_t first, last;
} tokens;

// int16 values are 256 * high + low, both of which fit signed bytes: |value| <= RL_ACT_Q16_MAX. Rounding the high
// ones makes up for the sign of the low ones.
enum { BYTES, HIGH, LOW };

static inline __attribute__((always_inline)) int8x8_t narrow(const int16_t *x, const int part) {
    int16x8_t v = vld1q_s16(x);
    return part == HIGH ? vrshrn_n_s16(v, 8) : vmovn_s16(v);
}

static inline __attribute__((always_inline)) tokens fetch(const void *x, const int part) {
    if (part == BYTES) return (tokens){vld1q_s8(x), vcombine_s8(vld1_s8((const int8_t *)x + 16), vdup_n_s8(0))};
    // Every four columns lie as 0 2 1 3; the weights as 0 1 2 3.
    static const uint8_t order[16] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
    const uint8x16_t at = vld1q_u8(order);
    const int16_t *v = x;
    int8x8_t last = narrow(v + 16, part);
    return (tokens){vqtbl1q_s8(vcombine_s8(narrow(v, part), narrow(v + 8, part)), at),
                    vqtbl1q_s8(vcombine_s8(last, last), at)};
}
