// SPDX-License-Identifier: Apache-2.0
// Tile multiply with AVX2: 16 rows by 3 tokens. vpmaddubsw adds two products in 16 bits and saturates, so each
// layout says how far its products may be summed before they are widened.
#if !defined(__AVX2__) || !defined(__FMA__)
#error "compile this file with the flags of its tier"
#endif
#include "kernels/x86/tile_256.h"

#define SIGNED_BYTES 1
#define sum8 avx2_sum8
#define sum16 avx2_sum16

// 16-bit sums of `chunk` steps, widened by a multiplication with 1:
//   bits 5: 4 steps, 4 * 2 * 31 * 127 = 31,496
//   bits 6: 2 steps, 2 * 2 * 63 * 127 = 32,004
//   bits 8: 1 step, as |w| times x with the sign of w: 2 * 128 * 127 = 32,512 (x is never -128)
// all below 32,767.
static inline __attribute__((always_inline)) void avx2_sum8(__m256i acc[][NR], const uint8_t *w, const int8_t *x,
                                                            int steps, int nt, int bits) {
    const __m256i one = _mm256_set1_epi16(1), top = _mm256_set1_epi8((char)0x80);
    const int chunk = bits == 5 ? 4 : bits == 6 ? 2 : 1;
#pragma GCC unroll 8
    for (int i = 0; i < steps; i += chunk) {
        __m256i pairs[NT32][NR];
#pragma GCC unroll 4
        for (int j = 0; j < chunk; j++, w += 128, x += 24) {
            __m256i w0 = load_w(w), w1 = load_w(w + 32), s0 = w0, s1 = w1;
            if (bits == 8) {
                s0 = _mm256_xor_si256(w0, top), s1 = _mm256_xor_si256(w1, top);
                w0 = _mm256_abs_epi8(s0), w1 = _mm256_abs_epi8(s1);
            }
#pragma GCC unroll 3
            for (int t = 0; t < nt; t++) {
                __m256i v = spread_x(x + 4 * t);
                __m256i p0 = _mm256_maddubs_epi16(w0, bits == 8 ? _mm256_sign_epi8(v, s0) : v);
                __m256i p1 = _mm256_maddubs_epi16(w1, bits == 8 ? _mm256_sign_epi8(v, s1) : v);
                pairs[t][0] = j ? _mm256_add_epi16(pairs[t][0], p0) : p0;
                pairs[t][1] = j ? _mm256_add_epi16(pairs[t][1], p1) : p1;
            }
        }
#pragma GCC unroll 3
        for (int t = 0; t < nt; t++)
            for (int r = 0; r < NR; r++) acc[t][r] = _mm256_add_epi32(acc[t][r], _mm256_madd_epi16(pairs[t][r], one));
    }
}

// 16-bit activations: bytes 0 and 2, then 1 and 3 of each group widened. 32 columns reach at most
// 32 * 255 * 16383 = 133,685,280.
static inline __attribute__((always_inline)) void avx2_sum16(__m256i acc[][NR], const uint8_t *w, const int16_t *x,
                                                             int steps, int nt, int bits) {
    (void)bits;
    const __m256i low = _mm256_set1_epi16(0xFF);
#pragma GCC unroll 8
    for (int i = 0; i < steps; i++, w += 128, x += 24) {
        __m256i w0 = load_w(w), w1 = load_w(w + 32);
        __m256i e0 = _mm256_and_si256(w0, low), e1 = _mm256_and_si256(w1, low);
        __m256i o0 = _mm256_srli_epi16(w0, 8), o1 = _mm256_srli_epi16(w1, 8);
#pragma GCC unroll 3
        for (int t = 0; t < nt; t++) {
            __m256i v = spread_x(x + 4 * t), u = spread_x(x + 4 * t + 2);
            acc[t][0] = _mm256_add_epi32(acc[t][0], _mm256_madd_epi16(e0, v));
            acc[t][1] = _mm256_add_epi32(acc[t][1], _mm256_madd_epi16(e1, v));
            acc[t][0] = _mm256_add_epi32(acc[t][0], _mm256_madd_epi16(o0, u));
            acc[t][1] = _mm256_add_epi32(acc[t][1], _mm256_madd_epi16(o1, u));
        }
    }
}

#include "kernels/x86/tile_mul.h"

ALL_TILE_MULS(avx2)

void rl_tile_mul_f32_avx2(const void *tile, const void *panels, size_t n_tok, size_t klen, float *c) {
    const rl_ftile *w = tile;
    for (size_t tok = 0; tok < n_tok; tok += RL_PANEL) {
        const rl_panelf *p = (const rl_panelf *)panels + tok / RL_PANEL;
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
