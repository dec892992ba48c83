// SPDX-License-Identifier: Apache-2.0
// A block of query rows (tokens times the query heads of one KV head) against the pages of one stretch, by
// online softmax: each page of K and V is read once for all of them.
#include "run/attention_internal.h"

#include <math.h>
#include <string.h>

// int16 in the order the kernels multiply in: (0 2 1 3) of every four values.
static float query_q16(const float *x, size_t pad, int16_t *q) {
    float top[4] = {0}, poison[4] = {0};
    for (size_t i = 0; i < pad; i += 4)
        for (size_t j = 0; j < 4; j++) {
            float v = fabsf(x[i + j]);
            poison[j] += v * 0.0f;
            top[j] = v > top[j] ? v : top[j];
        }
    float a = top[0] > top[1] ? top[0] : top[1], b = top[2] > top[3] ? top[2] : top[3], amax = a > b ? a : b;
    bool bad = (poison[0] + poison[1]) + (poison[2] + poison[3]) != 0.0f; // NaN compares unequal
    float inv = amax > 0x1p-100f && !bad ? (float)RL_ATTN_Q_MAX / amax : 0.0f;
    if (inv == 0.0f) {
        memset(q, 0, pad * sizeof *q);
        return bad ? NAN : 0.0f;
    }
    for (size_t i = 0; i < pad; i += 4) {
        int32_t n[4];
        for (size_t j = 0; j < 4; j++) n[j] = rl_round_int(x[i + j] * inv);
        q[i] = (int16_t)n[0];
        q[i + 1] = (int16_t)n[2];
        q[i + 2] = (int16_t)n[1];
        q[i + 3] = (int16_t)n[3];
    }
    return amax / (float)RL_ATTN_Q_MAX;
}

// One row of queries, scaled and as floats (dim), in the format that pages are read with.
static void put_query(const rl_attention_args *a, const rl_attn_plan *p, const rl_attn_cut *c, float *x, size_t dim,
                      float *q, float *q_scale, size_t row) {
    bool q16 = !c->blocked && p->q_act == RL_ACT_Q16;
    for (size_t i = dim; i < c->ld_q; i++) x[i] = 0.0f;
    if (a->kv->config.rotate) rl_hadamard(x, dim);
    if (q16)
        q_scale[row] = query_q16(x, c->ld_q, (int16_t *)(void *)q + row * c->ld_q);
    else
        memcpy(q + row * c->ld_q, x, c->ld_q * sizeof *x);
}

// The queries of a block for one KV head: scaled, rotated, in the format that kernels want, from row `row` of local on.
static void prepare_queries(const rl_attention_args *a, const rl_attn_plan *p, const rl_attn_cut *c,
                            rl_attn_local *local, size_t h, size_t block, size_t row) {
    const rl_kv *kv = a->kv;
    const rl_attn_side *k = &kv->layers[a->layer].k;
    const rl_kv_low *low = rl_attn_low(a);
    size_t rank = low ? low->basis->rank_k : 0;
    const float *out = low ? rl_kv_basis_of(kv, low->basis, a->layer, false) + h * k->dim * rank : NULL;
    size_t t0 = block * c->block_tok, t1 = t0 + c->block_tok < a->n_tok ? t0 + c->block_tok : a->n_tok;
    float x[RL_ATTN_MAX_DIM + 16], shorter[RL_ATTN_MAX_DIM + 16];
    for (size_t t = t0; t < t1; t++)
        for (size_t j = 0; j < c->group; j++, row++) {
            const float *from = a->q + t * a->ld_q + (h * c->group + j) * k->dim;
            for (size_t i = 0; i < k->dim; i++) x[i] = from[i] * a->scale;
            if (low) {
                rl_kv_times(x, out, k->dim, rank, shorter);
                put_query(a, p, c, shorter, rank, local->q_low, local->q_low_scale, row);
            }
            put_query(a, p, c, x, k->dim, local->q, local->q_scale, row);
        }
}

// Where in local the queries of KV head h begin, in rows. Prepares those of its whole piece, unless they are there.
static size_t queries_of(const rl_attention_args *a, const rl_attn_plan *p, const rl_attn_cut *c, rl_attn_local *local,
                         size_t h, size_t block) {
    size_t h0 = h - h % c->heads;
    if (local->have_h != h0 || local->have_block != block) {
        for (size_t i = 0; i < c->heads; i++) prepare_queries(a, p, c, local, h0 + i, block, i * c->rows);
        local->have_h = h0;
        local->have_block = block;
    }
    return (h - h0) * c->rows;
}

// Everything outside lo..hi (positions of this page) becomes -inf.
static void mask_row(float *s, size_t base, size_t lo, size_t hi) {
    size_t a = lo > base ? lo - base : 0, b = hi > base ? hi - base : 0;
    if (a > RL_PAGE_TOKENS) a = RL_PAGE_TOKENS;
    for (size_t i = 0; i < a; i++) s[i] = -INFINITY;
    for (size_t i = b; i < RL_PAGE_TOKENS; i++) s[i] = -INFINITY;
}

