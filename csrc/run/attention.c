// SPDX-License-Identifier: Apache-2.0
// Attention over the paged cache. The work is cut into blocks of query rows by KV head by fixed stretches of
// the context, in a way that depends on the sizes alone; stretches are merged in rising order. So the bits do
// not depend on the number of threads, and one KV head is work for all of them.
#include "run/attention_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

// ---- kernels ----

static const rl_kernel *find(const rl_dispatch *d, rl_type type, const char *side, const char *layout) {
    char full[24];
    snprintf(full, sizeof full, "%s%s", side, layout);
    return rl_kernel_find(d, RL_FAM_ATTN, type, 0, full); // the references are always there
}

static void resolve(rl_attn_plan *p, const rl_kv *kv, const rl_dispatch *d) {
    rl_type tk = rl_kv_dtype(kv->config.type_k), tv = rl_kv_dtype(kv->config.type_v);
    const char *layout = kv->config.layout == RL_KV_TILE ? ".tile" : ".row";
    memset(p, 0, sizeof *p);
    p->features = d->features;
    memcpy(p->overrides, d->overrides, sizeof p->overrides);
    const rl_kernel *all[RL_ATTENTION_KERNELS] = {
        find(d, tk, "k", layout),           find(d, tv, "v", layout),      find(d, RL_TYPE_NONE, "softmax", ""),
        find(d, tk, "k.load", layout),      find(d, tv, "v.load", layout), find(d, RL_TYPE_NONE, "mul.k", ""),
        find(d, RL_TYPE_NONE, "mul.v", ""),
    };
    memcpy(p->kernels, all, sizeof all);
    p->k = (rl_attn_k_fn)all[0]->fn;
    p->v = (rl_attn_v_fn)all[1]->fn;
    p->softmax = (rl_attn_softmax_fn)all[2]->fn;
    p->kload = (rl_attn_load_fn)all[3]->fn;
    p->vload = (rl_attn_load_fn)all[4]->fn;
    p->mulk = (rl_attn_mul_k_fn)all[5]->fn;
    p->mulv = (rl_attn_mul_v_fn)all[6]->fn;
    rl_vec vec;
    rl_vec_init(&vec, d);
    p->softcap = vec.softcap;
    p->q_act = all[0]->act;
}

static bool plan_fits(const rl_attn_plan *p, const rl_dispatch *d) {
    return p->features == d->features && strcmp(p->overrides, d->overrides) == 0;
}

// The plan kept with the cache, or one made in *own: looking kernels up for each layer of each token would
// cost more than it should.
static const rl_attn_plan *plan_of(const rl_kv *kv, const rl_dispatch *d, rl_attn_plan *own) {
    _Atomic(void *) *place = &((rl_kv *)kv)->plan;
    const rl_attn_plan *kept = atomic_load_explicit(place, memory_order_acquire);
    if (kept && plan_fits(kept, d)) return kept;
    resolve(own, kv, d);
    if (!kept) {
        rl_attn_plan *copy = malloc(sizeof *copy);
        void *none = NULL;
        if (copy) {
            *copy = *own;
            if (!atomic_compare_exchange_strong_explicit(place, &none, copy, memory_order_acq_rel,
                                                         memory_order_relaxed))
                free(copy);
        }
    }
    return own;
}

size_t rl_attention_kernels(const rl_kv *kv, const rl_dispatch *d, size_t n_tok,
                            const rl_kernel *out[RL_ATTENTION_KERNELS]) {
    rl_attn_plan own;
    const rl_attn_plan *p = plan_of(kv, d, &own);
    if (n_tok <= RL_ATTN_SPLIT_TOK) {
        memcpy(out, p->kernels, 3 * sizeof *out);
        return 3;
    }
    memcpy(out, p->kernels + 2, 5 * sizeof *out);
    return 5;
}

// ---- cutting ----

