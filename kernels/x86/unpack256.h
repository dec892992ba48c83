// SPDX-License-Identifier: Apache-2.0
// Blocks to vectors of 32 bytes and their scales, in AVX2: what rows kernels and dequantizers share.
#ifndef RL_KERNELS_X86_UNPACK256_H
#define RL_KERNELS_X86_UNPACK256_H

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "needs AVX2, FMA and F16C"
#endif
#ifdef __FAST_MATH__
#error "fast-math breaks NaN and the documented order of sums"
#endif

#include <immintrin.h>
#include <string.h>

#include "base/blocks.h"
#include "kernels/api.h"

#define RL_INLINE static inline __attribute__((always_inline))

RL_INLINE __m256i load256(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}
// Weights are loaded once and kept: left to itself, gcc folds a second, line-crossing load into the next operation.
RL_INLINE __m256i weights(const void *p) {
    __m256i v = load256(p);
    __asm__("" : "+x"(v));
    return v;
}
RL_INLINE __m128i load128(const void *p) {
    return _mm_loadu_si128((const __m128i *)p);
}
RL_INLINE uint16_t load16(const void *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}
RL_INLINE uint32_t load32(const void *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
RL_INLINE float half1(const void *p) {
    return _cvtsh_ss(load16(p));
}

RL_INLINE float sum8(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

RL_INLINE __m256i iq4_lookup(__m256i q) {
    const __m256i table = _mm256_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113, //
                                           -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    return _mm256_shuffle_epi8(table, q);
}

// Two blocks of 32 values in two vectors: values 0..15 of both, values 16..31 of both.

// The 16 bytes at `at` of a block and of the next one (zero when there is none).
RL_INLINE __m256i two(const uint8_t *w, const size_t bytes, const size_t at, const int second) {
    __m256i v = _mm256_castsi128_si256(load128(w + at));
    return _mm256_inserti128_si256(v, second ? load128(w + bytes + at) : _mm_setzero_si128(), 1);
}

RL_INLINE void nibbles(__m256i v, __m256i *lo, __m256i *hi) {
    const __m256i mask = _mm256_set1_epi8(15);
    *lo = _mm256_and_si256(v, mask);
    *hi = _mm256_and_si256(_mm256_srli_epi16(v, 4), mask);
}

// Adds 16 to each value whose bit in the 4 bytes at `at` is set.
RL_INLINE void fifth_bits(const uint8_t *w, const size_t bytes, const size_t at, const int second, __m256i *lo,
                          __m256i *hi) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    uint32_t a = load32(w + at), b = second ? load32(w + bytes + at) : 0;
    const __m256i sixteen = _mm256_set1_epi8(16);
    *lo = _mm256_mask_add_epi8(*lo, (a & 0xFFFF) | b << 16, *lo, sixteen);
    *hi = _mm256_mask_add_epi8(*hi, a >> 16 | (b & 0xFFFF0000u), *hi, sixteen);
#else
    const __m256i low = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, //
                                         0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m256i high = _mm256_add_epi8(low, _mm256_set1_epi8(2));
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ull), sixteen = _mm256_set1_epi8(16);
    __m128i a = _mm_set1_epi32((int)load32(w + at));
    __m128i b = second ? _mm_set1_epi32((int)load32(w + bytes + at)) : a;
    __m256i h = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
    __m256i l = _mm256_and_si256(_mm256_shuffle_epi8(h, low), bit);
    h = _mm256_and_si256(_mm256_shuffle_epi8(h, high), bit);
    *lo = _mm256_or_si256(*lo, _mm256_and_si256(_mm256_cmpeq_epi8(l, bit), sixteen));
    *hi = _mm256_or_si256(*hi, _mm256_and_si256(_mm256_cmpeq_epi8(h, bit), sixteen));
#endif
}

