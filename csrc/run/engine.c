// SPDX-License-Identifier: Apache-2.0
// Creation of an engine: plans for every matrix, then one block for all scratch memory, planned in a first pass that
// only counts. Nothing is allocated while tokens are computed.
#include "run/engine_internal.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attn.h"
#include "run/blas.h"

// ---- plans ----

typedef struct planner {
    rl_engine *e;
    const rl_kernel *forced; // opts.kernel, resolved
    bool forced_used;
    uint64_t rules_used; // bit of each compute rule
    rl_err *err;
    rl_status status;
} planner;

#define MAX_RULES 64 // bits of rules_used

static rl_compute compute_of(planner *p, int layer, const char *op) {
    const rl_engine_opts *o = &p->e->opts;
    rl_compute compute = o->compute;
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s", layer, op); // of the head, a name that no pattern has in mind
    for (size_t i = 0; i < o->n_rules; i++)
        if (!fnmatch(o->rules[i].pattern, op, 0) || !fnmatch(o->rules[i].pattern, full, 0)) {
            compute = o->rules[i].compute;
            p->rules_used |= UINT64_C(1) << i;
        }
    return compute;
}

static bool int8_single(const rl_engine_opts *o, const rl_mat *m) {
    for (size_t i = 0; i < o->n_int8_single; i++)
        if (o->int8_single[i].type == m->type && o->int8_single[i].cols == m->cols) return true;
    return false;
}

// What auto multiplies in int16 for any number of tokens: the output matrix, and in the first half of the layers V,
// where few KV heads make it small. On SmolLM2 that is 1.5 % of the products; it takes the KL of int8 prompts from
// 0.0020 to 0.0017 for 3 % of their speed (V of all layers: 0.0015 for 7 %).
static bool kept_wide(const rl_engine *e, int layer, const char *op, const rl_weight *w) {
    if (layer < 0) return true;
    return !strcmp(op, "attn_v") && 2 * (uint32_t)layer < e->model->hp.n_layer && 2 * w->rows <= w->cols;
}

static void plan(planner *p, rl_linear *lin, const rl_weight *w, int layer, const char *op) {
    if (p->status != RL_OK || !w->t) return;
    rl_mat m = {.type = (rl_type)w->t->type_id,
                .rows = w->rows,
                .cols = w->cols,
                .row_bytes = w->t->row_bytes,
                .data = w->t->data + w->row0 * w->t->row_bytes};
    rl_linear_opts opts = {.compute = compute_of(p, layer, op),
                           .wide = kept_wide(p->e, layer, op, w),
                           .int8_single = int8_single(&p->e->opts, &m),
                           .blas = p->e->opts.blas};
    if (p->forced && p->forced->type == m.type) {
        opts.kernel = p->forced->name;
        p->forced_used = true;
    }
    p->status = rl_linear_plan(lin, &p->e->opts.dispatch, &m, &opts, p->err);
}

static rl_status plan_all(rl_engine *e, rl_err *err) {
    const rl_model *m = e->model;
    planner p = {.e = e, .err = err, .status = RL_OK};
    if (e->opts.kernel) RL_TRY(rl_kernel_named(&e->opts.dispatch, e->opts.kernel, &p.forced, err));
    if (e->opts.n_rules > MAX_RULES)
        return rl_fail(err, RL_ERR_ARG, "compute has %zu rules, at most %d are taken", e->opts.n_rules, MAX_RULES);
    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        const rl_layer *l = &m->w.layers[i];
        rl_layer_plan *lp = &e->plans[i];
        plan(&p, &lp->q, &l->q, (int)i, "attn_q");
        plan(&p, &lp->k, &l->k, (int)i, "attn_k");
        plan(&p, &lp->v, &l->v, (int)i, "attn_v");
        plan(&p, &lp->o, &l->o, (int)i, "attn_output");
        plan(&p, &lp->gate, &l->gate, (int)i, "ffn_gate");
        plan(&p, &lp->up, &l->up, (int)i, "ffn_up");
        plan(&p, &lp->down, &l->down, (int)i, "ffn_down");
        plan(&p, &lp->router, &l->router, (int)i, "ffn_gate_inp");
        plan(&p, &lp->gate_exps, &l->gate_exps, (int)i, "ffn_gate_exps");
        plan(&p, &lp->up_exps, &l->up_exps, (int)i, "ffn_up_exps");
        plan(&p, &lp->down_exps, &l->down_exps, (int)i, "ffn_down_exps");
        plan(&p, &lp->gate_sh, &l->gate_sh, (int)i, "ffn_gate_shexp");
        plan(&p, &lp->up_sh, &l->up_sh, (int)i, "ffn_up_shexp");
        plan(&p, &lp->down_sh, &l->down_sh, (int)i, "ffn_down_shexp");
    }
    plan(&p, &e->head, &m->w.output, -1, "output");
    rl_type embed = (rl_type)m->w.embed.t->type_id;
    e->embed = (rl_dequant_fn)rl_kernel_find(&e->opts.dispatch, RL_FAM_DEQUANT, embed, 0, NULL)->fn;
    if (p.status == RL_OK && p.forced && !p.forced_used)
        return rl_fail(err, RL_ERR_KERNEL, "kernel '%s' multiplies %s weights, and this model has none", e->opts.kernel,
                       rl_dtype_of(p.forced->type) ? rl_dtype_of(p.forced->type)->name : "no");
    for (size_t i = 0; p.status == RL_OK && i < e->opts.n_rules; i++)
        if (!(p.rules_used >> i & 1))
            return rl_fail(
                err, RL_ERR_ARG,
                "compute has a rule for '%.80s', which is no operation of this model; session.kernels() lists "
                "them, such as 'attn_q', 'blk.0.ffn_down' and 'output'",
                e->opts.rules[i].pattern);
    return p.status;
}

