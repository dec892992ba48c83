// SPDX-License-Identifier: Apache-2.0
// Reading with 64-byte loads.
#ifndef __AVX512F__
#error "read_avx512.c needs -mavx512f"
#endif
#include <immintrin.h>
#include <stdint.h>

#include "kernels/api.h"

typedef __m512i vi;
enum { VB = 64 };
static inline vi r_zero(void) {
    return _mm512_setzero_si512();
}
static inline vi r_load(const uint8_t *p) {
    return _mm512_loadu_si512(p);
}
static inline vi r_xor(vi a, vi b) {
    return _mm512_xor_si512(a, b);
}
static inline uint64_t r_fold(vi v) {
    __m256i y = _mm256_xor_si256(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    __m128i x = _mm_xor_si128(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    return (uint64_t)_mm_cvtsi128_si64(_mm_xor_si128(x, _mm_unpackhi_epi64(x, x)));
}

#include "kernels/read_body.h"

RL_READ_DEFINE(avx512)
