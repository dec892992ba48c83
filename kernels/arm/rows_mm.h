// SPDX-License-Identifier: Apache-2.0
// Rows kernels for 2 to 8 tokens with smmla, which multiplies two rows by two tokens: 8 columns of each at once. A file
// that includes this defines RL_BITS, 8 or 16: int8 or int16 activations (as two bytes, value = 256 * high + low).
//
// Weights of two rows are unpacked once and used by up to four pairs of tokens, whose bytes lie as these instructions
// want them (q8m, q16m of kernels/api.h). A vector of sums is row 0 with both tokens, then row 1. An odd last row or
// token is paired with itself or with stale bytes, and what comes of those is dropped.
//
// Integers: 32 * 128 * 127 < 2^20 per group; high bytes of int16 make at most 32 * 128 * 127 * 2^8, low
// ones 32 * 128 * 128 more: together below 2^27.
#ifndef RL_KERNELS_ARM_ROWS_MM_H
#define RL_KERNELS_ARM_ROWS_MM_H

#if !defined(__ARM_FEATURE_MATMUL_INT8) || !defined(__ARM_FEATURE_DOTPROD)
#error "needs i8mm and dotprod"
#endif
#include "kernels/arm/loop.h"
#include "kernels/arm/unpack.h"

#define MAX_PAIRS (RL_ROWS_MAX_TOK / 2)
#if RL_BITS == 8
#define RL_ROWS_NAME(T) rl_rows_##T##_q8_i8mm
#else
#define RL_ROWS_NAME(T) rl_rows_##T##_q16_i8mm
#endif

// ---- 128 weights of one row ----

// Signed bytes; scales of 4 groups of 32 (s[0]) or of 8 of 16; what is added per unit of activation, likewise.
typedef struct {
    int8x16_t v[8];
    float32x4_t s[2], m[2];
} part;

RL_INLINE void subtract(part *p, const int offset) {
    if (!offset) return;
    for (int i = 0; i < 8; i++) p->v[i] = vsubq_s8(p->v[i], vdupq_n_s8((int8_t)offset));
}

RL_INLINE part four_blocks(const uint8_t *w, const size_t bytes, void (*unpack)(const uint8_t *, int8x16_t *),
                           const int min_at, const int offset) {
    part p;
    for (size_t j = 0; j < 4; j++) unpack(w + j * bytes, p.v + 2 * j);
    subtract(&p, offset);
    p.s[0] = gather(w, bytes);
    if (min_at) p.m[0] = gather(w + min_at, bytes);
    return p;
}

RL_INLINE part half_super(const uint8_t *w, const scales *sc, void (*half_of)(const uint8_t *, const int, int8x16_t *),
                          const int kind, const int offset, const int half) {
    part p;
    half_of(w, half, p.v);
    subtract(&p, offset);
    if (kind == PER_32 || kind == PER_32_MIN) {
        p.s[0] = vmulq_n_f32(float_half(sc->n32, half), sc->d);
        if (kind == PER_32_MIN) p.m[0] = vmulq_n_f32(float_half(sc->mn, half), -sc->dm);
        return p;
    }
    for (int i = 0; i < 2; i++) {
        p.s[i] = vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(quarter(sc->n16, 2 * half + i))), sc->d);
        if (kind == PER_16_MIN)
            p.m[i] = vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(quarter(sc->mn16, 2 * half + i))), -sc->dm);
    }
    return p;
}

// ---- two rows times pairs of tokens ----

// Lane i of a (row 0) and of b (row 1), each twice.
RL_INLINE float32x4_t by_row(float32x4_t a, float32x4_t b, const int i) {
    float32x4_t z = i < 2 ? vzip1q_f32(a, b) : vzip2q_f32(a, b);
    return i % 2 ? vzip2q_f32(z, z) : vzip1q_f32(z, z);
}
// a[0] and b[0], twice.
RL_INLINE float32x4_t by_token(const float *a, const float *b) {
    float32x2_t v = vld1_lane_f32(b, vld1_dup_f32(a), 1);
    return vcombine_f32(v, v);
}

RL_INLINE int8x16_t both(int8x16_t a, int8x16_t b, const int last) {
    int64x2_t x = vreinterpretq_s64_s8(a), y = vreinterpretq_s64_s8(b);
    return vreinterpretq_s8_s64(last ? vzip2q_s64(x, y) : vzip1q_s64(x, y));
}

// n vectors of 16 columns of both rows times those of a pair of tokens, from column 0 of x on.
RL_INLINE int32x4_t dots(const part *a, const part *b, const int from, const int n, const int8_t *x) {
    int32x4_t s = vdupq_n_s32(0);
#if RL_BITS == 8
    for (int i = 0; i < 2 * n; i++)
        s = vmmlaq_s32(s, both(a->v[from + i / 2], b->v[from + i / 2], i % 2), vld1q_s8(x + 16 * i));
#else
    for (int i = 0; i < 2 * n; i++)
        s = vmmlaq_s32(s, both(a->v[from + i / 2], b->v[from + i / 2], i % 2), vld1q_s8(x + 32 * i));
    s = vshlq_n_s32(s, 8);
    for (int i = 0; i < 2 * n; i++)
        s = vmmlaq_s32(s, both(a->v[from + i / 2], b->v[from + i / 2], i % 2), vld1q_s8(x + 32 * i + 16));
#endif
    return s;
}

