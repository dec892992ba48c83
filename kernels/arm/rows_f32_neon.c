// SPDX-License-Identifier: Apache-2.0
// The exact path, NEON: 256 weights at a time to float32, then products with every token. Value i goes to partial
// sum i mod 32, as in the reference, but each product and sum is one FMA.
#include "kernels/arm/dequant.h"
#include "kernels/arm/loop.h"

#define CHUNK 256

// Adds the products of n values (a multiple of 32) to the 32 partial sums.
RL_INLINE void add_products(const float *w, const float *x, size_t n, float *sums) {
    float32x4_t s[8];
    for (int j = 0; j < 8; j++) s[j] = vld1q_f32(sums + 4 * j);
    for (size_t i = 0; i < n; i += 32)
        for (size_t j = 0; j < 8; j++) s[j] = vfmaq_f32(s[j], vld1q_f32(w + i + 4 * j), vld1q_f32(x + i + 4 * j));
    for (int j = 0; j < 8; j++) vst1q_f32(sums + 4 * j, s[j]);
}

// Fewer than 32 values, from copies filled up with zeros: neither operand is read past its end.
static void add_tail(const float *w, const float *x, size_t n, float *sums) {
    float wt[32] = {0}, xt[32] = {0};
    memcpy(wt, w, n * sizeof *w);
    memcpy(xt, x, n * sizeof *x);
    add_products(wt, xt, 32, sums);
}

RL_INLINE float fold(const float *sums) {
    float32x4_t s[8];
    for (int j = 0; j < 8; j++) s[j] = vld1q_f32(sums + 4 * j);
    for (int h = 4; h; h /= 2)
        for (int j = 0; j < h; j++) s[j] = vaddq_f32(s[j], s[j + h]);
    return vaddv_f32(vadd_f32(vget_low_f32(s[0]), vget_high_f32(s[0])));
}

RL_INLINE void rows(const rl_rows_args *a, const size_t block, const size_t bytes,
                    void (*dequant)(const uint8_t *, float *, size_t)) {
    for (size_t r = 0; r < a->n_rows; r++) {
        const uint8_t *w = a->w + r * a->row_bytes;
        float sums[RL_ROWS_MAX_TOK][32] = {{0}};
        for (size_t c = 0; c < a->cols; c += CHUNK, w += CHUNK / block * bytes) {
            float chunk[CHUNK];
            size_t n = a->cols - c < CHUNK ? a->cols - c : CHUNK, whole = n & ~(size_t)31;
            __builtin_prefetch(w + 1024);
            dequant(w, chunk, n);
            for (size_t t = 0; t < a->n_tok; t++) {
                const float *x = a->act->f32 + (a->tok0 + t) * a->act->ld_f32 + c;
                add_products(chunk, x, whole, sums[t]);
                if (whole < n) add_tail(chunk + whole, x + whole, n - whole, sums[t]);
            }
        }
        for (size_t t = 0; t < a->n_tok; t++) a->out[t * a->ld_out + r] = fold(sums[t]);
    }
}

// ---- float weights with one token: no copy in between, and two rows for each load of activations ----

RL_INLINE void widen_f32(const uint8_t *w, float32x4_t *out) {
    for (int j = 0; j < 8; j++) out[j] = vreinterpretq_f32_u8(vld1q_u8(w + 16 * j));
}
RL_INLINE void widen_f16(const uint8_t *w, float32x4_t *out) {
    for (int j = 0; j < 4; j++) {
        uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(w + 16 * j));
        out[2 * j] = half4(vget_low_u16(h));
        out[2 * j + 1] = vcvt_high_f32_f16(vreinterpretq_f16_u16(h));
    }
}
RL_INLINE void widen_bf16(const uint8_t *w, float32x4_t *out) {
    for (int j = 0; j < 4; j++) {
        uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(w + 16 * j));
        out[2 * j] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16));
        out[2 * j + 1] = vreinterpretq_f32_u32(vshll_high_n_u16(h, 16));
    }
}

