// SPDX-License-Identifier: Apache-2.0
// Rows kernels of 128-bit vectors, written once for two tiers (NEON, dotprod) and two kinds of activations. A file
// that includes this defines
//   RL_ISA        tier name for the functions
//   RL_BITS       8 or 16: int8 or int16 activations
//   RL_DOTPROD    1 where sdot may be used
//
// The plan of every kernel: unpack 32 weights to two vectors of signed bytes, form the integer sums of one scale group
// (exact), convert, and FMA with block scale * sub-scale * activation scale. Activations are read in their natural
// order. What minimums add needs only the sums of the activations.
//
// Worst cases of the integer sums, without sdot:
//   int8, weights up to 128: two products in int16: 2 * 128 * 127 = 32,512
//   int8, weights up to 31 (all K types and 4 and 5 bits): four products: 4 * 32 * 127 = 16,256
//   int16, weights up to 128: 8 products a lane: 8 * 128 * 16,383 = 16,776,192, below 2^24
#ifndef RL_KERNELS_ARM_ROWS_H
#define RL_KERNELS_ARM_ROWS_H

#include "kernels/arm/loop.h"
#include "kernels/arm/unpack.h"

#define RL_CAT_(a, b, c, d) a##b##c##d
#define RL_CAT(a, b, c, d) RL_CAT_(a, b, c, d)
#if RL_BITS == 8
#define RL_ROWS_NAME(T) RL_CAT(rl_rows_, T, _q8_, RL_ISA)
typedef int8_t rl_x;
typedef int16_t rl_sum16;
#else
#define RL_ROWS_NAME(T) RL_CAT(rl_rows_, T, _q16_, RL_ISA)
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

// Integer dot products in 4 lanes: of 16 weights, and of 32 (`small`: at most 32 in magnitude).
#if RL_BITS == 8 && RL_DOTPROD
RL_INLINE int32x4_t dot16(int8x16_t w, const rl_x *x) {
    return vdotq_s32(vdupq_n_s32(0), w, vld1q_s8(x));
}
RL_INLINE int32x4_t dot32(const int8x16_t *w, const rl_x *x, const int small) {
    (void)small;
    return vdotq_s32(dot16(w[0], x), w[1], vld1q_s8(x + 16));
}
#elif RL_BITS == 8
RL_INLINE int16x8_t products(int8x16_t w, const rl_x *x) {
    int8x16_t v = vld1q_s8(x);
    return vmlal_high_s8(vmull_s8(vget_low_s8(w), vget_low_s8(v)), w, v);
}
RL_INLINE int32x4_t dot16(int8x16_t w, const rl_x *x) {
    return vpaddlq_s16(products(w, x));
}
RL_INLINE int32x4_t dot32(const int8x16_t *w, const rl_x *x, const int small) {
    int16x8_t p = products(w[0], x);
    if (!small) return vpadalq_s16(vpaddlq_s16(p), products(w[1], x + 16));
    int8x16_t v = vld1q_s8(x + 16);
    return vpaddlq_s16(vmlal_high_s8(vmlal_s8(p, vget_low_s8(w[1]), vget_low_s8(v)), w[1], v));
}
#elif RL_DOTPROD
// Every 16 values: their high bytes, then their low ones. Both sums are exact.
RL_INLINE int32x4_t add_bytes(int32x4_t s, int8x16_t w, const rl_x *x, size_t at) {
    return vdotq_s32(s, w, vld1q_s8((const int8_t *)(const void *)x + at));
}
RL_INLINE int32x4_t dot16(int8x16_t w, const rl_x *x) {
    int32x4_t high = add_bytes(vdupq_n_s32(0), w, x, 0);
    return add_bytes(vshlq_n_s32(high, 7), w, x, 16);
}
RL_INLINE int32x4_t dot32(const int8x16_t *w, const rl_x *x, const int small) {
    (void)small;
    int32x4_t high = add_bytes(add_bytes(vdupq_n_s32(0), w[0], x, 0), w[1], x, 32);
    return add_bytes(add_bytes(vshlq_n_s32(high, 7), w[0], x, 16), w[1], x, 48);
}
#else
RL_INLINE int32x4_t add_products(int32x4_t s, int8x16_t w, const rl_x *x) {
    int16x8_t a = vmovl_s8(vget_low_s8(w)), b = vmovl_high_s8(w), u = vld1q_s16(x), v = vld1q_s16(x + 8);
    s = vmlal_high_s16(vmlal_s16(s, vget_low_s16(a), vget_low_s16(u)), a, u);
    return vmlal_high_s16(vmlal_s16(s, vget_low_s16(b), vget_low_s16(v)), b, v);
}
RL_INLINE int32x4_t dot16(int8x16_t w, const rl_x *x) {
    return add_products(vdupq_n_s32(0), w, x);
}
RL_INLINE int32x4_t dot32(const int8x16_t *w, const rl_x *x, const int small) {
    (void)small;
    return add_products(dot16(w[0], x), w[1], x + 16);
}
#endif

