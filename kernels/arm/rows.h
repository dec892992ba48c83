// SPDX-License-Identifier: Apache-2.0
// Rows kernels of 128-bit vectors, written once for two tiers (NEON, dotprod) and two kinds of activations. A file
// that includes this defines RL_ISA, the tier name for the functions, and what kernels/arm/sums.h asks for.
//
// The plan of every kernel: unpack 128 weights to eight vectors of bytes, form the exact integer sums of their scale
// groups, four to a vector, subtract offset * sum of the activations, convert, and FMA with block scale * sub-scale *
// activation scale. Activations are read in their natural order. What minimums add needs only sums of activations.
// One token is multiplied with two rows at a time, or four where nothing needs unpacking: loads are what these cores
// run out of first.
#ifndef RL_KERNELS_ARM_ROWS_H
#define RL_KERNELS_ARM_ROWS_H

#include "kernels/arm/loop.h"
#include "kernels/arm/sums.h"

#define RL_CAT_(a, b, c, d) a##b##c##d
#define RL_CAT(a, b, c, d) RL_CAT_(a, b, c, d)
#if RL_BITS == 8
#define RL_ROWS_NAME(T) RL_CAT(rl_rows_, T, _q8_, RL_ISA)
#else
#define RL_ROWS_NAME(T) RL_CAT(rl_rows_, T, _q16_, RL_ISA)
#endif

#define MAX_TOK 4

// What one call of a row function works on: nr rows `stride` bytes apart times nt tokens from `tok` on.
typedef struct {
    const uint8_t *w;
    size_t stride, cols, tok;
    const rl_act *act;
    float *out; // of the first row and token
    size_t ld_out;
} piece;

RL_INLINE void start(const piece *p, act_ptr *x, float32x4_t acc[][MAX_TOK], const int nr, const int nt) {
    for (int t = 0; t < nt; t++) x[t] = act_at(p->act, p->tok + (size_t)t);
    for (int r = 0; r < nr; r++)
        for (int t = 0; t < nt; t++) acc[r][t] = vdupq_n_f32(0);
}

RL_INLINE void finish(const piece *p, float32x4_t acc[][MAX_TOK], const int nr, const int nt) {
    for (int r = 0; r < nr; r++)
        for (int t = 0; t < nt; t++) p->out[(size_t)t * p->ld_out + (size_t)r] = vaddvq_f32(acc[r][t]);
}

// ---- blocks of 32 values, four at a time ----

typedef void (*block_fn)(const uint8_t *, int8x16_t *);

RL_INLINE void block_group(const uint8_t *w, size_t stride, const size_t bytes, block_fn unpack, const int min_at,
                           const int offset, const int small, const act_ptr *x, size_t g, float32x4_t acc[][MAX_TOK],
                           const int nr, const int nt) {
    int8x16_t v[MAX_ROWS][8];
    float32x4_t d[MAX_ROWS], m[MAX_ROWS];
    for (int r = 0; r < nr; r++) {
        const uint8_t *at = w + (size_t)r * stride;
        for (size_t j = 0; j < 4; j++) unpack(at + j * bytes, v[r] + 2 * j);
        d[r] = gather(at, bytes);
        if (min_at) m[r] = gather(at + min_at, bytes);
    }
    for (int t = 0; t < nt; t++) {
        int32x4_t sum[MAX_ROWS];
        float32x4_t xs = act_scales(&x[t], g);
        sums_of_32((const int8x16_t(*)[8])v, x[t].q + 32 * g, small, sum, nr);
        for (int r = 0; r < nr; r++) {
            if (offset) sum[r] = vmlsq_n_s32(sum[r], act_sums32(x[t].b + 2 * g), offset);
            acc[r][t] = vfmaq_f32(acc[r][t], SUM_AS_FLOAT(sum[r]), vmulq_f32(d[r], xs));
            if (min_at) acc[r][t] = vfmaq_f32(acc[r][t], m[r], vld1q_f32(x[t].s + g));
        }
    }
}

RL_INLINE void block_rows(const piece *p, const size_t bytes, block_fn unpack, const int min_at, const int offset,
                          const int small, const int nr, const int nt) {
    act_ptr x[MAX_TOK];
    float32x4_t acc[MAX_ROWS][MAX_TOK];
    start(p, x, acc, nr, nt);
    const uint8_t *w = p->w;
    size_t g = 0, n = p->cols / 32;
    for (; g + 4 <= n; g += 4, w += 4 * bytes) {
        RL_LOOP(nt, nr * 4 * (int)bytes);
        for (int r = 0; r < nr; r++) prefetch(w + (size_t)r * p->stride, 4 * bytes);
        block_group(w, p->stride, bytes, unpack, min_at, offset, small, x, g, acc, nr, nt);
    }
    if (g < n) { // the row may end the file: the last blocks are copied and followed by zeros
        uint8_t last[MAX_ROWS][4 * 34] = {{0}};
        for (int r = 0; r < nr; r++) memcpy(last[r], w + (size_t)r * p->stride, (n - g) * bytes);
        block_group(last[0], sizeof last[0], bytes, unpack, min_at, offset, small, x, g, acc, nr, nt);
    }
    finish(p, acc, nr, nt);
}

