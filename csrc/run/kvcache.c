// SPDX-License-Identifier: Apache-2.0
// The KV cache as its users see it: planning, creation and access. Pages: kv_pages.c, values: kv_store.c,
// files: kv_io.c.
#include "run/kv_internal.h"

#include <stdlib.h>
#include <string.h>

static const char *type_name(rl_kv_type t) {
    return t == RL_KV_F32 ? "f32" : t == RL_KV_F16 ? "f16" : "q8_0";
}

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

static void side_geometry(rl_attn_side *s, rl_kv_type type, rl_kv_layout layout, size_t n_head, size_t dim) {
    size_t size = type == RL_KV_F32 ? 4 : type == RL_KV_F16 ? 2 : 1;
    memset(s, 0, sizeof *s);
    s->type = rl_kv_dtype(type);
    s->tile = layout == RL_KV_TILE;
    s->n_head = n_head;
    s->dim = dim;
    s->pad = s->tile ? round_up(dim, 16) : dim;
    s->groups = type == RL_KV_Q8_0 ? (dim + 31) / 32 : 0;
    size_t row = s->pad * size, scales = s->groups * sizeof(float);
    if (layout == RL_KV_TILE) {
        s->token = 0;
        s->scales = RL_PAGE_TOKENS * row;
        s->head = s->scales_head = RL_PAGE_TOKENS * (row + scales);
        s->bytes = n_head * s->head;
        return;
    }
    s->token = layout == RL_KV_TOKEN ? n_head * row : row;
    s->head = layout == RL_KV_TOKEN ? row : RL_PAGE_TOKENS * row;
    s->scales = round_up(RL_PAGE_TOKENS * n_head * row, 64);
    s->scales_token = layout == RL_KV_TOKEN ? n_head * scales : scales;
    s->scales_head = layout == RL_KV_TOKEN ? scales : RL_PAGE_TOKENS * scales;
    s->bytes = round_up(s->scales + RL_PAGE_TOKENS * n_head * scales, 64);
}

void rl_kv_geometry(const rl_kv_config *c, size_t layer, rl_kv_layer *out) {
    const rl_kv_layer_config *l = &c->layers[layer];
    memset(out, 0, sizeof *out);
    side_geometry(&out->k, c->type_k, c->layout, l->n_head_kv, l->dim_k);
    side_geometry(&out->v, c->type_v, c->layout, l->n_head_kv, l->dim_v);
    out->page_bytes = out->k.bytes + out->v.bytes;
    size_t held = c->n_ctx;
    // A window that starts and ends within a page needs one page more than its length.
    if (l->window && l->window < c->n_ctx && c->window_slack < c->n_ctx - l->window)
        held = l->window + c->window_slack + RL_PAGE_TOKENS;
    if (held > c->n_ctx) held = c->n_ctx;
    // Sinks lie there twice once they have been turned, and a third time while they are turned again.
    out->capacity = (held + 2 * c->sinks + RL_PAGE_TOKENS - 1) / RL_PAGE_TOKENS;
}

