// SPDX-License-Identifier: Apache-2.0
// Attention over f32 and f16 tile pages in NEON, and the online softmax. Sums of a score: even and odd dimensions
// apart, each rising, then added. Sums of an output: tokens rising, on acc * corr. All by fused multiply-add, and
// halves are widened before any arithmetic. The sum of a softmax step: sixteen vectors pairwise, then lanes.
#ifndef __ARM_NEON
#error "needs NEON"
#endif
#include <arm_neon.h>

#include "kernels/arm/loop.h"
#include "kernels/attn.h"

#define INLINE static inline __attribute__((always_inline))

INLINE float32x4_t load4(const uint8_t *p, const int half) {
    return half ? vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))) : vreinterpretq_f32_u8(vld1q_u8(p));
}

INLINE void ahead(const uint8_t *next, size_t at) {
    if (next) __builtin_prefetch(next + at, 0, 2);
}

INLINE void k_rows(const rl_attn_k_args *a, size_t r0, const int nq, const int half) {
    const size_t size = half ? 2 : 4, line = 16 * size, pad = a->side->pad; // pad is even
    const uint8_t *next = r0 ? NULL : a->head.next;
    const float *q = (const float *)a->q + r0 * a->ld_q;
    for (size_t t = 0; t < 64; t += 16) {
        const uint8_t *k = a->head.data + t / 16 * pad * line;
        float32x4_t x[2][3][4];
        for (int r = 0; r < nq; r++)
            for (int j = 0; j < 4; j++) x[0][r][j] = x[1][r][j] = vdupq_n_f32(0);
        for (size_t i = 0; i < pad; i += 2) {
            RL_LOOP(nq, 2 * 16 * (half ? 2 : 4));
            ahead(next, (t / 16 * pad + i) * line);
            if (!half) ahead(next, (t / 16 * pad + i) * line + 64);
            for (size_t e = 0; e < 2; e++) {
                const uint8_t *p = k + (i + e) * line;
                float32x4_t v[4];
                for (size_t j = 0; j < 4; j++) v[j] = load4(p + 4 * size * j, half);
                for (int r = 0; r < nq; r++) {
                    float32x4_t w = vld1q_dup_f32(q + (size_t)r * a->ld_q + i + e);
                    for (int j = 0; j < 4; j++) x[e][r][j] = vfmaq_f32(x[e][r][j], v[j], w);
                }
            }
        }
        for (int r = 0; r < nq; r++)
            for (size_t j = 0; j < 4; j++)
                vst1q_f32(a->s + (r0 + (size_t)r) * 64 + t + 4 * j, vaddq_f32(x[0][r][j], x[1][r][j]));
    }
}

// 16 dims from dim i on.
INLINE void v_lines(const rl_attn_v_args *a, size_t r0, size_t i, const int nq, const int half) {
    const size_t size = half ? 2 : 4, row = a->side->pad * size;
    const uint8_t *v = a->head.data + i * size, *next = r0 || !a->head.next ? NULL : a->head.next + i * size;
    float32x4_t acc[3][4];
    for (int r = 0; r < nq; r++)
        for (size_t j = 0; j < 4; j++)
            acc[r][j] =
                vmulq_n_f32(vld1q_f32(a->acc + (r0 + (size_t)r) * a->ld_acc + i + 4 * j), a->corr[r0 + (size_t)r]);
    for (size_t t = 0; t < a->n_tok; t++) {
        RL_LOOP(nq, 16 * (half ? 2 : 4));
        ahead(next, t * row);
        float32x4_t x[4];
        for (size_t j = 0; j < 4; j++) x[j] = load4(v + t * row + 4 * size * j, half);
        for (int r = 0; r < nq; r++) {
            float32x4_t p = vld1q_dup_f32(a->p + (r0 + (size_t)r) * 64 + t);
            for (int j = 0; j < 4; j++) acc[r][j] = vfmaq_f32(acc[r][j], x[j], p);
        }
    }
    for (int r = 0; r < nq; r++)
        for (size_t j = 0; j < 4; j++) vst1q_f32(a->acc + (r0 + (size_t)r) * a->ld_acc + i + 4 * j, acc[r][j]);
}