RL_INLINE void float_rows(const rl_rows_args *a, size_t r, const size_t size,
                          void (*widen)(const uint8_t *, float32x4_t *),
                          void (*dequant)(const uint8_t *, float *, size_t), const int nr) {
    const uint8_t *w = a->w + r * a->row_bytes;
    const float *x = a->act->f32 + a->tok0 * a->act->ld_f32;
    float32x4_t s[2][8];
    for (int i = 0; i < nr; i++)
        for (int j = 0; j < 8; j++) s[i][j] = vdupq_n_f32(0);
    size_t c = 0;
    for (; c + 32 <= a->cols; c += 32) {
        RL_LOOP(1, nr * 32 * (int)size);
        for (int i = 0; i < nr; i++) {
            const uint8_t *p = w + (size_t)i * a->row_bytes + c * size;
            __builtin_prefetch(p + 1024);
            float32x4_t v[8];
            widen(p, v);
            for (size_t j = 0; j < 8; j++) s[i][j] = vfmaq_f32(s[i][j], v[j], vld1q_f32(x + c + 4 * j));
        }
    }
#pragma GCC unroll 2 // or the sums would live in memory
    for (int i = 0; i < nr; i++) {
        float sums[32], tail[32];
        for (int j = 0; j < 8; j++) vst1q_f32(sums + 4 * j, s[i][j]);
        if (c < a->cols) {
            dequant(w + (size_t)i * a->row_bytes + c * size, tail, a->cols - c);
            add_tail(tail, x + c, a->cols - c, sums);
        }
        a->out[r + (size_t)i] = fold(sums);
    }
}

#define FLOAT_ROWS(T, SIZE)                                                                                            \
    void rl_rows_##T##_f32_neon(const rl_rows_args *a);                                                                \
    void rl_rows_##T##_f32_neon(const rl_rows_args *a) {                                                               \
        if (a->n_tok > 1) {                                                                                            \
            rows(a, 1, SIZE, deq_##T);                                                                                 \
            return;                                                                                                    \
        }                                                                                                              \
        size_t r = 0;                                                                                                  \
        for (; r + 2 <= a->n_rows; r += 2) float_rows(a, r, SIZE, widen_##T, deq_##T, 2);                              \
        if (r < a->n_rows) float_rows(a, r, SIZE, widen_##T, deq_##T, 1);                                              \
    }
FLOAT_ROWS(f32, 4)
FLOAT_ROWS(f16, 2)
FLOAT_ROWS(bf16, 2)

#define ROWS(T, BLOCK, BYTES)                                                                                          \
    void rl_rows_##T##_f32_neon(const rl_rows_args *a);                                                                \
    void rl_rows_##T##_f32_neon(const rl_rows_args *a) {                                                               \
        rows(a, BLOCK, BYTES, deq_##T);                                                                                \
    }
ROWS(q4_0, 32, sizeof(rl_block_q4_0))
ROWS(q4_1, 32, sizeof(rl_block_q4_1))
ROWS(q5_0, 32, sizeof(rl_block_q5_0))
ROWS(q5_1, 32, sizeof(rl_block_q5_1))
ROWS(q8_0, 32, sizeof(rl_block_q8_0))
ROWS(iq4nl, 32, sizeof(rl_block_iq4_nl))
ROWS(q2k, 256, sizeof(rl_block_q2_k))
ROWS(q3k, 256, sizeof(rl_block_q3_k))
ROWS(q4k, 256, sizeof(rl_block_q4_k))
ROWS(q5k, 256, sizeof(rl_block_q5_k))
ROWS(q6k, 256, sizeof(rl_block_q6_k))
ROWS(q8k, 256, sizeof(rl_block_q8_k))
ROWS(iq4xs, 256, sizeof(rl_block_iq4_xs))
