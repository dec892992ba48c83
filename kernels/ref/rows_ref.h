// SPDX-License-Identifier: Apache-2.0
// The reference rows kernels, written once over a block unpacked to small integers:
//
//   value i of a block = d * sc[i / group] * q[i] - dmin * mn[i / group]
//
// Everything up to the first float is an exact integer. That first float stands per 32 values for int8
// activations and per block (at most 256 values) for int16, where the activation's scale enters. Products and sums
// of floats then run in double, in ascending order, and are rounded to float32 once.
#ifndef RL_KERNELS_ROWS_REF_H
#define RL_KERNELS_ROWS_REF_H

#include "base/blocks.h"
#include "base/half.h"
#include "kernels/api.h"

typedef struct {
    size_t group; // values per scale: 16 or 32
    float d, dmin;
    int q[256], sc[16], mn[16];
} rl_ref_block;

typedef void (*rl_ref_unpack_fn)(const void *block, rl_ref_block *u);

static inline float rl_ref_rows_q8_dot(const uint8_t *w, size_t block, size_t bytes, rl_ref_unpack_fn unpack,
                                       const rl_act *act, size_t tok) {
    const int8_t *x = act->q8 + tok * act->ld_q;
    const float *dx = act->d8 + tok * act->ld_d;
    rl_ref_block u;
    double acc = 0;
    for (size_t c = 0; c < act->cols; c += block, w += bytes) {
        unpack(w, &u);
        for (size_t j = 0; j < block; j += 32) {
            int32_t dot = 0, min = 0;
            for (size_t i = j; i < j + 32; i++) {
                dot += u.sc[i / u.group] * u.q[i] * x[c + i];
                min += u.mn[i / u.group] * x[c + i];
            }
            double s = dx[(c + j) / 32];
            acc += (double)u.d * dot * s - (double)u.dmin * min * s;
        }
    }
    return (float)acc;
}

static inline float rl_ref_rows_q16_dot(const uint8_t *w, size_t block, size_t bytes, rl_ref_unpack_fn unpack,
                                        const rl_act *act, size_t tok) {
    const int16_t *x = act->q16 + tok * act->ld_q;
    const float *dx = act->d16 + tok * act->ld_d16;
    rl_ref_block u;
    double acc = 0;
    for (size_t c = 0; c < act->cols; c += block, w += bytes) {
        unpack(w, &u);
        int64_t dot = 0, min = 0;
        for (size_t i = 0; i < block; i++) {
            dot += (int64_t)u.sc[i / u.group] * u.q[i] * x[c + i];
            min += (int64_t)u.mn[i / u.group] * x[c + i];
        }
        double s = dx[c / 256];
        acc += (double)u.d * (double)dot * s - (double)u.dmin * (double)min * s;
    }
    return (float)acc;
}

// The exact path: weights as float32, each product and sum in float32. Value i goes to partial sum i mod 32; the
// 32 partial sums are then halved: l[i] += l[i + 16], 8, 4, 2, 1.
static inline float rl_ref_fold32(float *l) {
    for (size_t h = 16; h; h /= 2)
        for (size_t i = 0; i < h; i++) l[i] += l[i + h];
    return l[0];
}

static inline float rl_ref_rows_f32_dot(const uint8_t *w, size_t block, size_t bytes, rl_ref_unpack_fn unpack,
                                        const rl_act *act, size_t tok) {
    const float *x = act->f32 + tok * act->ld_f32;
    rl_ref_block u;
    float lanes[32] = {0};
    for (size_t c = 0; c < act->cols; c += block, w += bytes) {
        unpack(w, &u);
        for (size_t i = 0; i < block; i++) {
            size_t g = i / u.group;
            float v = u.d * (float)u.sc[g] * (float)u.q[i];
            if (u.mn[g]) v -= u.dmin * (float)u.mn[g];
            lanes[(c + i) % 32] += v * x[c + i];
        }
    }
    return rl_ref_fold32(lanes);
}

#define RL_REF_ROWS_ONE(T, mode, block, bytes)                                                                         \
    void rl_rows_##T##_##mode##_ref(const rl_rows_args *a);                                                            \
    void rl_rows_##T##_##mode##_ref(const rl_rows_args *a) {                                                           \
        for (size_t r = 0; r < a->n_rows; r++)                                                                         \
            for (size_t t = 0; t < a->n_tok; t++)                                                                      \
                a->out[t * a->ld_out + rl_row_at(r, a->apart)] = rl_ref_rows_##mode##_dot(                             \
                    a->w + rl_row_at(r, a->apart) * a->row_bytes, block, bytes, unpack_##T, a->act, a->tok0 + t);      \
    }

#define RL_REF_ROWS(T, block, bytes)                                                                                   \
    RL_REF_ROWS_ONE(T, f32, block, bytes)                                                                              \
    RL_REF_ROWS_ONE(T, q8, block, bytes)                                                                               \
    RL_REF_ROWS_ONE(T, q16, block, bytes)

#endif
