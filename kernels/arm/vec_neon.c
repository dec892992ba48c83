// SPDX-License-Identifier: Apache-2.0
// Vector operations for NEON: this ISA's vocabulary for kernels/vec_body.h.
#ifndef __ARM_NEON
#error "vec_neon.c needs NEON"
#endif
#ifdef __FAST_MATH__
#error "not with -ffast-math"
#endif
#include <arm_neon.h>
#include <string.h>

#include "kernels/api.h"

typedef float32x4_t vf;
typedef float64x2_t vd;
enum { W = 4 };

static inline vf v_load(const float *p) {
    return vld1q_f32(p);
}
static inline void v_store(float *p, vf v) {
    vst1q_f32(p, v);
}
static inline vf v_load_n(const float *p, size_t n) {
    float t[W] = {0};
    memcpy(t, p, n * sizeof *t);
    return vld1q_f32(t);
}
static inline void v_store_n(float *p, vf v, size_t n) {
    float t[W];
    vst1q_f32(t, v);
    memcpy(p, t, n * sizeof *t);
}
static inline vf v_set(float s) {
    return vdupq_n_f32(s);
}
static inline vf v_add(vf a, vf b) {
    return vaddq_f32(a, b);
}
static inline vf v_sub(vf a, vf b) {
    return vsubq_f32(a, b);
}
static inline vf v_mul(vf a, vf b) {
    return vmulq_f32(a, b);
}
static inline vf v_div(vf a, vf b) {
    return vdivq_f32(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return vfmaq_f32(c, a, b);
}
static inline vf v_fnma(vf a, vf b, vf c) {
    return vfmsq_f32(c, a, b);
}
static inline vf v_max_num(vf x, vf acc) {
    return vmaxnmq_f32(x, acc);
} // the number when one is NaN
static inline vf v_clamp(vf x, float lo, float hi) { // these hand NaN on
    return vmaxq_f32(vdupq_n_f32(lo), vminq_f32(vdupq_n_f32(hi), x));
}
static inline vf v_round(vf x) {
    return vrndnq_f32(x);
}
// In two steps, so that neither power leaves the range and only the last product rounds.
static inline vf v_pow2(vf p, vf n) {
    int32x4_t k = vcvtnq_s32_f32(n), k1 = vshrq_n_s32(k, 1), k2 = vsubq_s32(k, k1), bias = vdupq_n_s32(127);
    vf s1 = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(k1, bias), 23));
    vf s2 = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(k2, bias), 23));
    return vmulq_f32(vmulq_f32(p, s1), s2);
}
static inline vf v_abs(vf x) {
    return vabsq_f32(x);
}
static inline vf v_sign_of(vf magnitude, vf sign) {
    return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude);
}
static inline vf v_select_lt(vf a, vf b, vf x, vf y) {
    return vbslq_f32(vcltq_f32(a, b), x, y);
}
static inline vf v_swap_pairs(vf x) {
    return vrev64q_f32(x);
}
static inline vf v_dup_even(vf x) {
    return vtrn1q_f32(x, x);
}
static inline vf v_dup_odd(vf x) {
    return vtrn2q_f32(x, x);
}
static inline vf v_fmaddsub(vf a, vf b, vf c) {
    const uint32x4_t even = vreinterpretq_u32_u64(vdupq_n_u64(0x80000000u));
    return vfmaq_f32(vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(c), even)), a, b);
}
static inline void v_unzip(vf a, vf b, vf *even, vf *odd) {
    *even = vuzp1q_f32(a, b);
    *odd = vuzp2q_f32(a, b);
}
static inline size_t v_first_eq(vf v, float s) {
    uint64_t m = vget_lane_u64(vreinterpret_u64_u16(vmovn_u32(vceqq_f32(v, vdupq_n_f32(s)))), 0);
    return m ? (size_t)__builtin_ctzll(m) / 16 : W;
}
static inline float v_reduce_max(vf v) {
    return vmaxvq_f32(v);
}
static inline vd v_lo(vf v) {
    return vcvt_f64_f32(vget_low_f32(v));
}
static inline vd v_hi(vf v) {
    return vcvt_high_f64_f32(v);
}
static inline vd d_set(double s) {
    return vdupq_n_f64(s);
}
static inline vd d_add(vd a, vd b) {
    return vaddq_f64(a, b);
}
static inline vd d_sub(vd a, vd b) {
    return vsubq_f64(a, b);
}
static inline vd d_mul(vd a, vd b) {
    return vmulq_f64(a, b);
}
static inline vd d_fma(vd a, vd b, vd c) {
    return vfmaq_f64(c, a, b);
}
static inline double d_sum(vd v) {
    return vgetq_lane_f64(v, 0) + vgetq_lane_f64(v, 1);
}
static inline vf d_to_f(vd lo, vd hi) {
    return vcvt_high_f32_f64(vcvt_f32_f64(lo), hi);
}

#include "kernels/vec_body.h"

RL_VEC_DEFINE(neon)
