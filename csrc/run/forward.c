// SPDX-License-Identifier: Apache-2.0
// One step of the forward pass, as every thread of the team walks it.
//
// With few tokens each thread keeps its own copy of the residual stream and norms and quantizes it itself ("lanes"):
// cheaper than a barrier. With many, each thread owns a range of tokens for everything that is not a matmul.
// Matmuls and attention are shared work in both cases. What differs between architectures comes from hparams.
#include "run/engine_internal.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"

// ---- small tools of the walk ----

bool rl_pass_barrier(rl_pass *p) {
    if (!p->step->trace || p->ith) return rl_team_barrier(p->team, p->ith);
    uint64_t t = rl_clock_ns();
    bool go = rl_team_barrier(p->team, p->ith);
    p->wait_ns += rl_clock_ns() - t;
    return go;
}

void rl_pass_mark(rl_pass *p, size_t layer, rl_op op) {
    rl_pass_mark_part(p, layer, op, p->step->n_tok, 0);
}

void rl_pass_mark_part(rl_pass *p, size_t layer, rl_op op, size_t n_tok, size_t n_experts) {
    rl_trace *tr = p->step->trace;
    if (!tr || p->ith) return;
    uint64_t now = rl_clock_ns();
    if (tr->n < tr->cap)
        tr->events[tr->n++] = (rl_trace_event){.t0_ns = p->mark_ns,
                                               .t1_ns = now,
                                               .wait_ns = (uint32_t)p->wait_ns,
                                               .layer = (uint16_t)layer,
                                               .op = (uint16_t)op,
                                               .n_tok = (uint32_t)n_tok,
                                               .pos0 = (uint32_t)p->step->segments[0].pos0,
                                               .n_experts = (uint16_t)n_experts};
    else
        tr->dropped++;
    p->mark_ns = now;
    p->wait_ns = 0;
}

bool rl_pass_tap(rl_pass *p, size_t layer, rl_tap_point point, const float *rows, size_t width, size_t ld) {
    const rl_taps *taps = p->step->taps;
    if (!taps || !taps->wants(taps->arg, layer, point)) return true;
    if (!rl_pass_barrier(p)) return false;
    if (p->ith == 0) taps->take(taps->arg, layer, point, rows, p->step->n_tok, width, ld);
    return rl_pass_barrier(p);
}

bool rl_pass_quantize(rl_pass *p, rl_act *act, const rl_linear *const *lins, size_t n, const float *rows, size_t ld) {
    unsigned formats = 0;
    for (size_t i = 0; i < n; i++)
        if (lins[i]->w.data) formats |= rl_linear_formats(lins[i], p->step->n_tok);
    rl_act_bind(act, formats, lins[0]->w.cols, p->step->n_tok, p->act_storage);
    rl_act_fill(act, &p->e->opts.dispatch, rows, ld, p->t0, p->t1);
    return rl_pass_shared_barrier(p);
}

static void norm_rows(rl_pass *p, const float *w, const float *b, const float *in, float *out) {
    const rl_hparams *hp = &p->e->model->hp;
    size_t d = hp->n_embd;
    for (size_t t = p->t0; t < p->t1; t++) {
        if (hp->arch->norm == RL_NORM_LAYER)
            p->e->vec.layernorm(in + t * d, w, b, out + t * d, d, hp->norm_eps);
        else
            p->e->vec.rmsnorm(in + t * d, w, out + t * d, d, hp->norm_eps);
    }
}

// What a branch gives back to the residual stream: bias, norm, scale, add. `in` is shared, the result is in p->h.
static bool add_branch(rl_pass *p, size_t layer, const float *in, const float *bias, const float *post_norm,
                       rl_tap_point tap) {
    const rl_hparams *hp = &p->e->model->hp;
    const rl_vec *v = &p->e->vec;
    size_t d = hp->n_embd;
    for (size_t t = p->t0; t < p->t1; t++) {
        const float *src = in + t * d;
        float *y = p->h + t * d;
        if (bias) {
            v->add(src, bias, y, d);
            src = y;
        }
        if (post_norm) {
            v->rmsnorm(src, post_norm, y, d, hp->norm_eps);
            src = y;
        }
        if (hp->residual_scale != 1.0f) {
            v->scale(src, hp->residual_scale, y, d);
            src = y;
        }
        if (src != y) memcpy(y, src, d * sizeof *y);
        v->add(p->x + t * d, y, p->x + t * d, d);
    }
    return rl_pass_tap(p, layer, tap, p->h, d, d);
}

