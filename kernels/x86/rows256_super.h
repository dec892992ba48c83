// SPDX-License-Identifier: Apache-2.0
// Superblocks of 256 values: sub-scales per 32 or per 16 values, weights in the order of values (IQ4_XS: nibble
// order).
#ifndef RL_KERNELS_X86_ROWS256_SUPER_H
#define RL_KERNELS_X86_ROWS256_SUPER_H

#include "kernels/x86/rows256.h"

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

typedef scales (*scales_fn)(const uint8_t *);
typedef void (*half_fn)(const uint8_t *, const int, __m256i *);

// Kinds of sub-scale.
enum { PER_32_MIN, PER_32_SIGNED, PER_16_OFFSET, PER_16_MIN };

// Sum of mn16 times the sums of 16 activations: 8 lanes, one per 32 values (int8) or any order (int16).
RL_INLINE __m256 minimums(__m256i mn16, const act_ptr *x, size_t g) {
#if RL_BITS == 8
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(mn16, load256(x->b + 2 * g)));
#else
    __m256i a = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(mn16));
    __m256i b = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(mn16, 1));
    a = _mm256_mullo_epi32(a, load256(x->b + 2 * g));
    b = _mm256_mullo_epi32(b, load256(x->b + 2 * g + 8));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(a, b));
#endif
}

// 32 values: v is vector 4 * half + j of the superblock; their scale is in ds (per 32) or d (per 16).
RL_INLINE void super_step(__m256i v, const int kind, const size_t bytes, const act_ptr *x, size_t g,
                          const float (*ds)[8], const __m256 *d, __m256 *acc, const int nt, const int half,
                          const int j) {
    const int per_16 = kind == PER_16_OFFSET || kind == PER_16_MIN;
    const int sign = kind == PER_32_SIGNED || (RL_BITS == 16 && kind == PER_16_OFFSET);
    // Without int16 sums of 16 to take the offset back, values are made signed.
    if (sign && kind == PER_16_OFFSET)
        v = _mm256_sub_epi8(v, _mm256_set1_epi8(bytes == sizeof(rl_block_q6_k) ? 32 : 4));
    for (int t = 0; t < nt; t++) {
        __m256i i = dot(v, x[t].natural + 32 * g + 128 * half + 32 * j, sign);
        __m256 *s = &acc[t * RL_CHAINS(nt) + j % RL_CHAINS(nt)];
        __m256 f = per_16 ? spread(d[t], j) : _mm256_broadcast_ss(&ds[t][4 * half + j]);
        *s = _mm256_fmadd_ps(_mm256_cvtepi32_ps(i), f, *s);
    }
}

RL_INLINE void super_half(const uint8_t *w, half_fn half_of, const int kind, const size_t bytes, const act_ptr *x,
                          size_t g, const float (*ds)[8], const __m256 *d, __m256 *acc, const int nt, const int half) {
    __m256i v[4];
    half_of(w, half, v);
    super_step(v[0], kind, bytes, x, g, ds, d, acc, nt, half, 0);
    super_step(v[1], kind, bytes, x, g, ds, d, acc, nt, half, 1);
    super_step(v[2], kind, bytes, x, g, ds, d, acc, nt, half, 2);
    super_step(v[3], kind, bytes, x, g, ds, d, acc, nt, half, 3);
}

