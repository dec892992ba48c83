// SPDX-License-Identifier: Apache-2.0
// Superblocks of 256 values: sub-scales per 32 or per 16 values, weights in the order of values (IQ4_XS: nibble
// order).
#ifndef RL_KERNELS_X86_ROWS256_SUPER_H
#define RL_KERNELS_X86_ROWS256_SUPER_H

#include "kernels/x86/rows256.h"

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
                          const float *const *ds, const __m256 *d, __m256 *acc, const int nt, const int half,
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
                          size_t g, const float *const *ds, const __m256 *d, __m256 *acc, const int nt,
                          const int half) {
    __m256i v[4];
    half_of(w, half, v);
    super_step(v[0], kind, bytes, x, g, ds, d, acc, nt, half, 0);
    super_step(v[1], kind, bytes, x, g, ds, d, acc, nt, half, 1);
    super_step(v[2], kind, bytes, x, g, ds, d, acc, nt, half, 2);
    super_step(v[3], kind, bytes, x, g, ds, d, acc, nt, half, 3);
}

RL_INLINE void super_block(const uint8_t *w, const size_t bytes, scales_fn scales_of, half_fn half_of, const int kind,
                           const act_ptr *x, size_t g, __m256 *acc, __m256 *min, const int nt) {
    const int per_16 = kind == PER_16_OFFSET || kind == PER_16_MIN;
    const int sign = kind == PER_32_SIGNED || (RL_BITS == 16 && kind == PER_16_OFFSET);
    const __m256i dup = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), dup4 = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
    scales sc = scales_of(w);
    _Alignas(32) float spread_ds[4][8];
    const float *ds[4];
    __m256 d0[4], d1[4];
    for (int t = 0; t < nt; t++) {
        __m256 xs = act_scales(&x[t], g);
        if (!per_16) {
            _mm256_store_ps(spread_ds[t], _mm256_mul_ps(sc.s0, xs));
            ds[t] = spread_ds[t];
            __asm__("" : "+r"(ds[t])); // one address in a register: left to itself, gcc keeps and spills all eight
            if (kind == PER_32_MIN) min[t] = _mm256_fnmadd_ps(sc.m, _mm256_loadu_ps(x[t].s + g), min[t]);
        } else {
            d0[t] = _mm256_mul_ps(sc.s0, RL_BITS == 8 ? _mm256_permutevar8x32_ps(xs, dup) : xs);
            d1[t] = _mm256_mul_ps(sc.s1, RL_BITS == 8 ? _mm256_permutevar8x32_ps(xs, dup4) : xs);
            if (!sign)
                min[t] = _mm256_fmadd_ps(minimums(sc.mn16, &x[t], g), _mm256_mul_ps(xs, _mm256_set1_ps(sc.dm)), min[t]);
        }
    }
    super_half(w, half_of, kind, bytes, x, g, ds, d0, acc, nt, 0);
    super_half(w, half_of, kind, bytes, x, g, ds, d1, acc, nt, 1);
}

RL_INLINE void super_rows(const size_t bytes, scales_fn scales_of, half_fn half_of, const int kind, const rows_part a,
                          const int nt) {
    act_ptr x[4];
    for (int t = 0; t < nt; t++) x[t] = act_at(a.act, a.tok + (size_t)t);
    part_sums sums[4];
    row_sums kept[RL_ROWS_AT_ONCE];
    RL_SPANS(a, bytes, g0, g1)
    for (size_t r = 0; r < a.n_rows; r++) {
        row_sums s;
        begin_row(&s, &kept[r], g0, nt);
        const uint8_t *w = row_of(&a, r, g0, g1, bytes);
        for (size_t g = g0; g < g1; g += 8, w += bytes) {
            ask(&a, w, bytes);
            super_block(w, bytes, scales_of, half_of, kind, x, g, s.acc, s.min, nt);
        }
        end_row(&s, &kept[r], sums, r, g1, a.cols / 32, nt);
    }
    put_out(&a, sums, nt);
}

#define SUPER_ROWS(T, BLOCK, KIND)                                                                                     \
    RL_INLINE void rows_##T(const rows_part a, const int nt) {                                                         \
        super_rows(sizeof(BLOCK), scales_##T, half_##T, KIND, a, nt);                                                  \
    }                                                                                                                  \
    RL_DRIVE(T, rows_##T)

SUPER_ROWS(q2k, rl_block_q2_k, PER_16_MIN)
SUPER_ROWS(q3k, rl_block_q3_k, PER_16_OFFSET)
#ifndef RL_OWN_Q4K_Q5K
SUPER_ROWS(q4k, rl_block_q4_k, PER_32_MIN)
SUPER_ROWS(q5k, rl_block_q5_k, PER_32_MIN)
#endif
SUPER_ROWS(q6k, rl_block_q6_k, PER_16_OFFSET)
SUPER_ROWS(q8k, rl_block_q8_k, PER_32_SIGNED)

RL_INLINE void iq4xs_rows(const rows_part a, const int nt) {
    act_ptr x[4];
    for (int t = 0; t < nt; t++) x[t] = act_at(a.act, a.tok + (size_t)t);
    part_sums sums[4];
    row_sums kept[RL_ROWS_AT_ONCE];
    RL_SPANS(a, sizeof(rl_block_iq4_xs), g0, g1)
    for (size_t r = 0; r < a.n_rows; r++) {
        __m256 ds[4];
        row_sums sum;
        begin_row(&sum, &kept[r], g0, nt);
        const uint8_t *w = row_of(&a, r, g0, g1, sizeof(rl_block_iq4_xs));
        for (size_t g = g0; g < g1; g += 8, w += sizeof(rl_block_iq4_xs)) {
            ask(&a, w, sizeof(rl_block_iq4_xs));
            scales sc = scales_iq4xs(w);
            for (int t = 0; t < nt; t++) ds[t] = _mm256_mul_ps(sc.s0, act_scales(&x[t], g));
#pragma GCC unroll 4
            for (int p = 0; p < 4; p++) {
                __m256i q = weights(w + 8 + 32 * p), lo = iq4_lookup(bits(q, 15)),
                        hi = iq4_lookup(bits(right(q, 4), 15));
                for (int t = 0; t < nt; t++) {
                    const rl_x *v = x[t].nibble + 32 * g + (size_t)(p / 2 * 128 + p % 2 * (RL_BITS == 8 ? 32 : 16));
                    __m256 *s = &sum.acc[t * RL_CHAINS(nt) + p % RL_CHAINS(nt)];
                    *s = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot_pair(lo, hi, v, 1)), spread(ds[t], p), *s);
                }
            }
        }
        end_row(&sum, &kept[r], sums, r, g1, a.cols / 32, nt);
    }
    put_out(&a, sums, nt);
}
RL_DRIVE(iq4xs, iq4xs_rows)

#endif
