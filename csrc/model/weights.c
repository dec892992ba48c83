// SPDX-License-Identifier: Apache-2.0
// Binds tensors by name. A tensor that is missing, has another shape, or that nothing here would read is an error:
// an unread bias or gate would change every output in silence.
#include "model/weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ref/ref.h"

typedef struct binder {
    rl_weights *w;
    const rl_hparams *hp;
    const rl_gguf *g;
    rl_err *err;
    const rl_tensor *replaced;
    size_t n_replaced;
    unsigned char *used; // one per tensor of the file, then one per replaced
    size_t vector_room, vector_used;
    rl_status status;
    char name[128];
} binder;

static const rl_tensor *find(binder *b, int layer, const char *suffix) {
    if (layer >= 0)
        snprintf(b->name, sizeof b->name, "blk.%d.%s", layer, suffix);
    else
        snprintf(b->name, sizeof b->name, "%s", suffix);
    const rl_tensor *t = rl_gguf_tensor(b->g, b->name);
    if (t) b->used[t - rl_gguf_tensor_at(b->g, 0)] = 1;
    for (size_t i = 0; i < b->n_replaced; i++)
        if (!strcmp(b->replaced[i].name, b->name)) {
            b->used[rl_gguf_n_tensors(b->g) + i] = 1;
            return &b->replaced[i];
        }
    return t;
}

static rl_status check_usable(binder *b, const rl_tensor *t) {
    if (!t->dtype)
        return rl_fail_format(b->err, NULL, t->name, t->offset, "tensor '%s' has type id %u, which is not known",
                              t->name, t->type_id);
    if (!t->dtype->computes)
        return rl_fail_format(b->err, NULL, t->name, t->offset, "tensor '%s' has type %s, which cannot be a weight",
                              t->name, t->dtype->name);
    if (!t->data)
        return rl_fail_format(b->err, NULL, t->name, t->offset, "tensor '%s' has no data in this file", t->name);
    return RL_OK;
}

// A matrix of `rows` by `cols` (times `experts`), at rows [row0, row0 + rows) of a tensor of total_rows.
static void slice(binder *b, int layer, const char *suffix, rl_presence need, size_t row0, size_t rows,
                  size_t total_rows, size_t cols, size_t experts, rl_weight *out) {
    if (b->status != RL_OK || need == RL_NO) return;
    const rl_tensor *t = find(b, layer, suffix);
    if (!t) {
        if (need == RL_YES)
            b->status =
                rl_fail_format(b->err, NULL, b->name, UINT64_MAX,
                               "tensor '%s' is required by architecture '%s' and missing", b->name, b->hp->arch->name);
        return;
    }
    if ((b->status = check_usable(b, t)) != RL_OK) return;
    uint64_t depth = t->dims[2] * t->dims[3];
    if (t->dims[0] != cols || t->dims[1] != total_rows || depth != experts) {
        b->status = rl_fail_format(b->err, NULL, t->name, t->offset,
                                   "tensor '%s' is %llu x %llu x %llu, expected %zu x %zu x %zu (row length x rows x "
                                   "matrices)",
                                   t->name, (unsigned long long)t->dims[0], (unsigned long long)t->dims[1],
                                   (unsigned long long)depth, cols, total_rows, experts);
        return;
    }
    *out = (rl_weight){.t = t, .row0 = row0, .rows = rows, .cols = cols, .experts = experts};
}

static void matrix(binder *b, int layer, const char *suffix, rl_presence need, size_t rows, size_t cols,
                   rl_weight *out) {
    slice(b, layer, suffix, need, 0, rows, rows, cols, 1, out);
}

// A small vector as float32. Two passes: the first only counts the room.
static const float *vector(binder *b, int layer, const char *suffix, rl_presence need, size_t n) {
    if (b->status != RL_OK || need == RL_NO) return NULL;
    const rl_tensor *t = find(b, layer, suffix);
    if (!t) {
        if (need == RL_YES)
            b->status =
                rl_fail_format(b->err, NULL, b->name, UINT64_MAX,
                               "tensor '%s' is required by architecture '%s' and missing", b->name, b->hp->arch->name);
        return NULL;
    }
    if ((b->status = check_usable(b, t)) != RL_OK) return NULL;
    uint64_t total = t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
    if (total != n || n % t->dtype->block) {
        b->status = rl_fail_format(b->err, NULL, t->name, t->offset, "tensor '%s' has %llu values, expected %zu",
                                   t->name, (unsigned long long)total, n);
        return NULL;
    }
    size_t at = b->vector_used;
    b->vector_used += (n + 15) / 16 * 16; // keeps every vector on a cache line
    if (!b->w->owned) return NULL;
    rl_dequant_ref((rl_type)t->type_id)(t->data, b->w->owned + at, n);
    return b->w->owned + at;
}

static rl_presence only_if(bool condition, rl_presence need) {
    return condition ? need : RL_NO;
}

