// SPDX-License-Identifier: Apache-2.0
// The feed-forward half of a layer: dense, or a mixture of experts. Both read p->h and leave their result for the
// pass' own tokens in p->h.
#include "run/engine_internal.h"

#include <math.h>
#include <string.h>

static bool is_gelu(const rl_engine *e) {
    return e->model->hp.arch->act == RL_ACT_GELU;
}

static rl_gated_fn gated_activation(const rl_engine *e) {
    return is_gelu(e) ? e->vec.gelu_mul : e->vec.silu_mul;
}

static void activate(const rl_engine *e, const float *gate, const float *up, float *out, size_t n) {
    if (gate)
        gated_activation(e)(gate, up, out, n);
    else
        (is_gelu(e) ? e->vec.gelu : e->vec.silu)(up, out, n);
}

// Into the shared rows, each token by one thread.
static void add_biases(const rl_pass *p, const rl_layer *l, size_t ff) {
    const rl_engine *e = p->e;
    size_t t0, t1;
    rl_split(p->step->n_tok, 1, p->ith, p->nth, &t0, &t1);
    for (size_t t = t0; t < t1; t++) {
        float *g = e->gate + t * e->ld_ff, *u = e->up + t * e->ld_ff;
        if (l->up_b) e->vec.add(u, l->up_b, u, ff);
        if (l->gate_b) e->vec.add(g, l->gate_b, g, ff);
    }
}

// What follows a layer: QKV of the next one, or the head.
static void prefetch_next(const rl_pass *p, size_t layer) {
    const rl_engine *e = p->e;
    const rl_linear *head[] = {&e->head};
    if (layer + 1 == e->model->hp.n_layer) {
        rl_linear_prefetch(p->team, p->ith, head, 1, p->step->n_tok);
    } else {
        const rl_layer_plan *next = &e->plans[layer + 1];
        const rl_linear *qkv[] = {&next->q, &next->k, &next->v};
        rl_linear_prefetch(p->team, p->ith, qkv, 3, p->step->n_tok);
    }
}

// Not between biases, nor where the result would not fit in the place of the floats of `up`.
bool rl_ffn_in_one_piece(const rl_engine *e, size_t layer, const rl_linear *gate, const rl_linear *up,
                         const rl_linear *down, size_t n_tok) {
    const rl_layer *l = &e->model->w.layers[layer];
    return gate->w.data && !l->up_b && !l->gate_b && rl_linear_gated_fits(gate, up, down, n_tok) &&
           rl_act_bytes(rl_linear_gated_format(down, n_tok), up->w.rows, n_tok) <= n_tok * e->ld_ff * sizeof(float);
}

// The activations for `down` from those of gate and up, in one piece.
static bool gate_and_up(rl_pass *p, size_t layer, const rl_linear_call calls[2], const rl_linear *down, rl_act *act) {
    rl_engine *e = p->e;
    rl_act_bind(act, rl_linear_gated_format(down, p->step->n_tok), calls[0].lin->w.rows, p->step->n_tok, e->up);
    rl_linear_gated g = {
        .up = calls[0], .gate = calls[1], .activate = gated_activation(e), .d = &e->opts.dispatch, .down = act};
    g.up.out = g.gate.out = NULL;
    rl_linear_run_gated(p->team, p->ith, &g, p->scratch);
    if (!rl_pass_barrier(p)) return false;
    rl_pass_mark(p, layer, RL_OP_GATE_UP);
    return true;
}