INLINE void v_rows(const rl_attn_v_args *a, size_t r0, const int nq, const int half) {
    for (size_t i = 0; i < a->side->pad; i += 16) v_lines(a, r0, i, nq, half); // pad: a multiple of 16
}

#define BY_ROWS(f, a, half)                                                                                            \
    for (size_t r = 0; r < (a)->nq; r += 3) switch ((a)->nq - r) {                                                     \
        case 1:                                                                                                        \
            f(a, r, 1, half);                                                                                          \
            break;                                                                                                     \
        case 2:                                                                                                        \
            f(a, r, 2, half);                                                                                          \
            break;                                                                                                     \
        default:                                                                                                       \
            f(a, r, 3, half);                                                                                          \
            break;                                                                                                     \
        }

void rl_attn_k_f32_tile_neon(const rl_attn_k_args *a);
void rl_attn_k_f16_tile_neon(const rl_attn_k_args *a);
void rl_attn_v_f32_tile_neon(const rl_attn_v_args *a);
void rl_attn_v_f16_tile_neon(const rl_attn_v_args *a);
void rl_attn_softmax_neon(float *s, size_t nq, float *m, float *l, float *corr);

void rl_attn_k_f32_tile_neon(const rl_attn_k_args *a) {
    BY_ROWS(k_rows, a, 0)
}
void rl_attn_k_f16_tile_neon(const rl_attn_k_args *a) {
    BY_ROWS(k_rows, a, 1)
}
void rl_attn_v_f32_tile_neon(const rl_attn_v_args *a) {
    BY_ROWS(v_rows, a, 0)
}
void rl_attn_v_f16_tile_neon(const rl_attn_v_args *a){BY_ROWS(v_rows, a, 1)}

// exp for x <= 0 and NaN, within 2 units in the last place; 0 below -87.
INLINE float32x4_t exp4(float32x4_t x) {
    uint32x4_t low = vcltq_f32(x, vdupq_n_f32(-87.0f));
    x = vmaxq_f32(vdupq_n_f32(-87.0f), x); // hands NaN on
    float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 1.44269504f));
    float32x4_t y = vfmsq_f32(x, n, vdupq_n_f32(0.693359375f));
    y = vfmsq_f32(y, n, vdupq_n_f32(-2.12194440e-4f));
    static const float c[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    float32x4_t p = vdupq_n_f32(c[0]);
    for (int i = 1; i < 8; i++) p = vfmaq_f32(vdupq_n_f32(c[i]), p, y);
    int32x4_t e = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23);
    p = vmulq_f32(p, vreinterpretq_f32_s32(e));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(p), low));
}

void rl_attn_softmax_neon(float *s, size_t nq, float *m, float *l, float *corr) {
    for (size_t r = 0; r < nq; r++, s += 64) {
        float32x4_t x[16], top = vld1q_f32(s);
        for (int i = 0; i < 16; i++) {
            x[i] = vld1q_f32(s + 4 * i);
            top = vmaxnmq_f32(top, x[i]); // the number when one is NaN
        }
        float max = vmaxnmvq_f32(top);
        max = max > m[r] ? max : m[r];
        // All masked: subtract 0 instead, so that -inf gives weight 0 and a NaN still shows.
        float32x4_t shift = vdupq_n_f32(max == -__builtin_inff() ? 0.0f : max);
        for (int i = 0; i < 16; i++) {
            x[i] = exp4(vsubq_f32(x[i], shift));
            vst1q_f32(s + 4 * i, x[i]);
        }
        for (int half = 8; half; half /= 2)
            for (int i = 0; i < half; i++) x[i] = vaddq_f32(x[i], x[i + half]);
        float c = max == m[r] ? 1.0f : vgetq_lane_f32(exp4(vdupq_n_f32(m[r] - max)), 0);
        corr[r] = c;
        l[r] = l[r] * c + vaddvq_f32(x[0]);
        m[r] = max;
    }
}
