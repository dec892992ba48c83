// SPDX-License-Identifier: Apache-2.0
// Eviction: a cache that is full gives up its oldest page behind the sinks (the first pages, which stay) and goes on.
//
// Positions inside the cache stay consecutive, as Xiao et al. 2023 ("Efficient Streaming Language Models with Attention
// Sinks", arXiv:2309.17453) have them: no distance between a query and a key is longer than the cache. Scores depend on
// differences of positions alone, so instead of turning every key that stays back by what was dropped, the keys of the
// sinks are turned forward by it: a page or two instead of all, and the others keep their bits. Each turn begins at the
// keys as they were first stored, so that rounding does not add up.
#include "run/kv_internal.h"

#include <stdlib.h>
#include <string.h>

size_t rl_kv_dropped(const rl_kv *kv) {
    return atomic_load_explicit(&kv->dropped, memory_order_relaxed);
}

size_t rl_kv_room(const rl_kv *kv) {
    size_t room = kv->config.n_ctx - rl_kv_length(kv);
    return room || !kv->config.evict ? room : RL_PAGE_TOKENS;
}

rl_status rl_kv_check_evict(const rl_kv_config *c, rl_err *err) {
    if (!c->evict) return RL_OK;
    if (c->n_ctx % RL_PAGE_TOKENS || c->sinks % RL_PAGE_TOKENS)
        return rl_fail(err, RL_ERR_ARG, "eviction drops pages of %d tokens: n_ctx %zu and sinks %zu must be multiples",
                       RL_PAGE_TOKENS, c->n_ctx, c->sinks);
    if (c->n_ctx < 2 * RL_PAGE_TOKENS || c->sinks > c->n_ctx - 2 * RL_PAGE_TOKENS)
        return rl_fail(err, RL_ERR_ARG, "eviction needs two pages behind the sinks: n_ctx %zu is less than %zu + %d",
                       c->n_ctx, c->sinks, 2 * RL_PAGE_TOKENS);
    size_t recent = c->n_ctx - c->sinks - RL_PAGE_TOKENS;
    for (size_t i = 0; i < c->n_layer; i++) {
        size_t w = c->layers[i].window;
        if (w > recent && w < c->n_ctx)
            return rl_fail(err, RL_ERR_ARG,
                           "layer %zu has a window of %zu tokens, and eviction keeps the last %zu: keep at least %zu",
                           i, w, recent, (w + RL_PAGE_TOKENS - 1) / RL_PAGE_TOKENS * RL_PAGE_TOKENS);
    }
    return RL_OK;
}

// A window that lies within what always stays never looks at the sinks.
static bool sees_sinks(const rl_kv *kv, size_t layer) {
    size_t w = kv->config.layers[layer].window;
    return kv->config.sinks && (!w || w >= kv->config.n_ctx);
}

bool rl_kv_has_originals(const rl_kv *kv, size_t layer) {
    return rl_kv_dropped(kv) && sees_sinks(kv, layer);
}

// Whether a page of the sinks may be written to: it is a copy that was turned before, and no fork or view looks at it.
static bool turned_and_own(const rl_kv_layer *l, size_t page) {
    return l->originals[page].data && !rl_page_shared(&l->slots[page]);
}

// Pages for the turned keys, taken before anything changes, so that a failure leaves the cache as it was.
static rl_status take_spares(rl_kv *kv, size_t layer, rl_err *err) {
    rl_kv_layer *l = &kv->layers[layer];
    for (size_t p = 0; p < kv->config.sinks / RL_PAGE_TOKENS; p++)
        if (!l->spares[p].data && !turned_and_own(l, p)) RL_TRY(rl_page_alloc(kv, layer, &l->spares[p], err));
    return RL_OK;
}

static void turn_sinks(rl_kv *kv, size_t layer, rl_kv_turn_fn turn, void *arg) {
    rl_kv_layer *l = &kv->layers[layer];
    for (size_t p = 0; p < kv->config.sinks / RL_PAGE_TOKENS; p++) {
        if (l->spares[p].data) {
            if (l->originals[p].data)
                rl_page_release(&l->slots[p]);
            else
                l->originals[p] = l->slots[p];
            l->slots[p] = l->spares[p];
            memset(&l->spares[p], 0, sizeof *l->spares);
        }
        memcpy(l->slots[p].data, l->originals[p].data, l->page_bytes);
        rl_kv_turn_page(kv, layer, l->slots[p].data, turn, arg);
    }
}

static void drop_page(rl_kv *kv, rl_kv_layer *l, size_t page) {
    if (l->first <= page)
        rl_page_release(&l->slots[page]);
    else
        l->first--; // a windowed layer gave it up before
    l->n_pages--;
    memmove(&l->slots[page], &l->slots[page + 1], (kv->n_slots - page - 1) * sizeof *l->slots);
    memset(&l->slots[kv->n_slots - 1], 0, sizeof *l->slots);
}

rl_status rl_kv_evict(rl_kv *kv, rl_kv_turn_fn turn, void *arg, rl_err *err) {
    for (size_t i = 0; i < kv->config.n_layer; i++)
        if (sees_sinks(kv, i)) RL_TRY(take_spares(kv, i, err));
    for (size_t i = 0; i < kv->config.n_layer; i++) {
        if (sees_sinks(kv, i)) turn_sinks(kv, i, turn, arg);
        drop_page(kv, &kv->layers[i], kv->config.sinks / RL_PAGE_TOKENS);
    }
    rl_kv_set_counts(kv, rl_kv_end(kv), rl_kv_dropped(kv) + RL_PAGE_TOKENS);
    return RL_OK;
}

void rl_kv_forget_evicted(rl_kv *kv) {
    for (size_t i = 0; i < kv->config.n_layer; i++) {
        rl_kv_layer *l = &kv->layers[i];
        for (size_t p = 0; p < kv->config.sinks / RL_PAGE_TOKENS; p++) {
            if (!l->originals[p].data) continue;
            rl_page_release(&l->slots[p]);
            l->slots[p] = l->originals[p];
            memset(&l->originals[p], 0, sizeof *l->originals);
        }
    }
}