// ---- memory ----

typedef struct layout {
    char *base; // NULL in the counting pass
    size_t used;
    bool overflow;
    bool used_only; // count what single tokens and whole batches touch, not what any batch could need
} layout;

static void *take(layout *l, size_t bytes) {
    size_t padded, next;
    if (!rl_add_size(bytes, 63, &padded) || !rl_add_size(l->used, padded & ~(size_t)63, &next)) {
        l->overflow = true;
        return NULL;
    }
    void *p = l->base ? l->base + l->used : NULL;
    l->used = next;
    return p;
}

static float *take_rows(layout *l, size_t rows, size_t cols) {
    size_t n, bytes;
    if (!rl_mul_size(rows, cols, &n) || !rl_mul_size(n, sizeof(float), &bytes)) {
        l->overflow = true;
        return NULL;
    }
    return take(l, bytes);
}

static size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

// Whether whole batches never write the floats of gate and up, nor the input of down but in their place.
static bool ffn_in_one_piece(const rl_engine *e) {
    for (uint32_t i = 0; i < e->model->hp.n_layer; i++) {
        const rl_layer_plan *lp = &e->plans[i];
        if (!lp->up.w.data || !rl_ffn_in_one_piece(e, i, &lp->gate, &lp->up, &lp->down, e->opts.n_batch)) return false;
    }
    return true;
}

// The largest activation storage and tile scratch that any group of matrices needs for up to `tokens` tokens.
static void widest(const rl_engine *e, size_t tokens, bool used_only, size_t *act_bytes, size_t *scratch_bytes) {
    bool down_elsewhere = used_only && ffn_in_one_piece(e);
    *act_bytes = *scratch_bytes = 0;
    for (uint32_t i = 0; i <= e->model->hp.n_layer; i++) {
        const rl_layer_plan *lp = i < e->model->hp.n_layer ? &e->plans[i] : NULL;
        const rl_linear *all[] = {lp ? &lp->q : &e->head,   lp ? &lp->k : NULL,         lp ? &lp->v : NULL,
                                  lp ? &lp->o : NULL,       lp ? &lp->gate : NULL,      lp ? &lp->up : NULL,
                                  lp ? &lp->down : NULL,    lp ? &lp->router : NULL,    lp ? &lp->gate_exps : NULL,
                                  lp ? &lp->up_exps : NULL, lp ? &lp->down_exps : NULL, lp ? &lp->gate_sh : NULL,
                                  lp ? &lp->up_sh : NULL,   lp ? &lp->down_sh : NULL};
        // Matrices that share an input may each want a format of their own, so the union over a layer is counted; what
        // is used is the union over those of one input: q, k, v, and the rest by their number of columns.
        unsigned formats = 0;
        size_t cols = 0;
        for (size_t j = 0; j < sizeof all / sizeof *all; j++) {
            if (!all[j] || !all[j]->w.data) continue;
            if (down_elsewhere && lp && all[j] == &lp->down) continue;
            if (used_only && (j == 3 || (j > 3 && all[j]->w.cols != cols))) {
                if (cols) *act_bytes = max_size(*act_bytes, rl_act_bytes(formats, cols, tokens));
                formats = 0;
                cols = 0;
            }
            for (size_t n = 1; n <= RL_HEAD_BLOCK && !used_only; n++) formats |= rl_linear_formats(all[j], n);
            formats |= rl_linear_formats(all[j], tokens);
            cols = max_size(cols, all[j]->w.cols);
            *scratch_bytes = max_size(*scratch_bytes, rl_linear_scratch(&all[j], 1, tokens));
        }
        if (cols) *act_bytes = max_size(*act_bytes, rl_act_bytes(formats, cols, tokens));
    }
}

