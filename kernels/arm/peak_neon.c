// SPDX-License-Identifier: Apache-2.0
// The integer and float peak of NEON without dot products: int8 is two smull and two sadalp for 16 products.
#ifndef __ARM_NEON
#error "compile this file with the flags of its tier"
#endif
#include "kernels/arm/peak.h"

static inline int32x4_t dot8(int32x4_t acc, int32x4_t a, int32x4_t b) {
    int8x16_t x = vreinterpretq_s8_s32(a), y = vreinterpretq_s8_s32(b);
    acc = vpadalq_s16(acc, vmull_s8(vget_low_s8(x), vget_low_s8(y)));
    return vpadalq_s16(acc, vmull_high_s8(x, y));
}
static inline int32x4_t dot16(int32x4_t acc, int32x4_t a, int32x4_t b) {
    int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    return vmlal_high_s16(vmlal_s16(acc, vget_low_s16(x), vget_low_s16(y)), x, y);
}
static inline float32x4_t fma32(float32x4_t acc, float32x4_t a, float32x4_t b) {
    return vfmaq_f32(acc, a, b);
}

PEAK(rl_peak_int8_neon, int32x4_t, vdupq_n_s32(0), dot8, 16)
PEAK(rl_peak_int16_neon, int32x4_t, vdupq_n_s32(0), dot16, 8)
PEAK(rl_peak_f32_neon, float32x4_t, vdupq_n_f32(0), fma32, 4)
