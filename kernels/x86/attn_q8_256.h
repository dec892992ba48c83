// SPDX-License-Identifier: Apache-2.0
// Attention over q8_0 pages in vectors of 256 bits: int16 queries and weights times bytes widened by shifts. A line of
// K is 16 tokens by 4 dims, a line of V 16 dims by 4 tokens, each two registers: no horizontal sums. Included once per
// ISA file, which defines RL_DPWSSD before where there is one, and makes its kernels by ATTN_Q8_KERNELS.
//
// Integers: at most 32 * 127 * 32767 < 2^27 per group of K, 64 * 127 * 32767 < 2^29 per page of V, and a pair of
// products 2 * 127 * 32767 < 2^24. Floats: scores sum groups in rising order, by fused multiply-add; an output is
// acc * corr + sum * step.
#ifndef RL_KERNELS_X86_ATTN_Q8_256_H
#define RL_KERNELS_X86_ATTN_Q8_256_H

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/attn_parts.h"
#include "kernels/unroll.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m256i pair(const int16_t *p) {
    int32_t x;
    memcpy(&x, p, 4);
    return _mm256_set1_epi32(x);
}

INLINE __m256i low_bytes(__m256i x) {
    return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
}
INLINE __m256i high_bytes(__m256i x) {
    return _mm256_srai_epi16(x, 8);
}

// sum + x0 w0 + x1 w1, by pairs.
INLINE __m256i two_pairs(__m256i sum, __m256i x0, __m256i w0, __m256i x1, __m256i w1) {
#ifdef RL_DPWSSD
    return RL_DPWSSD(RL_DPWSSD(sum, x0, w0), x1, w1);
#else
    return _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(x0, w0), _mm256_madd_epi16(x1, w1)));
#endif
}

// One 64-byte line into the two sums of each row; four int16 (0 2 1 3) of row r lie at w[r] + at.
INLINE void line(const uint8_t *p, const int16_t *const *w, size_t at, const int nq, __m256i *a, __m256i *b) {
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)(p + 32));
    __m256i x0 = low_bytes(x), x1 = high_bytes(x), y0 = low_bytes(y), y1 = high_bytes(y);
    RL_UNROLL
    for (int r = 0; r < nq; r++) {
        __m256i w0 = pair(w[r] + at), w1 = pair(w[r] + at + 2);
        a[r] = two_pairs(a[r], x0, w0, x1, w1);
        b[r] = two_pairs(b[r], y0, w0, y1, w1);
        __asm__("" : "+x"(a[r]), "+x"(b[r])); // or else gcc adds up the lines of a loop as a tree, on the stack
    }
}

// Scores of 16 tokens over a group of dims, of which `lines` times four are there, on top of those of the groups before
// (unless it is the first) and, with the last, times the scales `by`. next: lines of the page that will be read next.
INLINE void k_group(const uint8_t *k, const int16_t *const *q, const float *scales, const int nq, const int lines,
                    const uint8_t *next, const bool first, const float *by, float *out) {
    __m256i x[4], y[4];
    for (int r = 0; r < nq; r++) x[r] = y[r] = _mm256_setzero_si256();
    RL_UNROLL
    for (int j = 0; j < lines; j++) {
        line(k + 64 * j, q, 4 * (size_t)j, nq, x, y);
        _mm_prefetch((const char *)next + 64 * j, _MM_HINT_T1);
    }
    __m256 d0 = _mm256_loadu_ps(scales), d1 = _mm256_loadu_ps(scales + 8);
    for (int r = 0; r < nq; r++) {
        float *o = out + r * 64;
        __m256 u = first ? _mm256_setzero_ps() : _mm256_loadu_ps(o),
               v = first ? _mm256_setzero_ps() : _mm256_loadu_ps(o + 8);
        u = _mm256_fmadd_ps(_mm256_cvtepi32_ps(x[r]), d0, u);
        v = _mm256_fmadd_ps(_mm256_cvtepi32_ps(y[r]), d1, v);
        if (by) {
            __m256 scale = _mm256_broadcast_ss(by + r);
            u = _mm256_mul_ps(u, scale), v = _mm256_mul_ps(v, scale);
        }
        _mm256_storeu_ps(o, u);
        _mm256_storeu_ps(o + 8, v);
    }
}

INLINE void k_rows(const rl_attn_k_args *a, size_t r0, const int nq) {
    const rl_attn_side *s = a->side;
    // Without a next page what is read anyway is asked for: cheaper than to look each time.
    const uint8_t *k = a->head.data, *next = r0 || !a->head.next ? k : a->head.next;
    const float *scales = a->head.scales;
    for (size_t t = 0; t < 64; t += 16) {
        float *out = a->s + r0 * 64 + t;
        for (size_t i = 0; i < s->pad; i += 32, scales += 16) {
            const int16_t *row[4];
            RL_UNROLL
            for (int r = 0; r < nq; r++) {
                row[r] = (const int16_t *)a->q + (r0 + (size_t)r) * a->ld_q + i;
                __asm__("" : "+r"(row[r])); // one address in a register, not one for each line
            }
            if (i + 32 < s->pad) {
                k_group(k, row, scales, nq, 8, next, i == 0, NULL, out);
            } else if (i + 32 == s->pad) {
                k_group(k, row, scales, nq, 8, next, i == 0, a->q_scale + r0, out);
            } else {
                k_group(k, row, scales, nq, 4, next, i == 0, a->q_scale + r0, out);
            }
            size_t read = 16 * (i + 32 <= s->pad ? 32 : 16);
            k += read, next += read;
        }
    }
    rl_attn_ahead_scales(s, r0 ? NULL : a->head.next);
}