static void lay_out(rl_engine *e, layout *l) {
    const rl_hparams *hp = &e->model->hp;
    size_t n = e->opts.n_batch, d = hp->n_embd, used = hp->n_expert ? hp->n_expert_used : 1;
    size_t slots = n * used; // rows of expert work
    size_t ff = max_size(hp->n_expert ? hp->n_ff_shexp : hp->n_ff_max, 1);
    size_t expert_ff = hp->n_expert ? hp->n_ff_exp : 0;
    bool keep = hp->arch->parallel_ffn || hp->n_ff_shexp;
    e->ld_q = (size_t)hp->n_head_max * hp->dim_k;
    e->ld_k = (size_t)hp->n_head_kv_max * hp->dim_k;
    e->ld_v = (size_t)hp->n_head_kv_max * hp->dim_v;
    e->ld_att = (size_t)hp->n_head_max * hp->dim_v;
    e->ld_ff = max_size(ff, expert_ff);
    e->x = take_rows(l, n, d);
    e->h = take_rows(l, n, d);
    e->keep = keep ? take_rows(l, n, d) : NULL;
    e->q = take_rows(l, n, e->ld_q);
    e->k = take_rows(l, n, e->ld_k);
    e->v = take_rows(l, n, e->ld_v);
    e->att = take_rows(l, n, e->ld_att);
    if (l->used_only && ffn_in_one_piece(e)) {
        e->gate = take_rows(l, 1, e->ld_ff);
        size_t most = 0;
        for (uint32_t i = 0; i < hp->n_layer; i++)
            most = max_size(most, rl_act_bytes(rl_linear_gated_format(&e->plans[i].down, n), e->ld_ff, n));
        e->up = take(l, most);
    } else {
        e->gate = take_rows(l, slots, e->ld_ff);
        e->up = take_rows(l, slots, e->ld_ff);
    }
    e->proj = take_rows(l, n, d);
    for (int i = 0; i < 2; i++) e->cs[i] = take_rows(l, n, max_size(hp->n_rot, 2));
    if (hp->n_expert) {
        e->router_logits = take_rows(l, n, hp->n_expert);
        e->expert_weight = take_rows(l, n, used);
        e->expert_in = take_rows(l, slots, d);
        e->expert_out = take_rows(l, slots, d);
        e->expert_id = take(l, slots * sizeof(uint32_t));
        e->expert_slot = take(l, slots * sizeof(uint32_t));
        e->expert_start = take(l, (hp->n_expert + 1) * sizeof(uint32_t));
    }
    size_t act_bytes, lane_act_bytes, scratch_bytes, ignored;
    size_t most = max_size(max_size(slots, n), RL_HEAD_BLOCK);
    widest(e, most, l->used_only, &act_bytes, &scratch_bytes);
    widest(e, RL_LANE_TOKENS, false, &lane_act_bytes, &ignored);
    // Experts get a stretch of their own each, which is padded each.
    size_t stretches = hp->n_expert && hp->n_expert < slots ? hp->n_expert : hp->n_expert ? slots : 0, pad_bytes;
    widest(e, 8, false, &pad_bytes, &ignored);
    e->act = take(l, act_bytes + stretches * (pad_bytes + 64));
    rl_kv_config kv;
    rl_engine_kv_config(e, &kv);
    size_t attention_bytes = (l->used_only ? rl_attention_scratch_used : rl_attention_scratch)(
        &kv, hp->n_head_max, n, e->opts.n_ctx, e->opts.n_threads);
    e->attention = take(l, attention_bytes);
    for (int i = 0; i < e->opts.n_threads; i++) {
        rl_lane *lane = &e->lanes[i];
        lane->x = take_rows(l, RL_LANE_TOKENS, d);
        lane->h = take_rows(l, RL_LANE_TOKENS, d);
        lane->keep = keep ? take_rows(l, RL_LANE_TOKENS, d) : NULL;
        lane->ff = take_rows(l, RL_LANE_TOKENS, e->ld_ff);
        lane->act = take(l, lane_act_bytes);
        lane->scratch = take(l, scratch_bytes);
    }
}

