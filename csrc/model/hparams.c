// SPDX-License-Identifier: Apache-2.0
// A key that is required and missing is an error; one that changes the computation in a way this engine does not
// know is refused by name; any other unread key of the architecture becomes a note that the caller shows.
#include "model/hparams.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct reader {
    const rl_gguf *g;
    const char *arch;
    rl_err *err;
    rl_status status; // the first failure; later reads do nothing
    char key[160];
} reader;

// Every "<arch>." key that is read below, or known to carry no computation. Kept as one list so that the check for
// unread keys cannot drift from it: get_* refuses to read a key that is not listed.
static const char *const known_keys[] = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.scale",
    "attention.temperature_scale",
    "attention.temperature_length",
    "attention.causal",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "rope.dimension_count",
    "rope.dimension_count_swa",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_log_multiplier",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "expert_weights_norm",
    "expert_gating_func",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "use_parallel_residual",
    "pooling_type",
    "tensor_data_layout",
    "attention.max_alibi_bias",
    "attention.clamp_kqv",
    "hidden_activation",
};

static bool is_known(const char *name) {
    for (size_t i = 0; i < sizeof known_keys / sizeof *known_keys; i++)
        if (strcmp(known_keys[i], name) == 0) return true;
    return false;
}

void rl_note(rl_notes *notes, const char *fmt, ...) {
    if (!notes || notes->len + 1 >= sizeof notes->text) return;
    va_list ap;
    va_start(ap, fmt);
    size_t room = sizeof notes->text - notes->len;
    int n = vsnprintf(notes->text + notes->len, room, fmt, ap);
    va_end(ap);
    if (n < 0) return;
    notes->len += ((size_t)n < room ? (size_t)n : room - 1) + 1;
    notes->n++;
}

static const char *full_key(reader *r, const char *name) {
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, name);
    return r->key;
}

static rl_status missing(reader *r, const char *name) {
    return rl_fail_format(r->err, full_key(r, name), NULL, UINT64_MAX,
                          "metadata key '%s' is required by architecture '%s' and missing", full_key(r, name), r->arch);
}

static bool get_u32(reader *r, const char *name, uint32_t *out, uint64_t lo, uint64_t hi) {
    if (r->status != RL_OK) return false;
    if (!is_known(name)) {
        r->status = rl_fail(r->err, RL_ERR_ARG, "internal: key '%s' is not listed in known_keys", name);
        return false;
    }
    uint64_t v = 0;
    bool found = false;
    r->status = rl_gguf_get_u64(r->g, full_key(r, name), &v, &found, r->err);
    if (r->status != RL_OK || !found) return false;
    if (v < lo || v > hi) {
        r->status = rl_fail_format(r->err, r->key, NULL, UINT64_MAX,
                                   "metadata key '%s' is %llu, outside the range %llu to %llu", r->key,
                                   (unsigned long long)v, (unsigned long long)lo, (unsigned long long)hi);
        return false;
    }
    *out = (uint32_t)v;
    return true;
}

static void need_u32(reader *r, const char *name, uint32_t *out, uint64_t lo, uint64_t hi) {
    if (!get_u32(r, name, out, lo, hi) && r->status == RL_OK) r->status = missing(r, name);
}

static bool get_double(reader *r, const char *name, double *out, double lo, double hi) {
    if (r->status != RL_OK) return false;
    if (!is_known(name)) {
        r->status = rl_fail(r->err, RL_ERR_ARG, "internal: key '%s' is not listed in known_keys", name);
        return false;
    }
    double v = 0;
    bool found = false;
    r->status = rl_gguf_get_f64(r->g, full_key(r, name), &v, &found, r->err);
    if (r->status != RL_OK || !found) return false;
    if (!(v >= lo && v <= hi)) {
        r->status = rl_fail_format(r->err, r->key, NULL, UINT64_MAX,
                                   "metadata key '%s' is %g, outside the range %g to %g", r->key, v, lo, hi);
        return false;
    }
    *out = v;
    return true;
}

static bool get_float(reader *r, const char *name, float *out, double lo, double hi) {
    double v;
    if (!get_double(r, name, &v, lo, hi)) return false;
    *out = (float)v;
    return true;
}