// The activations of a pair of tokens.
typedef struct {
    const int8_t *q;
    const float *d[2], *s[2];
#if RL_BITS == 8
    const int16_t *b[2];
#else
    const int32_t *b[2];
#endif
} pair;

RL_INLINE pair pair_at(const rl_act *a, size_t tok, const int whole) {
    size_t t[2] = {tok, tok + (whole ? 1 : 0)};
    pair p;
#if RL_BITS == 8
    p.q = a->q8m + tok * a->ld_q;
#else
    p.q = a->q16m + 2 * tok * a->ld_q;
#endif
    for (int i = 0; i < 2; i++) {
#if RL_BITS == 8
        p.d[i] = a->d8 + t[i] * a->ld_d;
        p.s[i] = a->s8 + t[i] * a->ld_d;
        p.b[i] = a->b8 + t[i] * 2 * a->ld_d;
#else
        p.d[i] = a->d16 + t[i] * a->ld_d16;
        p.s[i] = a->s16 + t[i] * a->ld_d;
        p.b[i] = a->b16 + t[i] * 2 * a->ld_d;
#endif
    }
    return p;
}

// 128 columns from group g of 32 on. per_16: scales (and minimums) of 16 columns.
RL_INLINE void add_part(const part *a, const part *b, const pair *x, size_t g, const int per_16, const int min,
                        float32x4_t *acc, const int np) {
    const size_t step = RL_BITS == 8 ? 64 : 128; // bytes of 32 columns of a pair
#pragma GCC unroll 4
    for (int p = 0; p < np; p++)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const int8_t *q = x[p].q + (g + (size_t)j) * step;
            size_t at = RL_BITS == 8 ? g + (size_t)j : g / 8;
            float32x4_t d = by_token(x[p].d[0] + at, x[p].d[1] + at);
            if (per_16) {
                const int i = j / 2, lane = j % 2 * 2;
                float32x4_t s = vmulq_f32(vcvtq_f32_s32(dots(a, b, 2 * j, 1, q)), by_row(a->s[i], b->s[i], lane));
                s = vfmaq_f32(s, vcvtq_f32_s32(dots(a, b, 2 * j + 1, 1, q + step / 2)),
                              by_row(a->s[i], b->s[i], lane + 1));
                if (min)
                    for (int k = 0; k < 2; k++) {
                        size_t c = 2 * (g + (size_t)j) + (size_t)k;
                        float sum[2] = {(float)x[p].b[0][c], (float)x[p].b[1][c]};
                        s = vfmaq_f32(s, by_row(a->m[i], b->m[i], lane + k), by_token(sum, sum + 1));
                    }
                acc[p] = vfmaq_f32(acc[p], s, d);
            } else {
                d = vmulq_f32(d, by_row(a->s[0], b->s[0], j));
                acc[p] = vfmaq_f32(acc[p], vcvtq_f32_s32(dots(a, b, 2 * j, 2, q)), d);
                size_t c = g + (size_t)j;
                if (min)
                    acc[p] = vfmaq_f32(acc[p], by_row(a->m[0], b->m[0], j), by_token(x[p].s[0] + c, x[p].s[1] + c));
            }
        }
}

// ---- rows ----

// Two rows (their distance 0 when there is one) times 2 * np tokens from the first on.
typedef struct {
    const uint8_t *w;
    size_t stride, cols;
    const pair *x;
} job;

RL_INLINE void block_rows(const job *o, const size_t bytes, void (*unpack)(const uint8_t *, int8x16_t *),
                          const int min_at, const int offset, float32x4_t *acc, const int np) {
    const uint8_t *w = o->w;
    size_t g = 0, n = o->cols / 32;
    for (; g + 4 <= n; g += 4, w += 4 * bytes) {
        RL_LOOP(2 * np, 8 * (int)bytes);
        prefetch(w, 4 * bytes);
        prefetch(w + o->stride, 4 * bytes);
        part a = four_blocks(w, bytes, unpack, min_at, offset);
        part b = four_blocks(w + o->stride, bytes, unpack, min_at, offset);
        add_part(&a, &b, o->x, g, 0, min_at, acc, np);
    }
    if (g < n) { // the row may end the file: the last blocks are copied and followed by zeros
        uint8_t last[2][4 * 34] = {{0}};
        memcpy(last[0], w, (n - g) * bytes);
        memcpy(last[1], w + o->stride, (n - g) * bytes);
        part a = four_blocks(last[0], bytes, unpack, min_at, offset);
        part b = four_blocks(last[1], bytes, unpack, min_at, offset);
        add_part(&a, &b, o->x, g, 0, min_at, acc, np);
    }
}

