// SPDX-License-Identifier: Apache-2.0
// Blocks of 32 values, in groups of 8 blocks: their headers are gathered into one vector of scales. Two nibble
// blocks fill a vector: lanes 0..3 belong to the first.
#ifndef RL_KERNELS_X86_ROWS256_BLOCKS_H
#define RL_KERNELS_X86_ROWS256_BLOCKS_H

#include "kernels/x86/rows256.h"

// Dwords at the beginning of 2 or 4 blocks. Here and below written out with inserts: left to itself, gcc builds such
// vectors in memory.
RL_INLINE __m128i gather_dwords(const uint8_t *w, const size_t bytes, const size_t n) {
    __m128i v = _mm_insert_epi32(_mm_cvtsi32_si128((int)load32(w)), (int)load32(w + bytes), 1);
    if (n == 2) return v;
    v = _mm_insert_epi32(v, (int)load32(w + 2 * bytes), 2);
    return _mm_insert_epi32(v, (int)load32(w + 3 * bytes), 3);
}

// Halves at the beginning of n <= 8 blocks, as float; the rest zero. An even n is a constant.
RL_INLINE __m256 gather_d(const uint8_t *w, const size_t bytes, size_t n) {
    if (n % 2 == 0) {
        __m128i v = _mm_insert_epi16(_mm_cvtsi32_si128(load16(w)), load16(w + bytes), 1);
        if (n > 2) {
            v = _mm_insert_epi16(v, load16(w + 2 * bytes), 2);
            v = _mm_insert_epi16(v, load16(w + 3 * bytes), 3);
        }
        if (n > 4) {
            v = _mm_insert_epi16(v, load16(w + 4 * bytes), 4);
            v = _mm_insert_epi16(v, load16(w + 5 * bytes), 5);
        }
        if (n > 6) {
            v = _mm_insert_epi16(v, load16(w + 6 * bytes), 6);
            v = _mm_insert_epi16(v, load16(w + 7 * bytes), 7);
        }
        return _mm256_cvtph_ps(v);
    }
    uint16_t h[8] = {0};
    for (size_t i = 0; i < n; i++) h[i] = load16(w + i * bytes);
    return _mm256_cvtph_ps(load128(h));
}

// Two halves at the beginning of each block: scale and minimum.
RL_INLINE void gather_dm(const uint8_t *w, const size_t bytes, size_t n, __m256 *d, __m256 *m) {
    __m256i v;
    if (n % 2 == 0) {
        v = _mm256_zextsi128_si256(gather_dwords(w, bytes, n > 2 ? 4 : 2));
        if (n > 4) v = _mm256_inserti128_si256(v, gather_dwords(w + 4 * bytes, bytes, n > 6 ? 4 : 2), 1);
    } else {
        uint32_t h[8] = {0};
        for (size_t i = 0; i < n; i++) h[i] = load32(w + i * bytes);
        v = load256(h);
    }
    const __m256i apart = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, //
                                           0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    v = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, apart), 0xD8);
    *d = _mm256_cvtph_ps(_mm256_castsi256_si128(v));
    *m = _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1));
}

// Per type: scales and minimums of n blocks. The minimum multiplies the sum of the
// activations: m for Q4_1 and Q5_1, -8 d and -16 d where storage is unsigned and values are not.
RL_INLINE void head_q4_0(const uint8_t *w, size_t n, __m256 *d, __m256 *m) {
    *d = gather_d(w, 18, n);
    *m = _mm256_mul_ps(*d, _mm256_set1_ps(-8));
}
#ifndef RL_OWN_Q4_1
RL_INLINE void head_q4_1(const uint8_t *w, size_t n, __m256 *d, __m256 *m) {
    gather_dm(w, 20, n, d, m);
}
#endif
#ifndef RL_OWN_Q5_0
RL_INLINE void head_q5_0(const uint8_t *w, size_t n, __m256 *d, __m256 *m) {
    *d = gather_d(w, 22, n);
    *m = _mm256_mul_ps(*d, _mm256_set1_ps(-16));
}
#endif
RL_INLINE void head_q5_1(const uint8_t *w, size_t n, __m256 *d, __m256 *m) {
    gather_dm(w, 24, n, d, m);
}
RL_INLINE void head_iq4nl(const uint8_t *w, size_t n, __m256 *d, __m256 *m) {
    *d = gather_d(w, 18, n);
    *m = _mm256_setzero_ps();
}
typedef void (*head_fn)(const uint8_t *, size_t, __m256 *, __m256 *);
typedef void (*pair_fn)(const uint8_t *, const int, __m256i *, __m256i *);