// ---- superblocks of 256 values ----

typedef scales (*scales_fn)(const uint8_t *);
typedef void (*half_fn)(const uint8_t *, const int, int8x16_t *);

// What half a superblock adds to row r and token t: sums * sub-scales * activation scales, and the minimums.
typedef struct {
    float32x4_t sum[MAX_ROWS][MAX_TOK], min[MAX_ROWS][MAX_TOK];
} halves;

// The first half starts the sums, the second adds to them.
RL_INLINE void add(float32x4_t *s, float32x4_t a, float32x4_t b, const int half) {
    *s = half ? vfmaq_f32(*s, a, b) : vmulq_f32(a, b);
}

// One scale per 32 values.
RL_INLINE void half_of_32(const int8x16_t v[][8], const scales *sc, const int kind, const int small, const act_ptr *x,
                          size_t g, const int half, halves *h, const int nr, const int nt) {
    for (int t = 0; t < nt; t++) {
        int32x4_t sum[MAX_ROWS];
        float32x4_t xs = act_scales(&x[t], g);
        sums_of_32(v, x[t].q + 32 * g, small, sum, nr);
        for (int r = 0; r < nr; r++) {
            add(&h->sum[r][t], SUM_AS_FLOAT(sum[r]), vmulq_f32(float_half(sc[r].n32, half), xs), half);
            if (kind == PER_32_MIN) add(&h->min[r][t], float_half(sc[r].mn, half), vld1q_f32(x[t].s + g), half);
        }
    }
}

// Eight groups of 16 as four floats: int8 in pairs, which share a scale; int16, which has one for all, in any order,
// and added as floats, because a group of Q6_K times its sub-scale reaches 16 * 32 * 32,639 * 128 < 2^31, and two pass
// it.
RL_INLINE float32x4_t four_of_eight(int32x4_t a, int32x4_t b) {
#if RL_BITS == 8
    return vcvtq_f32_s32(vpaddq_s32(a, b));
#else
    return vaddq_f32(vcvtq_f32_s32(a), vcvtq_f32_s32(b));
#endif
}

// One scale per 16. Integers take the sub-scales, too.
RL_INLINE void half_of_16(const int8x16_t v[][8], const scales *sc, const int kind, const int offset, const act_ptr *x,
                          size_t g, const int half, halves *h, const int nr, const int nt) {
    for (int t = 0; t < nt; t++) {
        int32x4_t sum[MAX_ROWS][2], b[2];
        float32x4_t xs = act_scales(&x[t], g);
        sums_of_16(v, x[t].q + 32 * g, sum, nr);
        if (offset || kind == PER_16_MIN) act_sums16(x[t].b + 2 * g, b);
        for (int r = 0; r < nr; r++) {
            int32x4_t m[2];
            for (int i = 0; i < 2; i++) {
                if (offset) sum[r][i] = vmlsq_n_s32(sum[r][i], b[i], offset);
                sum[r][i] = vmulq_s32(sum[r][i], vmovl_s16(quarter(sc[r].n16, 2 * half + i)));
                if (kind == PER_16_MIN) m[i] = vmulq_s32(b[i], vmovl_s16(quarter(sc[r].mn16, 2 * half + i)));
            }
            add(&h->sum[r][t], four_of_eight(sum[r][0], sum[r][1]), xs, half);
            if (kind == PER_16_MIN) add(&h->min[r][t], four_of_eight(m[0], m[1]), xs, half);
        }
    }
}

RL_INLINE void super_rows(const piece *p, const size_t bytes, scales_fn scales_of, half_fn half_of, const int kind,
                          const int offset, const int small, const int nr, const int nt) {
    act_ptr x[MAX_TOK];
    float32x4_t acc[MAX_ROWS][MAX_TOK];
    start(p, x, acc, nr, nt);
    const uint8_t *w = p->w;
    for (size_t g = 0; g < p->cols / 32; g += 8, w += bytes) {
        RL_LOOP(nt, nr * (int)bytes);
        scales sc[MAX_ROWS];
        halves h;
        for (int r = 0; r < nr; r++) {
            prefetch(w + (size_t)r * p->stride, bytes);
            sc[r] = scales_of(w + (size_t)r * p->stride);
        }
        RL_UNROLL
        for (int half = 0; half < 2; half++) {
            int8x16_t v[MAX_ROWS][8];
            const int8x16_t(*cv)[8] = (const int8x16_t(*)[8])v;
            size_t at = g + 4 * (size_t)half;
            for (int r = 0; r < nr; r++) half_of(w + (size_t)r * p->stride, half, v[r]);
            if (kind == PER_32 || kind == PER_32_MIN)
                half_of_32(cv, sc, kind, small, x, at, half, &h, nr, nt);
            else
                half_of_16(cv, sc, kind, offset, x, at, half, &h, nr, nt);
        }
        for (int r = 0; r < nr; r++)
            for (int t = 0; t < nt; t++) {
                acc[r][t] = vfmaq_n_f32(acc[r][t], h.sum[r][t], sc[r].d);
                if (kind == PER_32_MIN || kind == PER_16_MIN) acc[r][t] = vfmsq_n_f32(acc[r][t], h.min[r][t], sc[r].dm);
            }
    }
    finish(p, acc, nr, nt);
}

