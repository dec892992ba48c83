// SPDX-License-Identifier: Apache-2.0
// Q4_1 in vectors of 512 bits. A block is five dwords (a header and four of nibbles), so 16 blocks are five whole
// vectors: permutes across two of them put the nibbles of four blocks into one vector, and all 16 headers into another.
// Activations are in the order of nibble blocks (q8n, q16n): four blocks, a quarter of a vector each.
//
// Worst cases: int8 two dpbusd 2 * 4 * 15 * 127 = 15,240 a lane; int16 four dpwssd 4 * 2 * 15 * 32,639 = 3,916,680 a
// lane: both exact in int32 and in float32.
#ifndef RL_KERNELS_X86_ROWS512_Q4_1_H
#define RL_KERNELS_X86_ROWS512_Q4_1_H

#include "kernels/x86/rows512.h"

#define BLOCK_DWORDS 5

// Activations of four blocks, or of two, twice.
RL_INLINE __m512i acts(const rl_x *x, const int twice) {
    return twice ? _mm512_broadcast_i64x4(load256(x)) : _mm512_loadu_si512(x);
}

// Products of four blocks in nibbles with their activations: lanes 4i .. 4i + 3 for block i.
RL_INLINE __m512 four_blocks(__m512i w, const rl_x *x, const int twice) {
    const __m512i mask = _mm512_set1_epi16(RL_BITS == 8 ? 0x0F0F : 15);
    __m512i s = _mm512_setzero_si512();
#if RL_BITS == 8
    s = _mm512_dpbusd_epi32(s, _mm512_and_si512(w, mask), acts(x, twice));
    s = _mm512_dpbusd_epi32(s, _mm512_and_si512(_mm512_srli_epi16(w, 4), mask), acts(x + 64, twice));
#else
    s = _mm512_dpwssd_epi32(s, _mm512_and_si512(w, mask), acts(x, twice));
    s = _mm512_dpwssd_epi32(s, _mm512_and_si512(_mm512_srli_epi16(w, 4), mask), acts(x + 32, twice));
    s = _mm512_dpwssd_epi32(s, _mm512_and_si512(_mm512_srli_epi16(w, 8), mask), acts(x + 64, twice));
    s = _mm512_dpwssd_epi32(s, _mm512_srli_epi16(w, 12), acts(x + 96, twice));
#endif
    return _mm512_cvtepi32_ps(s);
}

// Header of block b is dword 5 b.
RL_INLINE __m512i headers(const __m512i *z) {
    const __m512i a = _mm512_setr_epi32(0, 5, 10, 15, 20, 25, 30, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i b = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 3, 8, 13, 18, 23, 28, 0, 0, 0);
    const __m512i c = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 6, 11);
    __m512i h = _mm512_permutex2var_epi32(z[2], b, z[3]);
    h = _mm512_mask_permutexvar_epi32(h, 0xE000, c, z[4]);
    return _mm512_mask_mov_epi32(h, 0x007F, _mm512_permutex2var_epi32(z[0], a, z[1]));
}

// Sums of one token: two chains, so that FMAs do not wait for each other, and what the minimums add.
typedef struct {
    __m512 acc[2], min;
} sums;

