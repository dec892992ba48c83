// SPDX-License-Identifier: Apache-2.0
// The weights of a model: matrices where they lie in the file, small vectors as float32 copies.
#ifndef RL_MODEL_WEIGHTS_H
#define RL_MODEL_WEIGHTS_H

#include "model/hparams.h"

typedef struct rl_weight {   // a matrix in the file: out = w @ x
    const rl_tensor *t;      // NULL when absent
    size_t row0, rows, cols; // rows [row0, row0 + rows) of the tensor: slices of fused projections
    size_t experts;          // matrices stacked in the tensor, 1 when plain
} rl_weight;

typedef struct rl_layer {
    const float *attn_norm, *attn_norm_b, *post_attn_norm, *ffn_norm, *ffn_norm_b, *post_ffw_norm;
    const float *q_norm, *k_norm;
    const float *q_b, *k_b, *v_b, *o_b, *gate_b, *up_b, *down_b;
    rl_weight q, k, v, o;
    rl_weight gate, up, down;                        // dense FFN; gate absent when not gated
    rl_weight router, gate_exps, up_exps, down_exps; // mixture of experts, where router is present
    rl_weight gate_sh, up_sh, down_sh;               // expert that every token passes
} rl_layer;

typedef struct rl_weights {
    rl_layer *layers;
    rl_weight embed, output; // output is embed when tied
    int tied;
    const float *out_norm, *out_norm_b, *output_b;
    const float *rope_factors, *rope_long, *rope_short; // n_rot / 2 each, NULL when absent
    float *owned;                                       // the block of all small vectors
    size_t owned_bytes;
} rl_weights;

/// Finds every tensor the architecture's row asks for, checks shapes, refuses tensors that nothing would read.
/// Tensors in `replaced` stand in for those of the file with their names, or add to them (output.weight, where the file
/// ties it to the embedding); they must outlive the weights.
rl_status rl_weights_bind(rl_weights *w, const rl_hparams *hp, const rl_gguf *g, const rl_tensor *replaced,
                          size_t n_replaced, rl_err *err);
void rl_weights_free(rl_weights *w);

#endif
