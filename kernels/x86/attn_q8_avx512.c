// SPDX-License-Identifier: Apache-2.0
// Attention over q8_0 pages in AVX-512 VNNI: int16 queries and weights, bytes widened by shifts, so that the
// products lose nothing. A 64-byte line of K is 16 tokens by 4 dims, a line of V 16 dims by 4 tokens: no
// horizontal sums, and both are read in the order they lie in.
//
// Integers: at most 32 * 127 * 32767 < 2^27 per group of K, 64 * 127 * 32767 < 2^29 per page of V.
// Floats: scores sum groups in rising order, by fused multiply-add; an output is acc * corr + sum * step.
#include "kernels/attn.h"

#if !defined(__AVX512VNNI__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__)
#error "compile with the flags of the avx512 tier"
#endif
#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE __m512i pair(const int16_t *p) {
    int32_t x;
    memcpy(&x, p, 4);
    return _mm512_set1_epi32(x);
}

INLINE void prefetch_rest(const rl_attn_side *s, const uint8_t *next) {
    if (!next) return;
    for (size_t i = s->scales; i < s->head; i += 64) _mm_prefetch((const char *)next + i, _MM_HINT_T1);
}

INLINE void k_rows(const rl_attn_k_args *a, size_t r0, const int nq) {
    const rl_attn_side *s = a->side;
    const uint8_t *k = a->head.data, *next = r0 ? NULL : a->head.next;
    const float *scales = a->head.scales;
    const int16_t *q = (const int16_t *)a->q + r0 * a->ld_q;
    for (size_t t = 0; t < 64; t += 16) {
        __m512 sum[8];
        for (int r = 0; r < nq; r++) sum[r] = _mm512_setzero_ps();
        for (size_t i = 0; i < s->pad; i += 32) {
            __m512i even[8], odd[8];
            for (int r = 0; r < nq; r++) even[r] = odd[r] = _mm512_setzero_si512();
            size_t end = i + 32 < s->pad ? i + 32 : s->pad;
            for (size_t j = i; j < end; j += 4) {
                __m512i x = _mm512_loadu_si512(k);
                k += 64;
                if (next) {
                    _mm_prefetch((const char *)next, _MM_HINT_T1);
                    next += 64;
                }
                __m512i lo = _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8), hi = _mm512_srai_epi16(x, 8);
                for (int r = 0; r < nq; r++) {
                    const int16_t *p = q + (size_t)r * a->ld_q + j;
                    even[r] = _mm512_dpwssd_epi32(even[r], lo, pair(p));
                    if (nq <= 4)
                        odd[r] = _mm512_dpwssd_epi32(odd[r], hi, pair(p + 2));
                    else
                        even[r] = _mm512_dpwssd_epi32(even[r], hi, pair(p + 2));
                }
            }
            __m512 scale = _mm512_loadu_ps(scales);
            scales += 16;
            for (int r = 0; r < nq; r++) {
                __m512i dot = nq <= 4 ? _mm512_add_epi32(even[r], odd[r]) : even[r];
                sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, sum[r]);
            }
        }
        for (int r = 0; r < nq; r++)
            _mm512_storeu_ps(a->s + (r0 + (size_t)r) * 64 + t,
                             _mm512_mul_ps(sum[r], _mm512_set1_ps(a->q_scale[r0 + (size_t)r])));
    }
    prefetch_rest(s, r0 ? NULL : a->head.next);
}

#define BY_ROWS(f, a)                                                                                                  \
    for (size_t r = 0; r < (a)->nq; r += 8) switch ((a)->nq - r) {                                                     \
        case 1:                                                                                                        \
            f(a, r, 1);                                                                                                \
            break;                                                                                                     \
        case 2:                                                                                                        \
            f(a, r, 2);                                                                                                \
            break;                                                                                                     \
        case 3:                                                                                                        \
            f(a, r, 3);                                                                                                \
            break;                                                                                                     \
        case 4:                                                                                                        \
            f(a, r, 4);                                                                                                \
            break;                                                                                                     \
        case 5:                                                                                                        \
            f(a, r, 5);                                                                                                \
            break;                                                                                                     \
        case 6:                                                                                                        \
            f(a, r, 6);                                                                                                \
            break;                                                                                                     \
        case 7:                                                                                                        \
            f(a, r, 7);                                                                                                \
            break;                                                                                                     \
        default:                                                                                                       \
            f(a, r, 8);                                                                                                \
            break;                                                                                                     \
        }

void rl_attn_k_q8_0_tile_avx512(const rl_attn_k_args *a){BY_ROWS(k_rows, a)}

