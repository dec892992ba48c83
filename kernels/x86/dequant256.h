// SPDX-License-Identifier: Apache-2.0
// Blocks to float32 in AVX2, to the bit as the references: (d * scale) * q, then minus (dmin * min), each rounded.
#ifndef RL_KERNELS_X86_DEQUANT256_H
#define RL_KERNELS_X86_DEQUANT256_H

#include "kernels/x86/unpack256.h"

// 16 bytes as floats times d plus m.
RL_INLINE void put16(__m128i q, const int sign, __m256 d, const int add, __m256 m, float *out) {
    __m256i a = sign ? _mm256_cvtepi8_epi32(q) : _mm256_cvtepu8_epi32(q);
    q = _mm_srli_si128(q, 8);
    __m256i b = sign ? _mm256_cvtepi8_epi32(q) : _mm256_cvtepu8_epi32(q);
    __m256 x = _mm256_mul_ps(_mm256_cvtepi32_ps(a), d), y = _mm256_mul_ps(_mm256_cvtepi32_ps(b), d);
    _mm256_storeu_ps(out, add ? _mm256_add_ps(x, m) : x);
    _mm256_storeu_ps(out + 8, add ? _mm256_add_ps(y, m) : y);
}

// Blocks of 32: one at a time through the two-block unpackers. `offset` is what storage adds to each value.
#define DEQUANT_NIBBLES(T, BYTES, SIGN, OFFSET, ADD)                                                                   \
    RL_INLINE void deq_##T(const uint8_t *w, float *out, size_t n) {                                                   \
        const __m256i off = _mm256_set1_epi8(OFFSET);                                                                  \
        for (; n; n -= 32, w += BYTES, out += 32) {                                                                    \
            __m256i lo, hi;                                                                                            \
            pair_##T(w, 0, &lo, &hi);                                                                                  \
            lo = _mm256_sub_epi8(lo, off);                                                                             \
            hi = _mm256_sub_epi8(hi, off);                                                                             \
            __m256 d = _mm256_set1_ps(half1(w)), m = _mm256_set1_ps(ADD ? half1(w + 2) : 0);                           \
            put16(_mm256_castsi256_si128(lo), SIGN, d, ADD, m, out);                                                   \
            put16(_mm256_castsi256_si128(hi), SIGN, d, ADD, m, out + 16);                                              \
        }                                                                                                              \
    }
DEQUANT_NIBBLES(q4_0, 18, 1, 8, 0)
DEQUANT_NIBBLES(q4_1, 20, 0, 0, 1)
DEQUANT_NIBBLES(q5_0, 22, 1, 16, 0)
DEQUANT_NIBBLES(q5_1, 24, 0, 0, 1)
DEQUANT_NIBBLES(iq4nl, 18, 1, 0, 0)

RL_INLINE void deq_q8_0(const uint8_t *w, float *out, size_t n) {
    for (; n; n -= 32, w += 34, out += 32) {
        __m256 d = _mm256_set1_ps(half1(w));
        put16(load128(w + 2), 1, d, 0, d, out);
        put16(load128(w + 18), 1, d, 0, d, out + 16);
    }
}

