// SPDX-License-Identifier: Apache-2.0
// The quantizer's searches on 16 lanes at once.
#if !defined(__AVX512F__) || !defined(__AVX512VNNI__)
#error "compile this file with the flags of its tier"
#endif
#ifdef __FAST_MATH__
#error "not with -ffast-math"
#endif
#include <immintrin.h>

#include "kernels/quant.h"

typedef __m512 vf;
#define W 16
#define QUANT(op) rl_quant_##op##_avx512

#define v_load(p) _mm512_load_ps(p)
#define v_store(p, v) _mm512_storeu_ps(p, v)
#define v_set(s) _mm512_set1_ps(s)
#define v_add(a, b) _mm512_add_ps(a, b)
#define v_sub(a, b) _mm512_sub_ps(a, b)
#define v_mul(a, b) _mm512_mul_ps(a, b)
#define v_div(a, b) _mm512_div_ps(a, b)
#define v_min(a, b) _mm512_min_ps(a, b)
#define v_max(a, b) _mm512_max_ps(a, b)
#define v_abs(a) _mm512_abs_ps(a)
#define v_select(a, b, x, y) _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x)
#define v_store_u8(p, v) _mm_storeu_si128((__m128i *)(p), _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(v)))

#include "kernels/quant_body.h"
