// SPDX-License-Identifier: Apache-2.0
// The hyper-parameters of a model as its metadata states them, completed by its architecture's row.
#ifndef RL_MODEL_HPARAMS_H
#define RL_MODEL_HPARAMS_H

#include "io/gguf.h"
#include "model/arch.h"

#define RL_ROPE_BASE_MIN 1e-3 // beyond, powers of it leave float32
#define RL_ROPE_BASE_MAX 1e18

#define RL_MAX_LAYERS 512

typedef enum rl_rope_scaling { RL_SCALE_NONE, RL_SCALE_LINEAR, RL_SCALE_YARN, RL_SCALE_LONGROPE } rl_rope_scaling;

typedef struct rl_layer_hp {
    uint32_t n_head, n_head_kv, n_ff;
    bool sliding, rope;
} rl_layer_hp;

typedef struct rl_hparams {
    const rl_arch *arch;
    uint32_t n_layer, n_embd, n_ctx_train, n_vocab;
    uint32_t dim_k, dim_v; // head sizes
    uint32_t n_rot;        // values of a head that RoPE turns
    uint32_t n_head_max, n_head_kv_max, n_ff_max;
    float norm_eps;
    uint32_t window; // 0: none
    double rope_base, rope_base_swa;
    rl_rope_scaling scaling;
    double rope_factor; // >= 1; 1: none
    uint32_t n_ctx_orig;
    double rope_attn_factor, yarn_beta_fast, yarn_beta_slow, yarn_ext_factor, yarn_log_mul;
    float attn_scale; // multiplies q.k
    float attn_softcap, final_softcap;
    float embed_scale, residual_scale, logit_scale; // multiply; 1: none
    float temp_scale;                               // attention temperature, 0: none
    uint32_t temp_length;
    uint32_t n_expert, n_expert_used, n_ff_exp, n_ff_shexp;
    rl_layer_hp layer[RL_MAX_LAYERS];
} rl_hparams;

// Facts worth telling: metadata keys that nothing here reads. One string per fact, NUL separated.
typedef struct rl_notes {
    char text[4096];
    size_t len, n;
} rl_notes;
void rl_note(rl_notes *notes, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/// Reads and checks everything. RL_ERR_FORMAT names the key; RL_ERR_UNSUPPORTED what cannot be honoured.
rl_status rl_hparams_read(rl_hparams *hp, const rl_gguf *g, rl_notes *notes, rl_err *err);

#endif
