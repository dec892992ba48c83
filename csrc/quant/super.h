// SPDX-License-Identifier: Apache-2.0
// What the files of this room share: the facts of each type's search, and a panel with what is known of it.
#ifndef RL_QUANT_SUPER_H
#define RL_QUANT_SUPER_H

#include <stdbool.h>

#include "quant/quantize.h"

// How the error of a value is weighted without importance, as the methods of the field do it.
typedef enum rl_weighting {
    RL_W_EVEN,     // all alike
    RL_W_ABS,      // |x|
    RL_W_SQUARE,   // x^2 + a share of the group's mean of it
    RL_W_ABS_MEAN, // |x| + root mean square of the group
} rl_weighting;

// What importance is multiplied with: the root of x^2 + a mean of squares.
typedef enum rl_importance {
    RL_I_ROW,    // mean over the row
    RL_I_SUPER,  // mean over the superblock (or block)
    RL_I_SUPER2, // twice that
    RL_I_PLAIN,  // nothing: the importance alone
} rl_importance_kind;

typedef struct rl_quant_format {
    bool super; // superblock of 256, else blocks of 32
    enum { FIT_SCALE, FIT_AFFINE, FIT_LEVELS } fit;
    size_t group;           // values that share a scale
    float lo, hi;           // codes
    int scale_lo, scale_hi; // scales of a superblock
    const float *tries;
    size_t n_tries;
    rl_weighting weighting;
    rl_importance_kind importance;
} rl_quant_format;

extern const rl_quant_levels rl_iq4_levels;

/// The operation of the type's kind. negative: the offset must not be above zero.
void rl_quant_fit(const rl_quantize *q, const rl_quant_format *f, const rl_quant_panel *p, int negative, float *scale,
                  float *offset);
void rl_quant_round(const rl_quantize *q, const rl_quant_format *f, const rl_quant_panel *p, const float *scale,
                    const float *offset, rl_quant_sums *s, uint8_t (*codes)[RL_QUANT_LANES]);

/// Superblocks lane0 = 0, and 8 with groups of 32, of a filled panel. expo: the panel's x is the value times 2^-expo,
/// one for each superblock. False when a scale leaves half precision.
bool rl_quant_super(const rl_quantize *q, const rl_quant_format *f, const rl_quant_panel *p, const int *expo,
                    size_t n_super, uint8_t *out);

/// A scale in the panel's units as a half in the file's, and back: what is stored is what is rounded to.
uint16_t rl_stored_half(double value, int expo, float *back);
static inline bool rl_half_overflows(uint16_t half) {
    return (half & 0x7C00u) == 0x7C00u;
}

#endif
