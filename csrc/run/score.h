// SPDX-License-Identifier: Apache-2.0
// What a row of logits says, and how two rows over the same vocabulary differ. Float32 in, sums in double.
#ifndef RL_RUN_SCORE_H
#define RL_RUN_SCORE_H

#include <stddef.h>
#include <stdint.h>

/// The `top` largest of x, best first, the first of equals; values keeps what x has there. top is at most n.
void rl_score_top(const float *x, size_t n, size_t top, int32_t *ids, float *values);

#define RL_CONTRAST_TOP 5

typedef struct rl_contrast {
    double kl;            // KL(p || q) = sum p (log p - log q), nats
    double logp, logq;    // log-probability of the token that really follows
    int32_t top_p, top_q; // the likeliest token of each
    int32_t shared;       // of the RL_CONTRAST_TOP likeliest tokens of each, how many are in both
} rl_contrast;

/// Compares the distributions that two rows of n logits stand for. 0 <= next < n. Logits that are not finite give a
/// kl that is not finite.
void rl_contrast_rows(const float *p, const float *q, size_t n, int32_t next, rl_contrast *out);

#endif
