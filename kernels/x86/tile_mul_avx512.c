// SPDX-License-Identifier: Apache-2.0
// Tile multiply with AVX-512 VNNI: 32 rows by 6 tokens (3 where two scales per 32 columns need registers).
#if !defined(__AVX512VNNI__) || !defined(__AVX512BW__)
#error "compile this file with the flags of its tier"
#endif
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/unroll.h"

#define LANES 16
#define NR 2
#define NT32 6
#define NT16 3
#define VI __m512i
#define VF __m512
#define v_set1i(x) _mm512_set1_epi32(x)
#define v_set1f(x) _mm512_set1_ps(x)
#define v_loadf(p) _mm512_load_ps(p)
#define v_storef(p, x) _mm512_store_ps(p, x)
#define v_cvt(x) _mm512_cvtepi32_ps(x)
#define v_mul(a, b) _mm512_mul_ps(a, b)
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define sum8 vnni_sum8
#define sum16 vnni_sum16

static inline __attribute__((always_inline)) int32_t load32(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return v;
}

// acc[t][r] += unsigned bytes of w times signed bytes of x. vpdpbusd does not saturate: 32 columns reach at
// most 32 * 255 * 127 = 1,036,320, the bias takes it back to 32 * 128 * 127.
static inline __attribute__((always_inline)) void vnni_sum8(__m512i acc[][NR], const uint8_t *w, const int8_t *x,
                                                            int steps, int nt, int bits) {
    (void)bits;
    RL_UNROLL
    for (int i = 0; i < steps; i++, w += 128, x += 24) {
        __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 64);
        __asm__("" : "+v"(w0), "+v"(w1)); // or else gcc may load them again for each token, 7 % slower
        RL_UNROLL
        for (int t = 0; t < nt; t++) {
            __m512i v = _mm512_set1_epi32(load32(x + 4 * t));
            acc[t][0] = _mm512_dpbusd_epi32(acc[t][0], w0, v);
            acc[t][1] = _mm512_dpbusd_epi32(acc[t][1], w1, v);
        }
    }
}

// The same with 16-bit activations: bytes 0 and 2, then 1 and 3 of each group widened. At most
// 32 * 255 * 32,639 = 266,334,240.
static inline __attribute__((always_inline)) void vnni_sum16(__m512i acc[][NR], const uint8_t *w, const int16_t *x,
                                                             int steps, int nt, int bits) {
    (void)bits;
    const __m512i low = _mm512_set1_epi16(0xFF);
    RL_UNROLL
    for (int i = 0; i < steps; i++, w += 128, x += 24) {
        __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 64);
        __m512i e0 = _mm512_and_si512(w0, low), e1 = _mm512_and_si512(w1, low);
        __m512i o0 = _mm512_srli_epi16(w0, 8), o1 = _mm512_srli_epi16(w1, 8);
        RL_UNROLL
        for (int t = 0; t < nt; t++) {
            __m512i v = _mm512_set1_epi32(load32(x + 4 * t));
            acc[t][0] = _mm512_dpwssd_epi32(acc[t][0], e0, v);
            acc[t][1] = _mm512_dpwssd_epi32(acc[t][1], e1, v);
            v = _mm512_set1_epi32(load32(x + 4 * t + 2));
            acc[t][0] = _mm512_dpwssd_epi32(acc[t][0], o0, v);
            acc[t][1] = _mm512_dpwssd_epi32(acc[t][1], o1, v);
        }
    }
}

#include "kernels/tile_mul_body.h"

ALL_TILE_MULS(avx512)

void rl_tile_mul_f32_avx512(const void *tile, const void *panels, size_t n_tok, size_t klen, float *c,
                            const rl_ahead *ahead) {
    const rl_ftile *w = tile;
    for (size_t tok = 0; tok < n_tok; tok += RL_PANEL) {
        const rl_panelf *p = (const rl_panelf *)panels + tok / RL_PANEL;
        rl_look_ahead(ahead, p, sizeof *p, tok, n_tok);
        float *out = c + tok * RL_TILE_ROWS;
        size_t left = n_tok - tok;
        __m512 acc[RL_PANEL][2];
#define TOKENS(N)                                                                                                      \
    for (int t = 0; t < N; t++) acc[t][0] = acc[t][1] = _mm512_setzero_ps();                                           \
    for (size_t k = 0; k < klen; k++) {                                                                                \
        __m512 w0 = _mm512_load_ps(w->w[k]), w1 = _mm512_load_ps(w->w[k] + 16);                                        \
        RL_UNROLL                                                                                                      \
        for (int t = 0; t < N; t++) {                                                                                  \
            __m512 x = _mm512_set1_ps(p->x[k][t]);                                                                     \
            acc[t][0] = _mm512_fmadd_ps(w0, x, acc[t][0]);                                                             \
            acc[t][1] = _mm512_fmadd_ps(w1, x, acc[t][1]);                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    RL_UNROLL                                                                                                          \
    for (int t = 0; t < N; t++)                                                                                        \
        for (int r = 0; r < 2; r++) {                                                                                  \
            float *o = out + t * RL_TILE_ROWS + 16 * r;                                                                \
            _mm512_store_ps(o, _mm512_add_ps(_mm512_load_ps(o), acc[t][r]));                                           \
        }                                                                                                              \
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
