// SPDX-License-Identifier: Apache-2.0
// Attention over f32 and f16 tile pages in AVX-512, and the online softmax. Sums of a score: even and odd
// dimensions apart, each rising, then added. Sums of an output: tokens rising, on acc * corr. All by fused
// multiply-add. The sum of a softmax step: four vectors as (0 + 1) + (2 + 3), then halves upon halves.
#include "kernels/attn.h"

#if !defined(__AVX512F__) || !defined(__AVX512DQ__)
#error "compile with the flags of the avx512 tier"
#endif
#include <immintrin.h>

#include "kernels/x86/attn_exp.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m512 load16(const uint8_t *p, const int half) {
    return half ? _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p)) : _mm512_loadu_ps(p);
}

INLINE void ahead(const uint8_t *next, size_t at) {
    if (next) _mm_prefetch((const char *)next + at, _MM_HINT_T1);
}

INLINE void k_rows(const rl_attn_k_args *a, size_t r0, const int nq, const int half) {
    const size_t line = half ? 32 : 64, pad = a->side->pad; // pad is even
    const uint8_t *k = a->head.data, *next = r0 ? NULL : a->head.next;
    const float *q = (const float *)a->q + r0 * a->ld_q;
    for (size_t t = 0; t < 64; t += 16) {
        __m512 even[8], odd[8];
        for (int r = 0; r < nq; r++) even[r] = odd[r] = _mm512_setzero_ps();
        for (size_t i = 0; i < pad; i += 2) {
            size_t at = (t / 16 * pad + i) * line;
            ahead(next, at);
            if (!half) ahead(next, at + 64);
            __m512 x = load16(k + at, half), y = load16(k + at + line, half);
            for (int r = 0; r < nq; r++) {
                even[r] = _mm512_fmadd_ps(x, _mm512_set1_ps(q[(size_t)r * a->ld_q + i]), even[r]);
                odd[r] = _mm512_fmadd_ps(y, _mm512_set1_ps(q[(size_t)r * a->ld_q + i + 1]), odd[r]);
            }
        }
        for (int r = 0; r < nq; r++) _mm512_storeu_ps(a->s + (r0 + (size_t)r) * 64 + t, _mm512_add_ps(even[r], odd[r]));
    }
}

// nl lines of 16 dims from dim i on.
INLINE void v_lines(const rl_attn_v_args *a, size_t r0, size_t i, const int nq, const int nl, const int half) {
    const size_t size = half ? 2 : 4, row = a->side->pad * size;
    const uint8_t *v = a->head.data + i * size, *next = r0 || !a->head.next ? NULL : a->head.next + i * size;
    __m512 acc[8][4];
    for (int r = 0; r < nq; r++) {
        __m512 corr = _mm512_set1_ps(a->corr[r0 + (size_t)r]);
        for (int j = 0; j < nl; j++)
            acc[r][j] =
                _mm512_mul_ps(_mm512_loadu_ps(a->acc + (r0 + (size_t)r) * a->ld_acc + i + 16 * (size_t)j), corr);
    }
    for (size_t t = 0; t < a->n_tok; t++) {
        __m512 x[4];
        for (int j = 0; j < nl; j++) {
            if (!half || j % 2 == 0) ahead(next, t * row + 16 * size * (size_t)j);
            x[j] = load16(v + t * row + 16 * size * (size_t)j, half);
        }
        for (int r = 0; r < nq; r++) {
            __m512 p = _mm512_set1_ps(a->p[(r0 + (size_t)r) * 64 + t]);
            for (int j = 0; j < nl; j++) acc[r][j] = _mm512_fmadd_ps(x[j], p, acc[r][j]);
        }
    }
    for (int r = 0; r < nq; r++)
        for (int j = 0; j < nl; j++)
            _mm512_storeu_ps(a->acc + (r0 + (size_t)r) * a->ld_acc + i + 16 * (size_t)j, acc[r][j]);
}

INLINE void v_rows(const rl_attn_v_args *a, size_t r0, const int nq, const int half) {
    size_t i = 0, pad = a->side->pad;
    if (nq <= 4)
        for (; i + 64 <= pad; i += 64) v_lines(a, r0, i, nq, 4, half);
    for (; i + 32 <= pad; i += 32) v_lines(a, r0, i, nq, 2, half);
    if (i < pad) v_lines(a, r0, i, nq, 1, half);
}

