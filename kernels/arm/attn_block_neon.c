// SPDX-License-Identifier: Apache-2.0
// Prompts in NEON: a tile page as float32, and blocks of query rows times it. Sums rise over the dimensions
// (scores) and the tokens (outputs), one fused multiply-add each.
#ifndef __ARM_NEON
#error "needs NEON"
#endif
#include <arm_neon.h>

#include "kernels/attn.h"

#define INLINE static inline __attribute__((always_inline))

void rl_attn_kload_f32_tile_neon(const rl_attn_side *s, const rl_attn_head *h, float *out);
void rl_attn_kload_f16_tile_neon(const rl_attn_side *s, const rl_attn_head *h, float *out);
void rl_attn_kload_q8_0_tile_neon(const rl_attn_side *s, const rl_attn_head *h, float *out);
void rl_attn_vload_f32_tile_neon(const rl_attn_side *s, const rl_attn_head *h, float *out);
void rl_attn_vload_f16_tile_neon(const rl_attn_side *s, const rl_attn_head *h, float *out);
void rl_attn_vload_q8_0_tile_neon(const rl_attn_side *s, const rl_attn_head *h, float *out);
void rl_attn_mulk_neon(const float *q, size_t ld_q, size_t nq, const float *kt, size_t pad, size_t n_tok, float *s);
void rl_attn_mulv_neon(const float *p, const float *corr, size_t nq, const float *v, size_t pad, size_t n_tok,
                       float *acc, size_t ld_acc);

// ---- a page as float32 ----

INLINE void copy16(const uint8_t *p, const int half, float *out) {
    for (int j = 0; j < 4; j++)
        vst1q_f32(out + 4 * j, half ? vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * j)))
                                    : vreinterpretq_f32_u8(vld1q_u8(p + 16 * j)));
}

INLINE void kload(const rl_attn_side *s, const rl_attn_head *h, float *out, const int half) {
    const uint8_t *k = h->data;
    for (size_t t = 0; t < 64; t += 16)
        for (size_t i = 0; i < s->pad; i++, k += half ? 32 : 64) copy16(k, half, out + i * 64 + t);
}
INLINE void vload(const rl_attn_side *s, const rl_attn_head *h, float *out, const int half) {
    for (size_t i = 0; i < 64 * s->pad; i += 16) copy16(h->data + i * (half ? 2 : 4), half, out + i);
}
void rl_attn_kload_f32_tile_neon(const rl_attn_side *s, const rl_attn_head *h, float *out) {
    kload(s, h, out, 0);
}
void rl_attn_kload_f16_tile_neon(const rl_attn_side *s, const rl_attn_head *h, float *out) {
    kload(s, h, out, 1);
}
void rl_attn_vload_f32_tile_neon(const rl_attn_side *s, const rl_attn_head *h, float *out) {
    vload(s, h, out, 0);
}
void rl_attn_vload_f16_tile_neon(const rl_attn_side *s, const rl_attn_head *h, float *out) {
    vload(s, h, out, 1);
}

// Byte `b` of every 32-bit lane, as float.
INLINE float32x4_t byte4(int32x4_t x, const int b) {
    return vcvtq_f32_s32(vshlq_s32(vshlq_s32(x, vdupq_n_s32(24 - 8 * b)), vdupq_n_s32(-24)));
}

void rl_attn_kload_q8_0_tile_neon(const rl_attn_side *s, const rl_attn_head *h, float *out) {
    const uint8_t *k = h->data;
    for (size_t t = 0; t < 64; t += 16)
        for (size_t i = 0; i < s->pad; i += 4)
            for (size_t part = 0; part < 16; part += 4, k += 16) {
                int32x4_t x = vreinterpretq_s32_u8(vld1q_u8(k));
                float32x4_t scale = vld1q_f32(h->scales + (t / 16 * s->groups + i / 32) * 16 + part);
                float *o = out + i * 64 + t + part;
                for (int b = 0; b < 4; b++) vst1q_f32(o + 64 * b, vmulq_f32(byte4(x, b), scale));
            }
}

void rl_attn_vload_q8_0_tile_neon(const rl_attn_side *s, const rl_attn_head *h, float *out) {
    const uint8_t *v = h->data;
    for (size_t t = 0; t < 64; t += 4)
        for (size_t i = 0; i < s->pad; i += 4, v += 16) {
            int32x4_t x = vreinterpretq_s32_u8(vld1q_u8(v));
            const float *scale = h->scales + i / 32 * 64 + t;
            for (int b = 0; b < 4; b++)
                vst1q_f32(out + (t + (size_t)b) * s->pad + i, vmulq_n_f32(byte4(x, b), scale[b]));
        }
}

// ---- products ----

// c[r][j] = c[r][j] * corr[r] (0 without corr) + sum over k of a[r][k] * b[k][j]: nr rows, 16 columns.
INLINE void block(const float *a, size_t ld_a, const float *b, size_t ld_b, size_t n, float *c, size_t ld_c,
                  const float *corr, const int nr) {
    float32x4_t x[6][4];
    for (int r = 0; r < nr; r++)
        for (size_t j = 0; j < 4; j++)
            x[r][j] = corr ? vmulq_n_f32(vld1q_f32(c + (size_t)r * ld_c + 4 * j), corr[r]) : vdupq_n_f32(0);
    for (size_t k = 0; k < n; k++) {
        float32x4_t y[4];
        for (size_t j = 0; j < 4; j++) y[j] = vld1q_f32(b + k * ld_b + 4 * j);
        for (int r = 0; r < nr; r++) {
            float32x4_t w = vld1q_dup_f32(a + (size_t)r * ld_a + k);
            for (int j = 0; j < 4; j++) x[r][j] = vfmaq_f32(x[r][j], y[j], w);
        }
    }
    for (int r = 0; r < nr; r++)
        for (size_t j = 0; j < 4; j++) vst1q_f32(c + (size_t)r * ld_c + 4 * j, x[r][j]);
}

INLINE void rows(const float *a, size_t ld_a, size_t nr, const float *b, size_t ld_b, size_t n, float *c, size_t ld_c,
                 const float *corr) {
    size_t r = 0;
    for (; r + 6 <= nr; r += 6) block(a + r * ld_a, ld_a, b, ld_b, n, c + r * ld_c, ld_c, corr ? corr + r : NULL, 6);
    for (; r + 3 <= nr; r += 3) block(a + r * ld_a, ld_a, b, ld_b, n, c + r * ld_c, ld_c, corr ? corr + r : NULL, 3);
    for (; r < nr; r++) block(a + r * ld_a, ld_a, b, ld_b, n, c + r * ld_c, ld_c, corr ? corr + r : NULL, 1);
}

void rl_attn_mulk_neon(const float *q, size_t ld_q, size_t nq, const float *kt, size_t pad, size_t n_tok, float *s) {
    for (size_t t = 0; t < n_tok; t += 16) rows(q, ld_q, nq, kt + t, 64, pad, s + t, 64, NULL);
}

void rl_attn_mulv_neon(const float *p, const float *corr, size_t nq, const float *v, size_t pad, size_t n_tok,
                       float *acc, size_t ld_acc) {
    for (size_t i = 0; i < pad; i += 16) rows(p, 64, nq, v + i, pad, n_tok, acc + i, ld_acc, corr);
}
