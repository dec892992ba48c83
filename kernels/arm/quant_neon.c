// SPDX-License-Identifier: Apache-2.0
// The quantizer's searches on 4 lanes at once.
#if !defined(__aarch64__)
#error "compile this file for AArch64"
#endif
#ifdef __FAST_MATH__
#error "not with -ffast-math"
#endif
#include <arm_neon.h>
#include <string.h>

#include "kernels/quant.h"

typedef float32x4_t vf;
#define W 4
#define QUANT(op) rl_quant_##op##_neon

#define v_load(p) vld1q_f32(p)
#define v_store(p, v) vst1q_f32(p, v)
#define v_set(s) vdupq_n_f32(s)
#define v_add(a, b) vaddq_f32(a, b)
#define v_sub(a, b) vsubq_f32(a, b)
#define v_mul(a, b) vmulq_f32(a, b)
#define v_div(a, b) vdivq_f32(a, b)
#define v_min(a, b) vminq_f32(a, b)
#define v_max(a, b) vmaxq_f32(a, b)
#define v_abs(a) vabsq_f32(a)
#define v_select(a, b, x, y) vbslq_f32(vcgtq_f32(a, b), x, y)

static inline void v_store_u8(uint8_t *p, vf v) {
    uint16x4_t h = vmovn_u32(vcvtq_u32_f32(v));
    uint8x8_t b = vmovn_u16(vcombine_u16(h, h));
    uint32_t four = vget_lane_u32(vreinterpret_u32_u8(b), 0);
    memcpy(p, &four, 4);
}

#include "kernels/quant_body.h"