// ---- embedding ----

static bool embed(rl_pass *p) {
    rl_engine *e = p->e;
    const rl_hparams *hp = &e->model->hp;
    const rl_step *s = p->step;
    const rl_tensor *t = e->model->w.embed.t;
    size_t d = hp->n_embd, i0, i1;
    rl_split(s->n_tok, 1, p->ith, p->nth, &i0, &i1);
    for (size_t g = 0; g < s->n_segments; g++) {
        const rl_segment *seg = &s->segments[g];
        for (size_t i = 0; i < seg->n_tok; i++) {
            size_t tok = seg->tok0 + i;
            if (tok < i0 || tok >= i1) continue;
            e->embed(t->data + (size_t)s->tokens[tok] * t->row_bytes, e->x + tok * d, d);
            if (hp->embed_scale != 1.0f) e->vec.scale(e->x + tok * d, hp->embed_scale, e->x + tok * d, d);
            if (!hp->n_rot) continue;
            size_t at = rl_kv_dropped(seg->kv) + seg->pos0 + i;
            rl_rope_table(&e->rope[0], at, e->cs[0] + tok * hp->n_rot);
            if (hp->window) rl_rope_table(&e->rope[1], at, e->cs[1] + tok * hp->n_rot);
        }
    }
    if (!rl_pass_barrier(p)) return false;
    if (p->lanes) memcpy(p->x, e->x, s->n_tok * d * sizeof *p->x);
    if (!rl_pass_tap(p, 0, RL_TAP_EMBED, p->x, d, d)) return false;
    rl_pass_mark(p, UINT16_MAX, RL_OP_EMBED);
    return true;
}

// ---- attention ----

// Bias, norm and RoPE of heads h0..h1 of one projection of one token.
static void finish_heads(const rl_pass *p, size_t layer, size_t tok, float *row, size_t h0, size_t h1, size_t n_head,
                         const float *bias, const float *norm) {
    const rl_engine *e = p->e;
    const rl_hparams *hp = &e->model->hp;
    const rl_vec *v = &e->vec;
    size_t dim = hp->dim_k;
    float *x = row + h0 * dim;
    if (h0 >= h1) return;
    if (bias) v->add(x, bias + h0 * dim, x, (h1 - h0) * dim);
    if (norm) {
        switch (hp->arch->qk_norm) {
        case RL_QK_HEAD:
            for (size_t h = h0; h < h1; h++) v->rmsnorm(row + h * dim, norm, row + h * dim, dim, hp->norm_eps);
            break;
        case RL_QK_FULL:
            v->rmsnorm(row, norm, row, n_head * dim, hp->norm_eps);
            break;
        case RL_QK_PER_HEAD_LAYERNORM:
            for (size_t h = h0; h < h1; h++)
                v->layernorm(row + h * dim, norm + h * dim, NULL, row + h * dim, dim, hp->norm_eps);
            break;
        case RL_QK_NONE:
            break;
        }
    }
    if (!hp->layer[layer].rope) return;
    const float *cs = e->cs[hp->layer[layer].sliding ? 1 : 0] + tok * hp->n_rot;
    if (hp->arch->pairing == RL_ROPE_NEIGHBOURS)
        v->rope_norm(x, h1 - h0, dim, cs, hp->n_rot);
    else
        v->rope_neox(x, h1 - h0, dim, cs, hp->n_rot);
}

// Tokens of a segment for one thread, cut at multiples of 16 positions, as writes to the cache want it.
static void split_aligned(const rl_segment *seg, int ith, int nth, size_t *t0, size_t *t1) {
    size_t lead = seg->pos0 % 16, a, b;
    rl_split(lead + seg->n_tok, 16, ith, nth, &a, &b);
    *t0 = a > lead ? a - lead : 0;
    *t1 = b > lead ? b - lead : 0;
}

