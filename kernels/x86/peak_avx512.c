// SPDX-License-Identifier: Apache-2.0
// The integer and float peak of AVX-512 VNNI.
#if !defined(__AVX512VNNI__)
#error "compile this file with the flags of its tier"
#endif
#include <immintrin.h>

#include "kernels/x86/peak.h"

#define CHAINS 12
typedef int32_t lanes __attribute__((vector_size(64)));
typedef float lanes_f __attribute__((vector_size(64)));

static inline lanes dot8(lanes acc, lanes a, lanes b) {
    return (lanes)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
}
static inline lanes dot16(lanes acc, lanes a, lanes b) {
    return (lanes)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
}
static inline lanes_f fma32(lanes_f acc, lanes_f a, lanes_f b) {
    return (lanes_f)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)acc);
}

PEAK(rl_peak_int8_avx512, lanes, (lanes){0}, dot8, 64)
PEAK(rl_peak_int16_avx512, lanes, (lanes){0}, dot16, 32)
PEAK(rl_peak_f32_avx512, lanes_f, (lanes_f){0}, fma32, 16)
