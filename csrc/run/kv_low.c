// SPDX-License-Identifier: Apache-2.0
// Compressed pages: keys and values of old positions in a basis of lower rank, orthonormal columns B for each KV head,
//
//     k ~ B (B' k)        q . k ~ (B' q) . (B' k)        sum p v ~ B (sum p (B' v))
//
// so that they are pages of a second cache with shorter heads, which the same kernels read: a query is multiplied by
// B' once, what was summed by B once. The first page stays as it is: it holds the sinks, whose keys are far
// from all others. Layers with a sliding window keep little and are left alone.
#include "run/kv_internal.h"

#include <stdlib.h>
#include <string.h>

void rl_kv_basis_free(rl_kv_basis *b) {
    if (!b || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1) return;
    free(b->values);
    free(b->at);
    free(b);
}

void rl_kv_low_free(rl_kv_low *low) {
    if (!low) return;
    rl_kv_free(low->kv);
    rl_kv_basis_free(low->basis);
    free(low->layer_of);
    free(low);
}

// A cache of shorter heads for the layers without window of kv, and no pages yet; it holds a reference to the basis.
rl_status rl_kv_low_create(rl_kv_low **out, const rl_kv *kv, rl_kv_basis *basis, rl_err *err) {
    const rl_kv_config *c = &kv->config;
    rl_kv_low *low = calloc(1, sizeof *low);
    rl_kv_layer_config *layers = calloc(c->n_layer, sizeof *layers);
    if (low) low->layer_of = calloc(c->n_layer, sizeof *low->layer_of);
    rl_status st = low && layers && low->layer_of
                       ? RL_OK
                       : rl_fail(err, RL_ERR_NOMEM, "no memory for the tables of compressed pages");
    rl_kv_config lc = *c;
    lc.n_layer = 0;
    lc.layers = layers;
    for (size_t i = 0; i < c->n_layer && st == RL_OK; i++) {
        low->layer_of[i] = c->layers[i].window ? SIZE_MAX : lc.n_layer;
        if (!c->layers[i].window)
            layers[lc.n_layer++] = (rl_kv_layer_config){c->layers[i].n_head_kv, basis->rank_k, basis->rank_v, 0};
    }
    if (st == RL_OK && !lc.n_layer)
        st = rl_fail(err, RL_ERR_ARG, "every layer has a sliding window: there are no old pages to compress");
    if (st == RL_OK) st = rl_kv_create(&low->kv, &lc, err);
    free(layers);
    if (st != RL_OK) {
        rl_kv_low_free(low);
        return st;
    }
    low->kv->is_low = true;
    low->basis = basis;
    atomic_fetch_add_explicit(&basis->refs, 1, memory_order_relaxed);
    *out = low;
    return RL_OK;
}

rl_status rl_kv_basis_create(rl_kv_basis **out, const rl_kv *kv, size_t rank_k, size_t rank_v, rl_err *err) {
    const rl_kv_config *c = &kv->config;
    rl_kv_basis *b = calloc(1, sizeof *b);
    if (!b || !(b->at = calloc(c->n_layer, sizeof *b->at))) goto nomem;
    atomic_init(&b->refs, 1);
    b->rank_k = rank_k;
    b->rank_v = rank_v;
    for (size_t i = 0; i < c->n_layer; i++) {
        const rl_kv_layer_config *l = &c->layers[i];
        if (l->window) continue;
        if (rank_k < 1 || rank_k > l->dim_k || rank_v < 1 || rank_v > l->dim_v) {
            rl_kv_basis_free(b);
            return rl_fail(err, RL_ERR_ARG, "ranks %zu of K and %zu of V: heads have %zu and %zu values", rank_k,
                           rank_v, l->dim_k, l->dim_v);
        }
        b->at[i] = b->n;
        b->n += l->n_head_kv * (l->dim_k * rank_k + l->dim_v * rank_v); // no larger than 2^36: heads are checked
    }
    // Kernels take rows of 16 values, and so some behind the last row where heads are no multiple of that.
    if (!(b->values = calloc(b->n + 16, sizeof *b->values))) goto nomem;
    *out = b;
    return RL_OK;
nomem:
    rl_kv_basis_free(b);
    return rl_fail(err, RL_ERR_NOMEM, "no memory for a basis of ranks %zu and %zu", rank_k, rank_v);
}

float *rl_kv_basis_of(const rl_kv *kv, const rl_kv_basis *b, size_t layer, bool is_v) {
    const rl_kv_layer_config *l = &kv->config.layers[layer];
    return b->values + b->at[layer] + (is_v ? l->n_head_kv * l->dim_k * b->rank_k : 0);
}

void rl_kv_times(const float *x, const float *m, size_t rows, size_t cols, float *out) {
    for (size_t j = 0; j < cols; j++) out[j] = 0.0f;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) out[j] += x[i] * m[i * cols + j];
}

void rl_kv_dots(const float *x, const float *m, size_t rows, size_t cols, float *out) {
    for (size_t i = 0; i < rows; i++) {
        float sum = 0.0f;
        for (size_t j = 0; j < cols; j++) sum += x[j] * m[i * cols + j];
        out[i] = sum;
    }
}

size_t rl_kv_compressed(const rl_kv *kv) {
    return kv->low ? rl_kv_length(kv->low->kv) : 0;
}

void rl_kv_ranks(const rl_kv *kv, size_t *rank_k, size_t *rank_v) {
    *rank_k = kv->low ? kv->low->basis->rank_k : 0;
    *rank_v = kv->low ? kv->low->basis->rank_v : 0;
}