static void finish_qkv(rl_pass *p, size_t layer) {
    rl_engine *e = p->e;
    const rl_hparams *hp = &e->model->hp;
    const rl_layer *l = &e->model->w.layers[layer];
    size_t n_head = hp->layer[layer].n_head, n_kv = hp->layer[layer].n_head_kv, dv = hp->dim_v;
    // A norm over the whole projection cannot be cut between heads.
    bool by_head = p->step->n_tok <= (size_t)p->nth * 2 && hp->arch->qk_norm != RL_QK_FULL;
    for (size_t g = 0; g < p->step->n_segments; g++) {
        const rl_segment *seg = &p->step->segments[g];
        size_t t0 = 0, t1 = seg->n_tok, q0 = 0, q1 = n_head, k0 = 0, k1 = n_kv;
        if (by_head) {
            rl_split(n_head, 1, p->ith, p->nth, &q0, &q1);
            rl_split(n_kv, 1, p->ith, p->nth, &k0, &k1);
        } else {
            split_aligned(seg, p->ith, p->nth, &t0, &t1);
        }
        for (size_t i = t0; i < t1; i++) {
            size_t tok = seg->tok0 + i;
            float *q = e->q + tok * e->ld_q, *v = e->v + tok * e->ld_v;
            finish_heads(p, layer, tok, q, q0, q1, n_head, l->q_b, l->q_norm);
            finish_heads(p, layer, tok, e->k + tok * e->ld_k, k0, k1, n_kv, l->k_b, l->k_norm);
            if (l->v_b && k0 < k1) e->vec.add(v + k0 * dv, l->v_b + k0 * dv, v + k0 * dv, (k1 - k0) * dv);
            if (hp->temp_scale > 0 && q0 < q1) {
                double steps = floor((double)(seg->pos0 + i) / hp->temp_length);
                float s = (float)(1 + hp->temp_scale * log(1 + steps));
                e->vec.scale(q + q0 * hp->dim_k, s, q + q0 * hp->dim_k, (q1 - q0) * hp->dim_k);
            }
        }
        if (t0 < t1 && k0 < k1)
            rl_kv_write(seg->kv, &e->opts.dispatch, layer, seg->pos0, t0, t1, k0, k1, e->k + seg->tok0 * e->ld_k,
                        e->ld_k, e->v + seg->tok0 * e->ld_v, e->ld_v);
    }
}

static bool attend(rl_pass *p, size_t layer) {
    rl_engine *e = p->e;
    const rl_hparams *hp = &e->model->hp;
    for (size_t g = 0; g < p->step->n_segments; g++) {
        const rl_segment *seg = &p->step->segments[g];
        // The scratch is laid out by the number of tokens: nobody may still work on the segment before.
        if (g && !rl_pass_barrier(p)) return false;
        rl_attention_args a = {.kv = seg->kv,
                               .d = &e->opts.dispatch,
                               .layer = layer,
                               .q = e->q + seg->tok0 * e->ld_q,
                               .ld_q = e->ld_q,
                               .out = e->att + seg->tok0 * e->ld_att,
                               .ld_out = e->ld_att,
                               .n_tok = seg->n_tok,
                               .n_head = hp->layer[layer].n_head,
                               .pos0 = seg->pos0,
                               .scale = hp->attn_scale,
                               .softcap = hp->attn_softcap,
                               .window = e->kv_layers[layer].window,
                               .causal = true,
                               .scratch = e->attention};
        const rl_taps *taps = p->step->taps;
        bool weights = taps && taps->attn_weights && taps->wants(taps->arg, layer, RL_TAP_ATTN_WEIGHTS);
        if (weights) a.weights = taps->attn_weights;
        if (p->step->trace && !p->ith) a.wait_ns = &p->wait_ns;
        if (!rl_attention_run(p->team, p->ith, &a)) return false;
        size_t width = a.n_head * (a.pos0 + a.n_tok);
        if (weights && !rl_pass_tap(p, layer, RL_TAP_ATTN_WEIGHTS, a.weights, width, width)) return false;
    }
    return rl_pass_barrier(p);
}

