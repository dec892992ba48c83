// SPDX-License-Identifier: Apache-2.0
// Quantizing activations, AVX2: the same operations as kernels/ref/act.c, so equal to the bit. Groups that reach
// beyond the vector are copied first: nothing is read behind its end.
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/api.h"

#ifndef __AVX2__
#error "needs AVX2"
#endif

#define TINY 0x1p-110f // as in the reference: the reciprocal of the scale would overflow below

void rl_act_q8_avx2(const float *x, size_t cols, int8_t *q, float *d, float *s);
void rl_act_q16_avx2(const float *x, size_t cols, int16_t *q, float *d, float *s);

static inline __m256 absolute(__m256 v) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
}

// The largest of 8 lanes.
static inline float max8(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

static inline int sum_dwords(__m256i v) {
    __m128i a = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xB1)));
}

// The largest magnitude of n values (a multiple of 32), or NaN when one of them is NaN or infinite.
static inline float max_abs(const float *x, size_t n) {
    __m256 m = _mm256_setzero_ps(), bad = m;
    for (size_t i = 0; i < n; i += 8) {
        __m256 a = absolute(_mm256_loadu_ps(x + i));
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(a, _mm256_set1_ps(3.402823466e38f), _CMP_NLE_UQ));
        m = _mm256_max_ps(m, a);
    }
    return _mm256_movemask_ps(bad) ? NAN : max8(m);
}

static inline __m256i round8(const float *x, __m256 inv) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inv));
}

static void group_q8(const float *x, int8_t *q, float *d, float *s) {
    float m = max_abs(x, 32);
    if (!(m > TINY)) {
        memset(q, 0, 32);
        *d = *s = m != m ? m : 0;
        return;
    }
    __m256 inv = _mm256_set1_ps(RL_ACT_Q8_MAX / m);
    __m256i a = round8(x, inv), b = round8(x + 8, inv), c = round8(x + 16, inv), e = round8(x + 24, inv);
    int sum = sum_dwords(_mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, e)));
    a = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, e));
    a = _mm256_permutevar8x32_epi32(a, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)q, a);
    *d = m / RL_ACT_Q8_MAX;
    *s = *d * (float)sum;
}

void rl_act_q8_avx2(const float *x, size_t cols, int8_t *q, float *d, float *s) {
    size_t padded = (cols + 255) / 256 * 256, b = 0;
    for (; b + 32 <= cols; b += 32) group_q8(x + b, q + b, d++, s++);
    if (b < cols) {
        float tail[32] = {0};
        memcpy(tail, x + b, (cols - b) * sizeof *x);
        group_q8(tail, q + b, d++, s++);
        b += 32;
    }
    memset(q + b, 0, padded - b);
    memset(d, 0, (padded - b) / 32 * sizeof *d);
    memset(s, 0, (padded - b) / 32 * sizeof *s);
}

static void group_q16(const float *x, int16_t *q, float *d, float *s) {
    float m = max_abs(x, 256);
    if (!(m > TINY)) {
        memset(q, 0, 512);
        *d = m != m ? m : 0;
        for (int j = 0; j < 8; j++) s[j] = *d;
        return;
    }
    __m256 inv = _mm256_set1_ps(RL_ACT_Q16_MAX / m);
    *d = m / RL_ACT_Q16_MAX;
    for (int j = 0; j < 8; j++, x += 32, q += 32) {
        __m256i a = round8(x, inv), b = round8(x + 8, inv), c = round8(x + 16, inv), e = round8(x + 24, inv);
        s[j] = *d * (float)sum_dwords(_mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, e)));
        a = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
        c = _mm256_permute4x64_epi64(_mm256_packs_epi32(c, e), 0xD8);
        _mm256_storeu_si256((__m256i *)q, a);
        _mm256_storeu_si256((__m256i *)(q + 16), c);
    }
}

void rl_act_q16_avx2(const float *x, size_t cols, int16_t *q, float *d, float *s) {
    size_t b = 0;
    for (; b + 256 <= cols; b += 256, s += 8) group_q16(x + b, q + b, d++, s);
    if (b < cols) {
        float tail[256] = {0};
        memcpy(tail, x + b, (cols - b) * sizeof *x);
        group_q16(tail, q + b, d, s);
    }
}
