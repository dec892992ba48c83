// SPDX-License-Identifier: Apache-2.0
// Reading with 32-byte loads.
#ifndef __AVX2__
#error "read_avx2.c needs -mavx2"
#endif
#include <immintrin.h>
#include <stdint.h>

#include "kernels/api.h"

typedef __m256i vi;
enum { VB = 32 };
static inline vi r_zero(void) {
    return _mm256_setzero_si256();
}
static inline vi r_load(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
static inline vi r_xor(vi a, vi b) {
    return _mm256_xor_si256(a, b);
}
static inline uint64_t r_fold(vi v) {
    __m128i x = _mm_xor_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return (uint64_t)_mm_cvtsi128_si64(_mm_xor_si128(x, _mm_unpackhi_epi64(x, x)));
}

#include "kernels/read_body.h"

RL_READ_DEFINE(avx2)
