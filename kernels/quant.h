// SPDX-License-Identifier: Apache-2.0
// The searches of the quantizer. They work on a panel: 16 groups of values side by side, one per vector lane, so that
// no sum runs across lanes. Every tier does the same operations in the same order without fusing any: the blocks they
// lead to are equal to the bit.
#ifndef RL_KERNELS_QUANT_H
#define RL_KERNELS_QUANT_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/api.h"

#define RL_QUANT_LANES 16

typedef struct rl_quant_panel {
    _Alignas(64) float x[32][RL_QUANT_LANES]; // values, at most 2 in magnitude
    _Alignas(64) float w[32][RL_QUANT_LANES]; // their weights, 0 to 1
    size_t n;                                 // values of a group: 16 or 32
} rl_quant_panel;

// Per lane, over the values of a group, of the rounding last made.
typedef struct rl_quant_sums {
    _Alignas(64) float err[RL_QUANT_LANES]; // w (x - approximation)^2
    _Alignas(64) float qx[RL_QUANT_LANES];  // w q x
    _Alignas(64) float qq[RL_QUANT_LANES];  // w q q
    _Alignas(64) float q[RL_QUANT_LANES];   // w q
} rl_quant_sums;

// The sixteen levels of a table and the points halfway between them, where rounding changes.
typedef struct rl_quant_levels {
    float level[16], half[15];
} rl_quant_levels;

typedef uint8_t rl_quant_codes[32][RL_QUANT_LANES];

// fit_*: the real scale (and offset) of each lane with the least weighted squared error found. `tries` are where the
// value farthest from zero (from the smallest value, for fit_affine) could come to lie, in steps of the scale.
// round_*: rounds to given scales; codes (q - lo, or the index of the level) are stored unless NULL.
typedef struct rl_quant {
    void (*fit_scale)(const rl_quant_panel *p, float lo, float hi, const float *tries, size_t n_tries, float *scale);
    // x = scale * q + offset, q in 0..hi; negative: the offset must not be above zero.
    void (*fit_affine)(const rl_quant_panel *p, float hi, const float *tries, size_t n_tries, int negative,
                       float *scale, float *offset);
    void (*fit_levels)(const rl_quant_panel *p, const rl_quant_levels *t, const float *tries, size_t n_tries,
                       float *scale);
    void (*round_scale)(const rl_quant_panel *p, float lo, float hi, const float *scale, rl_quant_sums *s,
                        uint8_t (*codes)[RL_QUANT_LANES]);
    void (*round_affine)(const rl_quant_panel *p, float hi, const float *scale, const float *offset, rl_quant_sums *s,
                         uint8_t (*codes)[RL_QUANT_LANES]);
    void (*round_levels)(const rl_quant_panel *p, const rl_quant_levels *t, const float *scale, rl_quant_sums *s,
                         uint8_t (*codes)[RL_QUANT_LANES]);
} rl_quant;

#define RL_QUANT_OPS(X)                                                                                                \
    X(fit_scale)                                                                                                       \
    X(fit_affine)                                                                                                      \
    X(fit_levels)                                                                                                      \
    X(round_scale)                                                                                                     \
    X(round_affine)                                                                                                    \
    X(round_levels)

/// The best entry of the table for each operation.
void rl_quant_init(rl_quant *q, const rl_dispatch *d);

#endif
