// SPDX-License-Identifier: Apache-2.0
// From logits to a token. The steps, in this order: bias, repeat penalty, top_k, top_p, min_p, temperature, draw.
// top_p and min_p look at the probabilities before the temperature, of what top_k left. The same seed and the same
// calls give the same ids.
#ifndef RL_RUN_SAMPLER_H
#define RL_RUN_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct rl_sampler_params {
    double temperature;    // 0: greedy, the greatest logit, the first of equals
    size_t top_k;          // 0: all
    double top_p;          // fewest most likely tokens that hold this much; 1: all
    double min_p;          // least share of the probability of the likeliest token; 0: all
    double repeat_penalty; // divides positive and multiplies negative logits of recent tokens; 1: none
    int64_t repeat_last_n; // how many tokens of the history are recent; -1: all
    uint64_t seed;
    const int32_t *bias_ids; // ascending; added to the logits; -inf bans
    const float *bias;
    size_t n_bias;
} rl_sampler_params;

typedef struct rl_sampler rl_sampler;

rl_status rl_sampler_create(rl_sampler **out, const rl_sampler_params *p, rl_err *err); // copies the bias
void rl_sampler_free(rl_sampler *s);
/// Back to the state after creation: the draws begin again.
void rl_sampler_reset(rl_sampler *s);
const rl_sampler_params *rl_sampler_params_of(const rl_sampler *s);

/// Chooses one of n logits. RL_ERR_ARG, and no draw is used up, for a NaN or +inf logit, for nothing but -inf, and for
/// an id of history or bias that is not below n. Not to be called by two threads at once.
rl_status rl_sampler_sample(rl_sampler *s, const float *logits, size_t n, const int32_t *history, size_t n_history,
                            int32_t *id, rl_err *err);
/// The probabilities it would draw from; uses up no draw.
rl_status rl_sampler_probs(rl_sampler *s, const float *logits, size_t n, const int32_t *history, size_t n_history,
                           double *probs, rl_err *err);

#endif
