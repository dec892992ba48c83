// SPDX-License-Identifier: Apache-2.0
// Exact integer sums of 128 weights times 128 activations, for a few rows of weights that share the loads
// of activations. The sums of four groups end in the four lanes of one vector, so that converting to float and scaling
// happen once for all four. A file that includes this defines
//   RL_BITS       8 or 16: int8 or int16 activations
//   RL_DOTPROD    1 where sdot may be used
//
// Worst cases of what is formed without sdot (weights of K types and of 4 and 5 bits are `small`):
//   int8, per 32, weights -16..31: 4 products in int16, then two of those: 8 * 31 * 127 = 31,496
//   int8, per 16, weights 0..63 (Q6_K before its offset): 2 products, then two of those: 4 * 63 * 127 = 32,004
//   int8, weights -128..127: two products in int16: 2 * 128 * 127 = 32,512, then 32 bits
//   int16: 32 bits from the start: 32 * 128 * 32,639 < 2^27
// and with sdot: 32 bits from the start; the high bytes of int16 activations make at most 32 * 128 * 127 * 2^8, the low
// ones 32 * 128 * 128 more: together below 2^27.
#ifndef RL_KERNELS_ARM_SUMS_H
#define RL_KERNELS_ARM_SUMS_H

#include "kernels/arm/loop.h"
#include "kernels/arm/unpack.h"

#define MAX_ROWS 4

#if RL_BITS == 8
typedef int8_t rl_x;
typedef int16_t rl_sum16;
#else
typedef int16_t rl_x;
typedef int32_t rl_sum16;
#endif

// One activation vector.
typedef struct {
    const rl_x *q;
    const float *d, *s; // scale per 32 (int16: per 256), scale * sum per 32
    const rl_sum16 *b;  // sums of 16
} act_ptr;

RL_INLINE act_ptr act_at(const rl_act *a, size_t tok) {
#if RL_BITS == 8
    return (act_ptr){a->q8 + tok * a->ld_q, a->d8 + tok * a->ld_d, a->s8 + tok * a->ld_d, a->b8 + tok * 2 * a->ld_d};
#else
#if RL_DOTPROD // bytes, addressed as the values they make up
    const rl_x *q = (const rl_x *)(const void *)a->q16s + tok * a->ld_q;
#else
    const rl_x *q = a->q16 + tok * a->ld_q;
#endif
    return (act_ptr){q, a->d16 + tok * a->ld_d16, a->s16 + tok * a->ld_d, a->b16 + tok * 2 * a->ld_d};
#endif
}
// The activation scales of the 4 groups of 32 that begin at group g (a multiple of 4).
RL_INLINE float32x4_t act_scales(const act_ptr *x, size_t g) {
#if RL_BITS == 8
    return vld1q_f32(x->d + g);
#else
    return vdupq_n_f32(x->d[g / 8]);
#endif
}
// The sums of activations of 8 groups of 16, four in each vector.
RL_INLINE void act_sums16(const rl_sum16 *b, int32x4_t out[2]) {
#if RL_BITS == 8
    int16x8_t v = vld1q_s16(b);
    out[0] = vmovl_s16(vget_low_s16(v));
    out[1] = vmovl_high_s16(v);
#else
    out[0] = vld1q_s32(b);
    out[1] = vld1q_s32(b + 4);
#endif
}
RL_INLINE int32x4_t act_sums32(const rl_sum16 *b) {
#if RL_BITS == 8
    return vpaddlq_s16(vld1q_s16(b));
#else
    return vpaddq_s32(vld1q_s32(b), vld1q_s32(b + 4));
#endif
}

// 32 activations: of 16 each.
#if RL_BITS == 8
typedef struct {
    int8x16_t v[2];
} acts32;
RL_INLINE acts32 load_acts(const rl_x *x, const size_t at) {
    bytes32 v = load2((const uint8_t *)x, at * sizeof *x);
    return (acts32){{(int8x16_t)v.a, (int8x16_t)v.b}};
}
#elif RL_DOTPROD
typedef struct {
    int8x16_t high[2], low[2];
} acts32;
RL_INLINE acts32 load_acts(const rl_x *x, const size_t at) { // every 16 values: their high bytes, then their low ones
    bytes32 v = load2((const uint8_t *)x, at * sizeof *x), w = load2((const uint8_t *)x, at * sizeof *x + 32);
    return (acts32){{(int8x16_t)v.a, (int8x16_t)w.a}, {(int8x16_t)v.b, (int8x16_t)w.b}};
}
#else
typedef struct {
    int16x8_t v[2][2];
} acts32;
RL_INLINE acts32 load_acts(const rl_x *x, const size_t at) {
    bytes32 v = load2((const uint8_t *)x, at * sizeof *x), w = load2((const uint8_t *)x, at * sizeof *x + 32);
    return (acts32){{{(int16x8_t)v.a, (int16x8_t)v.b}, {(int16x8_t)w.a, (int16x8_t)w.b}}};
}
#endif

// The start of a group's sum, and a folded vector as floats. An int of at most 2^22 in magnitude added to the bits of
// 1.5 * 2^23 is the float that much larger, so a start there saves the conversion, which takes a Cortex-A76 two cycles.
// With int8 a group reaches 32 * 128 * 127 < 2^20.
#if RL_BITS == 8 && RL_DOTPROD
#define SUM_START vsetq_lane_s32(0x4B400000, vdupq_n_s32(0), 0)
#define SUM_AS_FLOAT(v) vsubq_f32(vreinterpretq_f32_s32(v), vdupq_n_f32(12582912.0f))
#else
#define SUM_START vdupq_n_s32(0)
#define SUM_AS_FLOAT(v) vcvtq_f32_s32(v)
#endif

