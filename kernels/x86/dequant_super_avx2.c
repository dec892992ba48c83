// SPDX-License-Identifier: Apache-2.0
// Dequantizing superblocks of 256, AVX2: equal to the reference to the bit. The layouts are explained there.
#include <string.h>

#include "kernels/x86/dequant256.h"

// The eight 6-bit scales, then the eight mins, as bytes.
INLINE void scales_mins(const uint8_t *s, uint8_t *out) {
    uint32_t a, b, c;
    memcpy(&a, s, 4);
    memcpy(&b, s + 4, 4);
    memcpy(&c, s + 8, 4);
    const uint32_t low6 = 0x3F3F3F3F, low4 = 0x0F0F0F0F, top2 = 0x30303030;
    uint32_t words[4] = {a & low6, (c & low4) | ((a >> 2) & top2), b & low6, ((c >> 4) & low4) | ((b >> 2) & top2)};
    memcpy(out, words, 16);
}

void rl_dequant_q4k_avx2(const void *blocks, float *out, size_t n) {
    const rl_block_q4_k *b = blocks;
    const __m256i low = _mm256_set1_epi8(15);
    for (; n; n -= 256, out += 256, b++) {
        float d = half_to_float(b->d), dmin = half_to_float(b->dmin);
        uint8_t sm[16];
        scales_mins(b->scales, sm);
        for (int j = 0; j < 4; j++) {
            __m256i x = load32(b->qs + 32 * j);
            // dl * q + (-ml) rounds as dl * q - ml does
            shifted32(_mm256_and_si256(x, low), d * (float)sm[2 * j], -(dmin * (float)sm[8 + 2 * j]), out + 64 * j);
            shifted32(_mm256_and_si256(_mm256_srli_epi16(x, 4), low), d * (float)sm[2 * j + 1],
                      -(dmin * (float)sm[9 + 2 * j]), out + 64 * j + 32);
        }
    }
}

void rl_dequant_q5k_avx2(const void *blocks, float *out, size_t n) {
    const rl_block_q5_k *b = blocks;
    const __m256i low = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16);
    for (; n; n -= 256, out += 256, b++) {
        float d = half_to_float(b->d), dmin = half_to_float(b->dmin);
        uint8_t sm[16];
        scales_mins(b->scales, sm);
        __m256i high = load32(b->qh); // bit 0 is the one of the current group
        for (int j = 0; j < 8; j++) {
            __m256i x = load32(b->qs + j / 2 * 32);
            if (j & 1) x = _mm256_srli_epi16(x, 4);
            // bit 0 of each byte to bit 4: what crosses from a neighbour is masked away
            __m256i bit = _mm256_and_si256(_mm256_slli_epi16(high, 4), fifth);
            high = _mm256_srli_epi16(high, 1);
            shifted32(_mm256_or_si256(_mm256_and_si256(x, low), bit), d * (float)sm[j], -(dmin * (float)sm[8 + j]),
                      out + 32 * j);
        }
    }
}

void rl_dequant_q6k_avx2(const void *blocks, float *out, size_t n) {
    const rl_block_q6_k *b = blocks;
    const __m256i low = _mm256_set1_epi8(15), two = _mm256_set1_epi8(3), offset = _mm256_set1_epi8(32);
    for (; n; n -= 256, out += 256, b++) {
        float d = half_to_float(b->d);
        for (int j = 0; j < 8; j++) {
            int half = j / 4, part = j % 4;
            __m256i x = load32(b->ql + half * 64 + part % 2 * 32);
            if (part >= 2) x = _mm256_srli_epi16(x, 4);
            __m256i h = _mm256_and_si256(_mm256_srl_epi16(load32(b->qh + half * 32), _mm_cvtsi32_si128(2 * part)), two);
            __m256i q = _mm256_or_si256(_mm256_and_si256(x, low), _mm256_slli_epi16(h, 4));
            q = _mm256_sub_epi8(q, offset);
            scaled16(_mm256_castsi256_si128(q), d * (float)b->scales[2 * j], out + 32 * j);
            scaled16(_mm256_extracti128_si256(q, 1), d * (float)b->scales[2 * j + 1], out + 32 * j + 16);
        }
    }
}

