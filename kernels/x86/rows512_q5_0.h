// SPDX-License-Identifier: Apache-2.0
// Q5_0 in vectors of 512 bits. A block is eleven words (a scale, two of fifth bits, eight of nibbles), so permutes of
// words across two vectors put the nibbles of four blocks into one vector, and what stands before them into another:
// one block in each quarter. Activations are int8 in the order of nibble blocks (q8n): with int16 this gained nothing.
//
// Worst case: two dpbusd 2 * 4 * 31 * 127 = 31,496 a lane: exact in int32 and in float32.
#ifndef RL_KERNELS_X86_ROWS512_Q5_0_H
#define RL_KERNELS_X86_ROWS512_Q5_0_H

#include "kernels/x86/rows512.h"

#define BLOCK_BYTES 22

// Four blocks of weights from 0 to 31 in bytes, 16 a block in each: values 0..15, values 16..31. The first word of
// dword 1 of each quarter of `head` is the scale.
typedef struct {
    __m512i lo, hi, head;
} four;

// Permutes of four blocks whose words 0..31 are in a and 12..43 in b.
RL_INLINE four unpack(__m512i a, __m512i b) {
#define WORD(k) (short)((k) < 32 ? (k) : (k) + 20)
#define NIBBLES(k)                                                                                                     \
    WORD(k + 3), WORD(k + 4), WORD(k + 5), WORD(k + 6), WORD(k + 7), WORD(k + 8), WORD(k + 9), WORD(k + 10)
#define HEAD(k) WORD(k + 1), WORD(k + 2), WORD(k), WORD(k), WORD(k), WORD(k), WORD(k), WORD(k)
    static const short nibbles[32] = {NIBBLES(0), NIBBLES(11), NIBBLES(22), NIBBLES(33)};
    static const short heads[32] = {HEAD(0), HEAD(11), HEAD(22), HEAD(33)};
#undef HEAD
#undef NIBBLES
#undef WORD
    const __m512i low = _mm512_set1_epi8(15), sixteen = _mm512_set1_epi8(16);
    const __m512i bit = _mm512_set1_epi64((long long)0x8040201008040201ull);
    const __m512i byte_lo = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
    const __m512i byte_hi = _mm512_add_epi8(byte_lo, _mm512_set1_epi8(2));
    const __m512i q = _mm512_permutex2var_epi16(a, _mm512_loadu_si512(nibbles), b);
    const __m512i head = _mm512_permutex2var_epi16(a, _mm512_loadu_si512(heads), b);
    four v = {_mm512_and_si512(q, low), _mm512_and_si512(_mm512_srli_epi16(q, 4), low), head};
    v.lo = _mm512_mask_add_epi8(v.lo, _mm512_test_epi8_mask(_mm512_shuffle_epi8(head, byte_lo), bit), v.lo, sixteen);
    v.hi = _mm512_mask_add_epi8(v.hi, _mm512_test_epi8_mask(_mm512_shuffle_epi8(head, byte_hi), bit), v.hi, sixteen);
    return v;
}

RL_INLINE four four_blocks(const uint8_t *w) {
    return unpack(_mm512_loadu_si512(w), _mm512_loadu_si512(w + 4 * BLOCK_BYTES - 64));
}

// The last n blocks, 1 to 3, with others of zero behind them.
RL_INLINE four last_blocks(const uint8_t *w, size_t n) {
    uint8_t copy[4 * BLOCK_BYTES] = {0};
    memcpy(copy, w, n * BLOCK_BYTES);
    return four_blocks(copy);
}

// Products of four blocks with their activations: lanes 4i .. 4i + 3 for block i.
RL_INLINE __m512 products(const four *v, const rl_x *x) {
    __m512i s = _mm512_setzero_si512();
    s = _mm512_dpbusd_epi32(s, v->lo, _mm512_loadu_si512(x));
    s = _mm512_dpbusd_epi32(s, v->hi, _mm512_loadu_si512(x + 64));
    return _mm512_cvtepi32_ps(s);
}

// Sums of one token: two chains, and scale * sum of activations, of which 16 times are taken off at the end.
typedef struct {
    __m512 acc[2], offset;
} sums;