static void cut_rows(rl_attn_cut *c, const rl_kv_layer_config *l, size_t n_head, size_t n_tok) {
    memset(c, 0, sizeof *c);
    c->group = n_head / l->n_head_kv;
    c->ld_q = round_up(l->dim_k, 16);
    c->ld_acc = round_up(l->dim_v, 16);
    c->blocked = n_tok > RL_ATTN_SPLIT_TOK;
    c->block_tok = c->blocked ? RL_ATTN_BLOCK_ROWS / c->group : n_tok;
    if (c->block_tok == 0) c->block_tok = 1;
    if (c->block_tok > n_tok) c->block_tok = n_tok;
    c->n_blocks = (n_tok + c->block_tok - 1) / c->block_tok;
    c->rows = c->block_tok * c->group;
    c->stretch = 0;
    if (!c->blocked)
        c->stretch = RL_ATTN_STRETCH;
    else if (c->n_blocks * l->n_head_kv < RL_ATTN_FEW_BLOCKS)
        c->stretch = RL_ATTN_STRETCH_PROMPT;
}

static void cut_stretches(rl_attn_cut *c, size_t lo, size_t hi) {
    c->s0 = c->stretch ? lo / c->stretch : 0;
    c->n_s = c->stretch ? (hi - 1) / c->stretch - c->s0 + 1 : 1;
}

// Floats of one thread's own buffers; binds them when local is given.
static size_t local_floats(const rl_attn_cut *c, size_t n_head_kv, rl_attn_local *local, float *base) {
    size_t n = 0, query_rows = c->blocked ? c->rows : c->rows * n_head_kv; // see run_pieces
#define TAKE(name, count)                                                                                              \
    do {                                                                                                               \
        if (local) local->name = base + n;                                                                             \
        n += round_up(count, 16);                                                                                      \
    } while (0)
    TAKE(q, query_rows * c->ld_q);
    TAKE(q_scale, query_rows);
    TAKE(kt, RL_PAGE_TOKENS * c->ld_q);
    TAKE(vt, RL_PAGE_TOKENS * c->ld_acc);
    TAKE(s, c->rows * RL_PAGE_TOKENS);
    TAKE(m, c->rows);
    TAKE(l, c->rows);
    TAKE(corr, c->rows);
    TAKE(acc, c->rows * c->ld_acc);
    TAKE(q_low, c->rows * c->ld_q);
    TAKE(q_low_scale, c->rows);
    TAKE(acc_low, c->rows * c->ld_acc);
    TAKE(m_low, c->rows);
#undef TAKE
    if (local) local->have_h = local->have_block = SIZE_MAX;
    return n;
}

// Floats of the results of all stretches: m and l, then acc, of every row.
static size_t partial_floats(const rl_attn_cut *c, size_t n_head_kv) {
    return c->n_s == 1 ? 0 : n_head_kv * c->n_blocks * c->n_s * (2 * round_up(c->rows, 16) + c->rows * c->ld_acc);
}

// The larger of what is known and what a batch of n_tok needs; false once more tokens need no more.
static bool widen(const rl_kv_layer_config *l, size_t group, size_t n_tok, size_t span, size_t *local,
                  size_t *partial) {
    rl_attn_cut cut;
    cut_rows(&cut, l, group * l->n_head_kv, n_tok);
    cut_stretches(&cut, 0, span);
    cut.n_s += cut.n_s > 1 || (l->window && cut.stretch); // a window may straddle one stretch more
    size_t n = local_floats(&cut, l->n_head_kv, NULL, NULL);
    if (n > *local) *local = n;
    n = partial_floats(&cut, l->n_head_kv);
    if (n > *partial) *partial = n;
    return !cut.blocked || cut.stretch;
}

static size_t span_of(const rl_kv_layer_config *l, size_t n_tok, size_t n_ctx) {
    return l->window && l->window + n_tok < n_ctx ? l->window + n_tok : n_ctx;
}

size_t rl_attention_scratch(const rl_kv_config *c, size_t n_head, size_t max_tok, size_t n_ctx, int n_threads) {
    size_t most = 0;
    for (size_t i = 0; i < c->n_layer; i++) {
        const rl_kv_layer_config *l = &c->layers[i];
        size_t local = 0, partial = 0, span = span_of(l, max_tok, n_ctx);
        // Rows of a block do not rise with the numbers of tokens and heads, and a layer may have fewer heads than
        // the most: take the largest of all.
        for (size_t group = 1; group <= n_head / l->n_head_kv; group++)
            for (size_t n_tok = 1; n_tok <= max_tok && widen(l, group, n_tok, span, &local, &partial); n_tok++) {
            }
        size_t total = local * (size_t)(n_threads > 0 ? n_threads : 1) + partial;
        if (total > most) most = total;
    }
    return most * sizeof(float);
}