// acc + i * lane `lane` of d; lane is a constant once inlined.
RL_INLINE float32x4_t add_scaled(float32x4_t acc, int32x4_t i, float32x4_t d, const int lane) {
    float32x4_t v = vcvtq_f32_s32(i);
    return lane == 0   ? vfmaq_laneq_f32(acc, v, d, 0)
           : lane == 1 ? vfmaq_laneq_f32(acc, v, d, 1)
           : lane == 2 ? vfmaq_laneq_f32(acc, v, d, 2)
                       : vfmaq_laneq_f32(acc, v, d, 3);
}

RL_INLINE void prefetch(const uint8_t *w, size_t bytes) {
    for (size_t o = 0; o < bytes; o += 64) __builtin_prefetch(w + 1024 + o);
}

// Partial sums per token: several for one token, so that the FMAs do not wait for each other.
#define RL_CHAINS(nt) ((nt) == 1 ? 4 : (nt) == 2 ? 2 : 1)

RL_INLINE void finish(float32x4_t *acc, float32x4_t *min, float *out, size_t ld_out, const int nt) {
    for (int t = 0; t < nt; t++) {
        float32x4_t *c = acc + t * RL_CHAINS(nt), s = c[0];
        if (RL_CHAINS(nt) == 2) s = vaddq_f32(c[0], c[1]);
        if (RL_CHAINS(nt) == 4) s = vaddq_f32(vaddq_f32(c[0], c[1]), vaddq_f32(c[2], c[3]));
        out[(size_t)t * ld_out] = vaddvq_f32(vsubq_f32(s, min[t]));
    }
}

// ---- blocks of 32 values, four at a time ----

typedef void (*block_fn)(const uint8_t *, int8x16_t *);

// Halves at offset `at` of n <= 4 blocks; the rest zero.
RL_INLINE float32x4_t gather(const uint8_t *w, const size_t bytes, size_t at, size_t n) {
    uint16x4_t h = vdup_n_u16(0);
    w += at;
    h = vset_lane_u16(load16(w), h, 0);
    if (n > 1) h = vset_lane_u16(load16(w + bytes), h, 1);
    if (n > 2) h = vset_lane_u16(load16(w + 2 * bytes), h, 2);
    if (n > 3) h = vset_lane_u16(load16(w + 3 * bytes), h, 3);
    return half4(h);
}

RL_INLINE void block_step(const uint8_t *w, block_fn unpack, const int small, const act_ptr *x, size_t g,
                          const float32x4_t *ds, float32x4_t *acc, const int nt, const int j) {
    int8x16_t v[2];
    unpack(w, v);
    for (int t = 0; t < nt; t++) {
        float32x4_t *s = &acc[t * RL_CHAINS(nt) + j % RL_CHAINS(nt)];
        *s = add_scaled(*s, dot32(v, x[t].q + 32 * (g + (size_t)j), small), ds[t], j);
    }
}

// n is the constant 4 in the main loop.
RL_INLINE void block_group(const uint8_t *w, const size_t bytes, block_fn unpack, const int min_at, const int small,
                           size_t n, const act_ptr *x, size_t g, float32x4_t *acc, float32x4_t *min, const int nt) {
    float32x4_t d = gather(w, bytes, 0, n), m = d, ds[4];
    if (min_at) m = gather(w, bytes, (size_t)min_at, n);
    for (int t = 0; t < nt; t++) {
        ds[t] = vmulq_f32(d, act_scales(&x[t], g));
        if (min_at) min[t] = vfmsq_f32(min[t], m, vld1q_f32(x[t].s + g));
    }
    block_step(w, unpack, small, x, g, ds, acc, nt, 0);
    if (n > 1) block_step(w + bytes, unpack, small, x, g, ds, acc, nt, 1);
    if (n > 2) block_step(w + 2 * bytes, unpack, small, x, g, ds, acc, nt, 2);
    if (n > 3) block_step(w + 3 * bytes, unpack, small, x, g, ds, acc, nt, 3);
}

