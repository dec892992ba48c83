// SPDX-License-Identifier: Apache-2.0
// Attention over q8_0 pages in AVX-512 VNNI. A 64-byte line of K is 16 tokens by 4 dims, a line of V 16 dims by 4
// tokens, so one vpdpbusd multiplies a whole line: no horizontal sums, nothing is widened. It wants one side unsigned
// and both in bytes, so queries and weights of 16 bits are two bytes, 256 * high + low, with a sum for each:
//   K   bytes of K are read as k + 128; high and low of a query are signed, and 128 times its sum is taken off first
//   V   weights are not negative: high and low are unsigned, 32,767 steps as in the reference
// Lines are taken in pairs, so that a broadcast of a query or weight serves both.
//
// Integers: high and low sums of K at most 32 * 255 * 128 < 2^21 per group, 256 * high + low - 128 * (sum of q) at most
// 32 * 127 * 32639 < 2^27 (in between below 2^30); of V 64 * 255 * 127 < 2^21 per page, together below 2^29.
// Floats: scores sum groups in rising order, by fused multiply-add; an output is acc * corr + sum * step.
#include "kernels/attn_parts.h"

#if !defined(__AVX512VNNI__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__)
#error "compile with the flags of the avx512 tier"
#endif
#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define MAX_ROWS 4 // query rows at once: two sums for each of them and each line of a pair stay in registers

INLINE __m512i four(const uint8_t *p) {
    int32_t x;
    memcpy(&x, p, 4);
    return _mm512_set1_epi32(x);
}

INLINE __m512 total(__m512i high, __m512i low) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
}

// One query row as bytes, and -128 times the sum of each group of 32.
typedef struct split {
    uint8_t high[RL_ATTN_MAX_DIM], low[RL_ATTN_MAX_DIM];
    int32_t first[RL_ATTN_MAX_DIM / 32];
} split;

INLINE void split_query(const int16_t *q, size_t pad, split *out) {
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    for (size_t i = 0; i < pad; i += 32) {
        __mmask32 used = pad - i >= 32 ? ~(__mmask32)0 : 0xFFFF; // pad is a multiple of 16
        __m512i x = _mm512_shuffle_epi8(_mm512_maskz_loadu_epi16(used, q + i), order);
        __m512i high = _mm512_srai_epi16(_mm512_add_epi16(x, _mm512_set1_epi16(128)), 8);
        _mm256_storeu_si256((__m256i *)(void *)(out->high + i), _mm512_cvtepi16_epi8(high));
        _mm256_storeu_si256((__m256i *)(void *)(out->low + i), _mm512_cvtepi16_epi8(x)); // the low byte, as signed
        out->first[i / 32] = -128 * _mm512_reduce_add_epi32(_mm512_madd_epi16(x, _mm512_set1_epi16(1)));
    }
}

// Scores of 32 tokens from token t on, for nq rows.
INLINE void k_lines(const rl_attn_k_args *a, const split *q, size_t r0, size_t t, const int nq, const uint8_t *next) {
    const rl_attn_side *s = a->side;
    const size_t block = s->pad * 16; // bytes of 16 tokens
    const __m512i flip = _mm512_set1_epi8((char)-128);
    for (size_t i = 0, g = 0; i < s->pad; i += 32, g++) {
        __m512i high[MAX_ROWS][2], low[MAX_ROWS][2];
        for (int r = 0; r < nq; r++)
            for (int j = 0; j < 2; j++) {
                high[r][j] = _mm512_setzero_si512();
                low[r][j] = _mm512_set1_epi32(q[r].first[g]);
            }
        size_t end = i + 32 < s->pad ? i + 32 : s->pad;
        for (size_t d = i; d < end; d += 4) {
            __m512i x[2];
            for (int j = 0; j < 2; j++) {
                size_t at = (t / 16 + (size_t)j) * block + d * 16;
                x[j] = _mm512_xor_si512(_mm512_loadu_si512(a->head.data + at), flip);
                rl_attn_ahead(next, at);
            }
            for (int r = 0; r < nq; r++) {
                __m512i h = four(q[r].high + d), l = four(q[r].low + d);
                for (int j = 0; j < 2; j++) {
                    high[r][j] = _mm512_dpbusd_epi32(high[r][j], x[j], h);
                    low[r][j] = _mm512_dpbusd_epi32(low[r][j], x[j], l);
                }
            }
        }
        for (int j = 0; j < 2; j++) {
            __m512 scale = _mm512_loadu_ps(a->head.scales + ((t / 16 + (size_t)j) * s->groups + g) * 16);
            for (int r = 0; r < nq; r++) {
                float *o = a->s + (r0 + (size_t)r) * 64 + t + 16 * (size_t)j;
                __m512 sum = g ? _mm512_loadu_ps(o) : _mm512_setzero_ps();
                sum = _mm512_fmadd_ps(total(high[r][j], low[r][j]), scale, sum);
                if (end == s->pad) sum = _mm512_mul_ps(sum, _mm512_set1_ps(a->q_scale[r0 + (size_t)r]));
                _mm512_storeu_ps(o, sum);
            }
        }
    }
}

