// SPDX-License-Identifier: Apache-2.0
// Tile multiply with AVX-VNNI (256 bits): 16 rows by 3 tokens. vpdpbusd and vpdpwssd do not saturate: 32 columns
// reach at most 32 * 255 * 127 = 1,036,320 with 8-bit and 32 * 255 * 32,639 = 266,334,240 with 16-bit
// activations. Float tiles have nothing to gain here and stay with AVX2.
#if !defined(__AVXVNNI__)
#error "compile this file with the flags of its tier"
#endif
#include "kernels/unroll.h"
#include "kernels/x86/tile_256.h"

#define NR 2
#define NT32 3
#define NT16 3
#define sum8 avxvnni_sum8
#define sum16 avxvnni_sum16

static inline __attribute__((always_inline)) void avxvnni_sum8(__m256i acc[][NR], const uint8_t *w, const int8_t *x,
                                                               int steps, int nt, int bits) {
    (void)bits;
    RL_UNROLL
    for (int i = 0; i < steps; i++, w += 128, x += 24) {
        __m256i w0 = load_w(w), w1 = load_w(w + 32);
        RL_UNROLL
        for (int t = 0; t < nt; t++) {
            __m256i v = spread_x(x + 4 * t);
            acc[t][0] = _mm256_dpbusd_avx_epi32(acc[t][0], w0, v);
            acc[t][1] = _mm256_dpbusd_avx_epi32(acc[t][1], w1, v);
        }
    }
}

static inline __attribute__((always_inline)) void avxvnni_sum16(__m256i acc[][NR], const uint8_t *w, const int16_t *x,
                                                                int steps, int nt, int bits) {
    (void)bits;
    const __m256i low = _mm256_set1_epi16(0xFF);
    RL_UNROLL
    for (int i = 0; i < steps; i++, w += 128, x += 24) {
        __m256i w0 = load_w(w), w1 = load_w(w + 32);
        __m256i e0 = _mm256_and_si256(w0, low), e1 = _mm256_and_si256(w1, low);
        __m256i o0 = _mm256_srli_epi16(w0, 8), o1 = _mm256_srli_epi16(w1, 8);
        RL_UNROLL
        for (int t = 0; t < nt; t++) {
            __m256i v = spread_x(x + 4 * t), u = spread_x(x + 4 * t + 2);
            acc[t][0] = _mm256_dpwssd_avx_epi32(acc[t][0], e0, v);
            acc[t][1] = _mm256_dpwssd_avx_epi32(acc[t][1], e1, v);
            acc[t][0] = _mm256_dpwssd_avx_epi32(acc[t][0], o0, u);
            acc[t][1] = _mm256_dpwssd_avx_epi32(acc[t][1], o1, u);
        }
    }
}

#include "kernels/tile_mul_body.h"

ALL_TILE_MULS(avxvnni)
