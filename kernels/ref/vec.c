// SPDX-License-Identifier: Apache-2.0
// Vector operations in plain C: the definition of right. Exponentials and sums are in double, sums run from the first
// element to the last. Also rl_vec_init, which asks the table for the best of each operation.
//
// NaN: max and argmax pass over it (argmax of nothing but NaN is 0); every other operation hands it on.
#include <math.h>

#include "kernels/api.h"
#include "kernels/vec.h"

void rl_vec_rmsnorm_ref(const float *x, const float *w, float *out, size_t n, float eps) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    float r = (float)(1.0 / sqrt(sum / (double)n + (double)eps));
    for (size_t i = 0; i < n; i++) out[i] = w ? x[i] * r * w[i] : x[i] * r;
}

void rl_vec_layernorm_ref(const float *x, const float *w, const float *b, float *out, size_t n, float eps) {
    double sum = 0.0, squares = 0.0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i];
    double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    double r = 1.0 / sqrt(squares / (double)n + (double)eps);
    for (size_t i = 0; i < n; i++) {
        float y = (float)(((double)x[i] - mean) * r);
        if (w) y *= w[i];
        out[i] = b ? y + b[i] : y;
    }
}

void rl_vec_add_ref(const float *a, const float *b, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

void rl_vec_scale_ref(const float *x, float s, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = x[i] * s;
}

static float silu_of(float x) {
    return (float)((double)x / (1.0 + exp(-(double)x)));
}

// 0.5 x (1 + tanh u) = x / (1 + exp(-2u)), which keeps its relative accuracy where tanh nears -1.
static float gelu_of(float x) {
    double u = 0.79788456080286535588 * ((double)x + 0.044715 * (double)x * (double)x * (double)x);
    return (float)((double)x / (1.0 + exp(-2.0 * u)));
}

void rl_vec_silu_mul_ref(const float *gate, const float *up, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = silu_of(gate[i]) * up[i];
}

void rl_vec_gelu_mul_ref(const float *gate, const float *up, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = gelu_of(gate[i]) * up[i];
}

void rl_vec_gelu_ref(const float *x, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = gelu_of(x[i]);
}

void rl_vec_silu_ref(const float *x, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = silu_of(x[i]);
}

void rl_vec_softcap_ref(const float *x, float cap, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = (float)((double)cap * tanh((double)x[i] / (double)cap));
}

void rl_vec_rope_norm_ref(float *x, size_t n_head, size_t ld, const float *cs, size_t n_rot) {
    for (size_t h = 0; h < n_head; h++)
        for (size_t i = 0; i < n_rot / 2; i++) {
            float *p = x + h * ld + 2 * i, a = p[0], b = p[1], c = cs[2 * i], s = cs[2 * i + 1];
            p[0] = a * c - b * s;
            p[1] = a * s + b * c;
        }
}

void rl_vec_rope_neox_ref(float *x, size_t n_head, size_t ld, const float *cs, size_t n_rot) {
    size_t half = n_rot / 2;
    for (size_t h = 0; h < n_head; h++)
        for (size_t i = 0; i < half; i++) {
            float *p = x + h * ld + i, a = p[0], b = p[half], c = cs[2 * i], s = cs[2 * i + 1];
            p[0] = a * c - b * s;
            p[half] = a * s + b * c;
        }
}

float rl_vec_max_ref(const float *x, size_t n) {
    float m = -INFINITY;
    for (size_t i = 0; i < n; i++)
        if (x[i] > m) m = x[i];
    return m;
}

float rl_vec_exp_sum_ref(float *x, size_t n, float max) {
    // Every element may be -inf (all masked): the exponentials are zeros then, not NaN.
    float m = max == -INFINITY ? 0.0f : max;
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)exp((double)(x[i] - m));
        sum += (double)x[i];
    }
    return (float)sum;
}

double rl_vec_logsumexp_ref(const float *x, size_t n) {
    float m = rl_vec_max_ref(x, n);
    if (!isfinite(m)) m = 0.0f; // infinities then come out as what they are
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) sum += exp((double)x[i] - (double)m);
    return (double)m + log(sum);
}

void rl_vec_argmax_ref(const float *x, size_t n, size_t *index) {
    float best = -INFINITY;
    size_t at = 0;
    int found = 0;
    for (size_t i = 0; i < n; i++)
        if (x[i] > best || (!found && x[i] == best)) {
            best = x[i];
            at = i;
            found = 1;
        }
    *index = at;
}

void rl_vec_init(rl_vec *v, const rl_dispatch *d) {
    // The reference is always in the table, so find never comes back empty.
#define X(op) v->op = (__typeof__(v->op))rl_kernel_find(d, RL_FAM_VEC, RL_TYPE_NONE, 0, #op)->fn;
    RL_VEC_OPS(X)
#undef X
}
