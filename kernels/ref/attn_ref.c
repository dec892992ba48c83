// SPDX-License-Identifier: Apache-2.0
// Attention kernels in portable C: the definition of right. Float sums run over the dimensions (scores) or
// the tokens (values) in rising order, one sum per score or output; integer sums are exact.
#include "kernels/attn.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

static inline float value(rl_type type, const uint8_t *p, size_t i) {
    if (type == RL_F32) return ((const float *)(const void *)p)[i];
    if (type == RL_F16) return rl_f16_to_f32(((const uint16_t *)(const void *)p)[i]);
    return (float)((const int8_t *)p)[i];
}

// ---- tile, float types ----

static inline void k_tile_float(const rl_attn_k_args *a, rl_type type) {
    const rl_attn_side *s = a->side;
    for (size_t r = 0; r < a->nq; r++) {
        const float *q = (const float *)a->q + r * a->ld_q;
        for (size_t g = 0; g < 4; g++) {
            float sum[16] = {0};
            for (size_t i = 0; i < s->pad; i++)
                for (size_t t = 0; t < 16; t++) sum[t] += q[i] * value(type, a->head.data, (g * s->pad + i) * 16 + t);
            memcpy(a->s + r * 64 + g * 16, sum, sizeof sum);
        }
    }
}

static inline void v_tile_float(const rl_attn_v_args *a, rl_type type) {
    const rl_attn_side *s = a->side;
    for (size_t r = 0; r < a->nq; r++) {
        float *acc = a->acc + r * a->ld_acc;
        for (size_t i = 0; i < s->pad; i++) acc[i] *= a->corr[r];
        for (size_t t = 0; t < a->n_tok; t++) {
            float p = a->p[r * 64 + t];
            for (size_t i = 0; i < s->pad; i++) acc[i] += p * value(type, a->head.data, t * s->pad + i);
        }
    }
}

void rl_attn_k_f32_tile_ref(const rl_attn_k_args *a) {
    k_tile_float(a, RL_F32);
}
void rl_attn_k_f16_tile_ref(const rl_attn_k_args *a) {
    k_tile_float(a, RL_F16);
}
void rl_attn_v_f32_tile_ref(const rl_attn_v_args *a) {
    v_tile_float(a, RL_F32);
}
void rl_attn_v_f16_tile_ref(const rl_attn_v_args *a) {
    v_tile_float(a, RL_F16);
}

// ---- tile, q8_0: int16 queries and weights, exact integer sums per group of 32 ----

// The largest sum of 32 products is 32 * 127 * 32767 < 2^27.
void rl_attn_k_q8_0_tile_ref(const rl_attn_k_args *a) {
    static const uint8_t order[4] = {0, 2, 1, 3};
    const rl_attn_side *s = a->side;
    const int8_t *k = (const int8_t *)a->head.data;
    for (size_t r = 0; r < a->nq; r++) {
        const int16_t *q = (const int16_t *)a->q + r * a->ld_q;
        for (size_t t = 0; t < 64; t++) {
            float sum = 0.0f;
            for (size_t g = 0; g < s->groups; g++) {
                int32_t dot = 0;
                for (size_t i = g * 32; i < g * 32 + 32 && i < s->pad; i++)
                    dot += (int32_t)q[(i & ~(size_t)3) + order[i & 3]] * k[rl_attn_tile_k(s, t, i)];
                sum += (float)dot * a->head.scales[rl_attn_tile_k_scale(s, t, g)];
            }
            a->s[r * 64 + t] = sum * a->q_scale[r];
        }
    }
}

