// SPDX-License-Identifier: Apache-2.0
// Attention over token-major and head-major pages in NEON; the walk is in attn_row_body.h.
#include "kernels/attn.h"

#ifndef __ARM_NEON
#error "needs NEON"
#endif
#include <arm_neon.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define W 4
#define LINES 4
#define ROWS 3
typedef float32x4_t V;

INLINE V zero(void) {
    return vdupq_n_f32(0);
}
INLINE V set1(float x) {
    return vdupq_n_f32(x);
}
INLINE V mul(V a, V b) {
    return vmulq_f32(a, b);
}
INLINE V fmadd(V a, V b, V c) {
    return vfmaq_f32(c, a, b);
}
INLINE V load_f32(const float *p) {
    return vld1q_f32(p);
}
INLINE V load_f16(const uint8_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
INLINE float half(uint16_t bits) {
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits))), 0);
}
// Four bytes, and none behind them.
INLINE V load_i8(const uint8_t *p) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    int16x8_t x = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(x)));
}
INLINE void store_f32(float *p, V x) {
    vst1q_f32(p, x);
}
// The sums across a, b, c and d.
INLINE void store_sums(float *p, V a, V b, V c, V d) {
    vst1q_f32(p, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
}

#include "kernels/attn_row_body.h"

ROW_KERNELS(RL_F32, f32, neon)
ROW_KERNELS(RL_F16, f16, neon)
ROW_KERNELS(RL_Q8_0, q8_0, neon)