static rl_status allocate(rl_engine *e, rl_err *err) {
    layout used = {.used_only = true}, count = {0};
    lay_out(e, &used);
    lay_out(e, &count);
    void *p = NULL;
    if (count.overflow || posix_memalign(&p, 4096, count.used))
        return rl_fail(err, RL_ERR_NOMEM, "no memory for %zu bytes of scratch (n_ctx %zu, n_batch %zu, n_threads %d)",
                       count.used, e->opts.n_ctx, e->opts.n_batch, e->opts.n_threads);
    e->block = p;
    e->block_bytes = count.used;
    e->used_bytes = used.used;
    layout place = {.base = p};
    lay_out(e, &place);
    return RL_OK;
}

// ---- life ----

static void fill_kv_layers(rl_engine *e) {
    const rl_hparams *hp = &e->model->hp;
    for (uint32_t i = 0; i < hp->n_layer; i++) {
        size_t window = hp->layer[i].sliding ? hp->window : 0;
        if (e->opts.window && (!window || e->opts.window < window)) window = e->opts.window;
        e->kv_layers[i] = (rl_kv_layer_config){
            .n_head_kv = hp->layer[i].n_head_kv, .dim_k = hp->dim_k, .dim_v = hp->dim_v, .window = window};
    }
}

void rl_engine_kv_config(const rl_engine *e, rl_kv_config *c) {
    *c = (rl_kv_config){.n_layer = e->model->hp.n_layer,
                        .layers = e->kv_layers,
                        .n_ctx = e->opts.n_ctx,
                        .type_k = e->opts.type_k,
                        .type_v = e->opts.type_v,
                        .layout = e->opts.layout,
                        .rotate = e->opts.type_k == RL_KV_Q8_0,
                        .window_slack = max_size(e->opts.n_batch, 64),
                        .evict = e->opts.evict,
                        .sinks = e->opts.sinks};
}

typedef struct turn_arg {
    const rl_engine *e;
    float cs[2][RL_ATTN_MAX_DIM]; // of the distance, for full and sliding layers
} turn_arg;

static void turn_key(void *arg, size_t layer, float *k) {
    const turn_arg *t = arg;
    const rl_hparams *hp = &t->e->model->hp;
    if (!hp->n_rot || !hp->layer[layer].rope) return;
    const rl_vec *v = &t->e->vec;
    (hp->arch->pairing == RL_ROPE_NEIGHBOURS ? v->rope_norm : v->rope_neox)(
        k, 1, hp->dim_k, t->cs[hp->layer[layer].sliding ? 1 : 0], hp->n_rot);
}

rl_status rl_engine_evict(const rl_engine *e, rl_kv *kv, rl_err *err) {
    turn_arg t = {.e = e};
    for (int i = 0; i < 2; i++) rl_rope_turn(&e->rope[i], rl_kv_dropped(kv) + RL_PAGE_TOKENS, t.cs[i]);
    return rl_kv_evict(kv, turn_key, &t, err);
}

static rl_status build(rl_engine *e, const rl_engine_opts *opts, rl_err *err) {
    const rl_hparams *hp = &e->model->hp;
    e->plans = calloc(hp->n_layer, sizeof *e->plans);
    e->kv_layers = calloc(hp->n_layer, sizeof *e->kv_layers);
    e->lanes = calloc((size_t)opts->n_threads, sizeof *e->lanes);
    e->cpus = opts->cpus ? malloc((size_t)opts->n_threads * sizeof *e->cpus) : NULL;
    if (!e->plans || !e->kv_layers || !e->lanes || (opts->cpus && !e->cpus))
        return rl_fail(err, RL_ERR_NOMEM, "no memory for the plans of %u layers", hp->n_layer);
    if (opts->cpus) memcpy(e->cpus, opts->cpus, (size_t)opts->n_threads * sizeof *e->cpus);
    e->opts.cpus = e->cpus;
    fill_kv_layers(e);
    rl_vec_init(&e->vec, &e->opts.dispatch);
    RL_TRY(rl_rope_init(&e->rope[0], hp, &e->model->w, false, opts->n_ctx, opts->rope_base, err));
    RL_TRY(rl_rope_init(&e->rope[1], hp, &e->model->w, true, opts->n_ctx, opts->rope_base, err));
    RL_TRY(plan_all(e, err));
    return allocate(e, err);
}