static void bind_attention(binder *b, int i, rl_layer *l) {
    const rl_hparams *hp = b->hp;
    const rl_arch *a = hp->arch;
    const rl_layer_hp *lh = &hp->layer[i];
    size_t d = hp->n_embd, nq = (size_t)lh->n_head * hp->dim_k, nk = (size_t)lh->n_head_kv * hp->dim_k,
           nv = (size_t)lh->n_head_kv * hp->dim_v;
    bool layer_norm = a->norm == RL_NORM_LAYER;
    l->attn_norm = vector(b, i, "attn_norm.weight", a->attn_norm, d);
    l->attn_norm_b = vector(b, i, "attn_norm.bias", only_if(layer_norm, RL_MAY), d);
    // Fused projections exist for every family in the wild, so both forms are taken where the row does not insist.
    bool fused = a->qkv_fused && !rl_gguf_tensor(b->g, "blk.0.attn_q.weight");
    if (fused) {
        size_t all = nq + nk + nv;
        slice(b, i, "attn_qkv.weight", RL_YES, 0, nq, all, d, 1, &l->q);
        slice(b, i, "attn_qkv.weight", RL_YES, nq, nk, all, d, 1, &l->k);
        slice(b, i, "attn_qkv.weight", RL_YES, nq + nk, nv, all, d, 1, &l->v);
        const float *bias = vector(b, i, "attn_qkv.bias", a->qkv_bias, all);
        if (bias) {
            l->q_b = bias;
            l->k_b = bias + nq;
            l->v_b = bias + nq + nk;
        }
    } else {
        matrix(b, i, "attn_q.weight", RL_YES, nq, d, &l->q);
        matrix(b, i, "attn_k.weight", RL_YES, nk, d, &l->k);
        matrix(b, i, "attn_v.weight", RL_YES, nv, d, &l->v);
        l->q_b = vector(b, i, "attn_q.bias", a->qkv_bias, nq);
        l->k_b = vector(b, i, "attn_k.bias", a->qkv_bias, nk);
        l->v_b = vector(b, i, "attn_v.bias", a->qkv_bias, nv);
    }
    size_t qn = a->qk_norm == RL_QK_HEAD ? hp->dim_k : nq, kn = a->qk_norm == RL_QK_HEAD ? hp->dim_k : nk;
    l->q_norm = vector(b, i, "attn_q_norm.weight", a->qk_norm_present, qn);
    l->k_norm = vector(b, i, "attn_k_norm.weight", a->qk_norm_present, kn);
    matrix(b, i, "attn_output.weight", RL_YES, d, (size_t)lh->n_head * hp->dim_v, &l->o);
    l->o_b = vector(b, i, "attn_output.bias", a->attn_out_bias, d);
    l->post_attn_norm = vector(b, i, "post_attention_norm.weight", a->post_attn_norm, d);
}

static void bind_ffn(binder *b, int i, rl_layer *l) {
    const rl_hparams *hp = b->hp;
    const rl_arch *a = hp->arch;
    size_t d = hp->n_embd, ff = hp->layer[i].n_ff;
    l->ffn_norm = vector(b, i, "ffn_norm.weight", a->ffn_norm, d);
    l->ffn_norm_b = vector(b, i, "ffn_norm.bias", only_if(a->norm == RL_NORM_LAYER, RL_MAY), d);
    l->post_ffw_norm = vector(b, i, "post_ffw_norm.weight", a->post_ffw_norm, d);
    if (hp->n_expert) {
        size_t e = hp->n_expert, fe = hp->n_ff_exp, fs = hp->n_ff_shexp;
        matrix(b, i, "ffn_gate_inp.weight", RL_YES, e, d, &l->router);
        slice(b, i, "ffn_gate_exps.weight", RL_YES, 0, fe, fe, d, e, &l->gate_exps);
        slice(b, i, "ffn_up_exps.weight", RL_YES, 0, fe, fe, d, e, &l->up_exps);
        slice(b, i, "ffn_down_exps.weight", RL_YES, 0, d, d, fe, e, &l->down_exps);
        matrix(b, i, "ffn_gate_shexp.weight", only_if(fs > 0, RL_YES), fs, d, &l->gate_sh);
        matrix(b, i, "ffn_up_shexp.weight", only_if(fs > 0, RL_YES), fs, d, &l->up_sh);
        matrix(b, i, "ffn_down_shexp.weight", only_if(fs > 0, RL_YES), d, fs, &l->down_sh);
        return;
    }
    if (!ff) {
        if (b->status == RL_OK)
            b->status = rl_fail_format(b->err, NULL, NULL, UINT64_MAX, "layer %d has a feed-forward length of 0", i);
        return;
    }
    bool fused = a->gate_up_fused && !rl_gguf_tensor(b->g, "blk.0.ffn_gate.weight");
    if (fused) {
        slice(b, i, "ffn_up.weight", RL_YES, 0, ff, 2 * ff, d, 1, &l->gate);
        slice(b, i, "ffn_up.weight", RL_YES, ff, ff, 2 * ff, d, 1, &l->up);
    } else {
        matrix(b, i, "ffn_gate.weight", only_if(a->gated, RL_YES), ff, d, &l->gate);
        matrix(b, i, "ffn_up.weight", RL_YES, ff, d, &l->up);
        l->gate_b = vector(b, i, "ffn_gate.bias", only_if(a->gated, a->ffn_bias), ff);
        l->up_b = vector(b, i, "ffn_up.bias", a->ffn_bias, ff);
    }
    matrix(b, i, "ffn_down.weight", RL_YES, d, ff, &l->down);
    l->down_b = vector(b, i, "ffn_down.bias", a->ffn_bias, d);
}