void rl_dequant_q2k_avx2(const void *blocks, float *out, size_t n) {
    const rl_block_q2_k *b = blocks;
    const __m256i two = _mm256_set1_epi8(3);
    for (; n; n -= 256, out += 256, b++) {
        float d = half_to_float(b->d), dmin = half_to_float(b->dmin);
        for (int j = 0; j < 8; j++) {
            __m256i x = _mm256_srl_epi16(load32(b->qs + j / 4 * 32), _mm_cvtsi32_si128(j % 4 * 2));
            __m256i q = _mm256_and_si256(x, two);
            uint8_t s0 = b->scales[2 * j], s1 = b->scales[2 * j + 1];
            shifted16(_mm256_castsi256_si128(q), d * (float)(s0 & 15), -(dmin * (float)(s0 >> 4)), out + 32 * j);
            shifted16(_mm256_extracti128_si256(q, 1), d * (float)(s1 & 15), -(dmin * (float)(s1 >> 4)),
                      out + 32 * j + 16);
        }
    }
}

void rl_dequant_q3k_avx2(const void *blocks, float *out, size_t n) {
    const rl_block_q3_k *b = blocks;
    const __m256i two = _mm256_set1_epi8(3), four = _mm256_set1_epi8(4), one = _mm256_set1_epi8(1);
    for (; n; n -= 256, out += 256, b++) {
        float d = half_to_float(b->d);
        uint64_t lows;
        uint32_t tops;
        memcpy(&lows, b->scales, 8);
        memcpy(&tops, b->scales + 8, 4);
        uint8_t sc[16];
        uint64_t halves[2] = {lows & 0x0F0F0F0F0F0F0F0Full, (lows >> 4) & 0x0F0F0F0F0F0F0F0Full};
        for (int k = 0; k < 2; k++) {
            uint64_t t0 = (tops >> (4 * k)) & 0x03030303u, t1 = (tops >> (4 * k + 2)) & 0x03030303u;
            halves[k] |= (t0 | t1 << 32) << 4;
        }
        memcpy(sc, halves, 16);
        __m256i mask = load32(b->hmask);
        for (int j = 0; j < 8; j++) {
            __m256i x = _mm256_srl_epi16(load32(b->qs + j / 4 * 32), _mm_cvtsi32_si128(j % 4 * 2));
            __m256i set = _mm256_and_si256(_mm256_srl_epi16(mask, _mm_cvtsi32_si128(j)), one);
            // 4 less where the bit is clear: (set - 1) & 4
            __m256i less = _mm256_and_si256(_mm256_sub_epi8(set, one), four);
            __m256i q = _mm256_sub_epi8(_mm256_and_si256(x, two), less);
            scaled16(_mm256_castsi256_si128(q), d * (float)(sc[2 * j] - 32), out + 32 * j);
            scaled16(_mm256_extracti128_si256(q, 1), d * (float)(sc[2 * j + 1] - 32), out + 32 * j + 16);
        }
    }
}

void rl_dequant_iq4xs_avx2(const void *blocks, float *out, size_t n) {
    const rl_block_iq4_xs *b = blocks;
    for (; n; n -= 256, out += 256, b++) {
        float d = half_to_float(b->d);
        for (int j = 0; j < 8; j++) {
            int low = (b->scales_l[j / 2] >> (j % 2 * 4)) & 15, high = (b->scales_h >> (2 * j)) & 3;
            scaled32(iq4_levels(nibbles16(b->qs + 16 * j)), d * (float)((low | high << 4) - 32), out + 32 * j);
        }
    }
}

void rl_dequant_q8k_avx2(const void *blocks, float *out, size_t n) {
    const rl_block_q8_k *b = blocks;
    for (; n; n -= 256, out += 256, b++)
        for (int j = 0; j < 8; j++) scaled32(load32(b->qs + 32 * j), b->d, out + 32 * j);
}
