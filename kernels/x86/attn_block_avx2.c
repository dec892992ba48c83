// SPDX-License-Identifier: Apache-2.0
// Prompts in AVX2: a tile page as float32, and blocks of query rows times it. Sums rise over the dimensions
// (scores) and the tokens (outputs), one fused multiply-add each.
#include "kernels/attn.h"

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "compile with the flags of the avx2 tier"
#endif
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

// ---- a page as float32 ----

INLINE __m256 half8(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

INLINE __m256i load32(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

// Byte `b` of every 32-bit lane, as float.
INLINE __m256 byte8(__m256i x, const int b) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 24 - 8 * b), 24));
}

void rl_attn_kload_f32_tile_avx2(const rl_attn_side *s, const rl_attn_head *h, float *out) {
    const float *k = (const float *)(const void *)h->data;
    for (size_t t = 0; t < 64; t += 16)
        for (size_t i = 0; i < s->pad; i++, k += 16) {
            _mm256_storeu_ps(out + i * 64 + t, _mm256_loadu_ps(k));
            _mm256_storeu_ps(out + i * 64 + t + 8, _mm256_loadu_ps(k + 8));
        }
}

void rl_attn_kload_f16_tile_avx2(const rl_attn_side *s, const rl_attn_head *h, float *out) {
    const uint8_t *k = h->data;
    for (size_t t = 0; t < 64; t += 16)
        for (size_t i = 0; i < s->pad; i++, k += 32) {
            _mm256_storeu_ps(out + i * 64 + t, half8(k));
            _mm256_storeu_ps(out + i * 64 + t + 8, half8(k + 16));
        }
}

void rl_attn_kload_q8_0_tile_avx2(const rl_attn_side *s, const rl_attn_head *h, float *out) {
    const uint8_t *k = h->data;
    for (size_t t = 0; t < 64; t += 16)
        for (size_t i = 0; i < s->pad; i += 4)
            for (size_t half = 0; half < 16; half += 8, k += 32) {
                __m256i x = load32(k);
                __m256 scale = _mm256_loadu_ps(h->scales + (t / 16 * s->groups + i / 32) * 16 + half);
                float *o = out + i * 64 + t + half;
                _mm256_storeu_ps(o, _mm256_mul_ps(byte8(x, 0), scale));
                _mm256_storeu_ps(o + 64, _mm256_mul_ps(byte8(x, 1), scale));
                _mm256_storeu_ps(o + 128, _mm256_mul_ps(byte8(x, 2), scale));
                _mm256_storeu_ps(o + 192, _mm256_mul_ps(byte8(x, 3), scale));
            }
}

void rl_attn_vload_f32_tile_avx2(const rl_attn_side *s, const rl_attn_head *h, float *out) {
    const float *v = (const float *)(const void *)h->data;
    for (size_t i = 0; i < 64 * s->pad; i += 8) _mm256_storeu_ps(out + i, _mm256_loadu_ps(v + i));
}

void rl_attn_vload_f16_tile_avx2(const rl_attn_side *s, const rl_attn_head *h, float *out) {
    for (size_t i = 0; i < 64 * s->pad; i += 8) _mm256_storeu_ps(out + i, half8(h->data + 2 * i));
}

void rl_attn_vload_q8_0_tile_avx2(const rl_attn_side *s, const rl_attn_head *h, float *out) {
    const uint8_t *v = h->data;
    for (size_t t = 0; t < 64; t += 4)
        for (size_t i = 0; i < s->pad; i += 8, v += 32) {
            __m256i x = load32(v);
            const float *scale = h->scales + i / 32 * 64 + t;
            float *o = out + t * s->pad + i;
            _mm256_storeu_ps(o, _mm256_mul_ps(byte8(x, 0), _mm256_set1_ps(scale[0])));
            _mm256_storeu_ps(o + s->pad, _mm256_mul_ps(byte8(x, 1), _mm256_set1_ps(scale[1])));
            _mm256_storeu_ps(o + 2 * s->pad, _mm256_mul_ps(byte8(x, 2), _mm256_set1_ps(scale[2])));
            _mm256_storeu_ps(o + 3 * s->pad, _mm256_mul_ps(byte8(x, 3), _mm256_set1_ps(scale[3])));
        }
}

// ---- products ----

// c[r][j] = c[r][j] * corr[r] (0 without corr) + sum over k of a[r][k] * b[k][j]: nr rows, nl lines of 8.
INLINE void block(const float *a, size_t ld_a, const float *b, size_t ld_b, size_t n, float *c, size_t ld_c,
                  const float *corr, const int nr, const int nl) {
    __m256 x[6][2];
#pragma GCC unroll 6
    for (int r = 0; r < nr; r++)
#pragma GCC unroll 6
        for (int j = 0; j < nl; j++)
            x[r][j] =
                corr ? _mm256_mul_ps(_mm256_loadu_ps(c + (size_t)r * ld_c + 8 * (size_t)j), _mm256_set1_ps(corr[r]))
                     : _mm256_setzero_ps();
    for (size_t k = 0; k < n; k++) {
        __m256 y[2];
#pragma GCC unroll 6
        for (int j = 0; j < nl; j++) y[j] = _mm256_loadu_ps(b + k * ld_b + 8 * (size_t)j);
#pragma GCC unroll 6
        for (int r = 0; r < nr; r++) {
            __m256 w = _mm256_set1_ps(a[(size_t)r * ld_a + k]);
#pragma GCC unroll 6
            for (int j = 0; j < nl; j++) x[r][j] = _mm256_fmadd_ps(y[j], w, x[r][j]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < nr; r++)
#pragma GCC unroll 6
        for (int j = 0; j < nl; j++) _mm256_storeu_ps(c + (size_t)r * ld_c + 8 * (size_t)j, x[r][j]);
}

INLINE void rows(const float *a, size_t ld_a, size_t nr, const float *b, size_t ld_b, size_t n, float *c, size_t ld_c,
                 const float *corr, const int nl) {
    size_t r = 0;
    for (; r + 6 <= nr; r += 6)
        block(a + r * ld_a, ld_a, b, ld_b, n, c + r * ld_c, ld_c, corr ? corr + r : NULL, 6, nl);
    for (; r + 3 <= nr; r += 3)
        block(a + r * ld_a, ld_a, b, ld_b, n, c + r * ld_c, ld_c, corr ? corr + r : NULL, 3, nl);
    for (; r < nr; r++) block(a + r * ld_a, ld_a, b, ld_b, n, c + r * ld_c, ld_c, corr ? corr + r : NULL, 1, nl);
}

void rl_attn_mulk_avx2(const float *q, size_t ld_q, size_t nq, const float *kt, size_t pad, size_t n_tok, float *s) {
    for (size_t t = 0; t < n_tok; t += 16) rows(q, ld_q, nq, kt + t, 64, pad, s + t, 64, NULL, 2);
}

void rl_attn_mulv_avx2(const float *p, const float *corr, size_t nq, const float *v, size_t pad, size_t n_tok,
                       float *acc, size_t ld_acc) {
    for (size_t i = 0; i < pad; i += 16) rows(p, 64, nq, v + i, pad, n_tok, acc + i, ld_acc, corr, 2);
}
