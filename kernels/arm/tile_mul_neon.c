// SPDX-License-Identifier: Apache-2.0
// Tile multiply with NEON of ARMv8.0: 4 rows by 6 tokens. Products of bytes are summed in 16 bits as far as each
// layout allows before they are widened:
//   bits 5: 8 steps, 8 * 31 * 127 = 31,496
//   bits 6: 4 steps, 4 * 63 * 127 = 32,004
//   bits 8, signed: 2 steps, 2 * 128 * 127 = 32,512
#include "kernels/arm/tile_mul.h"

#define NR 1
#define sum8 neon_sum8
#define sum16 neon_sum16

#define TOKENS _Pragma("GCC unroll 6") for (int t = 0; t < nt; t++)

static inline __attribute__((always_inline)) void neon_sum8(int32x4_t acc[][NR], const uint8_t *w, const int8_t *x,
                                                            int steps, int nt, int bits) {
    const int limit = bits == 5 ? 8 : bits == 6 ? 4 : 2, chunk = steps < limit ? steps : limit;
#pragma GCC unroll 4
    for (int i = 0; i < steps; i += chunk) {
        int16x8_t lo[NT_MAX], hi[NT_MAX]; // rows 0 and 1, rows 2 and 3
#pragma GCC unroll 8
        for (int j = 0; j < chunk; j++, w += STEP_W, x += 4 * RL_PANEL) {
            int8x16_t v = weights(w, bits);
            TOKENS {
                int8x16_t q = vreinterpretq_s8_s32(vld1q_dup_s32((const int32_t *)(const void *)(x + 4 * t)));
                lo[t] = j ? vmlal_s8(lo[t], vget_low_s8(v), vget_low_s8(q)) : vmull_s8(vget_low_s8(v), vget_low_s8(q));
                hi[t] = j ? vmlal_high_s8(hi[t], v, q) : vmull_high_s8(v, q);
            }
        }
        TOKENS acc[t][0] = vaddq_s32(acc[t][0], vpaddq_s32(vpaddlq_s16(lo[t]), vpaddlq_s16(hi[t])));
    }
}

// Bytes 0 and 2, then 1 and 3 of each group widened, as the panel has its columns. 32 columns reach at most
// 32 * 128 * 32,639 = 133,689,344 < 2^27.
static inline __attribute__((always_inline)) void neon_sum16(int32x4_t acc[][NR], const uint8_t *w, const int16_t *x,
                                                             int steps, int nt, int bits) {
    int32x4_t lo[NT_MAX], hi[NT_MAX];
    TOKENS lo[t] = hi[t] = vdupq_n_s32(0);
#pragma GCC unroll 8
    for (int i = 0; i < steps; i++, w += STEP_W, x += 4 * RL_PANEL) {
        int16x8_t v = vreinterpretq_s16_s8(weights(w, bits));
        int16x8_t even = vshrq_n_s16(vshlq_n_s16(v, 8), 8), odd = vshrq_n_s16(v, 8);
        TOKENS {
            int32x2_t q = vreinterpret_s32_s16(vld1_s16(x + 4 * t));
            int16x8_t q0 = vreinterpretq_s16_s32(vdupq_lane_s32(q, 0)),
                      q1 = vreinterpretq_s16_s32(vdupq_lane_s32(q, 1));
            lo[t] = vmlal_s16(lo[t], vget_low_s16(even), vget_low_s16(q0));
            hi[t] = vmlal_high_s16(hi[t], even, q0);
            lo[t] = vmlal_s16(lo[t], vget_low_s16(odd), vget_low_s16(q1));
            hi[t] = vmlal_high_s16(hi[t], odd, q1);
        }
    }
    TOKENS acc[t][0] = vaddq_s32(acc[t][0], vpaddq_s32(lo[t], hi[t]));
}
#undef TOKENS

#include "kernels/tile_mul_body.h"

ALL_TILE_MULS(neon)

void rl_tile_mul_f32_neon(const void *tile, const void *panels, size_t n_tok, size_t klen, float *c,
                          const rl_ahead *ahead) {
    const rl_ftile *w = tile;
    for (size_t tok = 0; tok < n_tok; tok += RL_PANEL) {
        const rl_panelf *p = (const rl_panelf *)panels + tok / RL_PANEL;
        rl_look_ahead(ahead, p, sizeof *p, tok, n_tok);
        size_t left = n_tok - tok;
        for (size_t r0 = 0; r0 < RL_TILE_ROWS; r0 += 16) {
            float *out = c + tok * RL_TILE_ROWS + r0;
            float32x4_t acc[RL_PANEL][4];
#define TOKENS(N)                                                                                                      \
    case N:                                                                                                            \
        for (int t = 0; t < N; t++)                                                                                    \
            for (int r = 0; r < 4; r++) acc[t][r] = vdupq_n_f32(0);                                                    \
        for (size_t k = 0; k < klen; k++) {                                                                            \
            float32x4_t v[4];                                                                                          \
            for (int r = 0; r < 4; r++) v[r] = vld1q_f32(w->w[k] + r0 + 4 * r);                                        \
            for (int t = 0; t < N; t++)                                                                                \
                for (int r = 0; r < 4; r++) acc[t][r] = vfmaq_n_f32(acc[t][r], v[r], p->x[k][t]);                      \
        }                                                                                                              \
        for (int t = 0; t < N; t++)                                                                                    \
            for (int r = 0; r < 4; r++) {                                                                              \
                float *o = out + t * RL_TILE_ROWS + 4 * r;                                                             \
                vst1q_f32(o, vaddq_f32(vld1q_f32(o), acc[t][r]));                                                      \
            }                                                                                                          \
        break;
            switch (left < RL_PANEL ? left : RL_PANEL) {
                TOKENS(1)
                TOKENS(2)
                TOKENS(3)
                TOKENS(4)
                TOKENS(5)
                TOKENS(6)
            }
#undef TOKENS
        }
    }
}