// A value for each layer: a scalar for all, or an array of n_layer.
static void per_layer(reader *r, const char *name, bool required, uint64_t lo, uint64_t hi, rl_hparams *hp,
                      size_t field) {
    if (r->status != RL_OK) return;
    const rl_meta *m = rl_gguf_find(r->g, full_key(r, name));
    if (!m) {
        if (required) r->status = missing(r, name);
        return;
    }
    if (m->type == RL_META_ARRAY && m->count != hp->n_layer) {
        r->status = rl_fail_format(r->err, r->key, NULL, m->offset, "metadata key '%s' has %llu values for %u layers",
                                   r->key, (unsigned long long)m->count, hp->n_layer);
        return;
    }
    for (uint32_t i = 0; i < hp->n_layer && r->status == RL_OK; i++) {
        uint64_t v = 0;
        bool found;
        r->status = m->type == RL_META_ARRAY ? rl_meta_get_u64(m, i, &v, r->err)
                                             : rl_gguf_get_u64(r->g, r->key, &v, &found, r->err);
        if (r->status == RL_OK && (v < lo || v > hi))
            r->status = rl_fail_format(r->err, r->key, NULL, m->offset,
                                       "metadata key '%s' is %llu for layer %u, outside the range %llu to %llu", r->key,
                                       (unsigned long long)v, i, (unsigned long long)lo, (unsigned long long)hi);
        if (r->status == RL_OK) *(uint32_t *)((char *)&hp->layer[i] + field) = (uint32_t)v;
    }
}

static void read_shape(reader *r, rl_hparams *hp) {
    need_u32(r, "block_count", &hp->n_layer, 1, RL_MAX_LAYERS);
    need_u32(r, "embedding_length", &hp->n_embd, 1, 1u << 20);
    need_u32(r, "context_length", &hp->n_ctx_train, 1, 1u << 30);
    per_layer(r, "attention.head_count", true, 1, 4096, hp, offsetof(rl_layer_hp, n_head));
    if (r->status != RL_OK) return;
    for (uint32_t i = 0; i < hp->n_layer; i++) hp->layer[i].n_head_kv = hp->layer[i].n_head;
    per_layer(r, "attention.head_count_kv", false, 1, 4096, hp, offsetof(rl_layer_hp, n_head_kv));
    per_layer(r, "feed_forward_length", hp->arch->experts != RL_YES, 0, 1u << 24, hp, offsetof(rl_layer_hp, n_ff));
    if (r->status != RL_OK) return;
    for (uint32_t i = 0; i < hp->n_layer; i++) {
        const rl_layer_hp *l = &hp->layer[i];
        if (l->n_head % l->n_head_kv) {
            r->status = rl_fail_format(r->err, full_key(r, "attention.head_count_kv"), NULL, UINT64_MAX,
                                       "layer %u has %u query heads, no multiple of its %u KV heads", i, l->n_head,
                                       l->n_head_kv);
            return;
        }
        if (l->n_head > hp->n_head_max) hp->n_head_max = l->n_head;
        if (l->n_head_kv > hp->n_head_kv_max) hp->n_head_kv_max = l->n_head_kv;
        if (l->n_ff > hp->n_ff_max) hp->n_ff_max = l->n_ff;
    }
    bool have_k = get_u32(r, "attention.key_length", &hp->dim_k, 1, 1024);
    bool have_v = get_u32(r, "attention.value_length", &hp->dim_v, 1, 1024);
    if (r->status != RL_OK) return;
    if ((!have_k || !have_v) && hp->n_embd % hp->layer[0].n_head) {
        r->status = rl_fail_format(r->err, full_key(r, "attention.head_count"), NULL, UINT64_MAX,
                                   "width %u is no multiple of %u heads and '%s.attention.key_length' and "
                                   "'value_length' are not both given",
                                   hp->n_embd, hp->layer[0].n_head, r->arch);
        return;
    }
    if (!have_k) hp->dim_k = hp->n_embd / hp->layer[0].n_head;
    if (!have_v) hp->dim_v = hp->n_embd / hp->layer[0].n_head;
    hp->n_rot = hp->dim_k;
    get_u32(r, "rope.dimension_count", &hp->n_rot, 0, 1024);
    if (r->status == RL_OK && (hp->n_rot > hp->dim_k || hp->n_rot % 2))
        r->status =
            rl_fail_format(r->err, full_key(r, "rope.dimension_count"), NULL, UINT64_MAX,
                           "RoPE turns %u values of heads of %u: it must be even and no larger", hp->n_rot, hp->dim_k);
}

