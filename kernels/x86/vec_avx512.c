// SPDX-License-Identifier: Apache-2.0
// Vector operations for AVX-512: this ISA's vocabulary for kernels/vec_body.h.
#if !defined(__AVX512F__) || !defined(__AVX512DQ__)
#error "vec_avx512.c needs -mavx512f -mavx512dq"
#endif
#ifdef __FAST_MATH__
#error "not with -ffast-math"
#endif
#include <immintrin.h>

#include "kernels/api.h"

typedef __m512 vf;
typedef __m512d vd;
enum { W = 16 };

static inline vf v_load(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, vf v) {
    _mm512_storeu_ps(p, v);
}
static inline vf v_set(float s) {
    return _mm512_set1_ps(s);
}
static inline vf v_add(vf a, vf b) {
    return _mm512_add_ps(a, b);
}
static inline vf v_sub(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}
static inline vf v_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}
static inline vf v_div(vf a, vf b) {
    return _mm512_div_ps(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf v_fnma(vf a, vf b, vf c) {
    return _mm512_fnmadd_ps(a, b, c);
}
// The instructions give their second operand when either is NaN.
static inline vf v_max_num(vf x, vf acc) {
    return _mm512_max_ps(x, acc);
}
static inline vf v_clamp(vf x, float lo, float hi) {
    return _mm512_max_ps(_mm512_set1_ps(lo), _mm512_min_ps(_mm512_set1_ps(hi), x));
}
static inline vf v_sign_of(vf magnitude, vf sign) {
    return _mm512_or_ps(magnitude, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
}
static inline vf v_swap_pairs(vf x) {
    return _mm512_permute_ps(x, 0xB1);
}
static inline vf v_dup_even(vf x) {
    return _mm512_moveldup_ps(x);
}
static inline vf v_dup_odd(vf x) {
    return _mm512_movehdup_ps(x);
}
static inline vf v_fmaddsub(vf a, vf b, vf c) {
    return _mm512_fmaddsub_ps(a, b, c);
}
static inline vd d_set(double s) {
    return _mm512_set1_pd(s);
}
static inline vd d_add(vd a, vd b) {
    return _mm512_add_pd(a, b);
}
static inline vd d_sub(vd a, vd b) {
    return _mm512_sub_pd(a, b);
}
static inline vd d_mul(vd a, vd b) {
    return _mm512_mul_pd(a, b);
}
static inline vd d_fma(vd a, vd b, vd c) {
    return _mm512_fmadd_pd(a, b, c);
}
static inline __mmask16 first(size_t n) {
    return (__mmask16)((1u << n) - 1);
}
static inline vf v_load_n(const float *p, size_t n) {
    return _mm512_maskz_loadu_ps(first(n), p);
}
static inline void v_store_n(float *p, vf v, size_t n) {
    _mm512_mask_storeu_ps(p, first(n), v);
}
static inline vf v_round(vf x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf v_pow2(vf p, vf n) {
    return _mm512_scalef_ps(p, n);
}
static inline vf v_abs(vf x) {
    return _mm512_abs_ps(x);
}
static inline vf v_select_lt(vf a, vf b, vf x, vf y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
static inline void v_unzip(vf a, vf b, vf *even, vf *odd) {
    const __m512i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(a, e, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(e, _mm512_set1_epi32(1)), b);
}
static inline size_t v_first_eq(vf v, float s) {
    unsigned m = _mm512_cmp_ps_mask(v, _mm512_set1_ps(s), _CMP_EQ_OQ);
    return m ? (size_t)__builtin_ctz(m) : W;
}
static inline float v_reduce_max(vf v) {
    return _mm512_reduce_max_ps(v);
}
static inline vd v_lo(vf v) {
    return _mm512_cvtps_pd(_mm512_castps512_ps256(v));
}
static inline vd v_hi(vf v) {
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
}
// Lanes l and l + 4, then l and l + 2, then the last two: spelled out, since the order is part of the contract.
static inline double d_sum(vd v) {
    __m256d a = _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
    __m128d b = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(b, _mm_unpackhi_pd(b, b)));
}
static inline vf d_to_f(vd lo, vd hi) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(lo)), _mm512_cvtpd_ps(hi), 1);
}

#include "kernels/vec_body.h"

RL_VEC_DEFINE(avx512)
