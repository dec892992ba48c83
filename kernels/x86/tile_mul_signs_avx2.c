// SPDX-License-Identifier: Apache-2.0
// Tile multiply with AVX2 for bytes of 8 bits. vpmaddubsw takes unsigned times signed bytes and saturates where
// two products pass 16 bits, as (q + 128) * x does. |q| * x does not, if x takes the sign of q: by vpsignb, which
// competes with the multiplications for their two ports of a Zen core, or by inverting the bits of x where q < 0,
// which may go to any port and makes x to -x - 1. What that is too little, |q| for each negative q, does not depend on
// x and is where the sums begin. So one tile is split into magnitudes and masks, once for all tokens.
#if !defined(__AVX2__) || !defined(__FMA__)
#error "compile this file with the flags of its tier"
#endif
#include "kernels/tile.h"
#include "kernels/x86/tile_256.h"

#if defined(__FAST_MATH__)
#error "the tile kernels rely on the order of float operations"
#endif

#define INLINE static inline __attribute__((always_inline))
#define STEPS (RL_TILE_K / 4)
#define NR 2 // row vectors of a block
#define TOKENS _Pragma("GCC unroll 6") for (int t = 0; t < nt; t++)
#define ROWS _Pragma("GCC unroll 2") for (int r = 0; r < NR; r++)

typedef struct {
    struct {
        uint8_t size[RL_TILE_ROWS][4]; // |q|
        uint8_t mask[RL_TILE_ROWS][4]; // 255 where q < 0
    } step[STEPS];
    int32_t start[RL_TILE_K / 32][RL_TILE_ROWS]; // sum of |q| over the negative q of 32 columns
} signs;

static void split(const rl_tile *w, size_t klen, signs *s) {
    const __m256i zero = _mm256_setzero_si256(), bias = _mm256_set1_epi8((char)128), one = _mm256_set1_epi16(1);
    for (size_t r = 0; r < RL_TILE_ROWS; r += LANES)
        for (size_t b = 0; b < klen / 32; b++) {
            __m256i pairs = zero; // at most 8 * 2 * 128
            for (size_t k = 8 * b; k < 8 * b + 8; k++) {
                __m256i q = _mm256_xor_si256(load_w(w->q[k][r]), bias), size = _mm256_abs_epi8(q);
                __m256i mask = _mm256_cmpgt_epi8(zero, q);
                _mm256_store_si256((__m256i *)(void *)s->step[k].size[r], size);
                _mm256_store_si256((__m256i *)(void *)s->step[k].mask[r], mask);
                // The signed operand is -1 where q < 0.
                pairs = _mm256_sub_epi16(pairs, _mm256_maddubs_epi16(size, mask));
            }
            _mm256_store_si256((__m256i *)(void *)s->start[b] + r / LANES, _mm256_madd_epi16(pairs, one));
        }
}

// 16 rows by nt tokens. A sum of two products lies between -2 * 128 * 128, which 16 bits hold, and 2 * 128 * 127.
INLINE void block(const rl_tile *w, const signs *s, size_t r0, const rl_panel8 *p, int nt, size_t klen, float *c) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256 acc[RL_PANEL][NR];
    TOKENS ROWS acc[t][r] = v_loadf(c + t * RL_TILE_ROWS + LANES * r);
    for (size_t b = 0; b < klen / 32; b++) {
        __m256i sum[RL_PANEL][NR];
        ROWS {
            __m256i start = _mm256_load_si256((const __m256i *)(const void *)(s->start[b] + r0) + r);
            TOKENS sum[t][r] = start;
        }
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++) {
            size_t k = 8 * b + i;
            __m256i size[NR], mask[NR];
            ROWS size[r] = load_w(s->step[k].size[r0 + LANES * r]);
            ROWS mask[r] = load_w(s->step[k].mask[r0 + LANES * r]);
            TOKENS {
                __m256i x = spread_x(p->q[k][t]);
                ROWS {
                    __m256i pairs = _mm256_maddubs_epi16(size[r], _mm256_xor_si256(x, mask[r]));
                    sum[t][r] = _mm256_add_epi32(sum[t][r], _mm256_madd_epi16(pairs, one));
                    KEEP(sum[t][r]);
                }
            }
        }
        ROWS {
            __m256 d = v_loadf(w->d[b] + r0 + LANES * r);
            TOKENS acc[t][r] = v_fma(v_mul(v_cvt(sum[t][r]), d), v_set1f(p->d[b][t]), acc[t][r]);
        }
    }
    TOKENS ROWS v_storef(c + t * RL_TILE_ROWS + LANES * r, acc[t][r]);
}

void rl_tile_mul_u8b128_g32_q8_avx2(const void *tile, const void *panels, size_t n_tok, size_t klen, float *c,
                                    const rl_ahead *ahead) {
    const rl_tile *w = tile;
    const rl_panel8 *p = panels;
    _Alignas(64) signs s;
    split(w, klen, &s);
    for (size_t tok = 0; tok < n_tok; tok += RL_PANEL, p++) {
        rl_look_ahead(ahead, p, sizeof *p, tok, n_tok);
        for (size_t r0 = 0; r0 < RL_TILE_ROWS; r0 += LANES * NR) {
            float *out = c + tok * RL_TILE_ROWS + r0;
#define CASE(N)                                                                                                        \
    case N:                                                                                                            \
        block(w, &s, r0, p, N, klen, out);                                                                             \
        break
            switch (n_tok - tok) {
                CASE(1);
                CASE(2);
                CASE(3);
                CASE(4);
                CASE(5);
            default:
                block(w, &s, r0, p, 6, klen, out);
            }
#undef CASE
        }
    }
}