#define BY_ROWS(f, a, half)                                                                                            \
    for (size_t r = 0; r < (a)->nq; r += 8) switch ((a)->nq - r) {                                                     \
        case 1:                                                                                                        \
            f(a, r, 1, half);                                                                                          \
            break;                                                                                                     \
        case 2:                                                                                                        \
            f(a, r, 2, half);                                                                                          \
            break;                                                                                                     \
        case 3:                                                                                                        \
            f(a, r, 3, half);                                                                                          \
            break;                                                                                                     \
        case 4:                                                                                                        \
            f(a, r, 4, half);                                                                                          \
            break;                                                                                                     \
        case 5:                                                                                                        \
            f(a, r, 5, half);                                                                                          \
            break;                                                                                                     \
        case 6:                                                                                                        \
            f(a, r, 6, half);                                                                                          \
            break;                                                                                                     \
        case 7:                                                                                                        \
            f(a, r, 7, half);                                                                                          \
            break;                                                                                                     \
        default:                                                                                                       \
            f(a, r, 8, half);                                                                                          \
            break;                                                                                                     \
        }

void rl_attn_k_f32_tile_avx512(const rl_attn_k_args *a) {
    BY_ROWS(k_rows, a, 0)
}
void rl_attn_k_f16_tile_avx512(const rl_attn_k_args *a) {
    BY_ROWS(k_rows, a, 1)
}
void rl_attn_v_f32_tile_avx512(const rl_attn_v_args *a) {
    BY_ROWS(v_rows, a, 0)
}
void rl_attn_v_f16_tile_avx512(const rl_attn_v_args *a){BY_ROWS(v_rows, a, 1)}

// exp for x <= 0, -inf and NaN: 2^n * 2^f, |f| <= 1/2 (attn_exp.h); 0 below -87. The product with log2(e) is rounded
// once, in f, so that the error does not grow with |x| but by 1e-8 of it.
INLINE __m512 exp16(__m512 x) {
    const __m512 log2e = _mm512_set1_ps(1.44269504f), magic = _mm512_set1_ps(0x1.8p23f);
    __mmask16 some = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    __m512 t = _mm512_fmadd_ps(x, log2e, magic), n = _mm512_sub_ps(t, magic), f = _mm512_fmsub_ps(x, log2e, n);
    __m512 p = ATTN_EXP2(f, _mm512_set1_ps, _mm512_fmadd_ps);
    // The last bits of t are n: added to the exponent. A NaN stays one, the last bits of t being 0 then.
    __m512i n23 = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(some, _mm512_castps_si512(p), n23));
}

INLINE float sum16(__m512 x) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

void rl_attn_softmax_avx512(float *s, size_t nq, float *m, float *l, float *corr) {
    for (size_t r = 0; r < nq; r++, s += 64) {
        __m512 x[4];
        for (int i = 0; i < 4; i++) x[i] = _mm512_loadu_ps(s + 16 * i);
        __m512 top = _mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3]));
        float max = m[r], c = 1.0f;
        // Few pages raise the maximum: only then is it worth the way across the vector.
        if (_mm512_cmp_ps_mask(top, _mm512_set1_ps(max), _CMP_NLE_UQ)) {
            float here = _mm512_reduce_max_ps(top);
            if (here > max) {
                c = _mm_cvtss_f32(_mm512_castps512_ps128(exp16(_mm512_set1_ps(max - here))));
                max = here;
            }
        }
        // All masked: subtract 0 instead, so that -inf gives weight 0 and a NaN still shows.
        float shift = max == -__builtin_inff() ? 0.0f : max;
        for (int i = 0; i < 4; i++) {
            x[i] = exp16(_mm512_sub_ps(x[i], _mm512_set1_ps(shift)));
            _mm512_storeu_ps(s + 16 * i, x[i]);
        }
        float sum = sum16(_mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3])));
        corr[r] = c;
        l[r] = l[r] * c + sum;
        m[r] = max;
    }
}