RL_INLINE void block_row(const uint8_t *w, const size_t bytes, block_fn unpack, const int min_at, const int small,
                         size_t cols, const rl_act *act, size_t tok, float *out, size_t ld_out, const int nt) {
    act_ptr x[4];
    float32x4_t acc[4], min[4];
    for (int t = 0; t < nt; t++) x[t] = act_at(act, tok + (size_t)t);
    for (int i = 0; i < 4; i++) acc[i] = min[i] = vdupq_n_f32(0);
    size_t g = 0, n = cols / 32;
    for (; g + 4 <= n; g += 4, w += 4 * bytes) {
        RL_LOOP(nt, 4 * bytes);
        prefetch(w, 4 * bytes);
        block_group(w, bytes, unpack, min_at, small, 4, x, g, acc, min, nt);
    }
    if (g < n) block_group(w, bytes, unpack, min_at, small, n - g, x, g, acc, min, nt);
    finish(acc, min, out, ld_out, nt);
}

// ---- superblocks of 256 values ----

typedef scales (*scales_fn)(const uint8_t *);
typedef void (*half_fn)(const uint8_t *, const int, int8x16_t *);

enum { PER_32, PER_32_MIN, PER_16, PER_16_MIN }; // kinds of sub-scale

// 32 values, group j of half a superblock: one lane of ds per 32 values, or two per 16.
RL_INLINE void super_step(const int8x16_t *v, const int kind, const int small, const act_ptr *x, size_t at,
                          const float32x4_t ds[][4], float32x4_t *acc, const int nt, const int half, const int j) {
    for (int t = 0; t < nt; t++) {
        float32x4_t *s = &acc[t * RL_CHAINS(nt) + j % RL_CHAINS(nt)];
        const rl_x *q = x[t].q + at + 32 * (size_t)j;
        if (kind == PER_32 || kind == PER_32_MIN) {
            *s = add_scaled(*s, dot32(v + 2 * j, q, small), ds[t][half], j);
        } else {
            float32x4_t d = ds[t][2 * half + j / 2];
            *s = add_scaled(*s, dot16(v[2 * j], q), d, j % 2 * 2);
            *s = add_scaled(*s, dot16(v[2 * j + 1], q + 16), d, j % 2 * 2 + 1);
        }
    }
}

RL_INLINE void super_half(const uint8_t *w, half_fn half_of, const int kind, const int small, const act_ptr *x,
                          size_t g, const float32x4_t ds[][4], float32x4_t *acc, const int nt, const int half) {
    int8x16_t v[8];
    half_of(w, half, v);
    for (int j = 0; j < 4; j++) super_step(v, kind, small, x, 32 * g + 128 * (size_t)half, ds, acc, nt, half, j);
}

// Sums of mn times the sums of 16 activations for the 4 groups of 32 of one half.
RL_INLINE float32x4_t minimums(int16x8_t mn, const rl_sum16 *b) {
#if RL_BITS == 8
    int16x8_t v = vld1q_s16(b);
    int32x4_t lo = vmull_s16(vget_low_s16(mn), vget_low_s16(v)), hi = vmull_high_s16(mn, v);
#else
    int32x4_t lo = vmulq_s32(vmovl_s16(vget_low_s16(mn)), vld1q_s32(b));
    int32x4_t hi = vmulq_s32(vmovl_high_s16(mn), vld1q_s32(b + 4));
#endif
    return vcvtq_f32_s32(vpaddq_s32(lo, hi));
}

