// SPDX-License-Identifier: Apache-2.0
// Tile unpack with AVX-512: 16 rows at a time.
#if !defined(__AVX512BW__)
#error "compile this file with the flags of its tier"
#endif
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define LANES 16
#define SIGNED_BIAS 1

typedef uint32_t lanes __attribute__((vector_size(64)));
typedef float lanes_f __attribute__((vector_size(64)));

#define LOAD(i) _mm_loadu_si128((const __m128i *)(const void *)(row[i] + at))

static inline __attribute__((always_inline)) void transpose4(const uint8_t *const *row, size_t at, lanes out[4]) {
    __m512i v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { // rows i, i + 4, i + 8, i + 12
        v[i] = _mm512_castsi128_si512(LOAD(i));
        v[i] = _mm512_inserti32x4(v[i], LOAD(i + 4), 1);
        v[i] = _mm512_inserti32x4(v[i], LOAD(i + 8), 2);
        v[i] = _mm512_inserti32x4(v[i], LOAD(i + 12), 3);
    }
    // Within each 128 bits a 4 x 4 transpose; lane 4 j + i then is row 4 j + i.
    __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpacklo_epi32(v[2], v[3]);
    __m512i c = _mm512_unpackhi_epi32(v[0], v[1]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    out[0] = (lanes)_mm512_unpacklo_epi64(a, b);
    out[1] = (lanes)_mm512_unpackhi_epi64(a, b);
    out[2] = (lanes)_mm512_unpacklo_epi64(c, d);
    out[3] = (lanes)_mm512_unpackhi_epi64(c, d);
}

static inline __attribute__((always_inline)) lanes_f halves(lanes x) {
    return (lanes_f)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)x));
}

static inline __attribute__((always_inline)) lanes spread(lanes x) {
    const __m512i table = _mm512_setr_epi32(0x00000000, 0x00000010, 0x00001000, 0x00001010, 0x00100000, 0x00100010,
                                            0x00101000, 0x00101010, 0x10000000, 0x10000010, 0x10001000, 0x10001010,
                                            0x10100000, 0x10100010, 0x10101000, 0x10101010);
    return (lanes)_mm512_permutexvar_epi32((__m512i)x, table);
}

static inline __attribute__((always_inline)) lanes lookup16(lanes x) {
    const __m128i table = _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, (char)129, (char)141, (char)153, (char)166,
                                        (char)181, (char)197, (char)217, (char)241); // the values + 128
    return (lanes)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), (__m512i)x);
}

#include "kernels/tile_unpack_body.h"

ALL_TILE_UNPACKS(avx512)