static rl_status check(const rl_kv *kv, size_t end, const rl_kv_basis *basis, rl_err *err) {
    if (kv->config.evict) return rl_fail(err, RL_ERR_ARG, "this cache evicts old pages: there is nothing to compress");
    if (end % RL_PAGE_TOKENS || end > rl_kv_length(kv) || end < RL_PAGE_TOKENS + rl_kv_compressed(kv))
        return rl_fail(err, RL_ERR_ARG,
                       "cannot compress up to position %zu: full pages end at multiples of %d from "
                       "%zu to %zu",
                       end, RL_PAGE_TOKENS, RL_PAGE_TOKENS + rl_kv_compressed(kv),
                       rl_kv_length(kv) / RL_PAGE_TOKENS * RL_PAGE_TOKENS);
    if (kv->low && basis)
        return rl_fail(err, RL_ERR_ARG,
                       "pages are compressed to ranks %zu and %zu already, and stay so until the "
                       "session goes back to the first page",
                       kv->low->basis->rank_k, kv->low->basis->rank_v);
    if (!kv->low && !basis) return rl_fail(err, RL_ERR_ARG, "the first pages to compress need a basis");
    return RL_OK;
}

// A page of a layer, times the basis. room: for one side of it as float32, and twice as much of what comes out.
static rl_status write_page(const rl_kv *kv, size_t layer, size_t page, float *room, rl_err *err) {
    const rl_kv_low *low = kv->low;
    const rl_kv_layer *l = &kv->layers[layer];
    size_t n_head = l->k.n_head, widest = l->k.dim > l->v.dim ? l->k.dim : l->v.dim, all = RL_PAGE_TOKENS * n_head;
    float *x = room, *out[2] = {x + all * widest, x + 2 * all * widest};
    for (int v = 0; v < 2; v++) {
        size_t dim = v ? l->v.dim : l->k.dim, rank = v ? low->basis->rank_v : low->basis->rank_k,
               p = page * RL_PAGE_TOKENS;
        const float *basis = rl_kv_basis_of(kv, low->basis, layer, v);
        RL_TRY(rl_kv_read(kv, layer, v, false, p, p + RL_PAGE_TOKENS, x, err));
        for (size_t i = 0; i < all; i++) {
            const float *b = basis + i % n_head * dim * rank;
            if (v)
                rl_kv_dots(x + i * dim, b, rank, dim, out[v] + i * rank);
            else
                rl_kv_times(x + i * dim, b, dim, rank, out[v] + i * rank);
        }
    }
    rl_kv_write(low->kv, NULL, low->layer_of[layer], (page - 1) * RL_PAGE_TOKENS, 0, RL_PAGE_TOKENS, 0, n_head, out[0],
                n_head * low->basis->rank_k, out[1], n_head * low->basis->rank_v);
    return RL_OK;
}

rl_status rl_kv_compress(rl_kv *kv, size_t end, rl_kv_basis *basis, rl_err *err) {
    RL_TRY(check(kv, end, basis, err));
    size_t widest = 0, from = 1 + rl_kv_compressed(kv) / RL_PAGE_TOKENS, to = end / RL_PAGE_TOKENS;
    for (size_t i = 0; i < kv->config.n_layer; i++) {
        const rl_kv_layer *l = &kv->layers[i];
        size_t n = RL_PAGE_TOKENS * l->k.n_head * (l->k.dim > l->v.dim ? l->k.dim : l->v.dim);
        if (n > widest) widest = n;
    }
    if (from == to) return RL_OK;
    float *room = malloc(3 * widest * sizeof *room);
    if (!room) return rl_fail(err, RL_ERR_NOMEM, "no memory to compress a page");
    rl_status st = kv->low ? RL_OK : rl_kv_low_create(&kv->low, kv, basis, err);
    rl_kv_low *low = kv->low;
    if (st == RL_OK) st = rl_kv_reserve(low->kv, (to - from) * RL_PAGE_TOKENS, err);
    for (size_t i = 0; i < kv->config.n_layer && st == RL_OK; i++)
        for (size_t p = from; p < to && low->layer_of[i] != SIZE_MAX && st == RL_OK; p++)
            st = write_page(kv, i, p, room, err);
    free(room);
    if (st != RL_OK) {
        if (!rl_kv_compressed(kv)) {
            rl_kv_low_free(kv->low);
            kv->low = NULL;
        }
        return st;
    }
    rl_kv_commit(low->kv, (to - from) * RL_PAGE_TOKENS);
    for (size_t i = 0; i < kv->config.n_layer; i++)
        for (size_t p = from; p < to && low->layer_of[i] != SIZE_MAX; p++) rl_page_release(&kv->layers[i].slots[p]);
    return RL_OK;
}

rl_status rl_kv_low_fork(const rl_kv *kv, rl_kv *to, rl_err *err) {
    if (!kv->low) return RL_OK;
    rl_kv_low *low = calloc(1, sizeof *low);
    if (!low || !(low->layer_of = malloc(kv->config.n_layer * sizeof *low->layer_of))) {
        free(low);
        return rl_fail(err, RL_ERR_NOMEM, "no memory for the tables of compressed pages");
    }
    memcpy(low->layer_of, kv->low->layer_of, kv->config.n_layer * sizeof *low->layer_of);
    low->basis = kv->low->basis;
    atomic_fetch_add_explicit(&low->basis->refs, 1, memory_order_relaxed);
    to->low = low;
    return rl_kv_fork(kv->low->kv, &low->kv, err);
}