RL_INLINE void super_row(const uint8_t *w, const size_t bytes, scales_fn scales_of, half_fn half_of, const int kind,
                         size_t cols, const rl_act *act, size_t tok, float *out, size_t ld_out, const int nt) {
    act_ptr x[4];
    __m256 acc[4], min[4];
    for (int t = 0; t < nt; t++) x[t] = act_at(act, tok + (size_t)t);
    for (int i = 0; i < 4; i++) acc[i] = min[i] = _mm256_setzero_ps();
    const int per_16 = kind == PER_16_OFFSET || kind == PER_16_MIN;
    const int sign = kind == PER_32_SIGNED || (RL_BITS == 16 && kind == PER_16_OFFSET);
    const __m256i dup = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), dup4 = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
    for (size_t g = 0; g < cols / 32; g += 8, w += bytes) {
        prefetch(w, bytes);
        scales sc = scales_of(w);
        _Alignas(32) float ds[4][8];
        __m256 d0[4], d1[4];
        for (int t = 0; t < nt; t++) {
            __m256 xs = act_scales(&x[t], g);
            if (!per_16) {
                _mm256_store_ps(ds[t], _mm256_mul_ps(sc.s0, xs));
                if (kind == PER_32_MIN) min[t] = _mm256_fnmadd_ps(sc.m, _mm256_loadu_ps(x[t].s + g), min[t]);
            } else {
                d0[t] = _mm256_mul_ps(sc.s0, RL_BITS == 8 ? _mm256_permutevar8x32_ps(xs, dup) : xs);
                d1[t] = _mm256_mul_ps(sc.s1, RL_BITS == 8 ? _mm256_permutevar8x32_ps(xs, dup4) : xs);
                if (!sign)
                    min[t] =
                        _mm256_fmadd_ps(minimums(sc.mn16, &x[t], g), _mm256_mul_ps(xs, _mm256_set1_ps(sc.dm)), min[t]);
            }
        }
        super_half(w, half_of, kind, bytes, x, g, ds, d0, acc, nt, 0);
        super_half(w, half_of, kind, bytes, x, g, ds, d1, acc, nt, 1);
    }
    finish(acc, min, out, ld_out, nt);
}

#define SUPER_ROWS(T, BLOCK, KIND)                                                                                     \
    RL_INLINE void row_##T(const uint8_t *w, size_t cols, const rl_act *act, size_t tok, float *out, size_t ld_out,    \
                           const int nt) {                                                                             \
        super_row(w, sizeof(BLOCK), scales_##T, half_##T, KIND, cols, act, tok, out, ld_out, nt);                      \
    }                                                                                                                  \
    RL_DRIVE(T, row_##T)

SUPER_ROWS(q2k, rl_block_q2_k, PER_16_MIN)
SUPER_ROWS(q3k, rl_block_q3_k, PER_16_OFFSET)
SUPER_ROWS(q4k, rl_block_q4_k, PER_32_MIN)
SUPER_ROWS(q5k, rl_block_q5_k, PER_32_MIN)
SUPER_ROWS(q6k, rl_block_q6_k, PER_16_OFFSET)
SUPER_ROWS(q8k, rl_block_q8_k, PER_32_SIGNED)

RL_INLINE void iq4xs_row(const uint8_t *w, size_t cols, const rl_act *act, size_t tok, float *out, size_t ld_out,
                         const int nt) {
    act_ptr x[4];
    __m256 acc[4], min[4];
    for (int t = 0; t < nt; t++) x[t] = act_at(act, tok + (size_t)t);
    for (int i = 0; i < 4; i++) acc[i] = min[i] = _mm256_setzero_ps();
    for (size_t g = 0; g < cols / 32; g += 8, w += sizeof(rl_block_iq4_xs)) {
        prefetch(w, sizeof(rl_block_iq4_xs));
        scales sc = scales_iq4xs(w);
        __m256 ds[4];
        for (int t = 0; t < nt; t++) ds[t] = _mm256_mul_ps(sc.s0, act_scales(&x[t], g));
#pragma GCC unroll 4
        for (int p = 0; p < 4; p++) {
            __m256i q = weights(w + 8 + 32 * p), lo = iq4_lookup(bits(q, 15)), hi = iq4_lookup(bits(right(q, 4), 15));
            for (int t = 0; t < nt; t++) {
                const rl_x *v = x[t].nibble + 32 * g + (size_t)(p / 2 * 128 + p % 2 * (RL_BITS == 8 ? 32 : 16));
                __m256 *s = &acc[t * RL_CHAINS(nt) + p % RL_CHAINS(nt)];
                *s = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot_pair(lo, hi, v, 1)), spread(ds[t], p), *s);
            }
        }
    }
    finish(acc, min, out, ld_out, nt);
}
RL_DRIVE(iq4xs, iq4xs_row)

#endif