// The same step by step; the floats in between are those that taps and collectors of inputs see.
static bool gate_then_activate(rl_pass *p, size_t layer, const rl_linear_call calls[2], const rl_linear *down,
                               rl_act *act) {
    rl_engine *e = p->e;
    const rl_layer *l = &e->model->w.layers[layer];
    bool gated = calls[1].lin->w.data != NULL;
    size_t ff = calls[0].lin->w.rows, n = p->step->n_tok;
    const rl_linear *last[] = {down};
    rl_linear_run(p->team, p->ith, calls, gated ? 2 : 1, p->scratch);
    rl_linear_prefetch(p->team, p->ith, last, 1, n);
    if (!rl_pass_barrier(p)) return false;
    rl_pass_mark(p, layer, RL_OP_GATE_UP);
    if (l->up_b || l->gate_b) {
        add_biases(p, l, ff);
        if (!rl_pass_barrier(p)) return false;
    }
    for (size_t t = p->t0; t < p->t1; t++) {
        const float *g = e->gate + t * e->ld_ff, *u = e->up + t * e->ld_ff;
        activate(e, gated ? g : NULL, u, p->ff + t * e->ld_ff, ff);
    }
    if (!rl_pass_tap(p, layer, RL_TAP_FFN_ACT, p->ff, ff, e->ld_ff)) return false;
    if (!rl_pass_quantize(p, act, last, 1, p->ff, e->ld_ff)) return false;
    bool of_layer = down == &e->plans[layer].down;
    rl_pass_inputs(p, of_layer ? &l->down : &l->down_sh, 0, p->ff, n, e->ld_ff);
    rl_pass_mark(p, layer, RL_OP_ACTIVATION);
    return true;
}

// down(act(gate(h)) * up(h)) into e->proj, biases of gate and up included.
static bool dense(rl_pass *p, size_t layer, const rl_linear *gate, const rl_linear *up, const rl_linear *down) {
    rl_engine *e = p->e;
    const rl_layer *l = &e->model->w.layers[layer];
    bool of_layer = down == &e->plans[layer].down; // else the expert that every token passes
    size_t d = e->model->hp.n_embd, n = p->step->n_tok;
    rl_act act, down_act;
    const rl_linear *in[] = {up, gate};
    if (!rl_pass_quantize(p, &act, in, gate->w.data ? 2 : 1, p->h, d)) return false;
    rl_pass_mark(p, layer, RL_OP_FFN_NORM);
    rl_pass_inputs(p, of_layer ? &l->gate : &l->gate_sh, 0, p->h, n, d);
    rl_pass_inputs(p, of_layer ? &l->up : &l->up_sh, 0, p->h, n, d);
    rl_linear_call calls[2] = {{up, &act, n, e->up, e->ld_ff}, {gate, &act, n, e->gate, e->ld_ff}};
    const rl_step *s = p->step;
    bool floats_wanted = s->inputs || (s->taps && s->taps->wants(s->taps->arg, layer, RL_TAP_FFN_ACT));
    if (!floats_wanted && rl_ffn_in_one_piece(e, layer, gate, up, down, n)) {
        if (!gate_and_up(p, layer, calls, down, &down_act)) return false;
    } else if (!gate_then_activate(p, layer, calls, down, &down_act)) {
        return false;
    }
    rl_linear_call call = {down, &down_act, n, e->proj, d};
    rl_linear_run(p->team, p->ith, &call, 1, p->scratch);
    prefetch_next(p, layer);
    if (!rl_pass_barrier(p)) return false;
    rl_pass_mark(p, layer, RL_OP_DOWN);
    return true;
}

// ---- mixture of experts ----

// The experts of one token, best first (the lower id of equals), and their softmax weights.
static void choose_experts(const rl_engine *e, const float *logits, uint32_t *id, float *weight) {
    const rl_hparams *hp = &e->model->hp;
    size_t n = hp->n_expert, used = hp->n_expert_used;
    for (size_t j = 0; j < used; j++) {
        size_t best = n;
        for (size_t i = 0; i < n; i++) {
            bool taken = false;
            for (size_t k = 0; k < j; k++) taken |= id[k] == i;
            if (!taken && (best == n || logits[i] > logits[best])) best = i;
        }
        id[j] = (uint32_t)best;
    }
    double top = logits[id[0]], sum = 0, kept = 0;
    for (size_t i = 0; i < n; i++) sum += exp(logits[i] - top);
    for (size_t j = 0; j < used; j++) kept += exp(logits[id[j]] - top);
    double whole = hp->arch->expert_renorm ? kept : sum;
    for (size_t j = 0; j < used; j++) weight[j] = (float)(exp(logits[id[j]] - top) / whole);
}

