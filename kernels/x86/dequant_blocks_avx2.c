// SPDX-License-Identifier: Apache-2.0
// Dequantizing plain halves and blocks of 32, AVX2: equal to the reference to the bit.
#include <string.h>

#include "kernels/x86/dequant256.h"

void rl_dequant_f16_avx2(const void *blocks, float *out, size_t n) {
    const uint16_t *h = blocks;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(load16(h + i)));
        _mm256_storeu_ps(out + i + 8, _mm256_cvtph_ps(load16(h + i + 8)));
    }
    for (; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, h + i, sizeof bits);
        out[i] = half_to_float(bits);
    }
}

void rl_dequant_bf16_avx2(const void *blocks, float *out, size_t n) {
    const uint16_t *h = blocks;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i x = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(h + i)), 16);
        _mm256_storeu_ps(out + i, _mm256_castsi256_ps(x));
    }
    for (; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, h + i, sizeof bits);
        uint32_t wide = (uint32_t)bits << 16;
        memcpy(out + i, &wide, sizeof wide);
    }
}

void rl_dequant_q4_0_avx2(const void *blocks, float *out, size_t n) {
    const rl_block_q4_0 *b = blocks;
    for (; n; n -= 32, out += 32, b++)
        scaled32(_mm256_sub_epi8(nibbles16(b->qs), _mm256_set1_epi8(8)), half_to_float(b->d), out);
}

void rl_dequant_q4_1_avx2(const void *blocks, float *out, size_t n) {
    const rl_block_q4_1 *b = blocks;
    for (; n; n -= 32, out += 32, b++) shifted32(nibbles16(b->qs), half_to_float(b->d), half_to_float(b->m), out);
}

// 32 bits as 32 bytes: 16 where the bit is set.
INLINE __m256i fifth_bits(const uint8_t *qh) {
    int32_t bits;
    memcpy(&bits, qh, sizeof bits);
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i mask = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    __m256i x = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread), mask);
    return _mm256_and_si256(_mm256_cmpeq_epi8(x, mask), _mm256_set1_epi8(16));
}

void rl_dequant_q5_0_avx2(const void *blocks, float *out, size_t n) {
    const rl_block_q5_0 *b = blocks;
    for (; n; n -= 32, out += 32, b++) {
        __m256i q = _mm256_or_si256(nibbles16(b->qs), fifth_bits(b->qh));
        scaled32(_mm256_sub_epi8(q, _mm256_set1_epi8(16)), half_to_float(b->d), out);
    }
}

void rl_dequant_q5_1_avx2(const void *blocks, float *out, size_t n) {
    const rl_block_q5_1 *b = blocks;
    for (; n; n -= 32, out += 32, b++) {
        __m256i q = _mm256_or_si256(nibbles16(b->qs), fifth_bits(b->qh));
        shifted32(q, half_to_float(b->d), half_to_float(b->m), out);
    }
}

void rl_dequant_q8_0_avx2(const void *blocks, float *out, size_t n) {
    const rl_block_q8_0 *b = blocks;
    for (; n; n -= 32, out += 32, b++) scaled32(load32(b->qs), half_to_float(b->d), out);
}

void rl_dequant_iq4nl_avx2(const void *blocks, float *out, size_t n) {
    const rl_block_iq4_nl *b = blocks;
    for (; n; n -= 32, out += 32, b++) scaled32(iq4_levels(nibbles16(b->qs)), half_to_float(b->d), out);
}