static bool attention_block(rl_pass *p, size_t layer) {
    rl_engine *e = p->e;
    const rl_hparams *hp = &e->model->hp;
    const rl_layer *l = &e->model->w.layers[layer];
    const rl_layer_plan *lp = &e->plans[layer];
    size_t d = hp->n_embd, n = p->step->n_tok;
    const float *in = p->x;
    if (!rl_pass_tap(p, layer, RL_TAP_RESID_PRE, p->x, d, d)) return false;
    if (l->attn_norm) {
        norm_rows(p, l->attn_norm, l->attn_norm_b, p->x, p->h);
        in = p->h;
    }
    if (p->keep && hp->arch->parallel_ffn)
        memcpy(p->keep + p->t0 * d, in + p->t0 * d, (p->t1 - p->t0) * d * sizeof *in);
    if (!rl_pass_tap(p, layer, RL_TAP_ATTN_NORM, in, d, d)) return false;
    rl_act act;
    const rl_linear *qkv[] = {&lp->q, &lp->k, &lp->v};
    if (!rl_pass_quantize(p, &act, qkv, 3, in, d)) return false;
    rl_pass_mark(p, layer, RL_OP_ATTN_NORM);
    const rl_weight *fed[] = {&l->q, &l->k, &l->v};
    for (int i = 0; i < 3; i++) rl_pass_inputs(p, fed[i], 0, in, n, d);

    rl_linear_call calls[3] = {
        {&lp->q, &act, n, e->q, e->ld_q}, {&lp->k, &act, n, e->k, e->ld_k}, {&lp->v, &act, n, e->v, e->ld_v}};
    for (size_t g = 0; g < p->step->n_segments && n == 1; g++) {
        const rl_segment *seg = &p->step->segments[g];
        rl_kv_prefetch(seg->kv, layer, seg->pos0 + seg->n_tok, p->ith, p->nth);
    }
    rl_linear_run(p->team, p->ith, calls, 3, p->scratch);
    const rl_linear *out[] = {&lp->o};
    rl_linear_prefetch(p->team, p->ith, out, 1, n);
    if (!rl_pass_barrier(p)) return false;
    rl_pass_mark(p, layer, RL_OP_QKV);

    finish_qkv(p, layer);
    if (!rl_pass_barrier(p)) return false;
    size_t n_head = hp->layer[layer].n_head, n_kv = hp->layer[layer].n_head_kv;
    if (!rl_pass_tap(p, layer, RL_TAP_Q, e->q, n_head * hp->dim_k, e->ld_q) ||
        !rl_pass_tap(p, layer, RL_TAP_K, e->k, n_kv * hp->dim_k, e->ld_k) ||
        !rl_pass_tap(p, layer, RL_TAP_V, e->v, n_kv * hp->dim_v, e->ld_v))
        return false;
    rl_pass_mark(p, layer, RL_OP_ROPE);

    if (!attend(p, layer)) return false;
    if (!rl_pass_tap(p, layer, RL_TAP_ATTN_OUT, e->att, n_head * hp->dim_v, e->ld_att)) return false;
    rl_pass_mark(p, layer, RL_OP_ATTENTION);

    if (!rl_pass_quantize(p, &act, out, 1, e->att, e->ld_att)) return false;
    rl_pass_inputs(p, &l->o, 0, e->att, n, e->ld_att);
    rl_linear_call call = {&lp->o, &act, n, e->proj, d};
    rl_linear_run(p->team, p->ith, &call, 1, p->scratch);
    const rl_linear *ffn[] = {&lp->up, &lp->gate};
    rl_linear_prefetch(p->team, p->ith, ffn, 2, n);
    if (!rl_pass_barrier(p)) return false;
    rl_pass_mark(p, layer, RL_OP_ATTN_OUT);
    return add_branch(p, layer, e->proj, l->o_b, l->post_attn_norm, RL_TAP_ATTN_PROJ) &&
           rl_pass_tap(p, layer, RL_TAP_RESID_MID, p->x, d, d);
}

static bool ffn_block(rl_pass *p, size_t layer) {
    const rl_hparams *hp = &p->e->model->hp;
    const rl_layer *l = &p->e->model->w.layers[layer];
    size_t d = hp->n_embd, own = (p->t1 - p->t0) * d * sizeof(float);
    if (l->ffn_norm)
        norm_rows(p, l->ffn_norm, l->ffn_norm_b, p->x, p->h);
    else
        memcpy(p->h + p->t0 * d, (hp->arch->parallel_ffn ? p->keep : p->x) + p->t0 * d, own);
    if (!rl_pass_tap(p, layer, RL_TAP_FFN_NORM, p->h, d, d) || !rl_pass_ffn(p, layer)) return false;
    return add_branch(p, layer, p->h, l->down_b, l->post_ffw_norm, RL_TAP_FFN_OUT) &&
           rl_pass_tap(p, layer, RL_TAP_RESID_POST, p->x, d, d);
}