// Weights of one row times the scales of one group, as int16 of a common step; every four (0 2 1 3).
INLINE float weights16(const float *p, const float *scales, __mmask64 used, int16_t *out) {
    __m512 w[4], max = _mm512_setzero_ps();
    __mmask16 bad = 0;
    for (int i = 0; i < 4; i++) {
        __m512 scale = _mm512_maskz_loadu_ps((__mmask16)(used >> (16 * i)), scales + 16 * i);
        w[i] = _mm512_mul_ps(_mm512_loadu_ps(p + 16 * i), scale);
        bad |= _mm512_cmp_ps_mask(w[i], w[i], _CMP_UNORD_Q);
        max = _mm512_max_ps(max, w[i]);
    }
    float top = _mm512_reduce_max_ps(max);
    float inv = top > 0x1p-100f ? 32767.0f / top : 0.0f;
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    for (int i = 0; i < 4; i++) {
        __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(w[i], _mm512_set1_ps(inv)));
        __m256i h = _mm256_shuffle_epi8(_mm512_cvtsepi32_epi16(n), order);
        _mm256_storeu_si256((__m256i *)(void *)(out + 16 * i), h);
    }
    return bad ? __builtin_nanf("") : top * (1.0f / 32767.0f);
}

INLINE void v_rows(const rl_attn_v_args *a, size_t r0, const int nq) {
    const rl_attn_side *s = a->side;
    const uint8_t *next = r0 ? NULL : a->head.next;
    __mmask64 used = a->n_tok >= 64 ? ~0ull : (1ull << a->n_tok) - 1;
    size_t stride = s->pad * 4, groups4 = (a->n_tok + 3) / 4;
    int16_t w[8][64];
    float step[8] = {0};
    for (size_t g = 0; g * 32 < s->pad; g++) {
        for (int r = 0; r < nq; r++)
            step[r] = weights16(a->p + (r0 + (size_t)r) * 64, a->head.scales + g * 64, used, w[r]);
        const uint8_t *v = a->head.data + g * 128;
        const int two = g * 32 + 16 < s->pad;
        __m512i x0[8], x1[8];
        for (int r = 0; r < nq; r++) x0[r] = x1[r] = _mm512_setzero_si512();
        for (size_t t = 0; t < groups4; t++) {
            __m512i a0 = _mm512_loadu_si512(v + t * stride);
            __m512i lo0 = _mm512_srai_epi16(_mm512_slli_epi16(a0, 8), 8), hi0 = _mm512_srai_epi16(a0, 8);
            if (next) {
                _mm_prefetch((const char *)next + g * 128 + t * stride, _MM_HINT_T1);
                if (two) _mm_prefetch((const char *)next + g * 128 + t * stride + 64, _MM_HINT_T1);
            }
            for (int r = 0; r < nq; r++) {
                x0[r] = _mm512_dpwssd_epi32(x0[r], lo0, pair(w[r] + 4 * t));
                x0[r] = _mm512_dpwssd_epi32(x0[r], hi0, pair(w[r] + 4 * t + 2));
            }
            if (two) {
                __m512i a1 = _mm512_loadu_si512(v + t * stride + 64);
                __m512i lo1 = _mm512_srai_epi16(_mm512_slli_epi16(a1, 8), 8), hi1 = _mm512_srai_epi16(a1, 8);
                for (int r = 0; r < nq; r++) {
                    x1[r] = _mm512_dpwssd_epi32(x1[r], lo1, pair(w[r] + 4 * t));
                    x1[r] = _mm512_dpwssd_epi32(x1[r], hi1, pair(w[r] + 4 * t + 2));
                }
            }
        }
        for (int r = 0; r < nq; r++) {
            float *acc = a->acc + (r0 + (size_t)r) * a->ld_acc + g * 32;
            __m512 corr = _mm512_set1_ps(a->corr[r0 + (size_t)r]), by = _mm512_set1_ps(step[r]);
            _mm512_storeu_ps(acc,
                             _mm512_fmadd_ps(_mm512_cvtepi32_ps(x0[r]), by, _mm512_mul_ps(_mm512_loadu_ps(acc), corr)));
            if (two)
                _mm512_storeu_ps(acc + 16, _mm512_fmadd_ps(_mm512_cvtepi32_ps(x1[r]), by,
                                                           _mm512_mul_ps(_mm512_loadu_ps(acc + 16), corr)));
        }
    }
    prefetch_rest(s, next);
}

void rl_attn_v_q8_0_tile_avx512(const rl_attn_v_args *a) {
    BY_ROWS(v_rows, a)
}