// Four tokens of weights16 lie here: packing leaves the second and the third four of every sixteen exchanged.
INLINE size_t weights_at(size_t four_tokens) {
    return (four_tokens / 4 * 4 + four_tokens % 2 * 2 + four_tokens / 2 % 2) * 4;
}

// Weights of one row times the scales of one group, as int16 of a common step; every four (0 2 1 3). Scales from
// token n_tok on are not looked at. Not negative, so that as integers they compare as they do as floats, and a NaN is
// the largest of all: it becomes the step and shows.
INLINE float weights16(const float *p, const float *scales, size_t n_tok, int16_t *out) {
    __m256 w[8];
    __m256i max = _mm256_setzero_si256();
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for (int i = 0; i < 8; i++) {
        __m256 scale;
        if (n_tok >= 64) {
            scale = _mm256_loadu_ps(scales + 8 * i);
        } else {
            __m256i used = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n_tok - 8 * i), lanes);
            scale = _mm256_maskload_ps(scales + 8 * i, used);
        }
        w[i] = _mm256_mul_ps(_mm256_loadu_ps(p + 8 * i), scale);
        max = _mm256_max_epu32(max, _mm256_castps_si256(w[i]));
    }
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    m = _mm_max_epu32(m, _mm_unpackhi_epi64(m, m));
    float top = _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epu32(m, _mm_shuffle_epi32(m, 1))));
    __m256 inv = _mm256_set1_ps(top > 0x1p-100f ? 32767.0f / top : 0.0f);
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    for (int i = 0; i < 8; i += 2) {
        __m256i n0 = _mm256_cvtps_epi32(_mm256_mul_ps(w[i], inv)),
                n1 = _mm256_cvtps_epi32(_mm256_mul_ps(w[i + 1], inv));
        _mm256_storeu_si256((__m256i *)(void *)(out + 8 * i), _mm256_shuffle_epi8(_mm256_packs_epi32(n0, n1), order));
    }
    return top * (1.0f / 32767.0f);
}

// 16 dims of the values, of which group w has the weights.
INLINE void v_dims(const rl_attn_v_args *a, size_t r0, size_t i, int16_t (*w)[64], const float *step, const int nq,
                   const uint8_t *next) {
    size_t stride = a->side->pad * 4, n = (a->n_tok + 3) / 4, t = 0;
    const int16_t *row[4] = {w[0], w[1], w[2], w[3]};
    const uint8_t *v = a->head.data + i * 4;
    __m256i x[4], y[4];
    for (int r = 0; r < nq; r++) x[r] = y[r] = _mm256_setzero_si256();
    for (next += i * 4; t + 4 <= n; t += 4, v += 4 * stride, next += 4 * stride) {
        RL_UNROLL
        for (size_t u = 0; u < 4; u++) {
            _mm_prefetch((const char *)next + u * stride, _MM_HINT_T1);
            line(v + u * stride, row, 4 * t + weights_at(u), nq, x, y);
        }
    }
    for (; t < n; t++, v += stride) line(v, row, weights_at(t), nq, x, y);
    for (int r = 0; r < nq; r++) {
        float *acc = a->acc + (r0 + (size_t)r) * a->ld_acc + i;
        __m256 corr = _mm256_set1_ps(a->corr[r0 + (size_t)r]), by = _mm256_set1_ps(step[r]);
        __m256 before0 = _mm256_mul_ps(_mm256_loadu_ps(acc), corr),
               before1 = _mm256_mul_ps(_mm256_loadu_ps(acc + 8), corr);
        _mm256_storeu_ps(acc, _mm256_fmadd_ps(_mm256_cvtepi32_ps(x[r]), by, before0));
        _mm256_storeu_ps(acc + 8, _mm256_fmadd_ps(_mm256_cvtepi32_ps(y[r]), by, before1));
    }
}

INLINE void v_rows(const rl_attn_v_args *a, size_t r0, const int nq) {
    const rl_attn_side *s = a->side;
    const uint8_t *next = r0 || !a->head.next ? a->head.data : a->head.next;
    // Weights of two groups at once: what one waits for, most of all its division, the other fills.
    for (size_t i = 0; i < s->pad; i += 64) {
        int16_t w[2][4][64];
        float step[2][4];
        for (size_t g = 0; g < 2 && i + 32 * g < s->pad; g++)
            for (int r = 0; r < nq; r++)
                step[g][r] =
                    weights16(a->p + (r0 + (size_t)r) * 64, a->head.scales + (i / 32 + g) * 64, a->n_tok, w[g][r]);
        for (size_t j = i; j < i + 64 && j < s->pad; j += 16)
            v_dims(a, r0, j, w[(j - i) / 32], step[(j - i) / 32], nq, next);
    }
    rl_attn_ahead_scales(s, r0 ? NULL : a->head.next);
}

#define ATTN_Q8_KERNELS(isa)                                                                                           \
    void rl_attn_k_q8_0_tile_##isa(const rl_attn_k_args *a) {                                                          \
        RL_ATTN_BY_ROWS(4, k_rows, a)                                                                                  \
    }                                                                                                                  \
    void rl_attn_v_q8_0_tile_##isa(const rl_attn_v_args *a) {                                                          \
        RL_ATTN_BY_ROWS(4, v_rows, a)                                                                                  \
    }

#endif
