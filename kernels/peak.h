// SPDX-License-Identifier: Apache-2.0
// What an ISA can do at best: loops of independent multiply-adds on registers, the measured roof beside which
// tile kernels are judged. int8 on AVX2 is vpmaddubsw, vpmaddwd and vpaddd for 32 products.
#ifndef RL_KERNELS_PEAK_H
#define RL_KERNELS_PEAK_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/features.h"

/// Runs n rounds; returns the multiply-adds made, and puts into *sink what keeps them from being removed.
typedef double (*rl_peak_fn)(size_t n, float *sink);

typedef struct rl_peak {
    const char *isa, *kind; // kind: "int8", "int16" or "f32"
    uint64_t cpu;           // features needed
    rl_peak_fn fn;
} rl_peak;

const rl_peak *rl_peaks(size_t *n);

#endif