RL_INLINE void super_rows(const job *o, const size_t bytes, scales (*scales_of)(const uint8_t *),
                          void (*half_of)(const uint8_t *, const int, int8x16_t *), const int kind, const int offset,
                          float32x4_t *acc, const int np) {
    const uint8_t *w = o->w, *v = o->w + o->stride;
    const int per_16 = kind == PER_16 || kind == PER_16_MIN, min = kind == PER_32_MIN || kind == PER_16_MIN;
    for (size_t g = 0; g < o->cols / 32; g += 8, w += bytes, v += bytes) {
        RL_LOOP(2 * np, 2 * (int)bytes);
        prefetch(w, bytes);
        prefetch(v, bytes);
        scales sw = scales_of(w), sv = scales_of(v);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            part a = half_super(w, &sw, half_of, kind, offset, half);
            part b = half_super(v, &sv, half_of, kind, offset, half);
            add_part(&a, &b, o->x, g + 4 * (size_t)half, per_16, min, acc, np);
        }
    }
}

RL_INLINE void put(const rl_rows_args *a, size_t r, const float32x4_t *acc) {
    for (size_t t = 0; t < a->n_tok; t++) {
        float v[4];
        vst1q_f32(v, acc[t / 2]);
        a->out[t * a->ld_out + r] = v[t % 2];
        if (r + 1 < a->n_rows) a->out[t * a->ld_out + r + 1] = v[2 + t % 2];
    }
}

#define RL_DRIVE(T, FN, ...)                                                                                           \
    void RL_ROWS_NAME(T)(const rl_rows_args *a);                                                                       \
    void RL_ROWS_NAME(T)(const rl_rows_args *a) {                                                                      \
        pair x[MAX_PAIRS];                                                                                             \
        size_t np = (a->n_tok + 1) / 2;                                                                                \
        for (size_t p = 0; p < np; p++) x[p] = pair_at(a->act, a->tok0 + 2 * p, 2 * p + 1 < a->n_tok);                 \
        for (size_t r = 0; r < a->n_rows; r += 2) {                                                                    \
            job o = {a->w + r * a->row_bytes, r + 1 < a->n_rows ? a->row_bytes : 0, a->cols, x};                       \
            float32x4_t acc[MAX_PAIRS];                                                                                \
            for (int p = 0; p < MAX_PAIRS; p++) acc[p] = vdupq_n_f32(0);                                               \
            if (np == 1)                                                                                               \
                FN(&o, __VA_ARGS__, acc, 1);                                                                           \
            else if (np == 2)                                                                                          \
                FN(&o, __VA_ARGS__, acc, 2);                                                                           \
            else if (np == 3)                                                                                          \
                FN(&o, __VA_ARGS__, acc, 3);                                                                           \
            else                                                                                                       \
                FN(&o, __VA_ARGS__, acc, 4);                                                                           \
            put(a, r, acc);                                                                                            \
        }                                                                                                              \
    }

RL_DRIVE(q4_0, block_rows, 18, block_q4_0, 0, OFFSET_q4_0)
RL_DRIVE(q4_1, block_rows, 20, block_q4_1, 2, OFFSET_q4_1)
RL_DRIVE(q5_0, block_rows, 22, block_q5_0, 0, OFFSET_q5_0)
RL_DRIVE(q5_1, block_rows, 24, block_q5_1, 2, OFFSET_q5_1)
RL_DRIVE(q8_0, block_rows, 34, block_q8_0, 0, OFFSET_q8_0)
RL_DRIVE(iq4nl, block_rows, 18, block_iq4nl, 0, OFFSET_iq4nl)
RL_DRIVE(q2k, super_rows, sizeof(rl_block_q2_k), scales_q2k, half_q2k, PER_16_MIN, OFFSET_q2k)
RL_DRIVE(q3k, super_rows, sizeof(rl_block_q3_k), scales_q3k, half_q3k, PER_16, OFFSET_q3k)
RL_DRIVE(q4k, super_rows, sizeof(rl_block_q4_k), scales_q4k, half_q4k, PER_32_MIN, OFFSET_q4k)
RL_DRIVE(q5k, super_rows, sizeof(rl_block_q5_k), scales_q5k, half_q5k, PER_32_MIN, OFFSET_q5k)
RL_DRIVE(q6k, super_rows, sizeof(rl_block_q6_k), scales_q6k, half_q6k, PER_16, OFFSET_q6k)
RL_DRIVE(q8k, super_rows, sizeof(rl_block_q8_k), scales_q8k, half_q8k, PER_32, OFFSET_q8k)
RL_DRIVE(iq4xs, super_rows, sizeof(rl_block_iq4_xs), scales_iq4xs, half_iq4xs, PER_32, OFFSET_iq4xs)

#endif