// Weights times V's scales as int16 of a common step per group: the largest sum is 64 * 127 * 32767 < 2^29.
void rl_attn_v_q8_0_tile_ref(const rl_attn_v_args *a) {
    const rl_attn_side *s = a->side;
    const int8_t *v = (const int8_t *)a->head.data;
    for (size_t r = 0; r < a->nq; r++) {
        const float *p = a->p + r * 64;
        float *acc = a->acc + r * a->ld_acc;
        for (size_t g = 0; g < s->groups; g++) {
            float w[64], max = 0.0f, poison = 0.0f;
            int16_t w16[64];
            for (size_t t = 0; t < 64; t++) {
                w[t] = t < a->n_tok ? p[t] * a->head.scales[rl_attn_tile_v_scale(t, g)] : 0.0f;
                poison += w[t] * 0.0f;
                max = w[t] > max ? w[t] : max;
            }
            float inv = max > 0x1p-100f ? 32767.0f / max : 0.0f, step = max * (1.0f / 32767.0f);
            for (size_t t = 0; t < 64; t++) w16[t] = poison == 0.0f ? (int16_t)lrintf(w[t] * inv) : 0;
            step += poison;
            for (size_t i = g * 32; i < g * 32 + 32 && i < s->pad; i++) {
                int32_t sum = 0;
                for (size_t t = 0; t < 64; t++) sum += (int32_t)w16[t] * v[rl_attn_tile_v(s, t, i)];
                acc[i] = acc[i] * a->corr[r] + (float)sum * step;
            }
        }
    }
}

// ---- rows: token-major and head-major, float queries and weights ----

static inline void k_row(const rl_attn_k_args *a, rl_type type) {
    const rl_attn_side *s = a->side;
    for (size_t t = 0; t < 64; t++) {
        const uint8_t *k = a->head.data + t * s->token;
        const float *scale = (const float *)(const void *)((const uint8_t *)a->head.scales + t * s->scales_token);
        for (size_t r = 0; r < a->nq; r++) {
            const float *q = (const float *)a->q + r * a->ld_q;
            float sum = 0.0f;
            if (type == RL_Q8_0) {
                for (size_t g = 0; g < s->groups; g++) {
                    float part = 0.0f;
                    for (size_t i = g * 32; i < g * 32 + 32 && i < s->dim; i++) part += q[i] * value(type, k, i);
                    sum += part * scale[g];
                }
            } else {
                for (size_t i = 0; i < s->dim; i++) sum += q[i] * value(type, k, i);
            }
            a->s[r * 64 + t] = sum;
        }
    }
}

static inline void v_row(const rl_attn_v_args *a, rl_type type) {
    const rl_attn_side *s = a->side;
    for (size_t r = 0; r < a->nq; r++)
        for (size_t i = 0; i < s->dim; i++) a->acc[r * a->ld_acc + i] *= a->corr[r];
    for (size_t t = 0; t < a->n_tok; t++) {
        const uint8_t *v = a->head.data + t * s->token;
        const float *scale = (const float *)(const void *)((const uint8_t *)a->head.scales + t * s->scales_token);
        for (size_t r = 0; r < a->nq; r++) {
            float p = a->p[r * 64 + t], *acc = a->acc + r * a->ld_acc;
            if (type == RL_Q8_0)
                for (size_t i = 0; i < s->dim; i++) acc[i] += p * (scale[i / 32] * value(type, v, i));
            else
                for (size_t i = 0; i < s->dim; i++) acc[i] += p * value(type, v, i);
        }
    }
}

void rl_attn_k_f32_row_ref(const rl_attn_k_args *a) {
    k_row(a, RL_F32);
}
void rl_attn_k_f16_row_ref(const rl_attn_k_args *a) {
    k_row(a, RL_F16);
}
void rl_attn_k_q8_0_row_ref(const rl_attn_k_args *a) {
    k_row(a, RL_Q8_0);
}
void rl_attn_v_f32_row_ref(const rl_attn_v_args *a) {
    v_row(a, RL_F32);
}
void rl_attn_v_f16_row_ref(const rl_attn_v_args *a) {
    v_row(a, RL_F16);
}
void rl_attn_v_q8_0_row_ref(const rl_attn_v_args *a) {
    v_row(a, RL_Q8_0);
}