// The 16 blocks at w, which begin at block g.
RL_INLINE void sixteen_blocks(const uint8_t *w, const act_ptr *x, size_t g, sums *s, const int nt) {
    // Scales are merged as dword j of quarter i for block 4 j + i.
    const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i spread = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    four v[4];
    for (size_t j = 0; j < 4; j++) v[j] = four_blocks(w + 4 * BLOCK_BYTES * j);
    const __m512 h01 = _mm512_shuffle_ps(_mm512_castsi512_ps(v[0].head), _mm512_castsi512_ps(v[1].head), 0x55);
    const __m512 h23 = _mm512_shuffle_ps(_mm512_castsi512_ps(v[2].head), _mm512_castsi512_ps(v[3].head), 0x55);
    const __m512i h = _mm512_castps_si512(_mm512_shuffle_ps(h01, h23, 0x88));
    const __m512 d = _mm512_permutexvar_ps(in_order, halves(h));
    __m512 ds[4];
    for (int t = 0; t < nt; t++) {
        const __m512 xd = _mm512_loadu_ps(x[t].d + g);
        ds[t] = _mm512_mul_ps(d, xd);
        s[t].offset = _mm512_fmadd_ps(d, _mm512_loadu_ps(x[t].s + g), s[t].offset);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m512i lanes = _mm512_add_epi32(spread, _mm512_set1_epi32(4 * j));
        for (int t = 0; t < nt; t++)
            s[t].acc[j % 2] = _mm512_fmadd_ps(products(&v[j], x[t].nibble + 32 * (g + 4 * (size_t)j)),
                                              _mm512_permutexvar_ps(lanes, ds[t]), s[t].acc[j % 2]);
    }
}

// Four blocks, or what is left of them, that begin at block g.
RL_INLINE void some_blocks(const four v, const act_ptr *x, size_t g, sums *s, const int nt) {
    const __m512i spread = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512 d = halves(_mm512_shuffle_epi32(v.head, 0x55));
    for (int t = 0; t < nt; t++) {
        const __m512 xd = spread_four(x[t].d + g, spread);
        const __m512 xs = spread_four(x[t].s + g, spread);
        s[t].offset = _mm512_mask3_fmadd_ps(d, xs, s[t].offset, 0x1111);
        s[t].acc[0] = _mm512_fmadd_ps(products(&v, x[t].nibble + 32 * g), _mm512_mul_ps(d, xd), s[t].acc[0]);
    }
}

RL_INLINE void rows_q5_0(const rows_part a, const int nt) {
    act_ptr x[4];
    for (int t = 0; t < nt; t++) x[t] = act_at(a.act, a.tok + (size_t)t);
    const size_t n = a.cols / 32;
    part_sums folded[4];
    sums kept[RL_ROWS_AT_ONCE][4];
    RL_SPANS(a, 8 * BLOCK_BYTES, g0, g1)
    for (size_t r = 0; r < a.n_rows; r++) {
        const uint8_t *w = row_of(&a, r, g0, g1, 8 * BLOCK_BYTES);
        sums s[4];
        for (int t = 0; t < nt; t++) {
            s[t].acc[0] = s[t].acc[1] = s[t].offset = _mm512_setzero_ps();
            if (g0) s[t] = kept[r][t];
        }
        size_t g = g0;
        for (; g + 16 <= g1; g += 16, w += 16 * BLOCK_BYTES) {
            ask(&a, w, 16 * BLOCK_BYTES);
            sixteen_blocks(w, x, g, s, nt);
        }
        for (; g + 4 <= g1; g += 4, w += 4 * BLOCK_BYTES) {
            ask(&a, w, 4 * BLOCK_BYTES);
            some_blocks(four_blocks(w), x, g, s, nt);
        }
        if (g < g1) {
            ask(&a, w, 64);
            some_blocks(last_blocks(w, g1 - g), x, g, s, nt);
        }
        for (int t = 0; t < nt; t++) {
            const __m512 v = _mm512_fnmadd_ps(s[t].offset, _mm512_set1_ps(16), _mm512_add_ps(s[t].acc[0], s[t].acc[1]));
            if (g1 < n)
                kept[r][t] = s[t];
            else
                keep_row(&folded[t], r, add_halves(v));
        }
    }
    put_out(&a, folded, nt);
}
RL_DRIVE(q5_0, rows_q5_0)

#endif
