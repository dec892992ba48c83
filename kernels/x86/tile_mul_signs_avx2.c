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
#define NT 4 // tokens of a block: with more of either, sums would wait in memory
// Keeps what makes x where it is written, among others like it.
#define IN_ORDER(x) __asm__ volatile("" : "+x"(x))
#define TOKENS _Pragma("GCC unroll 4") for (int t = 0; t < nt; t++)
#define ROWS _Pragma("GCC unroll 2") for (int r = 0; r < NR; r++)

// The bits of 1.5 * 2^23. Added to a sum below 2^22 in magnitude (here 32 * 128 * 127 at most), they are the bits of
// the float 1.5 * 2^23 + sum. So where 1.5 * 2^23 * d is no rounded number, as with each d of half precision and a few
// bits more, one multiply-add gives what converting the sum and multiplying it by d would, rounded once like that.
#define FLOAT_ZERO 0x4B400000
#define FLOAT_OFFSET 12582912.0f

typedef struct {
    struct {
        uint8_t size[LANES][4]; // |q|
        uint8_t mask[LANES][4]; // 255 where q < 0
    } step[STEPS][RL_TILE_ROWS / LANES];
    int32_t start[RL_TILE_K / 32][RL_TILE_ROWS]; // FLOAT_ZERO + the sum of |q| over the negative q of 32 columns
    float lift[RL_TILE_K / 32][RL_TILE_ROWS];    // -FLOAT_OFFSET * d
    bool exact;                                  // no lift was rounded
} signs;

static void split(const rl_tile *w, size_t klen, signs *s) {
    const __m256i zero = _mm256_setzero_si256(), bias = _mm256_set1_epi8((char)128), one = _mm256_set1_epi16(1);
    const __m256 offset = v_set1f(-FLOAT_OFFSET);
    __m256 rounded = _mm256_setzero_ps();
    for (size_t r = 0; r < RL_TILE_ROWS; r += LANES)
        for (size_t b = 0; b < klen / 32; b++) {
            __m256i pairs = zero; // at most 8 * 2 * 128
            for (size_t k = 8 * b; k < 8 * b + 8; k++) {
                __m256i q = _mm256_xor_si256(load_w(w->q[k][r]), bias), size = _mm256_abs_epi8(q);
                __m256i mask = _mm256_cmpgt_epi8(zero, q);
                _mm256_store_si256((__m256i *)(void *)s->step[k][r / LANES].size, size);
                _mm256_store_si256((__m256i *)(void *)s->step[k][r / LANES].mask, mask);
                // The signed operand is -1 where q < 0.
                pairs = _mm256_sub_epi16(pairs, _mm256_maddubs_epi16(size, mask));
            }
            __m256i start = _mm256_add_epi32(_mm256_madd_epi16(pairs, one), v_set1i(FLOAT_ZERO));
            _mm256_store_si256((__m256i *)(void *)s->start[b] + r / LANES, start);
            __m256 d = v_loadf(w->d[b] + r), lift = v_mul(offset, d);
            v_storef(s->lift[b] + r, lift);
            __m256 rest = _mm256_fmsub_ps(offset, d, lift);
            rounded = _mm256_or_ps(rounded, _mm256_cmp_ps(rest, _mm256_setzero_ps(), _CMP_NEQ_UQ));
        }
    s->exact = _mm256_testz_ps(rounded, rounded);
}

// x with the signs of 8 rows. The mask is read where it is used, since all registers are taken; in order, as IN_ORDER.
INLINE __m256i with_signs(__m256i x, const uint8_t mask[LANES][4]) {
    __m256i y;
    __asm__ volatile("vpxor %2, %1, %0" : "=x"(y) : "x"(x), "m"(*(const __m256i *)(const void *)mask));
    return y;
}

// What a block reads of its tokens: two of them lie in one panel, the next two perhaps in the next one.
typedef struct {
    const rl_panel8 *panel;
    size_t slot;
} pair;