// Rows of expert work sorted by expert, tokens in order within each: slot of each (token, choice).
static void sort_by_expert(rl_engine *e, size_t n_tok) {
    const rl_hparams *hp = &e->model->hp;
    size_t n = hp->n_expert, rows = n_tok * hp->n_expert_used;
    memset(e->expert_start, 0, (n + 1) * sizeof *e->expert_start);
    for (size_t i = 0; i < rows; i++) e->expert_start[e->expert_id[i] + 1]++;
    for (size_t i = 0; i < n; i++) e->expert_start[i + 1] += e->expert_start[i];
    // expert_start[i] walks to the end of expert i while slots are dealt; shifting it back restores the starts.
    for (size_t i = 0; i < rows; i++) e->expert_slot[i] = e->expert_start[e->expert_id[i]]++;
    for (size_t i = n; i > 0; i--) e->expert_start[i] = e->expert_start[i - 1];
    e->expert_start[0] = 0;
}

static bool route(rl_pass *p, size_t layer) {
    rl_engine *e = p->e;
    const rl_hparams *hp = &e->model->hp;
    const rl_layer_plan *lp = &e->plans[layer];
    size_t d = hp->n_embd, n = p->step->n_tok, used = hp->n_expert_used, t0, t1;
    rl_act act;
    const rl_linear *router[] = {&lp->router};
    if (!rl_pass_quantize(p, &act, router, 1, p->h, d)) return false;
    rl_linear_call call = {&lp->router, &act, n, e->router_logits, hp->n_expert};
    rl_linear_run(p->team, p->ith, &call, 1, p->scratch);
    if (!rl_pass_barrier(p)) return false;
    rl_split(n, 1, p->ith, p->nth, &t0, &t1);
    for (size_t t = t0; t < t1; t++)
        choose_experts(e, e->router_logits + t * hp->n_expert, e->expert_id + t * used, e->expert_weight + t * used);
    if (!rl_pass_barrier(p)) return false;
    if (p->ith == 0) sort_by_expert(e, n);
    if (!rl_pass_barrier(p)) return false;
    // In lanes every thread holds all of h, so any split of the copying will do.
    for (size_t t = t0; t < t1; t++)
        for (size_t j = 0; j < used; j++)
            memcpy(e->expert_in + e->expert_slot[t * used + j] * d, p->h + t * d, d * sizeof(float));
    if (!rl_pass_barrier(p)) return false;
    rl_pass_mark(p, layer, RL_OP_ROUTER);
    return true;
}

// The activations of one expert's rows, in their own stretch of the shared storage; *at moves past it.
static rl_act expert_act(const rl_pass *p, const rl_linear *a, const rl_linear *b, size_t n, size_t *at) {
    rl_act act;
    unsigned formats = rl_linear_formats(a, n) | (b ? rl_linear_formats(b, n) : 0);
    rl_act_bind(&act, formats, a->w.cols, n, (char *)p->e->act + *at);
    *at += (rl_act_bytes(formats, a->w.cols, n) + 63) & ~(size_t)63;
    return act;
}

static rl_linear expert_of(const rl_linear *stack, size_t x) {
    rl_linear one = *stack;
    one.w.data += x * one.w.rows * one.w.row_bytes;
    return one;
}

// Multiplies every expert's rows with its matrix in `a` and, where given, in `b`.
static bool run_experts(rl_pass *p, const rl_linear *a, float *out_a, const rl_linear *b, float *out_b, size_t ld_out,
                        const float *rows, size_t ld_rows, const rl_weight *fed_a, const rl_weight *fed_b) {
    rl_engine *e = p->e;
    size_t n_expert = e->model->hp.n_expert, total = e->expert_start[n_expert], r0, r1, at = 0;
    rl_split(total, 1, p->ith, p->nth, &r0, &r1);
    for (size_t x = 0; x < n_expert; x++) {
        size_t s = e->expert_start[x], end = e->expert_start[x + 1];
        if (s == end) continue;
        rl_act act = expert_act(p, a, b, end - s, &at);
        size_t t0 = r0 > s ? r0 - s : 0, t1 = r1 < end ? (r1 > s ? r1 - s : 0) : end - s;
        if (t0 < t1) rl_act_fill(&act, &e->opts.dispatch, rows + s * ld_rows, ld_rows, t0, t1);
    }
    if (!rl_pass_barrier(p)) return false;
    at = 0;
    for (size_t x = 0; x < n_expert; x++) {
        size_t s = e->expert_start[x], n = e->expert_start[x + 1] - s;
        if (!n) continue;
        rl_act act = expert_act(p, a, b, n, &at);
        rl_act_fill(&act, &e->opts.dispatch, rows + s * ld_rows, ld_rows, 0, 0); // float32 rows are kept by reference
        rl_pass_inputs(p, fed_a, x, rows + s * ld_rows, n, ld_rows);
        if (fed_b) rl_pass_inputs(p, fed_b, x, rows + s * ld_rows, n, ld_rows);
        rl_linear ea = expert_of(a, x), eb = expert_of(b ? b : a, x);
        rl_linear_call calls[2] = {{&ea, &act, n, out_a + s * ld_out, ld_out},
                                   {&eb, &act, n, b ? out_b + s * ld_out : NULL, ld_out}};
        rl_linear_run(p->team, p->ith, calls, b ? 2 : 1, p->scratch);
    }
    return rl_pass_barrier(p);
}

