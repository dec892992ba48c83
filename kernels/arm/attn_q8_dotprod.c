// SPDX-License-Identifier: Apache-2.0
// Attention over q8_0 pages with sdot: queries and weights in int16 are taken as two signed bytes, value = 256 * high +
// low, each multiplied with four dims (or tokens) at once. A vector of K is 4 tokens by 4 dims, one of V 4 dims by 4
// tokens, so no sum crosses lanes. Two vectors at a time, for up to 4 query rows.
//
// Integers: high parts reach 127, so 32 * 127 * 127 * 256 + 32 * 127 * 128 < 2^28 per group of K, and twice that per
// page of V. Floats: as in attn_q8_neon.c, but weights are rounded to 32,639 steps.
#ifndef __ARM_FEATURE_DOTPROD
#error "needs dotprod"
#endif
#include "kernels/arm/attn_q8.h"

void rl_attn_k_q8_0_tile_dotprod(const rl_attn_k_args *a);
void rl_attn_v_q8_0_tile_dotprod(const rl_attn_v_args *a);

// High and low bytes of one query row, dims (or tokens) in their order.
typedef struct {
    int8_t high[RL_ATTN_MAX_DIM], low[RL_ATTN_MAX_DIM];
} split;

INLINE void put_split(int16x8_t v, const uint8x8_t order, int8_t *high, int8_t *low) {
    vst1_s8(high, vtbl1_s8(vrshrn_n_s16(v, 8), vreinterpret_s8_u8(order)));
    vst1_s8(low, vtbl1_s8(vmovn_s16(v), vreinterpret_s8_u8(order)));
}

// Sums of two vectors of 4 tokens (or dims).
typedef struct {
    int32x4_t high[2], low[2];
} sums;

INLINE void clear(sums *s, const int nq) {
    for (int r = 0; r < nq; r++)
        for (int j = 0; j < 2; j++) s[r].high[j] = s[r].low[j] = vdupq_n_s32(0);
}
INLINE float32x4_t total(const sums *s, const int j) {
    return vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(s->high[j], 8), s->low[j]));
}

// 32 bytes times group `lane` of four bytes of each row.
INLINE void half_line(const uint8_t *p, const int8x16_t *high, const int8x16_t *low, const int lane, const int nq,
                      sums *s) {
    int8x16_t x[2] = {vreinterpretq_s8_u8(vld1q_u8(p)), vreinterpretq_s8_u8(vld1q_u8(p + 16))};
#define STEP(L)                                                                                                        \
    s[r].high[j] = vdotq_laneq_s32(s[r].high[j], x[j], high[r], L);                                                    \
    s[r].low[j] = vdotq_laneq_s32(s[r].low[j], x[j], low[r], L)
    for (int r = 0; r < nq; r++)
        for (int j = 0; j < 2; j++) {
            if (lane == 0) {
                STEP(0);
            } else if (lane == 1) {
                STEP(1);
            } else if (lane == 2) {
                STEP(2);
            } else {
                STEP(3);
            }
        }
#undef STEP
}

// 16 dims of K (or tokens of V): four half lines `stride` bytes apart. `at`: of the first byte of the rows.
INLINE void four_lines(const uint8_t *p, size_t stride, const int8_t *const *high, const int8_t *const *low, size_t at,
                       const int nq, sums *s) {
    int8x16_t h[4], l[4];
    for (int r = 0; r < nq; r++) {
        h[r] = vld1q_s8(high[r] + at);
        l[r] = vld1q_s8(low[r] + at);
    }
    half_line(p, h, l, 0, nq, s);
    half_line(p + stride, h, l, 1, nq, s);
    half_line(p + 2 * stride, h, l, 2, nq, s);
    half_line(p + 3 * stride, h, l, 3, nq, s);
}