// ---- the functions ----

// Rows taken together with one token: int16 activations fill twice the registers.
#if RL_BITS == 8
enum { ROWS_BLOCK = 2, ROWS_Q8_0 = 4, ROWS_SUPER = 2 };
#else
enum { ROWS_BLOCK = 2, ROWS_Q8_0 = 2, ROWS_SUPER = 1 };
#endif

// With one token NR rows at a time, one by one with 2 or 4.
#define RL_DRIVE(T, FN, NR, ...)                                                                                       \
    void RL_ROWS_NAME(T)(const rl_rows_args *a);                                                                       \
    void RL_ROWS_NAME(T)(const rl_rows_args *a) {                                                                      \
        piece p = {a->w, a->row_bytes, a->cols, a->tok0, a->act, a->out, a->ld_out};                                   \
        size_t many = a->n_tok & ~(size_t)1;                                                                           \
        for (size_t r = 0; many && r < a->n_rows; r++) {                                                               \
            p.w = a->w + r * a->row_bytes;                                                                             \
            for (size_t t = 0; t < many; t += many - t >= 4 ? 4 : 2) {                                                 \
                p.tok = a->tok0 + t;                                                                                   \
                p.out = a->out + t * a->ld_out + r;                                                                    \
                if (many - t >= 4)                                                                                     \
                    FN(&p, __VA_ARGS__, 1, 4);                                                                         \
                else                                                                                                   \
                    FN(&p, __VA_ARGS__, 1, 2);                                                                         \
            }                                                                                                          \
        }                                                                                                              \
        p.tok = a->tok0 + many;                                                                                        \
        for (size_t r = 0; many < a->n_tok && r < a->n_rows;) {                                                        \
            p.w = a->w + r * a->row_bytes;                                                                             \
            p.out = a->out + many * a->ld_out + r;                                                                     \
            if (a->n_rows - r >= NR)                                                                                   \
                FN(&p, __VA_ARGS__, NR, 1);                                                                            \
            else                                                                                                       \
                FN(&p, __VA_ARGS__, 1, 1);                                                                             \
            r += a->n_rows - r >= NR ? NR : 1;                                                                         \
        }                                                                                                              \
    }

RL_DRIVE(q4_0, block_rows, ROWS_BLOCK, 18, block_q4_0, 0, OFFSET_q4_0, 1)
RL_DRIVE(q4_1, block_rows, ROWS_BLOCK, 20, block_q4_1, 2, OFFSET_q4_1, 1)
RL_DRIVE(q5_0, block_rows, ROWS_BLOCK, 22, block_q5_0, 0, OFFSET_q5_0, 1)
RL_DRIVE(q5_1, block_rows, ROWS_BLOCK, 24, block_q5_1, 2, OFFSET_q5_1, 1)
RL_DRIVE(q8_0, block_rows, ROWS_Q8_0, 34, block_q8_0, 0, OFFSET_q8_0, 0)
RL_DRIVE(iq4nl, block_rows, ROWS_BLOCK, 18, block_iq4nl, 0, OFFSET_iq4nl, 0)
RL_DRIVE(q2k, super_rows, ROWS_SUPER, sizeof(rl_block_q2_k), scales_q2k, half_q2k, PER_16_MIN, OFFSET_q2k, 1)
RL_DRIVE(q3k, super_rows, ROWS_SUPER, sizeof(rl_block_q3_k), scales_q3k, half_q3k, PER_16, OFFSET_q3k, 1)
RL_DRIVE(q4k, super_rows, ROWS_SUPER, sizeof(rl_block_q4_k), scales_q4k, half_q4k, PER_32_MIN, OFFSET_q4k, 1)
RL_DRIVE(q5k, super_rows, ROWS_SUPER, sizeof(rl_block_q5_k), scales_q5k, half_q5k, PER_32_MIN, OFFSET_q5k, 1)
RL_DRIVE(q6k, super_rows, ROWS_SUPER, sizeof(rl_block_q6_k), scales_q6k, half_q6k, PER_16, OFFSET_q6k, 1)
RL_DRIVE(q8k, super_rows, ROWS_SUPER, sizeof(rl_block_q8_k), scales_q8k, half_q8k, PER_32, OFFSET_q8k, 0)
RL_DRIVE(iq4xs, super_rows, ROWS_SUPER, sizeof(rl_block_iq4_xs), scales_iq4xs, half_iq4xs, PER_32, OFFSET_iq4xs, 0)

#endif