static void read_norms_and_scales(reader *r, rl_hparams *hp) {
    const rl_arch *a = hp->arch;
    const char *eps = a->norm == RL_NORM_RMS ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
    if (!get_float(r, eps, &hp->norm_eps, 0, 1) && r->status == RL_OK) r->status = missing(r, eps);
    hp->embed_scale = a->embed_scale_sqrt ? (float)sqrt((double)hp->n_embd) : 1.0f;
    hp->residual_scale = hp->logit_scale = 1.0f;
    double query_width = hp->n_layer == a->query_width_layers ? (double)hp->n_embd / hp->layer[0].n_head : hp->dim_k;
    hp->attn_scale = (float)(1.0 / sqrt(query_width));
    hp->attn_softcap = (float)a->attn_softcap;
    hp->final_softcap = (float)a->final_softcap;
    if (a->softcaps) {
        get_float(r, "attn_logit_softcapping", &hp->attn_softcap, 0, 1e6);
        get_float(r, "final_logit_softcapping", &hp->final_softcap, 0, 1e6);
    }
    if (a->scales) {
        get_float(r, "embedding_scale", &hp->embed_scale, 1e-9, 1e9);
        get_float(r, "residual_scale", &hp->residual_scale, 1e-9, 1e9);
        float divisor = 1.0f;
        get_float(r, "logit_scale", &divisor, 1e-9, 1e9);
        hp->logit_scale = 1.0f / divisor;
        float scale = 0;
        if (get_float(r, "attention.scale", &scale, 0, 1e9) && scale > 0) hp->attn_scale = scale;
    }
    if (a->attn_temperature && get_float(r, "attention.temperature_scale", &hp->temp_scale, 0, 100)) {
        // The length of a temperature step is that of the original context.
        hp->temp_length = 0;
        get_u32(r, "rope.scaling.original_context_length", &hp->temp_length, 1, 1u << 30);
        if (r->status == RL_OK && hp->temp_scale > 0 && !hp->temp_length)
            r->status = missing(r, "rope.scaling.original_context_length");
    }
}

static void read_rope(reader *r, rl_hparams *hp) {
    const rl_arch *a = hp->arch;
    hp->rope_base = a->rope_base;
    get_double(r, "rope.freq_base", &hp->rope_base, RL_ROPE_BASE_MIN, RL_ROPE_BASE_MAX);
    hp->rope_base_swa = a->swa_rope_base > 0 ? a->swa_rope_base : hp->rope_base;
    get_double(r, "rope.freq_base_swa", &hp->rope_base_swa, RL_ROPE_BASE_MIN, RL_ROPE_BASE_MAX);
    hp->rope_factor = 1;
    if (!get_double(r, "rope.scaling.factor", &hp->rope_factor, 0, 1e9))
        get_double(r, "rope.scale_linear", &hp->rope_factor, 0, 1e9);
    if (hp->rope_factor == 0) hp->rope_factor = 1; // the field's way of writing "none"
    hp->rope_attn_factor = 1;
    get_double(r, "rope.scaling.attn_factor", &hp->rope_attn_factor, 1e-6, 1e6);
    hp->n_ctx_orig = hp->n_ctx_train;
    get_u32(r, "rope.scaling.original_context_length", &hp->n_ctx_orig, 1, 1u << 30);
    hp->yarn_beta_fast = 32;
    hp->yarn_beta_slow = 1;
    hp->yarn_ext_factor = 1;
    if (a->yarn_keys) {
        get_double(r, "rope.scaling.yarn_beta_fast", &hp->yarn_beta_fast, 1e-6, 1e6);
        get_double(r, "rope.scaling.yarn_beta_slow", &hp->yarn_beta_slow, 1e-6, 1e6);
        get_double(r, "rope.scaling.yarn_log_multiplier", &hp->yarn_log_mul, 0, 1e6);
    }
    if (r->status != RL_OK) return;
    const char *s = NULL;
    size_t len = 0;
    bool found = false;
    r->status = rl_gguf_get_str(r->g, full_key(r, "rope.scaling.type"), &s, &len, &found, r->err);
    if (r->status != RL_OK) return;
    hp->scaling = hp->rope_factor != 1 ? RL_SCALE_LINEAR : RL_SCALE_NONE;
    if (found) {
        if (len == 4 && !memcmp(s, "none", 4)) {
            hp->scaling = RL_SCALE_NONE;
        } else if (len == 6 && !memcmp(s, "linear", 6)) {
            hp->scaling = hp->rope_factor != 1 ? RL_SCALE_LINEAR : RL_SCALE_NONE;
        } else if (len == 4 && !memcmp(s, "yarn", 4)) {
            hp->scaling = RL_SCALE_YARN;
        } else if (len == 8 && !memcmp(s, "longrope", 8)) {
            hp->scaling = RL_SCALE_LONGROPE;
        } else {
            r->status = rl_fail_format(r->err, full_key(r, "rope.scaling.type"), NULL, UINT64_MAX,
                                       "'%s' is '%.*s', which is not known; known are none, linear, yarn, longrope",
                                       r->key, (int)(len < 64 ? len : 64), s);
            return;
        }
    }
    if (hp->scaling == RL_SCALE_NONE) hp->rope_factor = 1;
    bool finetuned = true;
    r->status = rl_gguf_get_bool(r->g, full_key(r, "rope.scaling.finetuned"), &finetuned, &found, r->err);
    bool rope_on = !(a->rope_finetuned_off && found && !finetuned);
    for (uint32_t i = 0; i < hp->n_layer; i++)
        hp->layer[i].rope = rope_on && hp->n_rot > 0 && !(a->nope_period && (i + 1) % a->nope_period == 0);
}