// The 16 blocks at w, which begin at block g.
RL_INLINE void sixteen(const uint8_t *w, const act_ptr *x, size_t g, sums *s, const int nt) {
    const __m512i nibbles = _mm512_setr_epi32(1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17, 18, 19);
    const __m512i spread = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    __m512i z[BLOCK_DWORDS];
    for (size_t k = 0; k < BLOCK_DWORDS; k++) {
        z[k] = _mm512_loadu_si512(w + 64 * k);
        __asm__("" : "+v"(z[k])); // load once: see weights()
    }
    const __m512i h = headers(z);
    const __m512 d = halves(h), m = halves(_mm512_srli_epi32(h, 16));
    __m512 ds[4];
    for (int t = 0; t < nt; t++) {
#if RL_BITS == 8
        const __m512 xd = _mm512_loadu_ps(x[t].d + g);
#else
        const __m256 first = _mm256_broadcast_ss(x[t].d + g / 8), second = _mm256_broadcast_ss(x[t].d + g / 8 + 1);
        const __m512 xd = _mm512_insertf32x8(_mm512_castps256_ps512(first), second, 1);
#endif
        ds[t] = _mm512_mul_ps(d, xd);
        s[t].min = _mm512_fmadd_ps(m, _mm512_loadu_ps(x[t].s + g), s[t].min);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m512i at = _mm512_set1_epi32(4 * j);
        const __m512i q = _mm512_permutex2var_epi32(z[j], _mm512_add_epi32(nibbles, at), z[j + 1]);
        const __m512i lanes = _mm512_add_epi32(spread, at);
        for (int t = 0; t < nt; t++)
            s[t].acc[j % 2] = _mm512_fmadd_ps(four_blocks(q, x[t].nibble + 32 * (g + 4 * (size_t)j), 0),
                                              _mm512_permutexvar_ps(lanes, ds[t]), s[t].acc[j % 2]);
    }
}

// The last n blocks, 1 to 4. All their headers are in the first 16 dwords, each taken to the four lanes of its block.
RL_INLINE void up_to_four(const uint8_t *w, size_t n, const act_ptr *x, size_t g, sums *s, const int nt) {
    const __m512i nibbles = _mm512_setr_epi32(1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17, 18, 19);
    const __m512i spread = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i header = _mm512_setr_epi32(0, 0, 0, 0, 5, 5, 5, 5, 10, 10, 10, 10, 15, 15, 15, 15);
    const __mmask16 here = (__mmask16)((1u << 4 * n) - 1), once = here & 0x1111;
    __m512i a, b = _mm512_setzero_si512();
    if (n == 4) {
        a = _mm512_loadu_si512(w);
        b = _mm512_castsi128_si512(load128(w + 64));
    } else {
        a = _mm512_maskz_loadu_epi32((__mmask16)((1u << BLOCK_DWORDS * n) - 1), w);
    }
    const __m512i h = _mm512_permutexvar_epi32(header, a), q = _mm512_permutex2var_epi32(a, nibbles, b);
    const __m512 d = halves(h), m = halves(_mm512_srli_epi32(h, 16));
    for (int t = 0; t < nt; t++) {
#if RL_BITS == 8
        const __m512 xd = spread_four(x[t].d + g, spread);
#else
        const __m512 xd = _mm512_set1_ps(x[t].d[g / 8]);
#endif
        const __m512 xs = spread_four(x[t].s + g, spread);
        s[t].min = _mm512_mask3_fmadd_ps(m, xs, s[t].min, once);
        s[t].acc[0] =
            _mm512_mask3_fmadd_ps(four_blocks(q, x[t].nibble + 32 * g, 0), _mm512_mul_ps(d, xd), s[t].acc[0], here);
    }
}

// The last two blocks, g and g + 1 with g a multiple of 4, of two rows in one vector: lanes 0..7 for the row at
// w, 8..15 for the one at `next`, or zero where that is NULL.
RL_INLINE void last_two(const uint8_t *w, const uint8_t *next, const act_ptr *x, size_t g, __m512 *sum, const int nt) {
    const __m512i nibbles = _mm512_setr_epi32(1, 2, 3, 4, 6, 7, 8, 9, 17, 18, 19, 20, 22, 23, 24, 25);
    const __m512i header = _mm512_setr_epi32(0, 0, 0, 0, 5, 5, 5, 5, 16, 16, 16, 16, 21, 21, 21, 21);
    const __m512i spread = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1);
    const __mmask16 two = (1u << 2 * BLOCK_DWORDS) - 1;
    const __m512i a = _mm512_maskz_loadu_epi32(two, w), b = _mm512_maskz_loadu_epi32(next ? two : 0, next);
    const __m512i h = _mm512_permutex2var_epi32(a, header, b), q = _mm512_permutex2var_epi32(a, nibbles, b);
    const __m512 d = halves(h), m = halves(_mm512_srli_epi32(h, 16));
    for (int t = 0; t < nt; t++) {
#if RL_BITS == 8
        const __m512 xd = spread_four(x[t].d + g, spread);
#else
        const __m512 xd = _mm512_set1_ps(x[t].d[g / 8]);
#endif
        const __m512 xs = spread_four(x[t].s + g, spread);
        sum[t] = _mm512_fmadd_ps(four_blocks(q, x[t].nibble + 32 * g, 1), _mm512_mul_ps(d, xd),
                                 _mm512_maskz_mul_ps(0x1111, m, xs));
    }
}

