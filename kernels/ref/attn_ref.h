// SPDX-License-Identifier: Apache-2.0
// The attention kernels in portable C, by name, for the registry.
#ifndef RL_KERNELS_REF_ATTN_REF_H
#define RL_KERNELS_REF_ATTN_REF_H

#include "kernels/attn.h"

void rl_attn_k_f32_tile_ref(const rl_attn_k_args *a);
void rl_attn_k_f16_tile_ref(const rl_attn_k_args *a);
void rl_attn_k_q8_0_tile_ref(const rl_attn_k_args *a);
void rl_attn_k_f32_row_ref(const rl_attn_k_args *a);
void rl_attn_k_f16_row_ref(const rl_attn_k_args *a);
void rl_attn_k_q8_0_row_ref(const rl_attn_k_args *a);
void rl_attn_v_f32_tile_ref(const rl_attn_v_args *a);
void rl_attn_v_f16_tile_ref(const rl_attn_v_args *a);
void rl_attn_v_q8_0_tile_ref(const rl_attn_v_args *a);
void rl_attn_v_f32_row_ref(const rl_attn_v_args *a);
void rl_attn_v_f16_row_ref(const rl_attn_v_args *a);
void rl_attn_v_q8_0_row_ref(const rl_attn_v_args *a);
void rl_attn_kload_f32_ref(const rl_attn_side *s, const rl_attn_head *h, float *out);
void rl_attn_kload_f16_ref(const rl_attn_side *s, const rl_attn_head *h, float *out);
void rl_attn_kload_q8_0_ref(const rl_attn_side *s, const rl_attn_head *h, float *out);
void rl_attn_vload_f32_ref(const rl_attn_side *s, const rl_attn_head *h, float *out);
void rl_attn_vload_f16_ref(const rl_attn_side *s, const rl_attn_head *h, float *out);
void rl_attn_vload_q8_0_ref(const rl_attn_side *s, const rl_attn_head *h, float *out);
void rl_attn_mulk_ref(const float *q, size_t ld_q, size_t nq, const float *kt, size_t pad, float *s);
void rl_attn_mulv_ref(const float *p, const float *corr, size_t nq, const float *v, size_t pad, size_t n_tok,
                      float *acc, size_t ld_acc);
void rl_attn_softmax_ref(float *s, size_t nq, float *m, float *l, float *corr);

#endif
