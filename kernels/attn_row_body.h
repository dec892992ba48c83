// SPDX-License-Identifier: Apache-2.0
// Attention over pages in which a token's head is `pad` consecutive values: token-major and head-major pages differ
// in strides alone. The vectors (V of W floats) come from the file that includes this one. What these layouts cost
// beside the tile is inherent: a score needs a sum across a vector, and token-major pages jump by n_head rows.
//
// Included once per ISA file, after these are defined:
//
//   W, V, ROWS                 floats of a vector, the vector, query rows that share a loaded one
//   LINES                      vectors of one output row held in registers, LINES * W at most 32
//   zero, set1, mul, fmadd, load_f32, load_f16, load_i8, store_f32
//   half(bits)                 one value of half precision as float
//   store_sums(p, a, b, c, d)  the sums across four vectors
//
// Floats: a score sums W partial sums of dimensions in rising order, then across the vector; values of q8_0 are
// scaled before they are multiplied. An output is acc * corr, then tokens in rising order. All by fused multiply-add.
#ifndef RL_KERNELS_ATTN_ROW_BODY_H
#define RL_KERNELS_ATTN_ROW_BODY_H

#include "kernels/attn_parts.h"

// 16 values from p on, 16 / W vectors; q8_0 times their scale.
INLINE void row_load(const uint8_t *p, const rl_type type, float scale, V *out) {
    for (size_t i = 0; i < 16 / W; i++) {
        if (type == RL_F32) {
            out[i] = load_f32((const float *)(const void *)p + i * W);
        } else if (type == RL_F16) {
            out[i] = load_f16(p + 2 * i * W);
        } else {
            out[i] = mul(load_i8(p + i * W), set1(scale));
        }
    }
}

// One value, for what 16 do not divide of a head. Nothing beyond it may be read: a page can end there.
INLINE float row_value(const uint8_t *p, size_t i, const rl_type type, const float *scale) {
    if (type == RL_F32) return ((const float *)(const void *)p)[i];
    if (type == RL_F16) return half(((const uint16_t *)(const void *)p)[i]);
    return (float)((const int8_t *)p)[i] * scale[i / 32];
}

INLINE const float *row_scales(const rl_attn_side *s, const float *scales, size_t t) {
    return (const float *)(const void *)((const uint8_t *)scales + t * s->scales_token);
}

// The same token of the page that will be read next.
INLINE void row_ahead(const rl_attn_side *s, const uint8_t *next, size_t t, size_t size) {
    if (!next) return;
    for (size_t i = 0; i < s->pad * size; i += 64) __builtin_prefetch(next + t * s->token + i, 0, 2);
}

INLINE void row_k(const rl_attn_k_args *a, size_t r0, const size_t nq, const rl_type type) {
    const rl_attn_side *s = a->side;
    const size_t size = type == RL_F32 ? 4 : type == RL_F16 ? 2 : 1;
    const size_t whole = s->pad / 16 * 16;
    const float *q = (const float *)a->q + r0 * a->ld_q;
    for (size_t t = 0; t < 64; t += 4) {
        V sum[4][ROWS];
        float rest[ROWS][4] = {{0}};
        for (size_t e = 0; e < 4; e++) {
            const uint8_t *k = a->head.data + (t + e) * s->token;
            const float *scale = row_scales(s, a->head.scales, t + e);
            row_ahead(s, r0 ? NULL : a->head.next, t + e, size);
            for (size_t r = 0; r < nq; r++) sum[e][r] = zero();
            for (size_t i = 0; i < whole; i += 16) {
                V x[16 / W];
                row_load(k + i * size, type, type == RL_Q8_0 ? scale[i / 32] : 1.0f, x);
                for (size_t j = 0; j < 16 / W; j++)
                    for (size_t r = 0; r < nq; r++)
                        sum[e][r] = fmadd(x[j], load_f32(q + r * a->ld_q + i + j * W), sum[e][r]);
            }
            for (size_t i = whole; i < s->pad; i++)
                for (size_t r = 0; r < nq; r++) rest[r][e] += q[r * a->ld_q + i] * row_value(k, i, type, scale);
        }
        for (size_t r = 0; r < nq; r++) {
            float *out = a->s + (r0 + r) * 64 + t;
            store_sums(out, sum[0][r], sum[1][r], sum[2][r], sum[3][r]);
            for (size_t e = 0; whole < s->pad && e < 4; e++) out[e] += rest[r][e];
        }
    }
}

