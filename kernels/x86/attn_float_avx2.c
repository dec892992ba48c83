// SPDX-License-Identifier: Apache-2.0
// Attention over f32 and f16 tile pages in AVX2, and the online softmax. Sums of a score: even and odd
// dimensions apart, each rising, then added. Sums of an output: tokens rising, on acc * corr. All by fused
// multiply-add. The sum of a softmax step: eight vectors pairwise, then halves upon halves.
#include "kernels/attn.h"

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "compile with the flags of the avx2 tier"
#endif
#include <immintrin.h>

#include "kernels/x86/attn_exp.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m256 load8(const uint8_t *p, const int half) {
    return half ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p))
                : _mm256_loadu_ps((const float *)(const void *)p);
}

INLINE void ahead(const uint8_t *next, size_t at) {
    if (next) _mm_prefetch((const char *)next + at, _MM_HINT_T1);
}

// Two sums per row and 8 tokens while the registers last (nq <= 3), else one.
INLINE void k_rows(const rl_attn_k_args *a, size_t r0, const int nq, const int half) {
    const size_t size = half ? 2 : 4, line = 16 * size, pad = a->side->pad; // pad is even
    const uint8_t *next = r0 ? NULL : a->head.next;
    const float *q = (const float *)a->q + r0 * a->ld_q;
    for (size_t t = 0; t < 64; t += 16) {
        const uint8_t *k = a->head.data + t / 16 * pad * line;
        __m256 x[2][4], y[2][4];
        for (int r = 0; r < nq; r++)
            for (int e = 0; e < 2; e++) x[e][r] = y[e][r] = _mm256_setzero_ps();
        for (size_t i = 0; i < pad; i += 2) {
            ahead(next, (t / 16 * pad + i) * line);
            if (!half) ahead(next, (t / 16 * pad + i) * line + 64);
            for (int e = 0; e < 2; e++) {
                const uint8_t *p = k + (i + (size_t)e) * line;
                __m256 u = load8(p, half), v = load8(p + 8 * size, half);
                for (int r = 0; r < nq; r++) {
                    __m256 w = _mm256_broadcast_ss(q + (size_t)r * a->ld_q + i + (size_t)e);
                    x[e][r] = _mm256_fmadd_ps(u, w, x[e][r]);
                    y[e][r] = _mm256_fmadd_ps(v, w, y[e][r]);
                }
            }
        }
        for (int r = 0; r < nq; r++) {
            float *o = a->s + (r0 + (size_t)r) * 64 + t;
            _mm256_storeu_ps(o, _mm256_add_ps(x[0][r], x[1][r]));
            _mm256_storeu_ps(o + 8, _mm256_add_ps(y[0][r], y[1][r]));
        }
    }
}

// nl lines of 8 dims from dim i on.
INLINE void v_lines(const rl_attn_v_args *a, size_t r0, size_t i, const int nq, const int nl, const int half) {
    const size_t size = half ? 2 : 4, row = a->side->pad * size;
    const uint8_t *v = a->head.data + i * size, *next = r0 || !a->head.next ? NULL : a->head.next + i * size;
    __m256 acc[3][4];
    for (int r = 0; r < nq; r++) {
        __m256 corr = _mm256_set1_ps(a->corr[r0 + (size_t)r]);
        for (int j = 0; j < nl; j++)
            acc[r][j] = _mm256_mul_ps(_mm256_loadu_ps(a->acc + (r0 + (size_t)r) * a->ld_acc + i + 8 * (size_t)j), corr);
    }
    for (size_t t = 0; t < a->n_tok; t++) {
        __m256 p[3];
        for (int r = 0; r < nq; r++) p[r] = _mm256_broadcast_ss(a->p + (r0 + (size_t)r) * 64 + t);
        ahead(next, t * row);
        if (!half && nl == 4) ahead(next, t * row + 64);
        for (int j = 0; j < nl; j++) {
            __m256 x = load8(v + t * row + 8 * size * (size_t)j, half);
            for (int r = 0; r < nq; r++) acc[r][j] = _mm256_fmadd_ps(x, p[r], acc[r][j]);
        }
    }
    for (int r = 0; r < nq; r++)
        for (int j = 0; j < nl; j++)
            _mm256_storeu_ps(a->acc + (r0 + (size_t)r) * a->ld_acc + i + 8 * (size_t)j, acc[r][j]);
}

