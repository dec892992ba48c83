// SPDX-License-Identifier: Apache-2.0
// Q4_K and Q5_K in vectors of 512 bits: 64 bytes hold four groups of 32, low halves g0 and g2, high halves g1 and g3,
// and the activations come in that order (q8p, q16p). A superblock is four vectors of two groups; the 8 scales
// d * sub-scale * activation scale are permuted onto their lanes.
//
// Worst cases: int8 dpbusd 4 * 31 * 127 = 15,748 a lane; int16 two dpwssd 4 * 31 * 32,639 = 4,047,236 a lane: both
// exact in int32 and in float32.
#ifndef RL_KERNELS_X86_ROWS512_Q4K_H
#define RL_KERNELS_X86_ROWS512_Q4K_H

#include "kernels/x86/rows512.h"

RL_INLINE __m512i load512(const void *p) {
    return _mm512_loadu_si512(p);
}

// Products of 64 weights in bytes with the activations at x: lanes 0..7 for the first group, 8..15 for the second.
RL_INLINE __m512 dot512(__m512i w, const rl_x *x) {
    __m512i s = _mm512_setzero_si512();
#if RL_BITS == 8
    s = _mm512_dpbusd_epi32(s, w, load512(x));
#else
    s = _mm512_dpwssd_epi32(s, _mm512_and_si512(w, _mm512_set1_epi16(255)), load512(x));
    s = _mm512_dpwssd_epi32(s, _mm512_srli_epi16(w, 8), load512(x + 64));
#endif
    return _mm512_cvtepi32_ps(s);
}

#if RL_BITS == 8
#define SECOND 64 // values between the low halves of 64 bytes and the high ones
#else
#define SECOND 32
#endif

// The 64 bytes at `qs` of half a superblock; with fifth bits from qh (32 bytes, bit g for group g of 8).
RL_INLINE void half512(const uint8_t *qs, const __m512i qh, const int five, const int half, __m512i *lo, __m512i *hi) {
    const __m512i mask = _mm512_set1_epi8(15), sixteen = _mm512_set1_epi8(16);
    __m512i q = load512(qs);
    __asm__("" : "+v"(q)); // load once: see weights()
    *lo = _mm512_and_si512(q, mask);
    *hi = _mm512_and_si512(_mm512_srli_epi16(q, 4), mask);
    if (!five) return;
    const __m256i b0 = _mm256_set1_epi8((char)(1 << (4 * half))), b2 = _mm256_set1_epi8((char)(4 << (4 * half)));
    const __m512i bit = _mm512_inserti64x4(_mm512_castsi256_si512(b0), b2, 1), next = _mm512_slli_epi16(bit, 1);
    *lo = _mm512_mask_add_epi8(*lo, _mm512_test_epi8_mask(qh, bit), *lo, sixteen);
    *hi = _mm512_mask_add_epi8(*hi, _mm512_test_epi8_mask(qh, next), *hi, sixteen);
}

RL_INLINE void rows512(const int five, const rows_part a, const int nt) {
    const size_t bytes = five ? sizeof(rl_block_q5_k) : sizeof(rl_block_q4_k), qs = five ? 48 : 16;
    const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
    const __m512i one = _mm512_set1_epi32(1), four = _mm512_set1_epi32(4);
    const __m512i lane[4] = {first, _mm512_add_epi32(first, one), _mm512_add_epi32(first, four),
                             _mm512_add_epi32(_mm512_add_epi32(first, one), four)};
    act_ptr x[4];
    const rl_x *paired[4];
    for (int t = 0; t < nt; t++) {
        x[t] = act_at(a.act, a.tok + (size_t)t);
        paired[t] = (RL_BITS == 8 ? (const rl_x *)a.act->q8p : (const rl_x *)a.act->q16p) + (a.tok + t) * a.act->ld_q;
    }
    part_sums sums[4];
    struct {
        __m512 acc[4][2];
        __m256 min[4];
    } kept[RL_ROWS_AT_ONCE];
    RL_SPANS(a, bytes, g0, g1)
    for (size_t r = 0; r < a.n_rows; r++) {
        const uint8_t *w = row_of(&a, r, g0, g1, bytes);
        __m512 acc[4][2];
        __m256 min[4];
        for (int t = 0; t < nt; t++) {
            for (int i = 0; i < 2; i++) acc[t][i] = g0 ? kept[r].acc[t][i] : _mm512_setzero_ps();
            min[t] = g0 ? kept[r].min[t] : _mm256_setzero_ps();
        }
        for (size_t g = g0; g < g1; g += 8, w += bytes) {
            ask(&a, w, bytes);
            const scales sc = scales_k4(w);
            const __m512i qh = five ? _mm512_broadcast_i64x4(load256(w + 16)) : _mm512_setzero_si512();
            __m512i v[4];
            half512(w + qs, qh, five, 0, &v[0], &v[1]);
            half512(w + qs + 64, qh, five, 1, &v[2], &v[3]);
            for (int t = 0; t < nt; t++) {
                const rl_x *p = paired[t] + 32 * g;
                const __m512 ds = _mm512_castps256_ps512(_mm256_mul_ps(sc.s0, act_scales(&x[t], g)));
                min[t] = _mm256_fnmadd_ps(sc.m, _mm256_loadu_ps(x[t].s + g), min[t]);
#define STEP(k, at)                                                                                                    \
    acc[t][k % 2] = _mm512_fmadd_ps(dot512(v[k], p + (at)), _mm512_permutexvar_ps(lane[k], ds), acc[t][k % 2])
                STEP(0, 0);
                STEP(1, SECOND);
                STEP(2, 128);
                STEP(3, 128 + SECOND);
#undef STEP
            }
        }
        for (int t = 0; t < nt && g1 < a.cols / 32; t++) {
            for (int i = 0; i < 2; i++) kept[r].acc[t][i] = acc[t][i];
            kept[r].min[t] = min[t];
        }
        for (int t = 0; t < nt; t++) {
            __m256 h = add_halves(_mm512_add_ps(acc[t][0], acc[t][1]));
            keep_row(&sums[t], r, _mm256_add_ps(h, min[t]));
        }
    }
    put_out(&a, sums, nt);
}

RL_INLINE void rows_q4k(const rows_part a, const int nt) {
    rows512(0, a, nt);
}
RL_INLINE void rows_q5k(const rows_part a, const int nt) {
    rows512(1, a, nt);
}
RL_DRIVE(q4k, rows_q4k)
RL_DRIVE(q5k, rows_q5k)

#endif