// A sum spread over the lanes of one vector; fold() brings four of them into one vector.
RL_INLINE int32x4_t fold32(int32x4_t a, int32x4_t b, int32x4_t c, int32x4_t d) {
    return vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
}

#if RL_BITS == 8 && !RL_DOTPROD
typedef int16x8_t spread; // of small weights; large ones are widened by dot32_large
RL_INLINE spread dot16(int8x16_t w, const acts32 *x, const int i) {
    return vmlal_high_s8(vmull_s8(vget_low_s8(w), vget_low_s8(x->v[i])), w, x->v[i]);
}
RL_INLINE spread dot32(const int8x16_t *w, const acts32 *x) {
    int16x8_t p = dot16(w[0], x, 0);
    return vmlal_high_s8(vmlal_s8(p, vget_low_s8(w[1]), vget_low_s8(x->v[1])), w[1], x->v[1]);
}
RL_INLINE int32x4_t dot32_large(const int8x16_t *w, const acts32 *x) {
    return vpadalq_s16(vpaddlq_s16(dot16(w[0], x, 0)), dot16(w[1], x, 1));
}
RL_INLINE int32x4_t fold(spread a, spread b, spread c, spread d) {
    return vpaddq_s32(vpaddlq_s16(vpaddq_s16(a, b)), vpaddlq_s16(vpaddq_s16(c, d)));
}
#else
typedef int32x4_t spread;
#if RL_BITS == 8
RL_INLINE spread dot16(int8x16_t w, const acts32 *x, const int i) {
    return vdotq_s32(vdupq_n_s32(0), w, x->v[i]);
}
RL_INLINE spread dot32(const int8x16_t *w, const acts32 *x) {
    return vdotq_s32(vdotq_s32(SUM_START, w[0], x->v[0]), w[1], x->v[1]);
}
#elif RL_DOTPROD
RL_INLINE spread dot16(int8x16_t w, const acts32 *x, const int i) {
    return vdotq_s32(vshlq_n_s32(vdotq_s32(vdupq_n_s32(0), w, x->high[i]), 8), w, x->low[i]);
}
RL_INLINE spread dot32(const int8x16_t *w, const acts32 *x) {
    int32x4_t high = vdotq_s32(vdotq_s32(vdupq_n_s32(0), w[0], x->high[0]), w[1], x->high[1]);
    return vdotq_s32(vdotq_s32(vshlq_n_s32(high, 8), w[0], x->low[0]), w[1], x->low[1]);
}
#else
RL_INLINE spread add_products(spread s, int8x16_t w, const acts32 *x, const int i) {
    int16x8_t a = vmovl_s8(vget_low_s8(w)), b = vmovl_high_s8(w);
    s = vmlal_high_s16(vmlal_s16(s, vget_low_s16(a), vget_low_s16(x->v[i][0])), a, x->v[i][0]);
    return vmlal_high_s16(vmlal_s16(s, vget_low_s16(b), vget_low_s16(x->v[i][1])), b, x->v[i][1]);
}
RL_INLINE spread dot16(int8x16_t w, const acts32 *x, const int i) {
    return add_products(vdupq_n_s32(0), w, x, i);
}
RL_INLINE spread dot32(const int8x16_t *w, const acts32 *x) {
    return add_products(dot16(w[0], x, 0), w[1], x, 1);
}
#endif
#define dot32_large dot32
#define fold fold32
#endif

// Four groups of 32 values, rows v[0..nr); each as SUM_AS_FLOAT wants it.
RL_INLINE void sums_of_32(const int8x16_t v[][8], const rl_x *x, const int small, int32x4_t *out, const int nr) {
    spread s[MAX_ROWS][4];
    int32x4_t wide[MAX_ROWS][4];
    RL_UNROLL
    for (int j = 0; j < 4; j++) {
        acts32 a = load_acts(x, 32 * (size_t)j);
        RL_UNROLL
        for (int r = 0; r < nr; r++)
            if (small)
                s[r][j] = dot32(v[r] + 2 * j, &a);
            else
                wide[r][j] = dot32_large(v[r] + 2 * j, &a);
    }
    RL_UNROLL
    for (int r = 0; r < nr; r++)
        out[r] =
            small ? fold(s[r][0], s[r][1], s[r][2], s[r][3]) : fold32(wide[r][0], wide[r][1], wide[r][2], wide[r][3]);
}

// Eight groups of 16 values of small weights; out[r][h]: groups 4 h to 4 h + 3.
RL_INLINE void sums_of_16(const int8x16_t v[][8], const rl_x *x, int32x4_t out[][2], const int nr) {
    RL_UNROLL
    for (int h = 0; h < 2; h++) {
        acts32 a = load_acts(x, 64 * (size_t)h), b = load_acts(x, 64 * (size_t)h + 32);
        RL_UNROLL
        for (int r = 0; r < nr; r++) {
            const int8x16_t *w = v[r] + 4 * h;
            out[r][h] = fold(dot16(w[0], &a, 0), dot16(w[1], &a, 1), dot16(w[2], &b, 0), dot16(w[3], &b, 1));
        }
    }
}

#endif
