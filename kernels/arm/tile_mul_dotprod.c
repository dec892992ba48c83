// SPDX-License-Identifier: Apache-2.0
// Tile multiply with sdot: 8 rows by 6 tokens. int16 activations are taken as two bytes, in two passes over the same
// weights: high parts, times 256, then low parts.
#ifndef __ARM_FEATURE_DOTPROD
#error "needs dotprod"
#endif
#include "kernels/arm/tile_mul.h"

#define NR 2
#define sum8 dotprod_sum8
#define sum16 dotprod_sum16

#include "kernels/arm/tile_dot.h"

static inline __attribute__((always_inline)) void dotprod_sum8(int32x4_t acc[][NR], const uint8_t *w, const int8_t *x,
                                                               int steps, int nt, int bits) {
    dot_steps(acc, w, x, steps, nt, bits, BYTES);
}

static inline __attribute__((always_inline)) void dotprod_sum16(int32x4_t acc[][NR], const uint8_t *w, const int16_t *x,
                                                                int steps, int nt, int bits) {
    int32x4_t high[NT_MAX][NR];
    each_sum(high[t][r] = vdupq_n_s32(0));
    dot_steps(high, w, x, steps, nt, bits, HIGH);
    each_sum(acc[t][r] = vaddq_s32(acc[t][r], vshlq_n_s32(high[t][r], 8)));
    dot_steps(acc, w, x, steps, nt, bits, LOW);
}

#include "kernels/tile_mul_body.h"

ALL_TILE_MULS(dotprod)