size_t rl_attention_scratch_used(const rl_kv_config *c, size_t n_head, size_t max_tok, size_t n_ctx, int n_threads) {
    size_t most = 0;
    for (size_t i = 0; i < c->n_layer; i++) {
        const rl_kv_layer_config *l = &c->layers[i];
        size_t local = 0, partial = 0, group = n_head / l->n_head_kv;
        widen(l, group, 1, span_of(l, 1, n_ctx), &local, &partial);
        widen(l, group, max_tok, span_of(l, max_tok, n_ctx), &local, &partial);
        size_t total = local * (size_t)(n_threads > 0 ? n_threads : 1) + partial;
        if (total > most) most = total;
    }
    return most * sizeof(float);
}

// ---- running ----

static rl_attn_sums sums_of(const rl_attn_cut *c, float *base, size_t h, size_t block) {
    size_t ml = round_up(c->rows, 16), one = 2 * ml + c->rows * c->ld_acc, head = c->n_blocks * c->n_s * one;
    float *b = base + h * head + block * c->n_s * one;
    return (rl_attn_sums){b, b + ml, b + 2 * ml, one, head};
}

static void finish_block(const rl_attention_args *a, const rl_attn_cut *c, const rl_attn_sums *p, size_t h,
                         size_t block) {
    size_t t0 = block * c->block_tok, n = a->n_tok - t0 < c->block_tok ? a->n_tok - t0 : c->block_tok;
    size_t dim = a->kv->layers[a->layer].v.dim;
    for (size_t r = 0; r < n * c->group; r++) {
        size_t head = h * c->group + r % c->group;
        float *out = a->out + (t0 + r / c->group) * a->ld_out + head * dim;
        float max = a->sinks ? a->sinks[head] : -INFINITY, sum = 0.0f;
        for (size_t s = 0; s < c->n_s; s++) max = p->m[s * p->stretch + r] > max ? p->m[s * p->stretch + r] : max;
        if (a->sinks) sum = expf(a->sinks[head] - max);
        for (size_t i = 0; i < dim; i++) out[i] = 0.0f;
        for (size_t s = 0; s < c->n_s; s++) {
            float m = p->m[s * p->stretch + r], w = m == max ? 1.0f : expf(m - max);
            const float *acc = p->acc + s * p->stretch + r * c->ld_acc;
            sum += p->l[s * p->stretch + r] * w;
            for (size_t i = 0; i < dim; i++) out[i] += acc[i] * w;
        }
        float inv = 1.0f / sum;
        for (size_t i = 0; i < dim; i++) out[i] *= inv;
    }
}

// The softmax itself, for inspection: scores by the same kernels, sums in double.
static void weights_of_block(const rl_attention_args *a, const rl_attn_plan *p, const rl_attn_cut *c,
                             rl_attn_local *local, size_t h, size_t block) {
    size_t t0 = block * c->block_tok, t1 = t0 + c->block_tok < a->n_tok ? t0 + c->block_tok : a->n_tok;
    size_t total = a->pos0 + a->n_tok, rows = (t1 - t0) * c->group, first, end;
    rl_attn_range(a, t0, &first, &end);
    for (size_t r = 0; r < rows; r++) {
        float *w = a->weights + ((t0 + r / c->group) * a->n_head + h * c->group + r % c->group) * total;
        for (size_t i = 0; i < total; i++) w[i] = -INFINITY;
    }
    for (size_t page = first / RL_PAGE_TOKENS; page * RL_PAGE_TOKENS < total; page++) {
        size_t base = page * RL_PAGE_TOKENS, n = total - base < RL_PAGE_TOKENS ? total - base : RL_PAGE_TOKENS;
        rl_attn_page_scores(a, p, c, local, h, block, page);
        for (size_t r = 0; r < rows; r++) {
            float *w = a->weights + ((t0 + r / c->group) * a->n_head + h * c->group + r % c->group) * total;
            memcpy(w + base, local->s + r * RL_PAGE_TOKENS, n * sizeof *w);
        }
    }
    for (size_t r = 0; r < rows; r++) {
        size_t head = h * c->group + r % c->group;
        float *w = a->weights + ((t0 + r / c->group) * a->n_head + head) * total;
        float max = a->sinks ? a->sinks[head] : -INFINITY;
        for (size_t i = 0; i < total; i++) max = w[i] > max ? w[i] : max;
        double sum = a->sinks ? exp((double)a->sinks[head] - max) : 0.0;
        for (size_t i = 0; i < total; i++) sum += exp((double)w[i] - max);
        for (size_t i = 0; i < total; i++) w[i] = (float)(exp((double)w[i] - max) / sum);
    }
}

