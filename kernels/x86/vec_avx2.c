// SPDX-License-Identifier: Apache-2.0
// Vector operations for AVX2 with FMA: this ISA's vocabulary for kernels/vec_body.h.
#if !defined(__AVX2__) || !defined(__FMA__)
#error "vec_avx2.c needs -mavx2 -mfma"
#endif
#ifdef __FAST_MATH__
#error "not with -ffast-math"
#endif
#include <immintrin.h>

#include "kernels/api.h"

typedef __m256 vf;
typedef __m256d vd;
enum { W = 8 };

static inline vf v_load(const float *p) {
    return _mm256_loadu_ps(p);
}
static inline void v_store(float *p, vf v) {
    _mm256_storeu_ps(p, v);
}
static inline vf v_set(float s) {
    return _mm256_set1_ps(s);
}
static inline vf v_add(vf a, vf b) {
    return _mm256_add_ps(a, b);
}
static inline vf v_sub(vf a, vf b) {
    return _mm256_sub_ps(a, b);
}
static inline vf v_mul(vf a, vf b) {
    return _mm256_mul_ps(a, b);
}
static inline vf v_div(vf a, vf b) {
    return _mm256_div_ps(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf v_fnma(vf a, vf b, vf c) {
    return _mm256_fnmadd_ps(a, b, c);
}
// The instructions give their second operand when either is NaN.
static inline vf v_max_num(vf x, vf acc) {
    return _mm256_max_ps(x, acc);
}
static inline vf v_clamp(vf x, float lo, float hi) {
    return _mm256_max_ps(_mm256_set1_ps(lo), _mm256_min_ps(_mm256_set1_ps(hi), x));
}
static inline vf v_sign_of(vf magnitude, vf sign) {
    return _mm256_or_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
}
static inline vf v_swap_pairs(vf x) {
    return _mm256_permute_ps(x, 0xB1);
}
static inline vf v_dup_even(vf x) {
    return _mm256_moveldup_ps(x);
}
static inline vf v_dup_odd(vf x) {
    return _mm256_movehdup_ps(x);
}
static inline vf v_fmaddsub(vf a, vf b, vf c) {
    return _mm256_fmaddsub_ps(a, b, c);
}
static inline vd d_set(double s) {
    return _mm256_set1_pd(s);
}
static inline vd d_add(vd a, vd b) {
    return _mm256_add_pd(a, b);
}
static inline vd d_sub(vd a, vd b) {
    return _mm256_sub_pd(a, b);
}
static inline vd d_mul(vd a, vd b) {
    return _mm256_mul_pd(a, b);
}
static inline vd d_fma(vd a, vd b, vd c) {
    return _mm256_fmadd_pd(a, b, c);
}
static inline __m256i first(size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf v_load_n(const float *p, size_t n) {
    return _mm256_maskload_ps(p, first(n));
}
static inline void v_store_n(float *p, vf v, size_t n) {
    _mm256_maskstore_ps(p, first(n), v);
}
static inline vf v_round(vf x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// In two steps, so that neither power leaves the range and only the last product rounds.
static inline vf v_pow2(vf p, vf n) {
    __m256i k = _mm256_cvtps_epi32(n), k1 = _mm256_srai_epi32(k, 1), k2 = _mm256_sub_epi32(k, k1);
    __m256i bias = _mm256_set1_epi32(127);
    vf s1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k1, bias), 23));
    vf s2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k2, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(p, s1), s2);
}
static inline vf v_abs(vf x) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}
static inline vf v_select_lt(vf a, vf b, vf x, vf y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
// The shuffles work within halves; swapping the halves first brings the result into order.
static inline void v_unzip(vf a, vf b, vf *even, vf *odd) {
    vf lo = _mm256_permute2f128_ps(a, b, 0x20), hi = _mm256_permute2f128_ps(a, b, 0x31);
    vf e = _mm256_shuffle_ps(lo, hi, 0x88), o = _mm256_shuffle_ps(lo, hi, 0xDD);
    *even = e;
    *odd = o;
}
static inline size_t v_first_eq(vf v, float s) {
    unsigned m = (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_set1_ps(s), _CMP_EQ_OQ));
    return m ? (size_t)__builtin_ctz(m) : W;
}
static inline float v_reduce_max(vf v) {
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}
static inline vd v_lo(vf v) {
    return _mm256_cvtps_pd(_mm256_castps256_ps128(v));
}
static inline vd v_hi(vf v) {
    return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
}
// Lanes l and l + 2, then the last two.
static inline double d_sum(vd v) {
    __m128d a = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(a, _mm_unpackhi_pd(a, a)));
}
static inline vf d_to_f(vd lo, vd hi) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(lo)), _mm256_cvtpd_ps(hi), 1);
}

#include "kernels/vec_body.h"

RL_VEC_DEFINE(avx2)