// ---- logits ----

static void finish_logits(const rl_pass *p, float *logits, size_t rows) {
    const rl_engine *e = p->e;
    const rl_hparams *hp = &e->model->hp;
    size_t v = hp->n_vocab, c0, c1;
    if (!e->model->w.output_b && hp->logit_scale == 1.0f && hp->final_softcap == 0) return;
    rl_split(v, 64, p->ith, p->nth, &c0, &c1);
    for (size_t r = 0; r < rows; r++) {
        float *x = logits + r * v + c0;
        if (e->model->w.output_b) e->vec.add(x, e->model->w.output_b + c0, x, c1 - c0);
        if (hp->logit_scale != 1.0f) e->vec.scale(x, hp->logit_scale, x, c1 - c0);
        if (hp->final_softcap > 0) e->vec.softcap(x, hp->final_softcap, x, c1 - c0);
    }
}

// Rows r0..r1 of step->out_rows. Each thread norms its share of the rows into the shared h, then all multiply.
static bool head_block(rl_pass *p, size_t r0, size_t r1, float *logits) {
    rl_engine *e = p->e;
    const rl_hparams *hp = &e->model->hp;
    const rl_weights *w = &e->model->w;
    size_t d = hp->n_embd, n = r1 - r0, i0, i1;
    rl_split(n, 1, p->ith, p->nth, &i0, &i1);
    for (size_t i = i0; i < i1; i++) {
        const float *x = p->x + p->step->out_rows[r0 + i] * d;
        if (hp->arch->norm == RL_NORM_LAYER)
            e->vec.layernorm(x, w->out_norm, w->out_norm_b, e->proj + i * d, d, hp->norm_eps);
        else
            e->vec.rmsnorm(x, w->out_norm, e->proj + i * d, d, hp->norm_eps);
    }
    rl_act act;
    rl_act_bind(&act, rl_linear_formats(&e->head, n), d, n, e->act);
    rl_act_fill(&act, &e->opts.dispatch, e->proj, d, i0, i1);
    if (!rl_pass_barrier(p)) return false;
    rl_pass_mark_part(p, UINT16_MAX, RL_OP_HEAD_NORM, n, 0);
    rl_linear_call call = {&e->head, &act, n, logits, hp->n_vocab};
    rl_linear_run(p->team, p->ith, &call, 1, p->scratch);
    if (!rl_pass_barrier(p)) return false;
    finish_logits(p, logits, n);
    rl_pass_mark_part(p, UINT16_MAX, RL_OP_HEAD, n, 0);
    return true;
}

// The head's input for all tokens, whoever wants logits: for a tap, and for who collects inputs.
static bool final_norm_tap(rl_pass *p) {
    const rl_taps *taps = p->step->taps;
    bool tapped = taps && taps->wants(taps->arg, 0, RL_TAP_FINAL_NORM);
    if (!tapped && !p->step->inputs) return true;
    const rl_weights *w = &p->e->model->w;
    norm_rows(p, w->out_norm, w->out_norm_b, p->x, p->h);
    size_t d = p->e->model->hp.n_embd;
    if (p->step->inputs) {
        if (!rl_pass_shared_barrier(p)) return false;
        rl_pass_inputs(p, &w->output, 0, p->h, p->step->n_tok, d);
    }
    return !tapped || rl_pass_tap(p, 0, RL_TAP_FINAL_NORM, p->h, d, d);
}

static void head(rl_pass *p) {
    const rl_step *s = p->step;
    size_t vocab = p->e->model->hp.n_vocab;
    if (!final_norm_tap(p)) return;
    // Rows of others are read below; and in lanes, too, others may still read the `proj` that is written there.
    if (s->n_out && !rl_pass_barrier(p)) return;
    for (size_t r0 = 0; r0 < s->n_out; r0 += RL_HEAD_BLOCK) {
        size_t r1 = r0 + RL_HEAD_BLOCK < s->n_out ? r0 + RL_HEAD_BLOCK : s->n_out;
        float *logits = s->logits ? s->logits + r0 * vocab : s->consume_block;
        if (!head_block(p, r0, r1, logits) || !rl_pass_barrier(p)) return;
        if (!s->consume) continue;
        s->consume(s->consume_arg, p->ith, p->nth, logits, r0, r1 - r0);
        if (!rl_pass_barrier(p)) return;
    }
}