RL_INLINE void pair_q4_0(const uint8_t *w, const int second, __m256i *lo, __m256i *hi) {
    nibbles(two(w, 18, 2, second), lo, hi);
}
RL_INLINE void pair_q4_1(const uint8_t *w, const int second, __m256i *lo, __m256i *hi) {
    nibbles(two(w, 20, 4, second), lo, hi);
}
RL_INLINE void pair_q5_0(const uint8_t *w, const int second, __m256i *lo, __m256i *hi) {
    nibbles(two(w, 22, 6, second), lo, hi);
    fifth_bits(w, 22, 2, second, lo, hi);
}
RL_INLINE void pair_q5_1(const uint8_t *w, const int second, __m256i *lo, __m256i *hi) {
    nibbles(two(w, 24, 8, second), lo, hi);
    fifth_bits(w, 24, 4, second, lo, hi);
}
RL_INLINE void pair_iq4nl(const uint8_t *w, const int second, __m256i *lo, __m256i *hi) {
    nibbles(two(w, 18, 2, second), lo, hi);
    *lo = iq4_lookup(*lo);
    *hi = iq4_lookup(*hi);
}

// Superblocks.

RL_INLINE __m256i bits(__m256i v, const int mask) {
    return _mm256_and_si256(v, _mm256_set1_epi8((char)mask));
}
RL_INLINE __m256i right(__m256i v, const int n) {
    return _mm256_srli_epi16(v, n);
}
RL_INLINE __m256i left(__m256i v, const int n) {
    return _mm256_slli_epi16(v, n);
}
// Scales of one superblock. Per 32 values: s0 and m (times the sums of activations,
// subtracted). Per 16: s0 for the first 128
// values, s1 for the rest, and integer minimums mn16 that multiply sums of 16 values, with their scale dm.
typedef struct {
    __m256 s0, s1, m;
    __m256i mn16; // 16 words
    float dm;
} scales;

// 8 scales and 8 minimums of 6 bits each in the 12 bytes a, b, c behind two halves: a and b hold the low 4 groups
// and the top bits of the others, c the low bits of those.
RL_INLINE scales scales_k4(const uint8_t *w) {
    __m128i v = load128(w), low, top;
    low = _mm_shuffle_epi32(v, _MM_SHUFFLE(3, 2, 3, 1)); // a, c, b, c
    low = _mm_and_si128(_mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4)),
                        _mm_setr_epi32(0x3F3F3F3F, 0x0F0F0F0F, 0x3F3F3F3F, 0x0F0F0F0F));
    top = _mm_shuffle_epi32(v, _MM_SHUFFLE(2, 2, 1, 1));
    top = _mm_and_si128(_mm_srli_epi32(top, 2), _mm_setr_epi32(0, 0x30303030, 0, 0x30303030));
    v = _mm_or_si128(low, top); // scales, minimums
    __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128((int)load32(w)));
    scales s = {0};
    s.s0 = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v)), _mm256_broadcastss_ps(d));
    s.m = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(v, v))),
                        _mm256_broadcastss_ps(_mm_movehdup_ps(d)));
    return s;
}
// 16 signed bytes times d. `offset` is what storage adds to each value.
RL_INLINE scales scales_16(__m128i sc, float d, const int offset) {
    scales s = {0};
    __m256 v = _mm256_set1_ps(d);
    s.s0 = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(sc)), v);
    s.s1 = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(sc, 8))), v);
    s.mn16 = _mm256_mullo_epi16(_mm256_cvtepi8_epi16(sc), _mm256_set1_epi16((short)offset));
    s.dm = -d;
    return s;
}
RL_INLINE scales scales_q2k(const uint8_t *w) {
    __m128i v = load128(w), low = _mm_set1_epi8(15);
    scales s = scales_16(_mm_and_si128(v, low), half1(w + 80), 0);
    s.mn16 = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(v, 4), low));
    s.dm = -half1(w + 82);
    return s;
}
RL_INLINE scales scales_q3k(const uint8_t *w) {
    uint32_t a = load32(w + 96), b = load32(w + 100), h = load32(w + 104);
    const uint32_t low = 0x0F0F0F0Fu, high = 0x30303030u;
    __m128i v = _mm_setr_epi32((int)((a & low) | (h << 4 & high)), (int)((b & low) | (h << 2 & high)),
                               (int)((a >> 4 & low) | (h & high)), (int)((b >> 4 & low) | (h >> 2 & high)));
    return scales_16(_mm_sub_epi8(v, _mm_set1_epi8(32)), half1(w + 108), 4);
}
RL_INLINE scales scales_q4k(const uint8_t *w) {
    return scales_k4(w);
}
RL_INLINE scales scales_q5k(const uint8_t *w) {
    return scales_k4(w);
}
RL_INLINE scales scales_q6k(const uint8_t *w) {
    return scales_16(load128(w + 192), half1(w + 208), 32);
}
RL_INLINE scales scales_q8k(const uint8_t *w) {
    scales s = {0};
    float d;
    memcpy(&d, w, 4);
    s.s0 = _mm256_set1_ps(d);
    return s;
}
RL_INLINE scales scales_iq4xs(const uint8_t *w) {
    // scales_l: 4 low bits of group g at 4 g; scales_h: 2 high bits at 2 g
    const __m256i low = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i high = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    __m256i l = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int)load32(w + 4)), low), _mm256_set1_epi32(15));
    __m256i h = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(load16(w + 2)), high), _mm256_set1_epi32(3));
    scales s = {0};
    l = _mm256_sub_epi32(_mm256_or_si256(l, _mm256_slli_epi32(h, 4)), _mm256_set1_epi32(32));
    s.s0 = _mm256_mul_ps(_mm256_cvtepi32_ps(l), _mm256_set1_ps(half1(w)));
    return s;
}