// How many experts the step's tokens chose, for the trace.
static size_t experts_chosen(const rl_engine *e) {
    size_t n = 0;
    for (size_t x = 0; x < e->model->hp.n_expert; x++) n += e->expert_start[x] != e->expert_start[x + 1];
    return n;
}

static bool experts(rl_pass *p, size_t layer) {
    rl_engine *e = p->e;
    const rl_hparams *hp = &e->model->hp;
    const rl_layer_plan *lp = &e->plans[layer];
    size_t d = hp->n_embd, used = hp->n_expert_used, r0, r1;
    bool shared_expert = lp->up_sh.w.data != NULL;
    if (shared_expert) {
        if (!dense(p, layer, &lp->gate_sh, &lp->up_sh, &lp->down_sh)) return false;
        memcpy(p->keep + p->t0 * d, e->proj + p->t0 * d, (p->t1 - p->t0) * d * sizeof(float));
        if (!rl_pass_barrier(p)) return false;
    }
    if (!route(p, layer)) return false;
    const rl_layer *l = &e->model->w.layers[layer];
    if (!run_experts(p, &lp->gate_exps, e->gate, &lp->up_exps, e->up, e->ld_ff, e->expert_in, d, &l->gate_exps,
                     &l->up_exps))
        return false;
    size_t chosen = p->step->trace ? experts_chosen(e) : 0;
    rl_pass_mark_part(p, layer, RL_OP_GATE_UP, p->step->n_tok, chosen);
    rl_split(p->step->n_tok * used, 1, p->ith, p->nth, &r0, &r1);
    for (size_t r = r0; r < r1; r++)
        activate(e, e->gate + r * e->ld_ff, e->up + r * e->ld_ff, e->gate + r * e->ld_ff, hp->n_ff_exp);
    rl_pass_mark(p, layer, RL_OP_ACTIVATION);
    // The rows a thread activated are the rows it quantizes, so no barrier is needed in between.
    if (!run_experts(p, &lp->down_exps, e->expert_out, NULL, NULL, d, e->gate, e->ld_ff, &l->down_exps, NULL))
        return false;
    for (size_t t = p->t0; t < p->t1; t++) {
        float *y = p->h + t * d;
        if (shared_expert)
            memcpy(y, p->keep + t * d, d * sizeof *y);
        else
            memset(y, 0, d * sizeof *y);
        for (size_t j = 0; j < used; j++) {
            const float *row = e->expert_out + e->expert_slot[t * used + j] * d;
            float w = e->expert_weight[t * used + j];
            for (size_t i = 0; i < d; i++) y[i] += w * row[i];
        }
    }
    rl_pass_mark_part(p, layer, RL_OP_DOWN, p->step->n_tok, chosen);
    return true;
}

bool rl_pass_ffn(rl_pass *p, size_t layer) {
    const rl_layer_plan *lp = &p->e->plans[layer];
    if (lp->router.w.data) return experts(p, layer);
    if (!dense(p, layer, &lp->gate, &lp->up, &lp->down)) return false;
    size_t d = p->e->model->hp.n_embd;
    memcpy(p->h + p->t0 * d, p->e->proj + p->t0 * d, (p->t1 - p->t0) * d * sizeof(float));
    return true;
}