// Stretches s0 to s1, c->heads KV heads at once.
static void run_pieces(const rl_attention_args *a, const rl_attn_plan *p, const rl_attn_cut *c, rl_attn_local *local,
                       float *partials, rl_team *team, int ith, size_t s0, size_t s1) {
    size_t n = s1 - s0, i0, i1;
    rl_work w;
    rl_work_begin(&w, team, ith, a->kv->config.layers[a->layer].n_head_kv / c->heads * c->n_blocks * n, 1);
    while (rl_work_next(&w, team, ith, &i0, &i1))
        for (size_t i = i0; i < i1; i++) {
            size_t s = s0 + i % n, block = i / n % c->n_blocks, h = i / n / c->n_blocks * c->heads;
            rl_attn_sums sums = {local->m, local->l, local->acc, 0, 0};
            if (c->n_s > 1) sums = sums_of(c, partials, h, block);
            rl_attn_block(a, p, c, local, h, block, s, &sums);
            if (c->n_s == 1) finish_block(a, c, &sums, h, block);
        }
}

bool rl_attention_run(rl_team *team, int ith, const rl_attention_args *a) {
    const rl_kv_layer_config *lc = &a->kv->config.layers[a->layer];
    rl_attn_plan own;
    const rl_attn_plan *p = plan_of(a->kv, a->d, &own);
    rl_attn_cut c;
    cut_rows(&c, lc, a->n_head, a->n_tok);
    size_t lo, hi, last_lo;
    rl_attn_range(a, 0, &lo, &hi);
    rl_attn_range(a, a->n_tok - 1, &last_lo, &hi);
    cut_stretches(&c, lo, hi);

    float *base = a->scratch;
    rl_attn_local local;
    size_t own_floats = local_floats(&c, lc->n_head_kv, NULL, NULL);
    local_floats(&c, lc->n_head_kv, &local, base + (size_t)ith * own_floats);
    float *partials = base + (size_t)rl_team_size(team) * own_floats;

    // All KV heads of a page lie side by side, and memory is fastest when read in one go: so a thread takes all heads
    // of a stretch, page by page. What does not come out even, and the last stretch, which may be short, is handed out
    // by head, and so are layers with compressed pages. This decides when a piece is computed and by whom, not how.
    size_t nth = (size_t)rl_team_size(team), whole = c.blocked || rl_attn_low(a) ? 0 : (c.n_s - 1) / nth * nth;
    if (whole) {
        c.heads = lc->n_head_kv;
        run_pieces(a, p, &c, &local, partials, team, ith, 0, whole);
    }
    c.heads = 1;
    run_pieces(a, p, &c, &local, partials, team, ith, whole, c.n_s);
    size_t n_blocks = lc->n_head_kv * c.n_blocks, i0, i1;
    rl_work w;
    if (c.n_s > 1) {
        uint64_t t = a->wait_ns ? rl_clock_ns() : 0;
        if (!rl_team_barrier(team, ith)) return false;
        if (a->wait_ns) *a->wait_ns += rl_clock_ns() - t;
        rl_work_begin(&w, team, ith, n_blocks, 1);
        while (rl_work_next(&w, team, ith, &i0, &i1))
            for (size_t i = i0; i < i1; i++) {
                rl_attn_sums sums = sums_of(&c, partials, i / c.n_blocks, i % c.n_blocks);
                finish_block(a, &c, &sums, i / c.n_blocks, i % c.n_blocks);
            }
    }
    if (a->weights) {
        rl_work_begin(&w, team, ith, n_blocks, 1);
        while (rl_work_next(&w, team, ith, &i0, &i1))
            for (size_t i = i0; i < i1; i++) weights_of_block(a, p, &c, &local, i / c.n_blocks, i % c.n_blocks);
    }
    return true;
}
