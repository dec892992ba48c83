// SPDX-License-Identifier: Apache-2.0
// One table of architectures: what the forward pass must know about a model family that its files do not say.
// A new family is a row here (and, at most, a new property), never a branch on a name.
#ifndef RL_MODEL_ARCH_H
#define RL_MODEL_ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum rl_rope_pairing { RL_ROPE_NEIGHBOURS, RL_ROPE_HALVES } rl_rope_pairing; // (2i, 2i+1) or (i, i + n/2)
typedef enum rl_norm_kind { RL_NORM_RMS, RL_NORM_LAYER } rl_norm_kind;
// head: each head normed on its own with one weight vector; full: the whole projection; per_head: layer norm per
// head with a weight row for each head
typedef enum rl_qk_norm { RL_QK_NONE, RL_QK_HEAD, RL_QK_FULL, RL_QK_PER_HEAD_LAYERNORM } rl_qk_norm;
typedef enum rl_activation { RL_ACT_SILU, RL_ACT_GELU } rl_activation; // GELU in its tanh form
typedef enum rl_presence { RL_NO, RL_YES, RL_MAY } rl_presence;

typedef struct rl_arch {
    const char *name; // general.architecture
    rl_rope_pairing pairing;
    rl_norm_kind norm;
    rl_presence attn_norm, ffn_norm;           // norms before attention and FFN
    rl_presence post_attn_norm, post_ffw_norm; // norms after them, before the residual add
    rl_qk_norm qk_norm;
    rl_presence qk_norm_present;
    rl_presence qkv_bias, attn_out_bias, ffn_bias;
    bool qkv_fused;     // attn_qkv holds q, k, v rows one after another
    bool gate_up_fused; // ffn_up holds gate and up rows
    bool gated;         // FFN is act(gate) * up; else act(up)
    rl_activation act;
    bool embed_scale_sqrt; // embeddings times sqrt(width)
    bool parallel_ffn;     // without ffn_norm the FFN reads the attention's normed input (StableLM 12B)
    // sliding window: 0 never, else layers with i % period < period - 1 slide (the last of a period is global) when
    // the window key is set
    unsigned swa_period;
    bool swa_required;
    double swa_rope_base;               // base of sliding layers without rope.freq_base_swa; 0: that of the others
    bool swa_unscaled;                  // RoPE scaling leaves sliding layers alone
    unsigned nope_period;               // layers with (i + 1) % period == 0 have no RoPE; 0: all have it
    double rope_base;                   // without the key
    bool rope_finetuned_off;            // rope.scaling.finetuned = false turns RoPE off
    bool yarn_keys;                     // reads yarn betas and yarn_log_multiplier
    bool attn_temperature;              // reads attention.temperature_scale
    bool scales;                        // reads embedding_scale, residual_scale, logit_scale (divides), attention.scale
    bool softcaps;                      // reads attn_logit_softcapping and final_logit_softcapping
    double attn_softcap, final_softcap; // without the keys
    unsigned query_width_layers;        // with this many layers the attention scale is 1 / sqrt(width / heads)
    rl_presence experts;
    bool expert_renorm; // chosen expert weights are divided by their sum
} rl_arch;

/// The row of an architecture, or NULL.
const rl_arch *rl_arch_find(const char *name, size_t len);
const rl_arch *rl_arch_all(size_t *n);

#endif