// Superblocks: d and m of each 16 values.
RL_INLINE void deq_super(const uint8_t *w, const size_t bytes, scales (*scales_of)(const uint8_t *),
                         void (*half_of)(const uint8_t *, const int, __m256i *), const int per_16, const int sign,
                         const int offset, const int add, float *out, size_t n) {
    for (; n; n -= 256, w += bytes) {
        scales sc = scales_of(w);
        float d[16], m[16];
        _mm256_storeu_ps(d, sc.s0);
        _mm256_storeu_ps(d + 8, sc.s1);
        if (per_16) {
            __m256 dm = _mm256_set1_ps(sc.dm);
            __m256i a = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(sc.mn16));
            __m256i b = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(sc.mn16, 1));
            _mm256_storeu_ps(m, _mm256_mul_ps(dm, _mm256_cvtepi32_ps(a)));
            _mm256_storeu_ps(m + 8, _mm256_mul_ps(dm, _mm256_cvtepi32_ps(b)));
        } else {
            _mm256_storeu_ps(m, _mm256_xor_ps(_mm256_set1_ps(-0.0f), sc.m)); // keeps the sign of zero
        }
        for (int half = 0; half < 2; half++) {
            __m256i v[4];
            if (half)
                half_of(w, 1, v);
            else
                half_of(w, 0, v);
            for (int j = 0; j < 4; j++, out += 32) {
                v[j] = _mm256_sub_epi8(v[j], _mm256_set1_epi8((char)offset));
                int g = 4 * half + j, a = per_16 ? 2 * g : g, b = per_16 ? 2 * g + 1 : g;
                put16(_mm256_castsi256_si128(v[j]), sign, _mm256_set1_ps(d[a]), add, _mm256_set1_ps(m[a]), out);
                put16(_mm256_extracti128_si256(v[j], 1), sign, _mm256_set1_ps(d[b]), add, _mm256_set1_ps(m[b]),
                      out + 16);
            }
        }
    }
}
#define DEQUANT_SUPER(T, BLOCK, PER_16, SIGN, OFFSET, ADD)                                                             \
    RL_INLINE void deq_##T(const uint8_t *w, float *out, size_t n) {                                                   \
        deq_super(w, sizeof(BLOCK), scales_##T, half_##T, PER_16, SIGN, OFFSET, ADD, out, n);                          \
    }
DEQUANT_SUPER(q2k, rl_block_q2_k, 1, 0, 0, 1)
DEQUANT_SUPER(q3k, rl_block_q3_k, 1, 1, 4, 0)
DEQUANT_SUPER(q4k, rl_block_q4_k, 0, 0, 0, 1)
DEQUANT_SUPER(q5k, rl_block_q5_k, 0, 0, 0, 1)
DEQUANT_SUPER(q6k, rl_block_q6_k, 1, 1, 32, 0)
DEQUANT_SUPER(q8k, rl_block_q8_k, 0, 1, 0, 0)

RL_INLINE void deq_iq4xs(const uint8_t *w, float *out, size_t n) {
    for (; n; n -= 256, w += sizeof(rl_block_iq4_xs)) {
        float d[8];
        _mm256_storeu_ps(d, scales_iq4xs(w).s0);
        for (int g = 0; g < 8; g++, out += 32) {
            __m256i q = _mm256_castsi128_si256(load128(w + 8 + 16 * g));
            __m256 s = _mm256_set1_ps(d[g]);
            put16(_mm256_castsi256_si128(iq4_lookup(bits(q, 15))), 1, s, 0, s, out);
            put16(_mm256_castsi256_si128(iq4_lookup(bits(right(q, 4), 15))), 1, s, 0, s, out + 16);
        }
    }
}

// Float weights: any n.
RL_INLINE void deq_f32(const uint8_t *w, float *out, size_t n) {
    memcpy(out, w, 4 * n);
}
RL_INLINE void deq_f16(const uint8_t *w, float *out, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(load128(w + 2 * i)));
    for (; i < n; i++) out[i] = half1(w + 2 * i);
}
RL_INLINE void deq_bf16(const uint8_t *w, float *out, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i v = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(w + 2 * i)), 16);
        _mm256_storeu_si256((__m256i *)(out + i), v);
    }
    for (; i < n; i++) {
        uint32_t v = (uint32_t)load16(w + 2 * i) << 16;
        memcpy(out + i, &v, 4);
    }
}

#define RL_FOR_EACH_TYPE(M)                                                                                            \
    M(f32)                                                                                                             \
    M(f16) M(bf16) M(q4_0) M(q4_1) M(q5_0) M(q5_1) M(q8_0) M(iq4nl) M(q2k) M(q3k) M(q4k) M(q5k) M(q6k) M(q8k) M(iq4xs)

#endif