INLINE void v_rows(const rl_attn_v_args *a, size_t r0, const int nq, const int half) {
    size_t i = 0, pad = a->side->pad;
    for (; i + 32 <= pad; i += 32) v_lines(a, r0, i, nq, 4, half);
    if (i < pad) v_lines(a, r0, i, nq, 2, half);
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

void rl_attn_k_f32_tile_avx2(const rl_attn_k_args *a) {
    BY_ROWS(k_rows, a, 0)
}
void rl_attn_k_f16_tile_avx2(const rl_attn_k_args *a) {
    BY_ROWS(k_rows, a, 1)
}
void rl_attn_v_f32_tile_avx2(const rl_attn_v_args *a) {
    BY_ROWS(v_rows, a, 0)
}
void rl_attn_v_f16_tile_avx2(const rl_attn_v_args *a){BY_ROWS(v_rows, a, 1)}

// exp for x <= 0, -inf and NaN: 2^n * 2^f, |f| <= 1/2, as in attn_float_avx512.c; 0 below -88.
INLINE __m256 exp8(__m256 x) {
    const __m256 log2e = _mm256_set1_ps(1.44269504f), magic = _mm256_set1_ps(0x1.8p23f);
    x = _mm256_max_ps(_mm256_set1_ps(-88.0f), x); // the second operand when it is NaN
    __m256 t = _mm256_fmadd_ps(x, log2e, magic), n = _mm256_sub_ps(t, magic), f = _mm256_fmsub_ps(x, log2e, n);
    __m256 p = ATTN_EXP2(f, _mm256_set1_ps, _mm256_fmadd_ps);
    // The last bits of t are n; at -88 it is -127, whose exponent is that of 0.
    __m256i e = _mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(p, _mm256_castsi256_ps(e));
}

INLINE float max8(__m256 x) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

INLINE float sum8(__m256 x) {
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

void rl_attn_softmax_avx2(float *s, size_t nq, float *m, float *l, float *corr) {
    for (size_t r = 0; r < nq; r++, s += 64) {
        __m256 x[8], top;
        for (int i = 0; i < 8; i++) x[i] = _mm256_loadu_ps(s + 8 * i);
        top = x[0];
        for (int i = 1; i < 8; i++) top = _mm256_max_ps(top, x[i]);
        float max = m[r], c = 1.0f;
        // Few pages raise the maximum: only then is it worth the way across the vector.
        if (_mm256_movemask_ps(_mm256_cmp_ps(top, _mm256_set1_ps(max), _CMP_NLE_UQ))) {
            float here = max8(top);
            if (here > max) {
                c = _mm256_cvtss_f32(exp8(_mm256_set1_ps(max - here)));
                max = here;
            }
        }
        // All masked: subtract 0 instead, so that -inf gives weight 0 and a NaN still shows.
        __m256 shift = _mm256_set1_ps(max == -__builtin_inff() ? 0.0f : max);
        for (int i = 0; i < 8; i++) {
            x[i] = exp8(_mm256_sub_ps(x[i], shift));
            _mm256_storeu_ps(s + 8 * i, x[i]);
        }
        for (int half = 4; half; half /= 2)
            for (int i = 0; i < half; i++) x[i] = _mm256_add_ps(x[i], x[i + half]);
        corr[r] = c;
        l[r] = l[r] * c + sum8(x[0]);
        m[r] = max;
    }
}
