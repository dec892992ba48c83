// SPDX-License-Identifier: Apache-2.0
// Attention over token-major and head-major pages in AVX2; the walk is in attn_row_body.h.
#include "kernels/attn.h"

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "compile with the flags of the avx2 tier"
#endif
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define W 8
#define LINES 4
#define ROWS 3
typedef __m256 V;

INLINE V zero(void) {
    return _mm256_setzero_ps();
}
INLINE V set1(float x) {
    return _mm256_set1_ps(x);
}
INLINE V mul(V a, V b) {
    return _mm256_mul_ps(a, b);
}
INLINE V fmadd(V a, V b, V c) {
    return _mm256_fmadd_ps(a, b, c);
}
INLINE V load_f32(const float *p) {
    return _mm256_loadu_ps(p);
}
INLINE V load_f16(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE float half(uint16_t bits) {
    return _cvtsh_ss(bits);
}
INLINE V load_i8(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
INLINE void store_f32(float *p, V x) {
    _mm256_storeu_ps(p, x);
}
// The sums across a, b, c and d.
INLINE void store_sums(float *p, V a, V b, V c, V d) {
    __m256 ab = _mm256_hadd_ps(a, b), cd = _mm256_hadd_ps(c, d), x = _mm256_hadd_ps(ab, cd);
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}

#include "kernels/attn_row_body.h"

ROW_KERNELS(RL_F32, f32, avx2)
ROW_KERNELS(RL_F16, f16, avx2)
ROW_KERNELS(RL_Q8_0, q8_0, avx2)
