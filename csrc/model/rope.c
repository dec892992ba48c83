// SPDX-License-Identifier: Apache-2.0
#include "model/rope.h"

#include <math.h>
#include <stdlib.h>

#define PI 3.14159265358979323846

// YaRN (Peng et al. 2023, arXiv:2309.00071): pairs that turn often within the original context keep their frequency,
// pairs that turn rarely are interpolated, with a linear ramp between two correction dimensions.
static double yarn_dimension(const rl_hparams *hp, double turns) {
    return hp->n_rot * log(hp->n_ctx_orig / (turns * 2 * PI)) / (2 * log(hp->rope_base));
}

static double yarn_magnitude(double factor, double multiplier) {
    return factor <= 1 ? 1 : 0.1 * multiplier * log(factor) + 1;
}

static void apply_yarn(rl_rope *r, const rl_hparams *hp) {
    double low = floor(yarn_dimension(hp, hp->yarn_beta_fast)), high = ceil(yarn_dimension(hp, hp->yarn_beta_slow));
    if (low < 0) low = 0;
    if (high > hp->n_rot - 1) high = hp->n_rot - 1;
    double width = high - low > 0.001 ? high - low : 0.001;
    for (size_t i = 0; i < r->half; i++) {
        double y = ((double)i - low) / width;
        double keep = hp->yarn_ext_factor * (1 - (y < 0 ? 0 : y > 1 ? 1 : y));
        r->freq[i] = r->freq[i] / hp->rope_factor * (1 - keep) + r->freq[i] * keep;
    }
    r->magnitude = hp->yarn_log_mul != 0
                       ? yarn_magnitude(hp->rope_factor, 1) / yarn_magnitude(hp->rope_factor, hp->yarn_log_mul)
                       : yarn_magnitude(hp->rope_factor, 1);
}

rl_status rl_rope_init(rl_rope *r, const rl_hparams *hp, const rl_weights *w, bool sliding, size_t n_ctx,
                       double base_override, rl_err *err) {
    r->half = hp->n_rot / 2;
    r->magnitude = 1;
    r->freq = malloc((r->half ? r->half : 1) * sizeof *r->freq);
    if (!r->freq) return rl_fail(err, RL_ERR_NOMEM, "no memory for %zu RoPE frequencies", r->half);
    double base = base_override > 0 ? base_override : sliding ? hp->rope_base_swa : hp->rope_base;
    const float *factors = w->rope_factors;
    bool scaled = !(sliding && hp->arch->swa_unscaled);
    // The tensors alone announce longrope: writers leave the scaling type out.
    if (!factors && w->rope_long && w->rope_short) factors = n_ctx > hp->n_ctx_orig ? w->rope_long : w->rope_short;
    for (size_t i = 0; i < r->half; i++) {
        r->freq[i] = pow(base, -2.0 * (double)i / hp->n_rot);
        if (factors && scaled) {
            if (!(factors[i] > 0)) {
                rl_rope_free(r);
                return rl_fail(err, RL_ERR_FORMAT, "RoPE frequency factor %zu is %g: it must be positive", i,
                               (double)factors[i]);
            }
            r->freq[i] /= factors[i];
        }
        if (scaled && hp->scaling == RL_SCALE_LINEAR) r->freq[i] /= hp->rope_factor;
    }
    if (scaled && hp->scaling == RL_SCALE_YARN) apply_yarn(r, hp);
    if (scaled) r->magnitude *= hp->rope_attn_factor;
    return RL_OK;
}

void rl_rope_free(rl_rope *r) {
    free(r->freq);
    r->freq = NULL;
}

static void table(const rl_rope *r, size_t position, double magnitude, float *cs) {
    for (size_t i = 0; i < r->half; i++) {
        double angle = (double)position * r->freq[i];
        cs[2 * i] = (float)(cos(angle) * magnitude);
        cs[2 * i + 1] = (float)(sin(angle) * magnitude);
    }
}

void rl_rope_table(const rl_rope *r, size_t position, float *cs) {
    table(r, position, r->magnitude, cs);
}

void rl_rope_turn(const rl_rope *r, size_t distance, float *cs) {
    table(r, distance, 1.0, cs);
}