INLINE void k_rows(const rl_attn_k_args *a, size_t r0, const int nq) {
    const rl_attn_side *s = a->side;
    const uint8_t *next = r0 ? NULL : a->head.next;
    const uint8x8_t order = vcreate_u8(0x0705060403010200ull); // of every four, 0 2 1 3: its own inverse
    split q[4];
    const int8_t *high[4], *low[4];
    for (int r = 0; r < nq; r++) {
        const int16_t *from = (const int16_t *)a->q + (r0 + (size_t)r) * a->ld_q;
        for (size_t i = 0; i < s->pad; i += 8) put_split(vld1q_s16(from + i), order, q[r].high + i, q[r].low + i);
        high[r] = q[r].high;
        low[r] = q[r].low;
    }
    for (size_t t = 0; t < 64; t += 8) {
        const uint8_t *k = a->head.data + t / 16 * s->pad * 16 + t % 16 * 4;
        const float *scales = a->head.scales + t / 16 * s->groups * 16 + t % 16;
        float32x4_t out[4][2];
        for (int r = 0; r < nq; r++) out[r][0] = out[r][1] = vdupq_n_f32(0);
        for (size_t i = 0; i < s->pad; i += 32, scales += 16) {
            sums sum[4];
            clear(sum, nq);
            size_t end = i + 32 < s->pad ? i + 32 : s->pad;
            for (size_t d = i; d < end; d += 16, k += 256) {
                RL_LOOP(nq, 128);
                if (t % 16 == 0)
                    for (size_t line = 0; line < 256; line += 64)
                        rl_attn_ahead(next, (size_t)(k - a->head.data) + line);
                four_lines(k, 64, high, low, d, nq, sum);
            }
            for (int j = 0; j < 2; j++) {
                float32x4_t scale = vld1q_f32(scales + 4 * j);
                for (int r = 0; r < nq; r++) out[r][j] = vfmaq_f32(out[r][j], total(&sum[r], j), scale);
            }
        }
        for (int r = 0; r < nq; r++) {
            float *o = a->s + (r0 + (size_t)r) * 64 + t, by = a->q_scale[r0 + (size_t)r];
            vst1q_f32(o, vmulq_n_f32(out[r][0], by));
            vst1q_f32(o + 4, vmulq_n_f32(out[r][1], by));
        }
    }
}

void rl_attn_k_q8_0_tile_dotprod(const rl_attn_k_args *a){RL_ATTN_BY_ROWS(4, k_rows, a)}

INLINE float split_weights(const float *p, const float *scales, size_t n_tok, int8_t *high, int8_t *low) {
    int16x8_t w[8];
    float step = weights16(p, scales, n_tok, RL_ATTN_Q_MAX, w);
    for (int i = 0; i < 8; i++) {
        vst1_s8(high + 8 * i, vrshrn_n_s16(w[i], 8));
        vst1_s8(low + 8 * i, vmovn_s16(w[i]));
    }
    return step;
}

// Tokens in sixteens: behind n_tok weights are 0, and the page is always whole.
INLINE void v_rows(const rl_attn_v_args *a, size_t r0, const int nq) {
    const rl_attn_side *s = a->side;
    const uint8_t *next = r0 ? NULL : a->head.next;
    size_t stride = s->pad * 4;
    int8_t w[2][4][64];
    const int8_t *high[4] = {w[0][0], w[0][1], w[0][2], w[0][3]}, *low[4] = {w[1][0], w[1][1], w[1][2], w[1][3]};
    float step[4] = {0};
    for (size_t i = 0; i < s->pad; i += 8) {
        if (i % 32 == 0)
            for (int r = 0; r < nq; r++)
                step[r] = split_weights(a->p + (r0 + (size_t)r) * 64, a->head.scales + i / 32 * 64, a->n_tok, w[0][r],
                                        w[1][r]);
        sums sum[4];
        clear(sum, nq);
        for (size_t t = 0; t < a->n_tok; t += 16) {
            RL_LOOP(nq, 128);
            const uint8_t *v = a->head.data + i * 4 + t / 4 * stride;
            if (i % 16 == 0)
                for (size_t g = 0; g < 4; g++) rl_attn_ahead(next, i * 4 + (t / 4 + g) * stride);
            four_lines(v, stride, high, low, t, nq, sum);
        }
        for (int r = 0; r < nq; r++) {
            float *acc = a->acc + (r0 + (size_t)r) * a->ld_acc + i, corr = a->corr[r0 + (size_t)r];
            for (int j = 0; j < 2; j++)
                vst1q_f32(acc + 4 * j,
                          vfmaq_n_f32(vmulq_n_f32(vld1q_f32(acc + 4 * j), corr), total(&sum[r], j), step[r]));
        }
    }
}

void rl_attn_v_q8_0_tile_dotprod(const rl_attn_v_args *a) {
    RL_ATTN_BY_ROWS(4, v_rows, a)
}
