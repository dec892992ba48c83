// SPDX-License-Identifier: Apache-2.0
// What the AVX2 and AVX-VNNI tiles share: the vectors that kernels/tile_mul_body.h asks for, in 256 bits.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LANES 8
#define VI __m256i
#define VF __m256
#define v_set1i(x) _mm256_set1_epi32(x)
#define v_set1f(x) _mm256_set1_ps(x)
#define v_loadf(p) _mm256_load_ps(p)
#define v_storef(p, x) _mm256_store_ps(p, x)
#define v_cvt(x) _mm256_cvtepi32_ps(x)
#define v_mul(a, b) _mm256_mul_ps(a, b)
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)

static inline __attribute__((always_inline)) __m256i load_w(const uint8_t *p) {
    return _mm256_load_si256((const __m256i *)(const void *)p);
}

static inline __attribute__((always_inline)) __m256i spread_x(const void *p) { // 4 bytes to every lane
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

// Keeps a running sum in its register: compilers otherwise turn long integer sums into trees, and spill.
#define KEEP(x) __asm__("" : "+x"(x))
