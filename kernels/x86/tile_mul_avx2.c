// SPDX-License-Identifier: Apache-2.0
// Tile multiply with AVX2: 8 rows by 6 tokens. vpmaddubsw adds two products in 16 bits and saturates, so each
// layout says how far its products may be summed before they are widened.
#if !defined(__AVX2__) || !defined(__FMA__)
#error "compile this file with the flags of its tier"
#endif
#include "kernels/x86/tile_256.h"

#define NR 1
#define NT32 6
#define NT16 6
#define NT_MAX 6
#define sum8 avx2_sum8
#define sum16 avx2_sum16

#define TOKENS _Pragma("GCC unroll 6") for (int t = 0; t < nt; t++)

// Bytes of up to 6 bits: 16-bit sums of `chunk` steps, widened by a multiplication with 1.
//   bits 5: 4 steps, 4 * 2 * 31 * 127 = 31,496
//   bits 6: 2 steps, 2 * 2 * 63 * 127 = 32,004
// Both below 32,767.
static inline __attribute__((always_inline)) void avx2_sum8(__m256i acc[][NR], const uint8_t *w, const int8_t *x,
                                                            int steps, int nt, int bits) {
    const __m256i one = _mm256_set1_epi16(1);
    const int chunk = bits == 5 ? 4 : 2;
#pragma GCC unroll 4
    for (int i = 0; i < steps; i += chunk) {
        __m256i pairs[NT_MAX];
#pragma GCC unroll 4
        for (int j = 0; j < chunk; j++, w += 128, x += 24) {
            __m256i v = load_w(w);
            TOKENS {
                __m256i p = _mm256_maddubs_epi16(v, spread_x(x + 4 * t));
                pairs[t] = j ? _mm256_add_epi16(pairs[t], p) : p;
                KEEP(pairs[t]);
            }
        }
        TOKENS {
            acc[t][0] = _mm256_add_epi32(acc[t][0], _mm256_madd_epi16(pairs[t], one));
            KEEP(acc[t][0]);
        }
    }
}

// 16-bit activations: bytes 0 and 2, then 1 and 3 of each group widened. 32 columns reach at most
// 32 * 255 * 32,639 = 266,334,240.
static inline __attribute__((always_inline)) void avx2_sum16(__m256i acc[][NR], const uint8_t *w, const int16_t *x,
                                                             int steps, int nt, int bits) {
    (void)bits;
    const __m256i low = _mm256_set1_epi16(0xFF);
#pragma GCC unroll 8
    for (int i = 0; i < steps; i++, w += 128, x += 24) {
        __m256i v = load_w(w), even = _mm256_and_si256(v, low), odd = _mm256_srli_epi16(v, 8);
        TOKENS {
            acc[t][0] = _mm256_add_epi32(acc[t][0], _mm256_madd_epi16(even, spread_x(x + 4 * t)));
            KEEP(acc[t][0]);
        }
        TOKENS {
            acc[t][0] = _mm256_add_epi32(acc[t][0], _mm256_madd_epi16(odd, spread_x(x + 4 * t + 2)));
            KEEP(acc[t][0]);
        }
    }
}
#undef TOKENS

#include "kernels/tile_mul_body.h"

SMALL_TILE_MULS(avx2) // bytes of 8 bits with 8-bit activations: tile_mul_signs_avx2.c

void rl_tile_mul_f32_avx2(const void *tile, const void *panels, size_t n_tok, size_t klen, float *c,
                          const rl_ahead *ahead) {
    const rl_ftile *w = tile;
    for (size_t tok = 0; tok < n_tok; tok += RL_PANEL) {
        const rl_panelf *p = (const rl_panelf *)panels + tok / RL_PANEL;
        rl_look_ahead(ahead, p, sizeof *p, tok, n_tok);
        size_t left = n_tok - tok;
        for (size_t r0 = 0; r0 < RL_TILE_ROWS; r0 += 16) {
            float *out = c + tok * RL_TILE_ROWS + r0;
            __m256 acc[RL_PANEL][2];
#define TOKENS(N)                                                                                                      \
    _Pragma("GCC unroll 6") for (int t = 0; t < N; t++) acc[t][0] = acc[t][1] = _mm256_setzero_ps();                   \
    for (size_t k = 0; k < klen; k++) {                                                                                \
        __m256 w0 = _mm256_load_ps(w->w[k] + r0), w1 = _mm256_load_ps(w->w[k] + r0 + 8);                               \
        _Pragma("GCC unroll 6") for (int t = 0; t < N; t++) {                                                          \
            __m256 x = _mm256_broadcast_ss(&p->x[k][t]);                                                               \
            acc[t][0] = _mm256_fmadd_ps(w0, x, acc[t][0]);                                                             \
            acc[t][1] = _mm256_fmadd_ps(w1, x, acc[t][1]);                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    _Pragma("GCC unroll 6") for (int t = 0; t < N; t++) for (int r = 0; r < 2; r++) {                                  \
        float *o = out + t * RL_TILE_ROWS + 8 * r;                                                                     \
        _mm256_store_ps(o, _mm256_add_ps(_mm256_load_ps(o), acc[t][r]));                                               \
    }                                                                                                                  \
    break
            switch (left < RL_PANEL ? left : RL_PANEL) {
            case 1:
                TOKENS(1);
            case 2:
                TOKENS(2);
            case 3:
                TOKENS(3);
            case 4:
                TOKENS(4);
            case 5:
                TOKENS(5);
            default:
                TOKENS(6);
            }
#undef TOKENS
        }
    }
}