// ---- prompts: a page as float32, then plain blocked products ----

static inline void load(const rl_attn_side *s, const rl_attn_head *h, float *out, rl_type type, bool is_v, bool tile) {
    for (size_t t = 0; t < 64; t++) {
        const uint8_t *row = h->data + t * s->token;
        const float *sc = (const float *)(const void *)((const uint8_t *)h->scales + t * s->scales_token);
        for (size_t i = 0; i < s->pad; i++) {
            size_t at = !tile ? i : is_v ? rl_attn_tile_v(s, t, i) : rl_attn_tile_k(s, t, i);
            float x = value(type, row, at);
            if (type == RL_Q8_0 && i < s->dim) {
                size_t g = i / 32;
                x *= !tile ? sc[g] : sc[is_v ? rl_attn_tile_v_scale(t, g) : rl_attn_tile_k_scale(s, t, g)];
            }
            out[is_v ? t * s->pad + i : i * 64 + t] = x;
        }
    }
}

#define LOADS(type, t)                                                                                                 \
    void rl_attn_kload_##t##_tile_ref(const rl_attn_side *s, const rl_attn_head *h, float *out) {                      \
        load(s, h, out, type, false, true);                                                                            \
    }                                                                                                                  \
    void rl_attn_vload_##t##_tile_ref(const rl_attn_side *s, const rl_attn_head *h, float *out) {                      \
        load(s, h, out, type, true, true);                                                                             \
    }                                                                                                                  \
    void rl_attn_kload_##t##_row_ref(const rl_attn_side *s, const rl_attn_head *h, float *out) {                       \
        load(s, h, out, type, false, false);                                                                           \
    }                                                                                                                  \
    void rl_attn_vload_##t##_row_ref(const rl_attn_side *s, const rl_attn_head *h, float *out) {                       \
        load(s, h, out, type, true, false);                                                                            \
    }
LOADS(RL_F32, f32)
LOADS(RL_F16, f16)
LOADS(RL_Q8_0, q8_0)

void rl_attn_mulk_ref(const float *q, size_t ld_q, size_t nq, const float *kt, size_t pad, size_t n_tok, float *s) {
    (void)n_tok;
    for (size_t r = 0; r < nq; r++) {
        float sum[64] = {0};
        for (size_t i = 0; i < pad; i++)
            for (size_t t = 0; t < 64; t++) sum[t] += q[r * ld_q + i] * kt[i * 64 + t];
        memcpy(s + r * 64, sum, sizeof sum);
    }
}

void rl_attn_mulv_ref(const float *p, const float *corr, size_t nq, const float *v, size_t pad, size_t n_tok,
                      float *acc, size_t ld_acc) {
    for (size_t r = 0; r < nq; r++) {
        float *o = acc + r * ld_acc;
        for (size_t i = 0; i < pad; i++) o[i] *= corr[r];
        for (size_t t = 0; t < n_tok; t++)
            for (size_t i = 0; i < pad; i++) o[i] += p[r * 64 + t] * v[t * pad + i];
    }
}

void rl_attn_softmax_ref(float *s, size_t nq, float *m, float *l, float *corr) {
    for (size_t r = 0; r < nq; r++) {
        float *x = s + r * 64, max = m[r], sum = 0.0f;
        for (size_t t = 0; t < 64; t++) max = x[t] > max ? x[t] : max;
        if (max == -INFINITY) {
            // All masked, or NaN where it is not: a NaN must show.
            for (size_t t = 0; t < 64; t++) {
                x[t] = x[t] == -INFINITY ? 0.0f : NAN;
                sum += x[t];
            }
            l[r] += sum;
            corr[r] = 1.0f;
            continue;
        }
        for (size_t t = 0; t < 64; t++) {
            x[t] = expf(x[t] - max);
            sum += x[t];
        }
        corr[r] = expf(m[r] - max);
        l[r] = l[r] * corr[r] + sum;
        m[r] = max;
    }
}