// One line of each 4 KB of a head of a page that is read after the next one: what the page table says is known by the
// time that kernels prefetch it line by line.
static void touch_page(const rl_kv_layer *l, size_t h, size_t page) {
    if (page >= l->n_pages || !l->slots[page].data) return;
    const uint8_t *k = l->slots[page].data + h * l->k.head, *v = l->slots[page].data + l->k.bytes + h * l->v.head;
    for (size_t i = 0; i < l->k.head; i += 4096) __builtin_prefetch(k + i, 0, 2);
    for (size_t i = 0; i < l->v.head; i += 4096) __builtin_prefetch(v + i, 0, 2);
}

static const uint8_t *next_page(const rl_kv_layer *l, size_t page) {
    return page + 1 < l->n_pages ? l->slots[page + 1].data : NULL;
}

// row0: where in local the queries begin.
static void score_page(const rl_attn_plan *p, const rl_attn_cut *c, const rl_attn_local *local, const rl_kv_layer *l,
                       bool low, size_t h, size_t page, size_t row0, size_t rows, size_t n_tok) {
    const uint8_t *here = l->slots[page].data, *next = next_page(l, page);
    const float *rows_of_q = low ? local->q_low : local->q;
    const float *q = rows_of_q + row0 * c->ld_q;
    const int16_t *q16 = (const int16_t *)(const void *)rows_of_q + row0 * c->ld_q;
    const float *q_scale = (low ? local->q_low_scale : local->q_scale) + row0;
    if (c->blocked) {
        rl_attn_head head = rl_attn_head_at(&l->k, here, h, next);
        p->kload(&l->k, &head, local->kt);
        p->mulk(q, c->ld_q, rows, local->kt, l->k.pad, n_tok, local->s);
        return;
    }
    touch_page(l, h, page + 2);
    // Made in place: a copy of what was just written in two halves is a load that waits for both.
    rl_attn_k_args ka = {.side = &l->k, .head = rl_attn_head_at(&l->k, here, h, next), .ld_q = c->ld_q};
    for (size_t r = 0; r < rows; r += RL_ATTN_MAX_Q) {
        ka.q = p->q_act == RL_ACT_Q16 ? (const void *)(q16 + r * c->ld_q) : (const void *)(q + r * c->ld_q);
        ka.q_scale = q_scale + r;
        ka.nq = rows - r < RL_ATTN_MAX_Q ? rows - r : RL_ATTN_MAX_Q;
        ka.s = local->s + r * RL_PAGE_TOKENS;
        p->k(&ka);
        ka.head.next = NULL;
    }
}

static void weigh_page(const rl_attn_plan *p, const rl_attn_cut *c, const rl_attn_local *local, const rl_kv_layer *l,
                       size_t h, size_t page, size_t rows, size_t n_tok, float *acc) {
    const uint8_t *here = l->slots[page].data + l->k.bytes, *next = next_page(l, page);
    if (next) next += l->k.bytes;
    if (c->blocked) {
        rl_attn_head head = rl_attn_head_at(&l->v, here, h, next);
        p->vload(&l->v, &head, local->vt);
        p->mulv(local->s, local->corr, rows, local->vt, l->v.pad, n_tok, acc, c->ld_acc);
        return;
    }
    rl_attn_v_args va = {
        .side = &l->v, .head = rl_attn_head_at(&l->v, here, h, next), .n_tok = n_tok, .ld_acc = c->ld_acc};
    for (size_t r = 0; r < rows; r += RL_ATTN_MAX_Q) {
        va.p = local->s + r * RL_PAGE_TOKENS;
        va.corr = local->corr + r;
        va.nq = rows - r < RL_ATTN_MAX_Q ? rows - r : RL_ATTN_MAX_Q;
        va.acc = acc + r * c->ld_acc;
        p->v(&va);
        va.head.next = NULL;
    }
}

void rl_attn_page_scores(const rl_attention_args *a, const rl_attn_plan *p, const rl_attn_cut *c, rl_attn_local *local,
                         size_t h, size_t block, size_t page) {
    size_t t0 = block * c->block_tok, t1 = t0 + c->block_tok < a->n_tok ? t0 + c->block_tok : a->n_tok;
    size_t rows = (t1 - t0) * c->group, base = page * RL_PAGE_TOKENS, lo0, hi0, lo1, hi1;
    size_t row0 = queries_of(a, p, c, local, h, block);
    rl_attn_range(a, t0, &lo0, &hi0); // lo and hi grow with the token
    rl_attn_range(a, t1 - 1, &lo1, &hi1);
    size_t n_tok = hi1 > base + RL_PAGE_TOKENS ? RL_PAGE_TOKENS : hi1 > base ? hi1 - base : 0;
    size_t at;
    const rl_kv_layer *l = rl_kv_layer_of(a->kv, a->layer, page, &at);
    score_page(p, c, local, l, l != &a->kv->layers[a->layer], h, at, row0, rows, n_tok);
    if (a->softcap > 0.0f) p->softcap(local->s, a->softcap, local->s, rows * RL_PAGE_TOKENS);
    if (base >= lo1 && base + RL_PAGE_TOKENS <= hi0) return;
    for (size_t r = 0; r < rows; r++) {
        size_t lo, hi;
        rl_attn_range(a, t0 + r / c->group, &lo, &hi);
        mask_row(local->s + r * RL_PAGE_TOKENS, base, lo, hi);
    }
}

