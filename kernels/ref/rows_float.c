// SPDX-License-Identifier: Apache-2.0
// Reference rows kernels for float weights: any number of columns, products and sums in float32 in the order of
// rl_ref_fold32.
#include <string.h>

#include "kernels/ref/rows_ref.h"

static float value_f32(const uint8_t *w, size_t i) {
    float v;
    memcpy(&v, w + 4 * i, 4);
    return v;
}
static float value_f16(const uint8_t *w, size_t i) {
    uint16_t v;
    memcpy(&v, w + 2 * i, 2);
    return rl_f16_to_f32(v);
}
static float value_bf16(const uint8_t *w, size_t i) {
    uint16_t v;
    memcpy(&v, w + 2 * i, 2);
    return rl_bf16_to_f32(v);
}

#define ROWS_FLOAT(T)                                                                                                  \
    void rl_rows_##T##_f32_ref(const rl_rows_args *a);                                                                 \
    void rl_rows_##T##_f32_ref(const rl_rows_args *a) {                                                                \
        for (size_t i = 0; i < a->n_rows; i++)                                                                         \
            for (size_t t = 0; t < a->n_tok; t++) {                                                                    \
                const size_t r = rl_row_at(i, a->apart);                                                               \
                const float *x = a->act->f32 + (a->tok0 + t) * a->act->ld_f32;                                         \
                float lanes[32] = {0};                                                                                 \
                for (size_t c = 0; c < a->cols; c++) lanes[c % 32] += value_##T(a->w + r * a->row_bytes, c) * x[c];    \
                a->out[t * a->ld_out + r] = rl_ref_fold32(lanes);                                                      \
            }                                                                                                          \
    }
ROWS_FLOAT(f32)
ROWS_FLOAT(f16)
ROWS_FLOAT(bf16)
