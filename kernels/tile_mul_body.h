// SPDX-License-Identifier: Apache-2.0
// The tile multiply, written once; the including file gives the vector width and the exact integer
// sub-sum of its ISA. Not a general header: included once per ISA file, after these are defined:
//
//   LANES, NR                  32-bit lanes of a vector, row vectors in a register block
//   NT32, NT16                 tokens in a register block for groups of 32 and of 16 columns
//   VI, VF                     integer and float vectors
//   v_set1i, v_set1f, v_loadf, v_storef, v_cvt, v_mul, v_fma
//   OFF32(p, b)                optional: 0 where sum8 and sum16 subtract the bias of u8b128 themselves
//   sum8(acc, w, x, steps, nt, bits), sum16(...): acc[t][r] += the exact sum over `steps` steps of 4 columns
#include "kernels/tile.h"
#include "kernels/unroll.h"

#if defined(__FAST_MATH__)
#error "the tile kernels rely on the order of float operations"
#endif

#ifndef OFF32
#define OFF32(p, b) (p)->off[b]
#endif

#define INLINE static inline __attribute__((always_inline))

#ifndef NT_MAX
#define NT_MAX (NT32 > NT16 ? NT32 : NT16)
#endif

// Everything the body needs of a panel, for both widths of activations.
typedef struct {
    const void *q; // steps of RL_PANEL groups of 4 values
    const float (*d)[RL_PANEL], (*s)[RL_PANEL], (*s16)[RL_PANEL];
    const int32_t (*off)[RL_PANEL], (*off16)[RL_PANEL];
} panel;

INLINE void group_sum(VI acc[][NR], const rl_tile *w, size_t r0, const panel *p, size_t t0, int nt, size_t step,
                      int steps, int wide, const int32_t *off, int bits) {
    RL_UNROLL
    for (int t = 0; t < nt; t++) {
        VI init = off ? v_set1i(off[t0 + t]) : v_set1i(0);
        for (int r = 0; r < NR; r++) acc[t][r] = init;
    }
    const uint8_t *wq = w->q[step][r0];
    if (wide)
        sum16(acc, wq, (const int16_t *)p->q + (step * RL_PANEL + t0) * 4, steps, nt, bits);
    else
        sum8(acc, wq, (const int8_t *)p->q + (step * RL_PANEL + t0) * 4, steps, nt, bits);
}

// The sums of 32 columns with one scale. All of a token before the next, so that the multiplications of one fill the
// gaps of another's: operation by operation takes 3 % more time where they share a port with the sums.
INLINE void add_g32(VF acc[][NR], const rl_tile *w, size_t r0, const panel *p, size_t t0, int nt, size_t b, int wide,
                    int biased, int mins, int bits) {
    VI i[NT_MAX][NR];
    VF d[NR], m[NR];
    group_sum(i, w, r0, p, t0, nt, 8 * b, 8, wide, biased ? OFF32(p, b) : 0, bits);
    for (int r = 0; r < NR; r++) {
        d[r] = v_loadf(w->d[b] + r0 + LANES * r);
        if (mins) m[r] = v_loadf(w->m[b] + r0 + LANES * r);
    }
    RL_UNROLL
    for (int t = 0; t < nt; t++)
        for (int r = 0; r < NR; r++) {
            VF sub = v_mul(v_cvt(i[t][r]), d[r]);
            acc[t][r] = v_fma(sub, v_set1f(p->d[b][t0 + t]), acc[t][r]);
            if (mins) acc[t][r] = v_fma(m[r], v_set1f(p->s[b][t0 + t]), acc[t][r]);
        }
}

// The sums of 32 columns with two scales.
INLINE void add_g16(VF acc[][NR], const rl_tile *w, size_t r0, const panel *p, size_t t0, int nt, size_t b, int wide,
                    int biased, int mins, int bits) {
    VI i[NT_MAX][NR];
    VF f[NT_MAX][NR];
    const size_t first = 2 * b, last = first + 1; // of 16 columns
    group_sum(i, w, r0, p, t0, nt, 4 * first, 4, wide, biased ? p->off16[first] : 0, bits);
    for (int r = 0; r < NR; r++) {
        VF d = v_loadf(w->d[first] + r0 + LANES * r);
        RL_UNROLL
        for (int t = 0; t < nt; t++) f[t][r] = v_mul(v_cvt(i[t][r]), d);
    }
    group_sum(i, w, r0, p, t0, nt, 4 * last, 4, wide, biased ? p->off16[last] : 0, bits);
    for (int r = 0; r < NR; r++) {
        VF d = v_loadf(w->d[last] + r0 + LANES * r);
        RL_UNROLL
        for (int t = 0; t < nt; t++) f[t][r] = v_fma(v_cvt(i[t][r]), d, f[t][r]);
    }
    RL_UNROLL
    for (int t = 0; t < nt; t++)
        for (int r = 0; r < NR; r++) acc[t][r] = v_fma(f[t][r], v_set1f(p->d[b][t0 + t]), acc[t][r]);
    if (!mins) return;
    RL_UNROLL
    for (size_t g = first; g <= last; g++)
        for (int r = 0; r < NR; r++) {
            VF m = v_loadf(w->m[g] + r0 + LANES * r);
            RL_UNROLL
            for (int t = 0; t < nt; t++) acc[t][r] = v_fma(m, v_set1f(p->s16[g][t0 + t]), acc[t][r]);
        }
}