// Adds what compressed pages gave, times the basis of V, to acc, whose rows have not moved with m since (m_low).
static void fold_low(const rl_attention_args *a, const rl_attn_plan *p, const rl_attn_cut *c,
                     const rl_attn_local *local, size_t h, size_t rows, const float *m, float *acc) {
    const rl_kv_basis *b = a->kv->low->basis;
    size_t dim = a->kv->layers[a->layer].v.dim;
    const float *basis = rl_kv_basis_of(a->kv, b, a->layer, true) + h * dim * b->rank_v;
    for (size_t r = 0; r < rows; r++) local->corr[r] = local->m_low[r] == m[r] ? 1.0f : expf(local->m_low[r] - m[r]);
    // As if the ranks were the tokens of pages, and the sums their weights.
    for (size_t j = 0; j < b->rank_v; j += RL_PAGE_TOKENS) {
        size_t n = b->rank_v - j < RL_PAGE_TOKENS ? b->rank_v - j : RL_PAGE_TOKENS;
        memset(local->s, 0, rows * RL_PAGE_TOKENS * sizeof *local->s);
        for (size_t r = 0; r < rows; r++)
            memcpy(local->s + r * RL_PAGE_TOKENS, local->acc_low + r * c->ld_acc + j, n * sizeof *local->s);
        for (size_t r = 0; r < rows; r += RL_ATTN_MUL_Q)
            p->mulv(local->s + r * RL_PAGE_TOKENS, local->corr + r, rows - r < RL_ATTN_MUL_Q ? rows - r : RL_ATTN_MUL_Q,
                    basis + j * dim, dim, n, acc + r * c->ld_acc, c->ld_acc);
        for (size_t r = 0; r < rows; r++) local->corr[r] = 1.0f;
    }
}

void rl_attn_block(const rl_attention_args *a, const rl_attn_plan *p, const rl_attn_cut *c, rl_attn_local *local,
                   size_t h0, size_t block, size_t s, const rl_attn_sums *sums) {
    size_t t0 = block * c->block_tok, t1 = t0 + c->block_tok < a->n_tok ? t0 + c->block_tok : a->n_tok;
    size_t rows = (t1 - t0) * c->group, lo, hi, skip;
    float *m = sums->m + s * sums->stretch, *l = sums->l + s * sums->stretch, *acc = sums->acc + s * sums->stretch;
    for (size_t i = 0; i < c->heads; i++) {
        for (size_t r = 0; r < rows; r++) {
            m[i * sums->head + r] = -INFINITY;
            l[i * sums->head + r] = 0.0f;
        }
        memset(acc + i * sums->head, 0, rows * c->ld_acc * sizeof *acc);
    }
    rl_attn_range(a, t0, &lo, &skip);
    rl_attn_range(a, t1 - 1, &skip, &hi);
    size_t from = lo, to = hi;
    if (c->n_s > 1) {
        size_t start = (c->s0 + s) * c->stretch, stop = start + c->stretch;
        from = from > start ? from : start;
        to = to < stop ? to : stop;
    }
    bool in_low = false; // only with one head a piece: see rl_attention_run
    for (size_t page = from / RL_PAGE_TOKENS; page * RL_PAGE_TOKENS < to; page++) {
        size_t base = page * RL_PAGE_TOKENS, n_tok = hi - base < RL_PAGE_TOKENS ? hi - base : RL_PAGE_TOKENS, at;
        const rl_kv_layer *layer = rl_kv_layer_of(a->kv, a->layer, page, &at);
        bool low = layer != &a->kv->layers[a->layer];
        if (low && !in_low) {
            memcpy(local->m_low, m, rows * sizeof *m);
            memset(local->acc_low, 0, rows * c->ld_acc * sizeof *acc);
        } else if (!low && in_low) {
            fold_low(a, p, c, local, h0, rows, m, acc);
        }
        in_low = low;
        for (size_t i = 0; i < c->heads; i++) {
            size_t o = i * sums->head;
            rl_attn_page_scores(a, p, c, local, h0 + i, block, page);
            p->softmax(local->s, rows, m + o, l + o, local->corr);
            weigh_page(p, c, local, layer, h0 + i, at, rows, n_tok, low ? local->acc_low : acc + o);
        }
    }
    if (in_low) fold_low(a, p, c, local, h0, rows, m, acc);
}