static void read_window(reader *r, rl_hparams *hp, rl_notes *notes) {
    const rl_arch *a = hp->arch;
    bool have = get_u32(r, "attention.sliding_window", &hp->window, 0, 1u << 30);
    if (r->status != RL_OK) return;
    if (!have && a->swa_required) {
        r->status = missing(r, "attention.sliding_window");
        return;
    }
    if (!hp->window) return;
    if (!a->swa_period) {
        // Writers put the window of the training set-up here (phi3, qwen2) although these families attend to all
        // positions; the runtimes of the field ignore it, and published results are made that way.
        rl_note(notes, "'%s.attention.sliding_window' = %u has no effect: '%s' attends to all positions", r->arch,
                hp->window, r->arch);
        hp->window = 0;
        return;
    }
    uint32_t period = a->swa_period;
    const rl_meta *m = rl_gguf_find(r->g, full_key(r, "attention.sliding_window_pattern"));
    if (m && m->type == RL_META_ARRAY) {
        if (m->count != hp->n_layer) {
            r->status = rl_fail_format(r->err, r->key, NULL, m->offset, "'%s' has %llu values for %u layers", r->key,
                                       (unsigned long long)m->count, hp->n_layer);
            return;
        }
        for (uint32_t i = 0; i < hp->n_layer && r->status == RL_OK; i++) {
            uint64_t v = 0;
            r->status = rl_meta_get_u64(m, i, &v, r->err);
            hp->layer[i].sliding = v != 0;
        }
        return;
    }
    if (m && !get_u32(r, "attention.sliding_window_pattern", &period, 1, 1024)) return;
    for (uint32_t i = 0; i < hp->n_layer; i++) hp->layer[i].sliding = period > 1 && i % period < period - 1;
}

static void read_experts(reader *r, rl_hparams *hp) {
    const rl_arch *a = hp->arch;
    get_u32(r, "expert_count", &hp->n_expert, 0, 1024);
    get_u32(r, "expert_used_count", &hp->n_expert_used, 0, 1024);
    if (r->status != RL_OK) return;
    if (a->experts == RL_NO && hp->n_expert) {
        r->status = rl_fail(r->err, RL_ERR_UNSUPPORTED, "architecture '%s' with '%s.expert_count' = %u is not known",
                            r->arch, r->arch, hp->n_expert);
        return;
    }
    if (a->experts == RL_YES && !hp->n_expert) {
        r->status = missing(r, "expert_count");
        return;
    }
    if (!hp->n_expert) return;
    if (hp->n_expert_used < 1 || hp->n_expert_used > hp->n_expert || hp->n_expert_used > 64) {
        r->status = rl_fail_format(r->err, full_key(r, "expert_used_count"), NULL, UINT64_MAX,
                                   "%u of %u experts are used per token: it must be 1 to min(64, expert_count)",
                                   hp->n_expert_used, hp->n_expert);
        return;
    }
    hp->n_ff_exp = hp->n_ff_max;
    get_u32(r, "expert_feed_forward_length", &hp->n_ff_exp, 1, 1u << 24);
    get_u32(r, "expert_shared_feed_forward_length", &hp->n_ff_shexp, 0, 1u << 24);
    uint32_t gating = 1;
    get_u32(r, "expert_gating_func", &gating, 0, 100);
    if (r->status == RL_OK && gating > 1)
        r->status = rl_fail(r->err, RL_ERR_UNSUPPORTED,
                            "'%s.expert_gating_func' = %u is not known; known is 1 (softmax)", r->arch, gating);
    if (r->status == RL_OK && !hp->n_ff_exp) r->status = missing(r, "expert_feed_forward_length");
}