// c[t][r] for nt tokens of a panel and NR vectors of rows.
INLINE void block(const rl_tile *w, size_t r0, const panel *p, size_t t0, int nt, size_t klen, float *c, int wide,
                  int group, int biased, int mins) {
    VF acc[NT_MAX][NR];
    RL_UNROLL
    for (int t = 0; t < nt; t++)
        for (int r = 0; r < NR; r++) acc[t][r] = v_loadf(c + (size_t)t * RL_TILE_ROWS + LANES * r);
    const int bits = !biased ? 5 : group == 16 ? 6 : 8; // of the weight bytes
    for (size_t b = 0; b < klen / 32; b++) {
#ifdef RL_LOOP // kernels/arm/loop.h
        RL_LOOP(nt, 32 * LANES * NR);
#endif
        if (group == 32)
            add_g32(acc, w, r0, p, t0, nt, b, wide, biased, mins, bits);
        else
            add_g16(acc, w, r0, p, t0, nt, b, wide, biased, mins, bits);
    }
    RL_UNROLL
    for (int t = 0; t < nt; t++)
        for (int r = 0; r < NR; r++) v_storef(c + (size_t)t * RL_TILE_ROWS + LANES * r, acc[t][r]);
}

// Tokens tok..tok + n, of one panel and at most a register block; n is a constant where this is called.
INLINE void panel_tokens(const rl_tile *w, const void *panels, size_t tok, int n, size_t n_tok, size_t klen, float *c,
                         const rl_ahead *ahead, int wide, int group, int biased, int mins) {
    size_t t0 = tok % RL_PANEL;
    panel p;
    if (wide) {
        const rl_panel16 *q = (const rl_panel16 *)panels + tok / RL_PANEL;
        if (t0 == 0) rl_look_ahead(ahead, q, sizeof *q, tok, n_tok);
        p = (panel){q->q, q->d, q->s, q->s16, q->off, q->off16};
    } else {
        const rl_panel8 *q = (const rl_panel8 *)panels + tok / RL_PANEL;
        if (t0 == 0) rl_look_ahead(ahead, q, sizeof *q, tok, n_tok);
        p = (panel){q->q, q->d, q->s, q->s16, q->off, q->off16};
    }
    for (size_t r0 = 0; r0 < RL_TILE_ROWS; r0 += LANES * NR)
        block(w, r0, &p, t0, n, klen, c + tok * RL_TILE_ROWS + r0, wide, group, biased, mins);
}

INLINE void mul(const rl_tile *w, const void *panels, size_t n_tok, size_t klen, float *c, const rl_ahead *ahead,
                int wide, int group, int biased, int mins) {
    const int nt = group == 32 ? NT32 : NT16;
    size_t tok = 0;
    for (; tok + (size_t)nt <= n_tok; tok += (size_t)nt)
        panel_tokens(w, panels, tok, nt, n_tok, klen, c, ahead, wide, group, biased, mins);
#define CASE(N)                                                                                                        \
    case N:                                                                                                            \
        if (N < nt) panel_tokens(w, panels, tok, N, n_tok, klen, c, ahead, wide, group, biased, mins);                 \
        break
    switch (n_tok - tok) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
    }
#undef CASE
}

#define MUL(NAME, ISA, WIDE, GROUP, BIASED, MINS)                                                                      \
    void rl_tile_mul_##NAME##_##ISA(const void *tile, const void *panels, size_t n_tok, size_t klen, float *c,         \
                                    const rl_ahead *ahead) {                                                           \
        mul(tile, panels, n_tok, klen, c, ahead, WIDE, GROUP, BIASED, MINS);                                           \
    }

#define ALL_TILE_MULS(ISA)                                                                                             \
    MUL(u8b128_g32_q8, ISA, 0, 32, 1, 0)                                                                               \
    SMALL_TILE_MULS(ISA)

// Without the layout whose products may not fit 16 bits in pairs.
#define SMALL_TILE_MULS(ISA)                                                                                           \
    MUL(u5_g32_min_q8, ISA, 0, 32, 0, 1)                                                                               \
    MUL(u6b32_g16_q8, ISA, 0, 16, 1, 0)                                                                                \
    MUL(u5_g16_min_q8, ISA, 0, 16, 0, 1)                                                                               \
    MUL(u8b128_g32_q16, ISA, 1, 32, 1, 0)                                                                              \
    MUL(u5_g32_min_q16, ISA, 1, 32, 0, 1)                                                                              \
    MUL(u6b32_g16_q16, ISA, 1, 16, 1, 0)                                                                               \
    MUL(u5_g16_min_q16, ISA, 1, 16, 0, 1)
