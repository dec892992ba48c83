// SPDX-License-Identifier: Apache-2.0
// Attention over q8_0 pages in NEON: int16 queries and weights times bytes widened by shifts. A line of K is 16
// tokens by 4 dims, a line of V 16 dims by 4 tokens; half a line is taken at a time, for up to 4 query rows.
//
// Integers: at most 32 * 127 * 32767 < 2^27 per group of K, 64 * 127 * 32767 < 2^29 per page of V. Floats: scores
// sum groups in rising order, by fused multiply-add; an output is acc * corr + sum * step.
#include "kernels/arm/attn_q8.h"

void rl_attn_k_q8_0_tile_neon(const rl_attn_k_args *a);
void rl_attn_v_q8_0_tile_neon(const rl_attn_v_args *a);

// Sums of 8 tokens (or dims) in four vectors: each lane of the result is the sum of two lanes.
typedef struct {
    int32x4_t part[4];
} sums;

INLINE int32x4_t first4(const sums *s) {
    return vpaddq_s32(s->part[0], s->part[1]);
}
INLINE int32x4_t last4(const sums *s) {
    return vpaddq_s32(s->part[2], s->part[3]);
}

// 32 bytes, 4 for each of 8 tokens, into the sums of each row; w: four int16 (0 2 1 3) of row r at w + r * ld.
INLINE void half_line(const uint8_t *p, const int16_t *w, size_t ld, const int nq, sums *s) {
    for (int j = 0; j < 2; j++) {
        int16x8_t x = vreinterpretq_s16_u8(vld1q_u8(p + 16 * j));
        int16x8_t even = vshrq_n_s16(vshlq_n_s16(x, 8), 8), odd = vshrq_n_s16(x, 8);
        for (int r = 0; r < nq; r++) {
            int32x2_t pairs = vreinterpret_s32_s16(vld1_s16(w + (size_t)r * ld));
            int16x8_t w0 = vreinterpretq_s16_s32(vdupq_lane_s32(pairs, 0));
            int16x8_t w1 = vreinterpretq_s16_s32(vdupq_lane_s32(pairs, 1));
            int32x4_t *lo = &s[r].part[2 * j], *hi = lo + 1;
            *lo = vmlal_s16(*lo, vget_low_s16(even), vget_low_s16(w0));
            *hi = vmlal_high_s16(*hi, even, w0);
            *lo = vmlal_s16(*lo, vget_low_s16(odd), vget_low_s16(w1));
            *hi = vmlal_high_s16(*hi, odd, w1);
        }
    }
}

INLINE void clear(sums *s, const int nq) {
    for (int r = 0; r < nq; r++)
        for (int j = 0; j < 4; j++) s[r].part[j] = vdupq_n_s32(0);
}

INLINE void k_rows(const rl_attn_k_args *a, size_t r0, const int nq) {
    const rl_attn_side *s = a->side;
    const uint8_t *next = r0 ? NULL : a->head.next;
    const int16_t *q = (const int16_t *)a->q + r0 * a->ld_q;
    for (size_t t = 0; t < 64; t += 8) {
        const uint8_t *k = a->head.data + t / 16 * s->pad * 16 + t % 16 * 4;
        const float *scales = a->head.scales + t / 16 * s->groups * 16 + t % 16;
        float32x4_t out[4][2];
        for (int r = 0; r < nq; r++) out[r][0] = out[r][1] = vdupq_n_f32(0);
        for (size_t i = 0; i < s->pad; i += 32, scales += 16) {
            sums sum[4];
            clear(sum, nq);
            size_t end = i + 32 < s->pad ? i + 32 : s->pad;
            for (size_t j = i; j < end; j += 4, k += 64) {
                RL_LOOP(nq, 32);
                if (t % 16 == 0) rl_attn_ahead(next, (size_t)(k - a->head.data));
                half_line(k, q + j, a->ld_q, nq, sum);
            }
            float32x4_t d0 = vld1q_f32(scales), d1 = vld1q_f32(scales + 4);
            for (int r = 0; r < nq; r++) {
                out[r][0] = vfmaq_f32(out[r][0], vcvtq_f32_s32(first4(&sum[r])), d0);
                out[r][1] = vfmaq_f32(out[r][1], vcvtq_f32_s32(last4(&sum[r])), d1);
            }
        }
        for (int r = 0; r < nq; r++) {
            float *o = a->s + (r0 + (size_t)r) * 64 + t, by = a->q_scale[r0 + (size_t)r];
            vst1q_f32(o, vmulq_n_f32(out[r][0], by));
            vst1q_f32(o + 4, vmulq_n_f32(out[r][1], by));
        }
    }
}

void rl_attn_k_q8_0_tile_neon(const rl_attn_k_args *a){RL_ATTN_BY_ROWS(4, k_rows, a)}

// Every four as 0 2 1 3.
INLINE float ordered_weights(const float *p, const float *scales, size_t n_tok, int16_t *out) {
    static const uint8_t order[16] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
    int16x8_t w[8];
    float step = weights16(p, scales, n_tok, 32767.0f, w);
    for (int i = 0; i < 8; i++)
        vst1q_s16(out + 8 * i, vreinterpretq_s16_u8(vqtbl1q_u8(vreinterpretq_u8_s16(w[i]), vld1q_u8(order))));
    return step;
}

INLINE void v_rows(const rl_attn_v_args *a, size_t r0, const int nq) {
    const rl_attn_side *s = a->side;
    const uint8_t *next = r0 ? NULL : a->head.next;
    size_t stride = s->pad * 4, groups4 = (a->n_tok + 3) / 4;
    int16_t w[4][64];
    float step[4] = {0};
    for (size_t i = 0; i < s->pad; i += 8) {
        if (i % 32 == 0)
            for (int r = 0; r < nq; r++)
                step[r] = ordered_weights(a->p + (r0 + (size_t)r) * 64, a->head.scales + i / 32 * 64, a->n_tok, w[r]);
        sums sum[4];
        clear(sum, nq);
        for (size_t t = 0; t < groups4; t++) {
            RL_LOOP(nq, 32);
            if (i % 16 == 0) rl_attn_ahead(next, i * 4 + t * stride);
            half_line(a->head.data + i * 4 + t * stride, w[0] + 4 * t, 64, nq, sum);
        }
        for (int r = 0; r < nq; r++) {
            float *acc = a->acc + (r0 + (size_t)r) * a->ld_acc + i, corr = a->corr[r0 + (size_t)r];
            float32x4_t u = vmulq_n_f32(vld1q_f32(acc), corr), v = vmulq_n_f32(vld1q_f32(acc + 4), corr);
            vst1q_f32(acc, vfmaq_n_f32(u, vcvtq_f32_s32(first4(&sum[r])), step[r]));
            vst1q_f32(acc + 4, vfmaq_n_f32(v, vcvtq_f32_s32(last4(&sum[r])), step[r]));
        }
    }
}

void rl_attn_v_q8_0_tile_neon(const rl_attn_v_args *a) {
    RL_ATTN_BY_ROWS(4, v_rows, a)
}