// Two blocks that are left at the ends of rows, added to what is kept of them: two rows at a time.
RL_INLINE void row_ends(const rows_part *a, const act_ptr *x, part_sums *folded, const int nt) {
    const size_t g = a->cols / 32 - 2;
    for (size_t r = 0; r < a->n_rows; r += 2) {
        const int pair = r + 1 < a->n_rows;
        __m512 end[4];
        const uint8_t *w = a->w + g * sizeof(rl_block_q4_1), *first = w + rl_row_at(r, a->apart) * a->row_bytes;
        last_two(first, pair ? w + rl_row_at(r + 1, a->apart) * a->row_bytes : NULL, x, g, end, nt);
        for (int t = 0; t < nt; t++) {
            add_to_row(&folded[t], r, _mm512_castps512_ps256(end[t]));
            if (pair) add_to_row(&folded[t], r + 1, _mm512_extractf32x8_ps(end[t], 1));
        }
    }
}

// As ask(), but far ahead.
RL_INLINE void ask_far(const rows_part *a, const uint8_t *w, size_t bytes) {
    if (!a->apart) prefetch_far(w, bytes);
}

RL_INLINE void rows_q4_1(const rows_part a, const int nt) {
    act_ptr x[4];
    for (int t = 0; t < nt; t++) x[t] = act_at(a.act, a.tok + (size_t)t);
    const size_t bytes = sizeof(rl_block_q4_1), n = a.cols / 32, alone = n % 4 == 2 ? n - 2 : n;
    part_sums folded[4];
    sums kept[RL_ROWS_AT_ONCE][4];
    RL_SPANS(a, 8 * bytes, g0, g1)
    for (size_t r = 0; r < a.n_rows; r++) {
        const uint8_t *w = row_of(&a, r, g0, g1, 8 * bytes);
        const size_t whole = g1 < n ? g1 : alone;
        sums s[4];
        for (int t = 0; t < nt; t++) {
            s[t].acc[0] = s[t].acc[1] = s[t].min = _mm512_setzero_ps();
            if (g0) s[t] = kept[r][t];
        }
        size_t g = g0;
        for (; g + 16 <= g1; g += 16, w += 16 * bytes) {
            ask_far(&a, w, 16 * bytes);
            sixteen(w, x, g, s, nt);
        }
        for (; g < whole; g += 4, w += 4 * bytes) {
            ask_far(&a, w, 64);
            up_to_four(w, g1 - g < 4 ? g1 - g : 4, x, g, s, nt);
        }
        if (g < g1) ask_far(&a, w, 64);
        for (int t = 0; t < nt; t++) {
            __m512 v = _mm512_add_ps(_mm512_add_ps(s[t].acc[0], s[t].acc[1]), s[t].min);
            if (g1 < n)
                kept[r][t] = s[t];
            else
                keep_row(&folded[t], r, add_halves(v));
        }
    }
    if (alone < n) row_ends(&a, x, folded, nt);
    put_out(&a, folded, nt);
}
RL_DRIVE(q4_1, rows_q4_1)

#endif
