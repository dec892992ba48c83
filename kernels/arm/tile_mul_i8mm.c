// SPDX-License-Identifier: Apache-2.0
// Tile multiply with smmla: 8 rows by 6 tokens, 8 columns at a time. One instruction takes 2 rows by 2 tokens, so a
// single token goes by sdot. int16 activations are taken as two bytes, in two passes over the same weights.
#if !defined(__ARM_FEATURE_MATMUL_INT8) || !defined(__ARM_FEATURE_DOTPROD)
#error "needs i8mm and dotprod"
#endif
#include "kernels/arm/tile_mul.h"

#define NR 2
#define sum8 i8mm_sum8
#define sum16 i8mm_sum16

#include "kernels/arm/tile_dot.h"

// 8 columns of two rows (or tokens) each from two steps of 4 columns of four.
static inline __attribute__((always_inline)) int8x16_t first2(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s32(vzip1q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
}
static inline __attribute__((always_inline)) int8x16_t last2(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s32(vzip2q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
}

// Adds to acc. An odd last token is paired with its neighbour in the panel, whose sums are dropped.
static inline __attribute__((always_inline)) void mm_steps(int32x4_t acc[][NR], const uint8_t *w, const void *x,
                                                           int steps, int nt, int bits, const int part) {
    if (nt == 1) {
        dot_steps(acc, w, x, steps, nt, bits, part);
        return;
    }
    const size_t step_x = 4 * RL_PANEL * (part == BYTES ? 1 : 2);
    int32x4_t s[3][NR][2]; // of tokens 2p, 2p + 1 with rows 0, 1 and with rows 2, 3
    for (int p = 0; p < 3; p++)
        for (int r = 0; r < NR; r++) s[p][r][0] = s[p][r][1] = vdupq_n_s32(0);
#pragma GCC unroll 4
    for (int i = 0; i < steps; i += 2, w += 2 * STEP_W) {
        const char *at = (const char *)x + (size_t)i * step_x;
        tokens a = fetch(at, part), b = fetch(at + step_x, part);
        int8x16_t q[3] = {first2(a.first, b.first), last2(a.first, b.first), first2(a.last, b.last)};
#pragma GCC unroll 2
        for (int r = 0; r < NR; r++) {
            int8x16_t u = weights(w + 16 * r, bits), v = weights(w + STEP_W + 16 * r, bits);
            int8x16_t top = first2(u, v), bottom = last2(u, v);
#pragma GCC unroll 3
            for (int p = 0; 2 * p < nt; p++) {
                s[p][r][0] = vmmlaq_s32(s[p][r][0], top, q[p]);
                s[p][r][1] = vmmlaq_s32(s[p][r][1], bottom, q[p]);
            }
        }
    }
#pragma GCC unroll 6
    for (int t = 0; t < nt; t++)
        for (int r = 0; r < NR; r++) {
            int32x4_t *m = s[t / 2][r];
            acc[t][r] = vaddq_s32(acc[t][r], t % 2 ? vuzp2q_s32(m[0], m[1]) : vuzp1q_s32(m[0], m[1]));
        }
}

static inline __attribute__((always_inline)) void i8mm_sum8(int32x4_t acc[][NR], const uint8_t *w, const int8_t *x,
                                                            int steps, int nt, int bits) {
    mm_steps(acc, w, x, steps, nt, bits, BYTES);
}

static inline __attribute__((always_inline)) void i8mm_sum16(int32x4_t acc[][NR], const uint8_t *w, const int16_t *x,
                                                             int steps, int nt, int bits) {
    int32x4_t high[NT_MAX][NR];
    each_sum(high[t][r] = vdupq_n_s32(0));
    mm_steps(high, w, x, steps, nt, bits, HIGH);
    each_sum(acc[t][r] = vaddq_s32(acc[t][r], vshlq_n_s32(high[t][r], 8)));
    mm_steps(acc, w, x, steps, nt, bits, LOW);
}

#include "kernels/tile_mul_body.h"

ALL_TILE_MULS(i8mm)