// Where the activations of blocks b and b + 1 (b even) lie in nibble order.
RL_INLINE size_t nibble_at(size_t b) {
    return 32 * (b & ~(size_t)3) + (b & 2) * (RL_BITS == 8 ? 16 : 8);
}

// Blocks 2p and 2p + 1 of n, counted from block g.
RL_INLINE void nibble_step(const uint8_t *w, const size_t bytes, pair_fn pair, const int sign, size_t n,
                           const act_ptr *x, size_t g, const __m256 *ds, __m256 *acc, const int nt, const int p) {
    if ((size_t)(2 * p) >= n) return;
    __m256i lo, hi;
    pair(w + 2 * (size_t)p * bytes, n == 8 || (size_t)(2 * p + 1) < n, &lo, &hi);
    for (int t = 0; t < nt; t++) {
        __m256 *s = &acc[t * RL_CHAINS(nt) + p % RL_CHAINS(nt)];
        __m256i i = dot_pair(lo, hi, x[t].nibble + nibble_at(g + 2 * (size_t)p), sign);
        *s = _mm256_fmadd_ps(_mm256_cvtepi32_ps(i), spread(ds[t], p), *s);
    }
}

// Up to 8 blocks. An even n is a constant.
RL_INLINE void nibble_group(const uint8_t *w, const size_t bytes, head_fn head, pair_fn pair, const int sign, size_t n,
                            const act_ptr *x, size_t g, __m256 *acc, __m256 *min, const int nt) {
    __m256 d, m, ds[4];
    head(w, n, &d, &m);
    for (int t = 0; t < nt; t++) {
        ds[t] = _mm256_mul_ps(d, act_scales(&x[t], g));
        if (!sign) min[t] = _mm256_fmadd_ps(m, _mm256_loadu_ps(x[t].s + g), min[t]);
    }
    nibble_step(w, bytes, pair, sign, n, x, g, ds, acc, nt, 0);
    nibble_step(w, bytes, pair, sign, n, x, g, ds, acc, nt, 1);
    nibble_step(w, bytes, pair, sign, n, x, g, ds, acc, nt, 2);
    nibble_step(w, bytes, pair, sign, n, x, g, ds, acc, nt, 3);
}

// What is left of a row, by GROUP(n): with a constant where rows of models have it, so that it is straight code.
#define LAST_BLOCKS(n)                                                                                                 \
    switch (n) {                                                                                                       \
    case 0:                                                                                                            \
        break;                                                                                                         \
    case 2:                                                                                                            \
        GROUP(2);                                                                                                      \
        break;                                                                                                         \
    case 4:                                                                                                            \
        GROUP(4);                                                                                                      \
        break;                                                                                                         \
    case 6:                                                                                                            \
        GROUP(6);                                                                                                      \
        break;                                                                                                         \
    default:                                                                                                           \
        GROUP(n);                                                                                                      \
        break;                                                                                                         \
    }

