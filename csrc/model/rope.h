// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: the frequencies of a model, and the cosines and sines of given positions, made in double
// precision so that position 1,000,000 is as exact as position 1.
#ifndef RL_MODEL_ROPE_H
#define RL_MODEL_ROPE_H

#include "model/weights.h"

typedef struct rl_rope {
    size_t half;      // n_rot / 2 pairs
    double *freq;     // angle per position of each pair
    double magnitude; // multiplies cos and sin
} rl_rope;

/// Frequencies for the full (sliding = false) or sliding-window layers of a session with n_ctx positions; longrope
/// chooses its factors by n_ctx. base_override 0: the file's.
rl_status rl_rope_init(rl_rope *r, const rl_hparams *hp, const rl_weights *w, bool sliding, size_t n_ctx,
                       double base_override, rl_err *err);
void rl_rope_free(rl_rope *r);

/// cs[2 * i], cs[2 * i + 1] = cos, sin of pair i at a position.
void rl_rope_table(const rl_rope *r, size_t position, float *cs);
/// The same for what has its position already and moves on by `distance`: without the magnitude.
void rl_rope_turn(const rl_rope *r, size_t distance, float *cs);

#endif