// Half a superblock (128 values) as 4 vectors of bytes.
RL_INLINE void half_q2k(const uint8_t *w, const int half, __m256i *v) {
    __m256i q = weights(w + 16 + 32 * half);
    v[0] = bits(q, 3);
    v[1] = bits(right(q, 2), 3);
    v[2] = bits(right(q, 4), 3);
    v[3] = bits(right(q, 6), 3);
}
RL_INLINE void half_q3k(const uint8_t *w, const int half, __m256i *v) {
    __m256i q = weights(w + 32 + 32 * half), h = weights(w);
    h = half ? right(h, 2) : left(h, 2); // the bit of value 0 now has weight 4
    v[0] = _mm256_or_si256(bits(q, 3), bits(h, 4));
    v[1] = _mm256_or_si256(bits(right(q, 2), 3), bits(right(h, 1), 4));
    v[2] = _mm256_or_si256(bits(right(q, 4), 3), bits(right(h, 2), 4));
    v[3] = _mm256_or_si256(bits(right(q, 6), 3), bits(right(h, 3), 4));
}
RL_INLINE void half_q4k(const uint8_t *w, const int half, __m256i *v) {
    __m256i a = weights(w + 16 + 64 * half), b = weights(w + 48 + 64 * half);
    v[0] = bits(a, 15);
    v[1] = bits(right(a, 4), 15);
    v[2] = bits(b, 15);
    v[3] = bits(right(b, 4), 15);
}
RL_INLINE void half_q5k(const uint8_t *w, const int half, __m256i *v) {
    __m256i h = weights(w + 16);
    half_q4k(w + 32, half, v);
    if (half == 0) {
        v[0] = _mm256_or_si256(v[0], bits(left(h, 4), 16));
        v[1] = _mm256_or_si256(v[1], bits(left(h, 3), 16));
        v[2] = _mm256_or_si256(v[2], bits(left(h, 2), 16));
        v[3] = _mm256_or_si256(v[3], bits(left(h, 1), 16));
    } else {
        v[0] = _mm256_or_si256(v[0], bits(h, 16));
        v[1] = _mm256_or_si256(v[1], bits(right(h, 1), 16));
        v[2] = _mm256_or_si256(v[2], bits(right(h, 2), 16));
        v[3] = _mm256_or_si256(v[3], bits(right(h, 3), 16));
    }
}
RL_INLINE void half_q6k(const uint8_t *w, const int half, __m256i *v) {
    __m256i a = weights(w + 64 * half), b = weights(w + 64 * half + 32), h = weights(w + 128 + 32 * half);
    v[0] = _mm256_or_si256(bits(a, 15), bits(left(h, 4), 48));
    v[1] = _mm256_or_si256(bits(b, 15), bits(left(h, 2), 48));
    v[2] = _mm256_or_si256(bits(right(a, 4), 15), bits(h, 48));
    v[3] = _mm256_or_si256(bits(right(b, 4), 15), bits(right(h, 2), 48));
}
RL_INLINE void half_q8k(const uint8_t *w, const int half, __m256i *v) {
    for (int i = 0; i < 4; i++) v[i] = weights(w + 4 + 128 * half + 32 * i);
}

#endif