INLINE void k_rows(const rl_attn_k_args *a, size_t r0, const int nq) {
    const uint8_t *next = r0 ? NULL : a->head.next;
    split q[MAX_ROWS];
    for (int r = 0; r < nq; r++) split_query((const int16_t *)a->q + (r0 + (size_t)r) * a->ld_q, a->side->pad, &q[r]);
    for (size_t t = 0; t < 64; t += 32) k_lines(a, q, r0, t, nq, next);
    rl_attn_ahead_scales(a->side, next);
}

void rl_attn_k_q8_0_tile_avx512(const rl_attn_k_args *a) {
    RL_ATTN_BY_ROWS(MAX_ROWS, k_rows, a)
}

// Weights of one row as bytes. Groups of four tokens lie as a 4 x 4 matrix turned over: group u at column u / 4 of row
// u % 4, as packing leaves them.
typedef struct weights {
    uint8_t high[64], low[64];
    float step;
} weights;

// Weights of one row times the scales of one group, in units of a common step. Not negative, so that as integers
// they compare as they do as floats, and a NaN is the largest of all: it becomes the step and shows.
INLINE void split_weights(const float *p, const float *scales, __mmask64 used, weights *out) {
    __m512 w[4];
    for (int i = 0; i < 4; i++)
        w[i] = _mm512_mul_ps(_mm512_loadu_ps(p + 16 * i),
                             _mm512_maskz_loadu_ps((__mmask16)(used >> (16 * i)), scales + 16 * i));
    __m512i max = _mm512_max_epu32(_mm512_max_epu32(_mm512_castps_si512(w[0]), _mm512_castps_si512(w[1])),
                                   _mm512_max_epu32(_mm512_castps_si512(w[2]), _mm512_castps_si512(w[3])));
    float top = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)_mm512_reduce_max_epu32(max))));
    __m512 inv = _mm512_set1_ps(top > 0x1p-100f ? 32767.0f / top : 0.0f);
    __m512i n[4];
    for (int i = 0; i < 4; i++) n[i] = _mm512_cvtps_epi32(_mm512_mul_ps(w[i], inv));
    __m512i a = _mm512_packus_epi32(n[0], n[1]), b = _mm512_packus_epi32(n[2], n[3]);
    __m512i low = _mm512_set1_epi16(255);
    _mm512_storeu_si512(out->high, _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8)));
    _mm512_storeu_si512(out->low, _mm512_packus_epi16(_mm512_and_si512(a, low), _mm512_and_si512(b, low)));
    out->step = top * (1.0f / 32767.0f);
}

INLINE size_t weights_at(size_t four_tokens) {
    return (four_tokens % 4 * 4 + four_tokens / 4) * 4;
}

// Group g of 32 dims, of which nl lines of 16 are there.
INLINE void v_lines(const rl_attn_v_args *a, const weights *w, size_t r0, size_t g, const int nq, const int nl,
                    const uint8_t *next) {
    const size_t stride = a->side->pad * 4, n = (a->n_tok + 3) / 4;
    const uint8_t *v = a->head.data + g * 128;
    __m512i high[MAX_ROWS][2], low[MAX_ROWS][2];
    for (int r = 0; r < nq; r++)
        for (int j = 0; j < nl; j++) high[r][j] = low[r][j] = _mm512_setzero_si512();
    for (size_t u = 0; u < n; u++) {
        __m512i x[2];
        for (int j = 0; j < nl; j++) {
            x[j] = _mm512_loadu_si512(v + u * stride + 64 * j);
            rl_attn_ahead(next, g * 128 + u * stride + 64 * (size_t)j);
        }
        size_t at = weights_at(u);
        for (int r = 0; r < nq; r++) {
            __m512i h = four(w[r].high + at), l = four(w[r].low + at);
            for (int j = 0; j < nl; j++) {
                high[r][j] = _mm512_dpbusd_epi32(high[r][j], h, x[j]);
                low[r][j] = _mm512_dpbusd_epi32(low[r][j], l, x[j]);
            }
        }
    }
    for (int r = 0; r < nq; r++) {
        __m512 corr = _mm512_set1_ps(a->corr[r0 + (size_t)r]), by = _mm512_set1_ps(w[r].step);
        float *acc = a->acc + (r0 + (size_t)r) * a->ld_acc + g * 32;
        for (int j = 0; j < nl; j++) {
            __m512 before = _mm512_mul_ps(_mm512_loadu_ps(acc + 16 * j), corr);
            _mm512_storeu_ps(acc + 16 * j, _mm512_fmadd_ps(total(high[r][j], low[r][j]), by, before));
        }
    }
}

INLINE void v_rows(const rl_attn_v_args *a, size_t r0, const int nq) {
    const rl_attn_side *s = a->side;
    const uint8_t *next = r0 ? NULL : a->head.next;
    __mmask64 used = a->n_tok >= 64 ? ~0ull : (1ull << a->n_tok) - 1;
    for (size_t g = 0; g * 32 < s->pad; g++) {
        weights w[MAX_ROWS];
        for (int r = 0; r < nq; r++) split_weights(a->p + (r0 + (size_t)r) * 64, a->head.scales + g * 64, used, &w[r]);
        if (g * 32 + 16 < s->pad)
            v_lines(a, w, r0, g, nq, 2, next);
        else
            v_lines(a, w, r0, g, nq, 1, next);
    }
    rl_attn_ahead_scales(s, next);
}

void rl_attn_v_q8_0_tile_avx512(const rl_attn_v_args *a) {
    RL_ATTN_BY_ROWS(MAX_ROWS, v_rows, a)
}