static void bind_all(binder *b) {
    const rl_hparams *hp = b->hp;
    rl_weights *w = b->w;
    size_t d = hp->n_embd, v = hp->n_vocab, half = hp->n_rot / 2;
    matrix(b, -1, "token_embd.weight", RL_YES, v, d, &w->embed);
    w->out_norm = vector(b, -1, "output_norm.weight", RL_YES, d);
    w->out_norm_b = vector(b, -1, "output_norm.bias", only_if(hp->arch->norm == RL_NORM_LAYER, RL_MAY), d);
    w->output = (rl_weight){0}; // an earlier pass may have put the embedding here
    matrix(b, -1, "output.weight", RL_MAY, v, d, &w->output);
    w->output_b = vector(b, -1, "output.bias", RL_MAY, v);
    w->tied = !w->output.t;
    if (w->tied) w->output = w->embed;
    w->rope_factors = vector(b, -1, "rope_freqs.weight", RL_MAY, half);
    rl_presence lr = hp->scaling == RL_SCALE_LONGROPE ? RL_YES : RL_MAY;
    w->rope_long = vector(b, -1, "rope_factors_long.weight", lr, half);
    w->rope_short = vector(b, -1, "rope_factors_short.weight", lr, half);
    for (uint32_t i = 0; i < hp->n_layer && b->status == RL_OK; i++) {
        bind_attention(b, (int)i, &w->layers[i]);
        bind_ffn(b, (int)i, &w->layers[i]);
    }
}

// Tensors that older writers add and that carry nothing the metadata does not say.
static bool is_redundant(const char *name) {
    return strstr(name, "attn_rot_embd") || strstr(name, "rotary_emb.inv_freq");
}

static rl_status refuse_unread(binder *b) {
    for (size_t i = 0; i < rl_gguf_n_tensors(b->g); i++) {
        const rl_tensor *t = rl_gguf_tensor_at(b->g, i);
        if (b->used[i] || is_redundant(t->name)) continue;
        unsigned layer;
        if (sscanf(t->name, "blk.%u.", &layer) == 1 && layer >= b->hp->n_layer)
            return rl_fail(b->err, RL_ERR_UNSUPPORTED, "tensor '%s' belongs to layer %u but the model has %u layers",
                           t->name, layer, b->hp->n_layer);
        return rl_fail(b->err, RL_ERR_UNSUPPORTED,
                       "tensor '%s' is not part of architecture '%s' as this engine knows it; ignoring it would change "
                       "the output",
                       t->name, b->hp->arch->name);
    }
    for (size_t i = 0; i < b->n_replaced; i++)
        if (!b->used[rl_gguf_n_tensors(b->g) + i])
            return rl_fail(b->err, RL_ERR_ARG,
                           "tensor '%.100s' cannot be replaced: architecture '%s' reads none of that "
                           "name here",
                           b->replaced[i].name, b->hp->arch->name);
    return RL_OK;
}

rl_status rl_weights_bind(rl_weights *w, const rl_hparams *hp, const rl_gguf *g, const rl_tensor *replaced,
                          size_t n_replaced, rl_err *err) {
    memset(w, 0, sizeof *w);
    size_t n_tensors = rl_gguf_n_tensors(g) + n_replaced;
    binder b = {.w = w, .hp = hp, .g = g, .replaced = replaced, .n_replaced = n_replaced, .err = err, .status = RL_OK};
    w->layers = calloc(hp->n_layer, sizeof *w->layers);
    b.used = calloc(n_tensors ? n_tensors : 1, 1);
    if (!w->layers || !b.used) {
        b.status = rl_fail(err, RL_ERR_NOMEM, "no memory for the tables of %u layers", hp->n_layer);
    } else {
        bind_all(&b);
        if (b.status == RL_OK) b.status = refuse_unread(&b);
        if (b.status == RL_OK) {
            w->owned_bytes = (b.vector_used ? b.vector_used : 16) * sizeof(float);
            void *p = NULL;
            if (posix_memalign(&p, 64, w->owned_bytes)) p = NULL;
            w->owned = p;
            b.vector_used = 0;
            if (!p)
                b.status = rl_fail(err, RL_ERR_NOMEM, "no memory for %zu bytes of norms and biases", w->owned_bytes);
            else
                bind_all(&b);
        }
    }
    free(b.used);
    if (b.status != RL_OK) rl_weights_free(w);
    return b.status;
}

void rl_weights_free(rl_weights *w) {
    free(w->layers);
    free(w->owned);
    memset(w, 0, sizeof *w);
}
