// SPDX-License-Identifier: Apache-2.0
// The quantizer's searches on 8 lanes at once.
#if !defined(__AVX2__)
#error "compile this file with the flags of its tier"
#endif
#ifdef __FAST_MATH__
#error "not with -ffast-math"
#endif
#include <immintrin.h>

#include "kernels/quant.h"

typedef __m256 vf;
#define W 8
#define QUANT(op) rl_quant_##op##_avx2

#define v_load(p) _mm256_load_ps(p)
#define v_store(p, v) _mm256_storeu_ps(p, v)
#define v_set(s) _mm256_set1_ps(s)
#define v_add(a, b) _mm256_add_ps(a, b)
#define v_sub(a, b) _mm256_sub_ps(a, b)
#define v_mul(a, b) _mm256_mul_ps(a, b)
#define v_div(a, b) _mm256_div_ps(a, b)
#define v_min(a, b) _mm256_min_ps(a, b)
#define v_max(a, b) _mm256_max_ps(a, b)
#define v_abs(a) _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a)
#define v_select(a, b, x, y) _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ))

static inline void v_store_u8(uint8_t *p, vf v) {
    __m256i i = _mm256_cvttps_epi32(v);
    __m128i h = _mm_packus_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(h, h));
}

#include "kernels/quant_body.h"