rl_status rl_engine_create(rl_engine **out, rl_model *model, const rl_engine_opts *opts, rl_err *err) {
    if (opts->n_threads < 1 || opts->n_threads > RL_MAX_THREADS)
        return rl_fail(err, RL_ERR_ARG, "n_threads is %d: it must be 1 to %d", opts->n_threads, RL_MAX_THREADS);
    if (opts->n_batch < 1 || opts->n_batch > 65536)
        return rl_fail(err, RL_ERR_ARG, "n_batch is %zu: it must be 1 to 65536", opts->n_batch);
    if (opts->n_ctx < 1 || opts->n_ctx > ((size_t)1 << 30))
        return rl_fail(err, RL_ERR_ARG, "n_ctx is %zu: it must be 1 to 2^30", opts->n_ctx);
    rl_engine *e = calloc(1, sizeof *e);
    if (!e) return rl_fail(err, RL_ERR_NOMEM, "no memory for an engine");
    atomic_init(&e->refs, 1);
    pthread_mutex_init(&e->lock, NULL);
    e->model = rl_model_ref(model);
    e->opts = *opts;
    if (e->opts.blas) rl_blas_ref(e->opts.blas);
    rl_status s = build(e, opts, err);
    e->opts.kernel = NULL; // the caller's
    e->opts.rules = NULL;
    e->opts.n_rules = 0;
    e->opts.int8_single = NULL;
    e->opts.n_int8_single = 0;
    if (s != RL_OK) {
        rl_engine_release(e);
        return s;
    }
    *out = e;
    return RL_OK;
}

rl_engine *rl_engine_ref(rl_engine *e) {
    atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
    return e;
}

void rl_engine_release(rl_engine *e) {
    if (!e || atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) != 1) return;
    rl_rope_free(&e->rope[0]);
    rl_rope_free(&e->rope[1]);
    free(e->block);
    free(e->plans);
    free(e->kv_layers);
    free(e->lanes);
    free(e->cpus);
    rl_blas_release(e->opts.blas);
    rl_model_release(e->model);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

const rl_model *rl_engine_model(const rl_engine *e) {
    return e->model;
}
const rl_engine_opts *rl_engine_options(const rl_engine *e) {
    return &e->opts;
}
size_t rl_engine_scratch_bytes(const rl_engine *e) {
    return e->block_bytes;
}
size_t rl_engine_scratch_used(const rl_engine *e) {
    return e->used_bytes;
}

void rl_engine_each_op(const rl_engine *e, size_t n_tok, rl_engine_op_fn fn, void *arg) {
    const rl_weights *w = &e->model->w;
    for (uint32_t i = 0; i < e->model->hp.n_layer; i++) {
        const rl_layer *l = &w->layers[i];
        const rl_layer_plan *lp = &e->plans[i];
        const struct {
            const char *name;
            const rl_weight *w;
            const rl_linear *lin;
        } ops[] = {
            {"attn_q", &l->q, &lp->q},
            {"attn_k", &l->k, &lp->k},
            {"attn_v", &l->v, &lp->v},
            {"attn_output", &l->o, &lp->o},
            {"ffn_gate", &l->gate, &lp->gate},
            {"ffn_up", &l->up, &lp->up},
            {"ffn_down", &l->down, &lp->down},
            {"ffn_gate_inp", &l->router, &lp->router},
            {"ffn_gate_exps", &l->gate_exps, &lp->gate_exps},
            {"ffn_up_exps", &l->up_exps, &lp->up_exps},
            {"ffn_down_exps", &l->down_exps, &lp->down_exps},
            {"ffn_gate_shexp", &l->gate_sh, &lp->gate_sh},
            {"ffn_up_shexp", &l->up_sh, &lp->up_sh},
            {"ffn_down_shexp", &l->down_sh, &lp->down_sh},
        };
        for (size_t j = 0; j < sizeof ops / sizeof *ops; j++)
            if (ops[j].w->t) fn(arg, (int)i, ops[j].name, ops[j].w, rl_linear_kernel(ops[j].lin, n_tok));
    }
    fn(arg, -1, "output", &w->output, rl_linear_kernel(&e->head, n_tok));
}
