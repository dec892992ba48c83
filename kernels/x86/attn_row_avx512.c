// SPDX-License-Identifier: Apache-2.0
// Attention over token-major and head-major pages in AVX-512; the walk is in attn_row_body.h.
#include "kernels/attn.h"

#if !defined(__AVX512F__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__)
#error "compile with the flags of the avx512 tier"
#endif
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define W 16
#define LINES 2
#define ROWS 4
typedef __m512 V;

INLINE V zero(void) {
    return _mm512_setzero_ps();
}
INLINE V set1(float x) {
    return _mm512_set1_ps(x);
}
INLINE V mul(V a, V b) {
    return _mm512_mul_ps(a, b);
}
INLINE V fmadd(V a, V b, V c) {
    return _mm512_fmadd_ps(a, b, c);
}
INLINE V load_f32(const float *p) {
    return _mm512_loadu_ps(p);
}
INLINE V load_f16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
INLINE float half(uint16_t bits) {
    return _cvtsh_ss(bits);
}
INLINE V load_i8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
INLINE void store_f32(float *p, V x) {
    _mm512_storeu_ps(p, x);
}
// The halves of a vector added.
INLINE __m256 fold(V x) {
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}
// The sums across a, b, c and d.
INLINE void store_sums(float *p, V a, V b, V c, V d) {
    __m256 ab = _mm256_hadd_ps(fold(a), fold(b)), cd = _mm256_hadd_ps(fold(c), fold(d)), x = _mm256_hadd_ps(ab, cd);
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}

#include "kernels/attn_row_body.h"

ROW_KERNELS(RL_F32, f32, avx512)
ROW_KERNELS(RL_F16, f16, avx512)
ROW_KERNELS(RL_Q8_0, q8_0, avx512)
