// SPDX-License-Identifier: Apache-2.0
// The integer and float peak of AVX2.
#if !defined(__AVX2__)
#error "compile this file with the flags of its tier"
#endif
#include <immintrin.h>

#include "kernels/x86/peak.h"

#define CHAINS 12
typedef int32_t lanes __attribute__((vector_size(32)));
typedef float lanes_f __attribute__((vector_size(32)));

static inline lanes dot8(lanes acc, lanes a, lanes b) {
    __m256i pairs = _mm256_maddubs_epi16((__m256i)a, (__m256i)b), one = _mm256_set1_epi16(1);
    HIDE(one); // else the compiler drops the multiplication
    return acc + (lanes)_mm256_madd_epi16(pairs, one);
}
static inline lanes dot16(lanes acc, lanes a, lanes b) {
    return acc + (lanes)_mm256_madd_epi16((__m256i)a, (__m256i)b);
}
static inline lanes_f fma32(lanes_f acc, lanes_f a, lanes_f b) {
    return (lanes_f)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)acc);
}

PEAK(rl_peak_int8_avx2, lanes, (lanes){0}, dot8, 32)
PEAK(rl_peak_int16_avx2, lanes, (lanes){0}, dot16, 16)
PEAK(rl_peak_f32_avx2, lanes_f, (lanes_f){0}, fma32, 8)