// nl vectors of every output row from dimension i on; i and i + nl * W lie in one group of 32 for q8_0.
INLINE void row_v_lines(const rl_attn_v_args *a, size_t r0, size_t i, const size_t nq, const size_t nl,
                        const rl_type type) {
    const rl_attn_side *s = a->side;
    const size_t size = type == RL_F32 ? 4 : type == RL_F16 ? 2 : 1;
    V acc[ROWS][LINES];
    for (size_t r = 0; r < nq; r++)
        for (size_t j = 0; j < nl; j++)
            acc[r][j] = mul(load_f32(a->acc + (r0 + r) * a->ld_acc + i + j * W), set1(a->corr[r0 + r]));
    for (size_t t = 0; t < a->n_tok; t++) {
        const uint8_t *v = a->head.data + t * s->token + i * size;
        float scale = type == RL_Q8_0 ? row_scales(s, a->head.scales, t)[i / 32] : 1.0f;
        if (i == 0) row_ahead(s, r0 ? NULL : a->head.next, t, size);
        V x[LINES];
        for (size_t j = 0; j < nl; j += 16 / W) row_load(v + j * W * size, type, scale, x + j);
        for (size_t r = 0; r < nq; r++) {
            V p = set1(a->p[(r0 + r) * 64 + t]);
            for (size_t j = 0; j < nl; j++) acc[r][j] = fmadd(x[j], p, acc[r][j]);
        }
    }
    for (size_t r = 0; r < nq; r++)
        for (size_t j = 0; j < nl; j++) store_f32(a->acc + (r0 + r) * a->ld_acc + i + j * W, acc[r][j]);
}

INLINE void row_v(const rl_attn_v_args *a, size_t r0, const size_t nq, const rl_type type) {
    // Groups of 32 dimensions have a scale of their own, so a step is at most 32 of them, and 16 at the end of an odd
    // head.
    size_t i = 0;
    for (; i + LINES * W <= a->side->pad; i += LINES * W) row_v_lines(a, r0, i, nq, LINES, type);
    if (LINES * W > 16 && i + 16 <= a->side->pad) {
        row_v_lines(a, r0, i, nq, 16 / W, type);
        i += 16;
    }
    for (; i < a->side->pad; i++) {
        for (size_t r = r0; r < r0 + nq; r++) {
            float sum = a->acc[r * a->ld_acc + i] * a->corr[r];
            for (size_t t = 0; t < a->n_tok; t++) {
                const float *scale = row_scales(a->side, a->head.scales, t);
                sum += a->p[r * 64 + t] * row_value(a->head.data + t * a->side->token, i, type, scale);
            }
            a->acc[r * a->ld_acc + i] = sum;
        }
    }
}

// One head of a page as float32: k transposed, v as it is.
INLINE void row_load_page(const rl_attn_side *s, const rl_attn_head *h, float *out, const rl_type type,
                          const int is_v) {
    const size_t size = type == RL_F32 ? 4 : type == RL_F16 ? 2 : 1;
    for (size_t t = 0; t < 64; t++) {
        const float *scale = row_scales(s, h->scales, t);
        const uint8_t *row = h->data + t * s->token;
        size_t i = 0;
        for (; i + 16 <= s->pad; i += 16) {
            V x[16 / W];
            float part[16];
            row_load(row + i * size, type, type == RL_Q8_0 ? scale[i / 32] : 1.0f, x);
            for (size_t j = 0; j < 16 / W; j++) store_f32(is_v ? out + t * s->pad + i + j * W : part + j * W, x[j]);
            for (size_t j = 0; !is_v && j < 16; j++) out[(i + j) * 64 + t] = part[j];
        }
        for (; i < s->pad; i++) out[is_v ? t * s->pad + i : i * 64 + t] = row_value(row, i, type, scale);
    }
}

#define ROW_KERNELS(type, t, isa)                                                                                      \
    void rl_attn_k_##t##_row_##isa(const rl_attn_k_args *a) {                                                          \
        RL_ATTN_BY_ROWS(ROWS, row_k, a, type)                                                                          \
    }                                                                                                                  \
    void rl_attn_v_##t##_row_##isa(const rl_attn_v_args *a) {                                                          \
        RL_ATTN_BY_ROWS(ROWS, row_v, a, type)                                                                          \
    }                                                                                                                  \
    void rl_attn_kload_##t##_row_##isa(const rl_attn_side *s, const rl_attn_head *h, float *out) {                     \
        row_load_page(s, h, out, type, 0);                                                                             \
    }                                                                                                                  \
    void rl_attn_vload_##t##_row_##isa(const rl_attn_side *s, const rl_attn_head *h, float *out) {                     \
        row_load_page(s, h, out, type, 1);                                                                             \
    }

#endif