// Keys whose presence with a value other than the neutral one changes the computation in a way nothing here does.
static void refuse_what_cannot_be_honoured(reader *r) {
    static const struct {
        const char *key;
        double neutral;
    } refused[] = {
        {"pooling_type", 0},
        {"attention.max_alibi_bias", 0},
        {"attention.clamp_kqv", 0},
        {"attention.causal", 1},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused && r->status == RL_OK; i++) {
        const rl_meta *m = rl_gguf_find(r->g, full_key(r, refused[i].key));
        if (!m) continue;
        double v = 0;
        bool found, b = false;
        if (m->type == RL_META_BOOL) {
            r->status = rl_gguf_get_bool(r->g, r->key, &b, &found, r->err);
            v = b;
        } else {
            r->status = rl_gguf_get_f64(r->g, r->key, &v, &found, r->err);
        }
        if (r->status == RL_OK && v != refused[i].neutral)
            r->status = rl_fail(r->err, RL_ERR_UNSUPPORTED, "'%s' = %g cannot be honoured by this engine", r->key, v);
    }
}

// Some writers state the activation; it must be the one the architecture's row has.
static void check_activation(reader *r, rl_activation act) {
    static const struct {
        const char *name;
        rl_activation act;
    } known[] = {{"silu", RL_ACT_SILU},
                 {"swish", RL_ACT_SILU},
                 {"gelu_pytorch_tanh", RL_ACT_GELU},
                 {"gelu_new", RL_ACT_GELU},
                 {"gelu_tanh", RL_ACT_GELU}};
    if (r->status != RL_OK) return;
    const char *s = NULL;
    size_t len = 0;
    bool found = false;
    r->status = rl_gguf_get_str(r->g, full_key(r, "hidden_activation"), &s, &len, &found, r->err);
    if (r->status != RL_OK || !found) return;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].name) == len && !memcmp(known[i].name, s, len) && known[i].act == act) return;
    r->status = rl_fail(r->err, RL_ERR_UNSUPPORTED, "'%s' is '%.*s', and '%s' is computed with %s", r->key,
                        (int)(len < 64 ? len : 64), s, r->arch, act == RL_ACT_SILU ? "silu" : "gelu_pytorch_tanh");
}

static void note_unread_keys(const reader *r, rl_notes *notes) {
    size_t prefix = strlen(r->arch);
    for (size_t i = 0; i < rl_gguf_n_meta(r->g); i++) {
        const rl_meta *m = rl_gguf_meta(r->g, i);
        if (strncmp(m->key, r->arch, prefix) || m->key[prefix] != '.') continue;
        if (!is_known(m->key + prefix + 1))
            rl_note(notes, "metadata key '%.100s' is not understood and has no effect", m->key);
    }
}

rl_status rl_hparams_read(rl_hparams *hp, const rl_gguf *g, rl_notes *notes, rl_err *err) {
    memset(hp, 0, sizeof *hp);
    const char *name = NULL;
    size_t len = 0;
    bool found = false;
    RL_TRY(rl_gguf_get_str(g, "general.architecture", &name, &len, &found, err));
    if (!found)
        return rl_fail_format(err, "general.architecture", NULL, UINT64_MAX,
                              "metadata key 'general.architecture' is required and missing");
    hp->arch = rl_arch_find(name, len);
    if (!hp->arch)
        return rl_fail(err, RL_ERR_UNSUPPORTED, "architecture '%.*s' is not known to this version",
                       (int)(len < 64 ? len : 64), name);
    reader r = {.g = g, .arch = hp->arch->name, .err = err, .status = RL_OK};
    read_shape(&r, hp);
    read_norms_and_scales(&r, hp);
    read_rope(&r, hp);
    read_window(&r, hp, notes);
    read_experts(&r, hp);
    refuse_what_cannot_be_honoured(&r);
    check_activation(&r, hp->arch->act);
    if (r.status != RL_OK) return r.status;
    note_unread_keys(&r, notes);
    return RL_OK;
}