RL_INLINE void super_row(const uint8_t *w, const size_t bytes, scales_fn scales_of, half_fn half_of, const int kind,
                         const int small, size_t cols, const rl_act *act, size_t tok, float *out, size_t ld_out,
                         const int nt) {
    act_ptr x[4];
    float32x4_t acc[4], min[4];
    for (int t = 0; t < nt; t++) x[t] = act_at(act, tok + (size_t)t);
    for (int i = 0; i < 4; i++) acc[i] = min[i] = vdupq_n_f32(0);
    for (size_t g = 0; g < cols / 32; g += 8, w += bytes) {
        RL_LOOP(nt, bytes);
        prefetch(w, bytes);
        scales sc = scales_of(w);
        float32x4_t ds[4][4];
        for (int t = 0; t < nt; t++)
            for (int half = 0; half < 2; half++) {
                size_t at = g + 4 * (size_t)half;
                float32x4_t xs = act_scales(&x[t], at);
                if (kind == PER_32 || kind == PER_32_MIN) {
                    ds[t][half] = vmulq_f32(sc.s[half], xs);
                    if (kind == PER_32_MIN) min[t] = vfmaq_f32(min[t], sc.m[half], vld1q_f32(x[t].s + at));
                } else {
                    ds[t][2 * half] = vmulq_f32(sc.s[2 * half], vzip1q_f32(xs, xs));
                    ds[t][2 * half + 1] = vmulq_f32(sc.s[2 * half + 1], vzip2q_f32(xs, xs));
                    if (kind == PER_16_MIN)
                        min[t] = vfmaq_f32(min[t], minimums(sc.mn[half], x[t].b + 2 * at), vmulq_n_f32(xs, sc.dm));
                }
            }
        super_half(w, half_of, kind, small, x, g, (const float32x4_t(*)[4])ds, acc, nt, 0);
        super_half(w, half_of, kind, small, x, g, (const float32x4_t(*)[4])ds, acc, nt, 1);
    }
    finish(acc, min, out, ld_out, nt);
}

// ---- the functions ----

#define RL_DRIVE(T, ...)                                                                                               \
    void RL_ROWS_NAME(T)(const rl_rows_args *a);                                                                       \
    void RL_ROWS_NAME(T)(const rl_rows_args *a) {                                                                      \
        const uint8_t *w = a->w;                                                                                       \
        for (size_t r = 0; r < a->n_rows; r++, w += a->row_bytes) {                                                    \
            size_t t = 0;                                                                                              \
            for (; a->n_tok - t >= 4; t += 4) RL_CALL(4, __VA_ARGS__);                                                 \
            if (a->n_tok - t >= 2) {                                                                                   \
                RL_CALL(2, __VA_ARGS__);                                                                               \
                t += 2;                                                                                                \
            }                                                                                                          \
            if (t < a->n_tok) RL_CALL(1, __VA_ARGS__);                                                                 \
        }                                                                                                              \
    }
#define RL_CALL(NT, ROW, ...)                                                                                          \
    ROW(w, __VA_ARGS__, a->cols, a->act, a->tok0 + t, a->out + t * a->ld_out + r, a->ld_out, NT)

RL_DRIVE(q4_0, block_row, 18, block_q4_0, 0, 1)
RL_DRIVE(q4_1, block_row, 20, block_q4_1, 2, 1)
RL_DRIVE(q5_0, block_row, 22, block_q5_0, 0, 1)
RL_DRIVE(q5_1, block_row, 24, block_q5_1, 2, 1)
RL_DRIVE(q8_0, block_row, 34, block_q8_0, 0, 0)
RL_DRIVE(iq4nl, block_row, 18, block_iq4nl, 0, 0)
RL_DRIVE(q2k, super_row, sizeof(rl_block_q2_k), scales_q2k, half_q2k, PER_16_MIN, 1)
RL_DRIVE(q3k, super_row, sizeof(rl_block_q3_k), scales_q3k, half_q3k, PER_16, 1)
RL_DRIVE(q4k, super_row, sizeof(rl_block_q4_k), scales_q4k, half_q4k, PER_32_MIN, 1)
RL_DRIVE(q5k, super_row, sizeof(rl_block_q5_k), scales_q5k, half_q5k, PER_32_MIN, 1)
RL_DRIVE(q6k, super_row, sizeof(rl_block_q6_k), scales_q6k, half_q6k, PER_16, 1)
RL_DRIVE(q8k, super_row, sizeof(rl_block_q8_k), scales_q8k, half_q8k, PER_32, 0)
RL_DRIVE(iq4xs, super_row, sizeof(rl_block_iq4_xs), scales_iq4xs, half_iq4xs, PER_32, 0)

#endif