rl_status rl_kv_check_config(const rl_kv_config *c, rl_err *err) {
    if (c->n_layer == 0 || c->n_layer > 4096 || !c->layers)
        return rl_fail(err, RL_ERR_ARG, "n_layer %zu of the KV cache must be from 1 to 4096", c->n_layer);
    if (c->n_ctx == 0 || c->n_ctx > ((size_t)1 << 30))
        return rl_fail(err, RL_ERR_ARG, "n_ctx %zu must be from 1 to 2^30", c->n_ctx);
    if ((unsigned)c->type_k > RL_KV_Q8_0 || (unsigned)c->type_v > RL_KV_Q8_0 || (unsigned)c->layout > RL_KV_HEAD)
        return rl_fail(err, RL_ERR_ARG, "unknown type or layout of a KV cache");
    if (c->rotate && c->type_k != RL_KV_Q8_0)
        return rl_fail(err, RL_ERR_ARG, "rotate is for a q8_0 K cache, this one is %s", type_name(c->type_k));
    RL_TRY(rl_kv_check_evict(c, err));
    size_t total = 0, pages = 0;
    for (size_t i = 0; i < c->n_layer; i++) {
        const rl_kv_layer_config *l = &c->layers[i];
        if (l->n_head_kv == 0 || l->n_head_kv > 4096)
            return rl_fail(err, RL_ERR_ARG, "layer %zu: n_head_kv %zu must be from 1 to 4096", i, l->n_head_kv);
        if (l->dim_k == 0 || l->dim_k > RL_ATTN_MAX_DIM || l->dim_v == 0 || l->dim_v > RL_ATTN_MAX_DIM)
            return rl_fail(err, RL_ERR_ARG, "layer %zu: head sizes %zu (K) and %zu (V) must be from 1 to %d", i,
                           l->dim_k, l->dim_v, RL_ATTN_MAX_DIM);
        if (l->window && c->window_slack == 0)
            return rl_fail(err, RL_ERR_ARG, "layer %zu has a window of %zu: window_slack must be at least 1", i,
                           l->window);
        rl_kv_layer g;
        rl_kv_geometry(c, i, &g);
        size_t bytes;
        if (!rl_mul_size(g.page_bytes, g.capacity, &bytes) || !rl_add_size(bytes, 65536, &bytes) ||
            !rl_add_size(total, bytes, &total) || total > PTRDIFF_MAX || (pages += g.capacity) > UINT32_MAX)
            return rl_fail(err, RL_ERR_ARG, "a KV cache of %zu layers and n_ctx %zu is too large to address",
                           c->n_layer, c->n_ctx);
    }
    return RL_OK;
}

rl_status rl_kv_plan(const rl_kv_config *c, size_t *bytes_reserved, size_t *bytes_per_token, rl_err *err) {
    RL_TRY(rl_kv_check_config(c, err));
    size_t reserved = 0, token = 0;
    for (size_t i = 0; i < c->n_layer; i++) {
        rl_kv_layer g;
        rl_kv_geometry(c, i, &g);
        reserved += g.page_bytes * g.capacity;
        token += g.page_bytes / RL_PAGE_TOKENS;
    }
    if (bytes_reserved) *bytes_reserved = reserved;
    if (bytes_per_token) *bytes_per_token = token;
    return RL_OK;
}

rl_status rl_kv_create(rl_kv **out, const rl_kv_config *c, rl_err *err) {
    RL_TRY(rl_kv_check_config(c, err));
    rl_kv *kv = calloc(1, sizeof *kv);
    if (!kv) goto nomem;
    kv->config = *c;
    kv->layer_config = calloc(c->n_layer, sizeof *kv->layer_config);
    kv->layers = calloc(c->n_layer, sizeof *kv->layers);
    if (!kv->layer_config || !kv->layers) goto nomem;
    memcpy(kv->layer_config, c->layers, c->n_layer * sizeof *kv->layer_config);
    kv->config.layers = kv->layer_config;
    kv->n_slots = (c->n_ctx + RL_PAGE_TOKENS - 1) / RL_PAGE_TOKENS;
    for (size_t i = 0; i < c->n_layer; i++) {
        rl_kv_geometry(c, i, &kv->layers[i]);
        size_t sinks = c->sinks / RL_PAGE_TOKENS;
        kv->layers[i].slots = calloc(kv->n_slots + 2 * sinks, sizeof(rl_slot));
        if (!kv->layers[i].slots) goto nomem;
        kv->layers[i].originals = kv->layers[i].slots + kv->n_slots;
        kv->layers[i].spares = kv->layers[i].originals + sinks;
    }
    rl_status st = rl_arena_create(&kv->arena, kv, err);
    if (st != RL_OK) {
        rl_kv_free(kv);
        return st;
    }
    *out = kv;
    return RL_OK;
nomem:
    rl_kv_free(kv);
    return rl_fail(err, RL_ERR_NOMEM, "out of memory for the tables of a KV cache (n_ctx %zu)", c->n_ctx);
}

