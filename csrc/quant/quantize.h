// SPDX-License-Identifier: Apache-2.0
// Float32 rows to the blocks of a type: for each block the scales with the least weighted squared error that the
// searches of kernels/quant.h find, then codes rounded to the scales as they are stored.
#ifndef RL_QUANT_QUANTIZE_H
#define RL_QUANT_QUANTIZE_H

#include <stdatomic.h>

#include "base/dtype.h"
#include "base/status.h"
#include "base/threads.h"
#include "kernels/quant.h"

/// Whether the library writes this type: all it computes with but F32 and Q8_K.
bool rl_quant_writes(rl_type type);

typedef struct rl_quantize {
    rl_type type;
    const float *x; // rows x cols, cols a multiple of the type's block
    size_t rows, cols;
    const float *importance; // NULL, or cols finite weights >= 0: how much the error of a column matters
    uint8_t *out;            // rows x row bytes
    double *errors;          // NULL, or rows x 2: sum of (x - stored)^2, sum of x^2
    // Set by rl_quantize_init:
    rl_quant ops;
    void (*dequant)(const void *blocks, float *out, size_t n);
    size_t row_bytes;
    float *scratch;
    atomic_size_t bad_row; // the first row that cannot be stored, found by the region; SIZE_MAX: none
} rl_quantize;

/// Checks sizes and importance, allocates scratch for n_threads. Free with rl_quantize_free, also after a failure.
rl_status rl_quantize_init(rl_quantize *q, const rl_dispatch *d, int n_threads, rl_err *err);
void rl_quantize_free(rl_quantize *q);

/// The region (arg: rl_quantize) that quantizes all rows. Afterwards rl_quantize_result says whether it went well.
void rl_quantize_region(void *arg, rl_team *team, int ith);
rl_status rl_quantize_result(const rl_quantize *q, rl_err *err);

#endif