// ---- the region ----

typedef struct step_arg {
    rl_engine *e;
    const rl_step *step;
} step_arg;

static void walk(void *arg, rl_team *team, int ith) {
    const step_arg *a = arg;
    rl_engine *e = a->e;
    rl_lane *lane = &e->lanes[ith];
    rl_pass p = {.e = e, .step = a->step, .team = team, .ith = ith, .nth = rl_team_size(team)};
    p.lanes = a->step->n_tok <= RL_LANE_TOKENS && !a->step->taps;
    p.scratch = lane->scratch;
    if (p.lanes) {
        p.t1 = a->step->n_tok;
        p.x = lane->x;
        p.h = lane->h;
        p.keep = lane->keep;
        p.ff = lane->ff;
        p.act_storage = lane->act;
    } else {
        rl_split(a->step->n_tok, 1, ith, p.nth, &p.t0, &p.t1);
        p.x = e->x;
        p.h = e->h;
        p.keep = e->keep;
        p.ff = e->gate;
        p.act_storage = e->act;
    }
    if (a->step->trace && ith == 0) p.mark_ns = rl_clock_ns();
    if (!embed(&p)) return;
    for (size_t i = 0; i < e->model->hp.n_layer; i++)
        if (!attention_block(&p, i) || !ffn_block(&p, i)) return;
    head(&p);
}

static rl_status check_step(const rl_engine *e, const rl_step *s, rl_err *err) {
    if (s->n_tok < 1 || s->n_tok > e->opts.n_batch)
        return rl_fail(err, RL_ERR_ARG, "a step takes 1 to n_batch = %zu tokens, not %zu", e->opts.n_batch, s->n_tok);
    for (size_t i = 0; i < s->n_tok; i++)
        if (s->tokens[i] < 0 || (uint32_t)s->tokens[i] >= e->model->hp.n_vocab)
            return rl_fail(err, RL_ERR_ARG, "token %zu is %d: ids are 0 to %u", i, s->tokens[i],
                           e->model->hp.n_vocab - 1);
    return RL_OK;
}

rl_status rl_engine_step(rl_engine *e, const rl_step *step, rl_err *err) {
    RL_TRY(check_step(e, step, err));
    step_arg arg = {e, step};
    rl_region region = {.fn = walk,
                        .arg = &arg,
                        .n_threads = e->opts.n_threads,
                        .poll = step->poll,
                        .poll_arg = step->poll_arg,
                        .cpus = e->cpus};
    pthread_mutex_lock(&e->lock);
    rl_status s = rl_pool_run(e->opts.pool, &region, err);
    pthread_mutex_unlock(&e->lock);
    return s;
}

const char *rl_op_name(rl_op op) {
    static const char *const names[RL_OP_COUNT] = {"embed",    "attn_norm", "qkv",    "rope",    "attention",
                                                   "attn_out", "ffn_norm",  "router", "gate_up", "activation",
                                                   "down",     "head_norm", "head"};
    return op < RL_OP_COUNT ? names[op] : "?";
}

const char *rl_tap_name(rl_tap_point p) {
    static const char *const names[RL_TAP_POINTS] = {
        "resid_pre",    "attn_norm", "q",         "k",       "v",       "attn_out",
        "attn_proj",    "resid_mid", "ffn_norm",  "ffn_act", "ffn_out", "resid_post",
        "attn_weights", "embed",     "final_norm"};
    return p < RL_TAP_POINTS ? names[p] : "?";
}

size_t rl_tap_width(const rl_hparams *hp, size_t layer, rl_tap_point p) {
    const rl_layer_hp *l = &hp->layer[layer];
    switch (p) {
    case RL_TAP_Q:
        return (size_t)l->n_head * hp->dim_k;
    case RL_TAP_K:
        return (size_t)l->n_head_kv * hp->dim_k;
    case RL_TAP_V:
        return (size_t)l->n_head_kv * hp->dim_v;
    case RL_TAP_ATTN_OUT:
        return (size_t)l->n_head * hp->dim_v;
    case RL_TAP_FFN_ACT:
        return l->n_ff;
    case RL_TAP_ATTN_WEIGHTS:
        return 0;
    default:
        return hp->n_embd;
    }
}
