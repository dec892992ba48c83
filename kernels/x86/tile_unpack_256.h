// SPDX-License-Identifier: Apache-2.0
// The primitives of kernels/tile_unpack_body.h in 256 bits: 8 rows at a time.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define LANES 8

typedef uint32_t lanes __attribute__((vector_size(32)));
typedef float lanes_f __attribute__((vector_size(32)));

#define LOAD(i) _mm_loadu_si128((const __m128i *)(const void *)(row[i] + at))

static inline __attribute__((always_inline)) void transpose4(const uint8_t *const *row, size_t at, lanes out[4]) {
    __m256i v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) v[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(LOAD(i)), LOAD(i + 4), 1);
    // Within each 128 bits a 4 x 4 transpose; lane 4 j + i then is row 4 j + i.
    __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpacklo_epi32(v[2], v[3]);
    __m256i c = _mm256_unpackhi_epi32(v[0], v[1]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    out[0] = (lanes)_mm256_unpacklo_epi64(a, b);
    out[1] = (lanes)_mm256_unpackhi_epi64(a, b);
    out[2] = (lanes)_mm256_unpacklo_epi64(c, d);
    out[3] = (lanes)_mm256_unpackhi_epi64(c, d);
}

static inline __attribute__((always_inline)) lanes_f halves(lanes x) {
    __m256i low = _mm256_and_si256((__m256i)x, _mm256_set1_epi32(0xFFFF));
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    return (lanes_f)_mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}

// Copies of the four bits 7 places apart put bit i at bit 8 i.
static inline __attribute__((always_inline)) lanes spread(lanes x) {
    x &= 15;
    return ((x | x << 7 | x << 14 | x << 21) & 0x01010101u) << 4;
}

static inline __attribute__((always_inline)) lanes lookup16(lanes x) {
    const __m128i table = _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, (char)129, (char)141, (char)153, (char)166,
                                        (char)181, (char)197, (char)217, (char)241); // the values + 128
    return (lanes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)x);
}
