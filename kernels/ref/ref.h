// SPDX-License-Identifier: Apache-2.0
// The portable dequantizers: the definition of right for every type. The order of float operations is part of it:
// d * q, (d * q) + m, and for K types (d * scale) * q - (dmin * min), each rounded to float, so that SIMD versions and
// outside implementations can be compared to the bit.
#ifndef RL_KERNELS_REF_H
#define RL_KERNELS_REF_H

#include "kernels/api.h"

void rl_dequant_f32_ref(const void *blocks, float *out, size_t n);
void rl_dequant_f16_ref(const void *blocks, float *out, size_t n);
void rl_dequant_bf16_ref(const void *blocks, float *out, size_t n);
void rl_dequant_q4_0_ref(const void *blocks, float *out, size_t n);
void rl_dequant_q4_1_ref(const void *blocks, float *out, size_t n);
void rl_dequant_q5_0_ref(const void *blocks, float *out, size_t n);
void rl_dequant_q5_1_ref(const void *blocks, float *out, size_t n);
void rl_dequant_q8_0_ref(const void *blocks, float *out, size_t n);
void rl_dequant_q2k_ref(const void *blocks, float *out, size_t n);
void rl_dequant_q3k_ref(const void *blocks, float *out, size_t n);
void rl_dequant_q4k_ref(const void *blocks, float *out, size_t n);
void rl_dequant_q5k_ref(const void *blocks, float *out, size_t n);
void rl_dequant_q6k_ref(const void *blocks, float *out, size_t n);
void rl_dequant_q8k_ref(const void *blocks, float *out, size_t n);
void rl_dequant_iq4nl_ref(const void *blocks, float *out, size_t n);
void rl_dequant_iq4xs_ref(const void *blocks, float *out, size_t n);

/// The reference for a type, or NULL where the type does not compute.
rl_dequant_fn rl_dequant_ref(rl_type type);

#endif
