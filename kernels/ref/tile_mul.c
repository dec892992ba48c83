// SPDX-License-Identifier: Apache-2.0
// Tile multiply, the definition of right. The order of float operations is that of tile.h
// and holds for every ISA; fmaf is exact fused arithmetic on any machine.
#include <math.h>

#include "kernels/tile.h"

// One row by one token of 8-bit (step 1) or 16-bit panels: exact sub-sum of n columns from column k. Worst
// case, 32 columns: 32 * 255 * 32,639 < 2^28 for int16, 32 * 255 * 127 < 2^20 for int8.
static int32_t sub8(const rl_tile *t, const rl_panel8 *p, size_t r, size_t s, size_t k, size_t n) {
    int32_t sum = 0;
    for (size_t i = k; i < k + n; i++) sum += t->q[i / 4][r][i % 4] * p->q[i / 4][s][i % 4];
    return sum;
}
static int32_t sub16(const rl_tile *t, const rl_panel16 *p, size_t r, size_t s, size_t k, size_t n) {
    static const uint8_t at[4] = {0, 2, 1, 3};
    int32_t sum = 0;
    for (size_t i = k; i < k + n; i++) sum += t->q[i / 4][r][i % 4] * p->q[i / 4][s][at[i % 4]];
    return sum;
}

#define MUL(NAME, PANEL, SUB, GROUP, BIASED, MINS)                                                                     \
    void rl_tile_mul_##NAME##_ref(const void *tile, const void *panels, size_t n_tok, size_t klen, float *c,           \
                                  const rl_ahead *ahead) {                                                             \
        (void)ahead;                                                                                                   \
        const rl_tile *w = tile;                                                                                       \
        for (size_t t = 0; t < n_tok; t++) {                                                                           \
            const PANEL *p = (const PANEL *)panels + t / RL_PANEL;                                                     \
            size_t s = t % RL_PANEL;                                                                                   \
            for (size_t r = 0; r < RL_TILE_ROWS; r++) {                                                                \
                float acc = c[t * RL_TILE_ROWS + r];                                                                   \
                for (size_t b = 0; b < klen / 32; b++) {                                                               \
                    if (GROUP == 32) {                                                                                 \
                        int32_t i = SUB(w, p, r, s, 32 * b, 32) + (BIASED ? p->off[b][s] : 0);                         \
                        acc = fmaf((float)i * w->d[b][r], p->d[b][s], acc);                                            \
                        if (MINS) acc = fmaf(w->m[b][r], p->s[b][s], acc);                                             \
                    } else {                                                                                           \
                        size_t g = 2 * b;                                                                              \
                        int32_t i0 = SUB(w, p, r, s, 32 * b, 16) + (BIASED ? p->off16[g][s] : 0);                      \
                        int32_t i1 = SUB(w, p, r, s, 32 * b + 16, 16) + (BIASED ? p->off16[g + 1][s] : 0);             \
                        float f = fmaf((float)i1, w->d[g + 1][r], (float)i0 * w->d[g][r]);                             \
                        acc = fmaf(f, p->d[b][s], acc);                                                                \
                        if (MINS) acc = fmaf(w->m[g][r], p->s16[g][s], acc);                                           \
                        if (MINS) acc = fmaf(w->m[g + 1][r], p->s16[g + 1][s], acc);                                   \
                    }                                                                                                  \
                }                                                                                                      \
                c[t * RL_TILE_ROWS + r] = acc;                                                                         \
            }                                                                                                          \
        }                                                                                                              \
    }

MUL(u8b128_g32_q8, rl_panel8, sub8, 32, 1, 0)
MUL(u5_g32_min_q8, rl_panel8, sub8, 32, 0, 1)
MUL(u6b32_g16_q8, rl_panel8, sub8, 16, 1, 0)
MUL(u5_g16_min_q8, rl_panel8, sub8, 16, 0, 1)
MUL(u8b128_g32_q16, rl_panel16, sub16, 32, 1, 0)
MUL(u5_g32_min_q16, rl_panel16, sub16, 32, 0, 1)
MUL(u6b32_g16_q16, rl_panel16, sub16, 16, 1, 0)
MUL(u5_g16_min_q16, rl_panel16, sub16, 16, 0, 1)

void rl_tile_mul_f32_ref(const void *tile, const void *panels, size_t n_tok, size_t klen, float *c,
                         const rl_ahead *ahead) {
    (void)ahead;
    const rl_ftile *w = tile;
    for (size_t t = 0; t < n_tok; t++) {
        const rl_panelf *p = (const rl_panelf *)panels + t / RL_PANEL;
        for (size_t r = 0; r < RL_TILE_ROWS; r++) {
            float sub = 0;
            for (size_t k = 0; k < klen; k++) sub = fmaf(w->w[k][r], p->x[k][t % RL_PANEL], sub);
            c[t * RL_TILE_ROWS + r] += sub;
        }
    }
}
