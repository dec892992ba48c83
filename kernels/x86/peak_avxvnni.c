// SPDX-License-Identifier: Apache-2.0
// The integer and float peak of AVX-VNNI (256 bits).
#if !defined(__AVXVNNI__)
#error "compile this file with the flags of its tier"
#endif
#include <immintrin.h>

#include "kernels/x86/peak.h"

#define CHAINS 12
typedef int32_t lanes __attribute__((vector_size(32)));
typedef float lanes_f __attribute__((vector_size(32)));

static inline lanes dot8(lanes acc, lanes a, lanes b) {
    return (lanes)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)a, (__m256i)b);
}
static inline lanes dot16(lanes acc, lanes a, lanes b) {
    return (lanes)_mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)a, (__m256i)b);
}
static inline lanes_f fma32(lanes_f acc, lanes_f a, lanes_f b) {
    return (lanes_f)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)acc);
}

PEAK(rl_peak_int8_avxvnni, lanes, (lanes){0}, dot8, 32)
PEAK(rl_peak_int16_avxvnni, lanes, (lanes){0}, dot16, 16)
PEAK(rl_peak_f32_avxvnni, lanes_f, (lanes_f){0}, fma32, 8)