RL_INLINE void nibble_rows(const size_t bytes, head_fn head, pair_fn pair, const int sign, const rows_part a,
                           const int nt) {
    act_ptr x[4];
    for (int t = 0; t < nt; t++) x[t] = act_at(a.act, a.tok + (size_t)t);
    part_sums sums[4];
    row_sums kept[RL_ROWS_AT_ONCE];
    RL_SPANS(a, 8 * bytes, g0, g1)
    for (size_t r = 0; r < a.n_rows; r++) {
        row_sums s;
        begin_row(&s, &kept[r], g0, nt);
        const uint8_t *w = row_of(&a, r, g0, g1, 8 * bytes);
        size_t g = g0;
        for (; g + 8 <= g1; g += 8, w += 8 * bytes) {
            ask(&a, w, 8 * bytes);
            nibble_group(w, bytes, head, pair, sign, 8, x, g, s.acc, s.min, nt);
        }
        if (g < g1) ask(&a, w, 64);
#define GROUP(n) nibble_group(w, bytes, head, pair, sign, n, x, g, s.acc, s.min, nt)
        LAST_BLOCKS(g1 - g)
#undef GROUP
        end_row(&s, &kept[r], sums, r, g1, a.cols / 32, nt);
    }
    put_out(&a, sums, nt);
}

// Q8_0: one block fills a vector. The n <= 8 blocks at w, which begin at block g.
RL_INLINE void q8_0_group(const uint8_t *w, size_t n, const act_ptr *x, size_t g, __m256 *acc, const int nt) {
    _Alignas(32) float ds[4][8];
    __m256 d = gather_d(w, 34, n);
    for (int t = 0; t < nt; t++) {
#if RL_BITS == 8
        _mm256_store_ps(ds[t], _mm256_mul_ps(d, _mm256_loadu_ps(x[t].d + g)));
#else
        _mm256_store_ps(ds[t], _mm256_mul_ps(d, _mm256_broadcast_ss(x[t].d + g / 8)));
#endif
    }
    for (int t = 0; t < nt; t++) {
#define STEP(j)                                                                                                        \
    if ((size_t)(j) < n) {                                                                                             \
        __m256 *s = &acc[t * RL_CHAINS(nt) + j % RL_CHAINS(nt)];                                                       \
        __m256i i = dot(load256(w + 34 * j + 2), x[t].natural + 32 * (g + j), 1);                                      \
        *s = _mm256_fmadd_ps(_mm256_cvtepi32_ps(i), _mm256_broadcast_ss(&ds[t][j]), *s);                               \
    }
        STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7)
#undef STEP
    }
}

RL_INLINE void q8_0_rows(const rows_part a, const int nt) {
    act_ptr x[4];
    for (int t = 0; t < nt; t++) x[t] = act_at(a.act, a.tok + (size_t)t);
    part_sums sums[4];
    row_sums kept[RL_ROWS_AT_ONCE];
    RL_SPANS(a, 8 * 34, g0, g1)
    for (size_t r = 0; r < a.n_rows; r++) {
        row_sums s;
        begin_row(&s, &kept[r], g0, nt);
        const uint8_t *w = row_of(&a, r, g0, g1, 8 * 34);
        size_t g = g0;
        for (; g + 8 <= g1; g += 8, w += 8 * 34) {
            ask(&a, w, 8 * 34);
            q8_0_group(w, 8, x, g, s.acc, nt);
        }
        if (g < g1) ask(&a, w, 64);
#define GROUP(n) q8_0_group(w, n, x, g, s.acc, nt)
        LAST_BLOCKS(g1 - g)
#undef GROUP
        end_row(&s, &kept[r], sums, r, g1, a.cols / 32, nt);
    }
    put_out(&a, sums, nt);
}

#define NIBBLE_ROWS(T, BYTES, SIGN)                                                                                    \
    RL_INLINE void rows_##T(const rows_part a, const int nt) {                                                         \
        nibble_rows(BYTES, head_##T, pair_##T, SIGN, a, nt);                                                           \
    }                                                                                                                  \
    RL_DRIVE(T, rows_##T)

NIBBLE_ROWS(q4_0, 18, 0)
#ifndef RL_OWN_Q4_1
NIBBLE_ROWS(q4_1, 20, 0)
#endif
#ifndef RL_OWN_Q5_0
NIBBLE_ROWS(q5_0, 22, 0)
#endif
NIBBLE_ROWS(q5_1, 24, 0)
NIBBLE_ROWS(iq4nl, 18, 1)
RL_DRIVE(q8_0, q8_0_rows)

#endif