// 16 rows by nt tokens. A sum of two products lies between -2 * 128 * 128, which 16 bits hold, and 2 * 128 * 127.
// Like operations stand side by side: a Zen core hands neighbours to different ports, of which two of four multiply.
INLINE void block(const rl_tile *w, const signs *s, size_t r0, const pair p[2], int nt, size_t klen, float *c,
                  bool exact) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256 acc[NT][NR];
    TOKENS ROWS acc[t][r] = v_loadf(c + t * RL_TILE_ROWS + LANES * r);
    for (size_t b = 0; b < klen / 32; b++) {
        __m256i sum[NT][NR];
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++) {
            size_t k = 8 * b + i;
            const uint8_t(*mask[NR])[4];
            __m256i size[NR];
            ROWS {
                size[r] = load_w(s->step[k][r0 / LANES + r].size[0]);
                mask[r] = s->step[k][r0 / LANES + r].mask;
            }
#pragma GCC unroll 2
            for (int t0 = 0; t0 < nt; t0 += 2) {
                const int n = nt - t0 < 2 ? nt - t0 : 2;
#define EACH _Pragma("GCC unroll 2") for (int t = 0; t < n; t++) ROWS
                __m256i y[2][NR];
#pragma GCC unroll 2
                for (int t = 0; t < n; t++) {
                    __m256i x = spread_x(p[t0 / 2].panel->q[k][p[t0 / 2].slot + (size_t)t]);
                    ROWS y[t][r] = with_signs(x, mask[r]);
                }
                EACH {
                    y[t][r] = _mm256_maddubs_epi16(size[r], y[t][r]);
                    IN_ORDER(y[t][r]);
                }
                EACH {
                    y[t][r] = _mm256_madd_epi16(y[t][r], one);
                    IN_ORDER(y[t][r]);
                }
                EACH {
                    __m256i before =
                        i ? sum[t0 + t][r] : _mm256_load_si256((const __m256i *)(const void *)(s->start[b] + r0) + r);
                    sum[t0 + t][r] = _mm256_add_epi32(before, y[t][r]);
                    IN_ORDER(sum[t0 + t][r]);
                }
#undef EACH
            }
        }
        ROWS {
            __m256 d = v_loadf(w->d[b] + r0 + LANES * r), lift = v_loadf(s->lift[b] + r0 + LANES * r);
            TOKENS {
                __m256 f = _mm256_castsi256_ps(sum[t][r]);
                f = exact ? v_fma(f, d, lift) : v_mul(_mm256_sub_ps(f, v_set1f(FLOAT_OFFSET)), d);
                acc[t][r] = v_fma(f, v_set1f(p[t / 2].panel->d[b][p[t / 2].slot + (size_t)t % 2]), acc[t][r]);
            }
        }
    }
    TOKENS ROWS v_storef(c + t * RL_TILE_ROWS + LANES * r, acc[t][r]);
}

INLINE void multiply(const rl_tile *w, const signs *s, const rl_panel8 *panels, size_t n_tok, size_t klen, float *c,
                     const rl_ahead *ahead, bool exact) {
    for (size_t tok = 0; tok < n_tok; tok += NT) {
        size_t next = (tok + 2) / RL_PANEL; // two blocks of three begin a panel
        if (tok % (2 * RL_PANEL) != 2 * NT && next * RL_PANEL < n_tok)
            rl_look_ahead(ahead, panels + next, sizeof *panels, next * RL_PANEL, n_tok);
        const pair p[2] = {{panels + tok / RL_PANEL, tok % RL_PANEL}, {panels + next, (tok + 2) % RL_PANEL}};
        for (size_t r0 = 0; r0 < RL_TILE_ROWS; r0 += LANES * NR) {
            float *out = c + tok * RL_TILE_ROWS + r0;
#define CASE(N)                                                                                                        \
    case N:                                                                                                            \
        block(w, s, r0, p, N, klen, out, exact);                                                                       \
        break
            switch (n_tok - tok) {
                CASE(1);
                CASE(2);
                CASE(3);
            default:
                block(w, s, r0, p, NT, klen, out, exact);
            }
#undef CASE
        }
    }
}

void rl_tile_mul_u8b128_g32_q8_avx2(const void *tile, const void *panels, size_t n_tok, size_t klen, float *c,
                                    const rl_ahead *ahead) {
    _Alignas(64) signs s;
    split(tile, klen, &s);
    if (s.exact)
        multiply(tile, &s, panels, n_tok, klen, c, ahead, true);
    else
        multiply(tile, &s, panels, n_tok, klen, c, ahead, false);
}