void rl_kv_free(rl_kv *kv) {
    if (!kv) return;
    if (kv->layers)
        for (size_t i = 0; i < kv->config.n_layer; i++) {
            rl_kv_layer *l = &kv->layers[i];
            if (!l->slots) continue;
            for (size_t p = l->first; p < l->n_pages; p++) rl_page_release(&l->slots[p]);
            for (size_t p = 0; p < 2 * kv->config.sinks / RL_PAGE_TOKENS; p++) rl_page_release(&l->originals[p]);
            free(l->slots);
        }
    rl_kv_low_free(kv->low);
    if (kv->arena) rl_arena_close(kv->arena);
    free(kv->layers);
    free(kv->layer_config);
    free(atomic_load(&kv->plan));
    free(kv);
}

size_t rl_kv_end(const rl_kv *kv) {
    return atomic_load_explicit(&kv->end, memory_order_relaxed);
}

size_t rl_kv_length(const rl_kv *kv) {
    return rl_kv_end(kv) - rl_kv_dropped(kv);
}

const rl_kv_config *rl_kv_config_of(const rl_kv *kv) {
    return &kv->config;
}

// Table slots up to the last page with a committed position.
static size_t used_slots(const rl_kv *kv, const rl_kv_layer *l) {
    size_t end = (rl_kv_length(kv) + RL_PAGE_TOKENS - 1) / RL_PAGE_TOKENS;
    return end < l->first ? l->first : end < l->n_pages ? end : l->n_pages;
}

void rl_kv_each_page(const rl_kv *kv, void (*fn)(void *arg, const void *data, size_t bytes), void *arg) {
    for (size_t i = 0; i < kv->config.n_layer; i++) {
        const rl_kv_layer *l = &kv->layers[i];
        for (size_t p = l->first, end = used_slots(kv, l); p < end; p++)
            if (l->slots[p].data) fn(arg, l->slots[p].data, l->page_bytes);
    }
    if (kv->low) rl_kv_each_page(kv->low->kv, fn, arg);
}

static void add_bytes(void *n, const void *data, size_t bytes) {
    (void)data;
    *(size_t *)n += bytes;
}

size_t rl_kv_bytes_in_use(const rl_kv *kv) {
    size_t n = kv->low ? kv->low->basis->n * sizeof(float) : 0;
    rl_kv_each_page(kv, add_bytes, &n);
    for (size_t i = 0; i < kv->config.n_layer; i++)
        if (rl_kv_has_originals(kv, i)) n += kv->config.sinks / RL_PAGE_TOKENS * kv->layers[i].page_bytes;
    return n;
}

size_t rl_kv_n_pages(const rl_kv *kv, size_t layer) {
    return used_slots(kv, &kv->layers[layer]);
}

const void *rl_kv_page(const rl_kv *kv, size_t layer, size_t page, bool want_v, size_t *bytes) {
    const rl_kv_layer *l = rl_kv_layer_of(kv, layer, page, &page);
    if (bytes) *bytes = want_v ? l->v.bytes : l->k.bytes;
    if (page < l->first || page >= l->n_pages) return NULL;
    return l->slots[page].data + (want_v ? l->k.bytes : 0);
}

rl_kv_hold rl_kv_page_hold(const rl_kv *kv, size_t layer, size_t page) {
    rl_kv_hold hold = {0, 0};
    const rl_kv_layer *l = rl_kv_layer_of(kv, layer, page, &page);
    if (page < l->first || page >= l->n_pages) return hold;
    rl_page_hold(&l->slots[page]);
    hold.arena = l->slots[page].arena;
    hold.id = l->slots[page].id;
    return hold;
}

void rl_kv_page_drop(rl_kv_hold *hold) {
    if (!hold->arena) return;
    rl_arena *a = hold->arena;
    const rl_region_pages *r = rl_arena_region(a, hold->id);
    rl_slot s = {a->base + r->offset + (size_t)(hold->id - r->id0) * r->page_bytes, a, hold->id};
    rl_page_release(&s);
    hold->arena = NULL;
}
