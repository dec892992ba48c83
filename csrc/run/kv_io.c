// SPDX-License-Identifier: Apache-2.0
// The content of a KV cache as a stream of bytes: a header that states version and configuration, per layer
// its geometry and the pages it holds, as they lie in memory (rotated when the header says so). Nothing in
// a stream is trusted: it must fit the cache it is read into, which is left empty when it does not.
#include "run/kv_internal.h"

#include <string.h>

#define KV_MAGIC 0x564B4C52u // "RLKV"
#define KV_VERSION 2u

typedef struct kv_header {
    uint32_t magic, version;
    uint32_t type_k, type_v, layout, rotate, page_tokens, n_layer;
    uint64_t length, n_ctx, sinks, dropped; // n_ctx and sinks 0: no eviction
    uint64_t compressed, rank_k, rank_v;    // tokens behind the first page; their basis and cache come first
} kv_header;

typedef struct kv_layer_header {
    uint64_t n_head_kv, dim_k, dim_v, window, first_page, n_pages;
} kv_layer_header;

static rl_status put(rl_write_fn write, void *arg, const void *data, size_t n, rl_err *err) {
    return write(arg, data, n) ? RL_OK : rl_fail(err, RL_ERR_IO, "the state of the KV cache could not be written");
}

static rl_status get(rl_read_fn read, void *arg, void *data, size_t n, rl_err *err) {
    return read(arg, data, n) ? RL_OK
                              : rl_fail_format(err, NULL, NULL, UINT64_MAX, "the saved KV cache ends too early");
}

static rl_status save_low(const rl_kv *kv, rl_write_fn write, void *arg, rl_err *err) {
    if (!kv->low) return RL_OK;
    RL_TRY(put(write, arg, kv->low->basis->values, kv->low->basis->n * sizeof(float), err));
    return rl_kv_save(kv->low->kv, write, arg, err);
}

rl_status rl_kv_save(const rl_kv *kv, rl_write_fn write, void *arg, rl_err *err) {
    const rl_kv_config *c = &kv->config;
    size_t rank_k, rank_v;
    rl_kv_ranks(kv, &rank_k, &rank_v);
    kv_header h = {.magic = KV_MAGIC,
                   .version = KV_VERSION,
                   .type_k = (uint32_t)c->type_k,
                   .type_v = (uint32_t)c->type_v,
                   .layout = (uint32_t)c->layout,
                   .rotate = c->rotate,
                   .page_tokens = RL_PAGE_TOKENS,
                   .n_layer = (uint32_t)c->n_layer,
                   .length = rl_kv_length(kv),
                   .n_ctx = c->evict ? c->n_ctx : 0,
                   .sinks = c->sinks,
                   .dropped = rl_kv_dropped(kv),
                   .compressed = rl_kv_compressed(kv),
                   .rank_k = rank_k,
                   .rank_v = rank_v};
    RL_TRY(put(write, arg, &h, sizeof h, err));
    RL_TRY(save_low(kv, write, arg, err));
    size_t end = (rl_kv_length(kv) + RL_PAGE_TOKENS - 1) / RL_PAGE_TOKENS;
    for (size_t i = 0; i < c->n_layer; i++) {
        const rl_kv_layer *l = &kv->layers[i];
        const rl_kv_layer_config *lc = &c->layers[i];
        size_t first = l->first < end ? l->first : end;
        kv_layer_header lh = {lc->n_head_kv, lc->dim_k, lc->dim_v, lc->window, first, end};
        RL_TRY(put(write, arg, &lh, sizeof lh, err));
        for (size_t p = first; p < end; p++)
            if (l->slots[p].data) RL_TRY(put(write, arg, l->slots[p].data, l->page_bytes, err)); // else compressed
        for (size_t p = 0; rl_kv_has_originals(kv, i) && p < c->sinks / RL_PAGE_TOKENS; p++)
            RL_TRY(put(write, arg, l->originals[p].data, l->page_bytes, err));
    }
    return RL_OK;
}

static const char *const TYPES[] = {"f32", "f16", "q8_0"};
static const char *const LAYOUTS[] = {"tile", "token", "head"};

static rl_status check(const rl_kv *kv, const kv_header *h, rl_err *err) {
    const rl_kv_config *c = &kv->config;
    if (h->magic != KV_MAGIC) return rl_fail_format(err, NULL, NULL, 0, "this is not a saved KV cache");
    if (h->version != KV_VERSION)
        return rl_fail_format(err, NULL, NULL, 4, "the saved KV cache has version %u, this build reads %u", h->version,
                              KV_VERSION);
    if (h->type_k > 2 || h->type_v > 2 || h->layout > 2 || h->rotate > 1 || h->page_tokens != RL_PAGE_TOKENS)
        return rl_fail_format(err, NULL, NULL, 8, "the header of the saved KV cache is damaged");
    if (h->type_k != (uint32_t)c->type_k || h->type_v != (uint32_t)c->type_v)
        return rl_fail(err, RL_ERR_ARG, "the saved KV cache holds %s/%s, this one %s/%s", TYPES[h->type_k],
                       TYPES[h->type_v], TYPES[c->type_k], TYPES[c->type_v]);
    if (h->layout != (uint32_t)c->layout)
        return rl_fail(err, RL_ERR_ARG, "the saved KV cache has layout %s, this one %s", LAYOUTS[h->layout],
                       LAYOUTS[c->layout]);
    if (h->rotate != (uint32_t)c->rotate)
        return rl_fail(err, RL_ERR_ARG, "the saved KV cache is %s, this one is %s", h->rotate ? "rotated" : "plain",
                       c->rotate ? "rotated" : "plain");
    if (h->n_layer != c->n_layer)
        return rl_fail(err, RL_ERR_ARG, "the saved KV cache has %u layers, this one %zu", h->n_layer, c->n_layer);
    if (h->n_ctx != (c->evict ? c->n_ctx : 0) || h->sinks != c->sinks)
        return rl_fail(err, RL_ERR_ARG,
                       "the saved KV cache evicts beyond %llu tokens with %llu sinks, this one beyond %zu with %zu "
                       "(0: never)",
                       (unsigned long long)h->n_ctx, (unsigned long long)h->sinks, c->evict ? c->n_ctx : 0, c->sinks);
    if (h->dropped && (!c->evict || h->dropped % RL_PAGE_TOKENS || h->dropped > RL_KV_MAX_POSITIONS ||
                       h->length < c->n_ctx - RL_PAGE_TOKENS))
        return rl_fail_format(err, NULL, NULL, 56, "the saved KV cache cannot have evicted %llu tokens",
                              (unsigned long long)h->dropped);
    if (h->length > c->n_ctx) {
        rl_status st = rl_fail(err, RL_ERR_CONTEXT_FULL, "the saved KV cache holds %llu tokens, this context %zu",
                               (unsigned long long)h->length, c->n_ctx);
        if (err) err->limit = c->n_ctx, err->needed = h->length;
        return st;
    }
    return RL_OK;
}

static rl_status load_layer(rl_kv *kv, size_t i, size_t length, rl_read_fn read, void *arg, rl_err *err) {
    const rl_kv_layer_config *c = &kv->config.layers[i];
    rl_kv_layer *l = &kv->layers[i];
    kv_layer_header h;
    RL_TRY(get(read, arg, &h, sizeof h, err));
    if (h.n_head_kv != c->n_head_kv || h.dim_k != c->dim_k || h.dim_v != c->dim_v || h.window != c->window)
        return rl_fail(err, RL_ERR_ARG,
                       "layer %zu: the saved KV cache has %llu heads of %llu/%llu and window %llu, this one %zu of "
                       "%zu/%zu and %zu",
                       i, (unsigned long long)h.n_head_kv, (unsigned long long)h.dim_k, (unsigned long long)h.dim_v,
                       (unsigned long long)h.window, c->n_head_kv, c->dim_k, c->dim_v, c->window);
    size_t end = (length + RL_PAGE_TOKENS - 1) / RL_PAGE_TOKENS;
    size_t needed = c->window && length + 1 > c->window ? length + 1 - c->window : 0; // by the next token
    if (h.n_pages != end || h.first_page > end || (needed < length && h.first_page * RL_PAGE_TOKENS > needed))
        return rl_fail_format(err, NULL, NULL, UINT64_MAX, "layer %zu: the page table of the saved KV cache is damaged",
                              i);
    // A saver with more slack may hold more than this cache has room for: the oldest pages are left out.
    size_t first = h.first_page, skip = end - first > l->capacity ? end - first - l->capacity : 0;
    l->first = l->n_pages = first + skip;
    for (size_t p = first; p < end; p++) {
        if (p < first + skip) {
            uint8_t sink[4096];
            for (size_t left = l->page_bytes; left;) {
                size_t n = left < sizeof sink ? left : sizeof sink;
                RL_TRY(get(read, arg, sink, n, err));
                left -= n;
            }
            continue;
        }
        size_t at;
        l->n_pages = p + 1;
        if (rl_kv_layer_of(kv, i, p, &at) != l) continue;
        RL_TRY(rl_page_alloc(kv, i, &l->slots[p], err));
        RL_TRY(get(read, arg, l->slots[p].data, l->page_bytes, err));
    }
    for (size_t p = 0; rl_kv_has_originals(kv, i) && p < kv->config.sinks / RL_PAGE_TOKENS; p++) {
        RL_TRY(rl_page_alloc(kv, i, &l->originals[p], err));
        RL_TRY(get(read, arg, l->originals[p].data, l->page_bytes, err));
    }
    return RL_OK;
}

static rl_status load_low(rl_kv *kv, const kv_header *h, rl_read_fn read, void *arg, rl_err *err) {
    if (!h->compressed && !h->rank_k && !h->rank_v) return RL_OK;
    if (kv->config.evict || kv->is_low || !h->compressed || h->compressed % RL_PAGE_TOKENS ||
        h->compressed > h->length || h->length - h->compressed < RL_PAGE_TOKENS)
        return rl_fail_format(err, NULL, NULL, 64, "the saved KV cache cannot have %llu compressed tokens",
                              (unsigned long long)h->compressed);
    rl_kv_basis *basis;
    if (h->rank_k > RL_ATTN_MAX_DIM || h->rank_v > RL_ATTN_MAX_DIM)
        return rl_fail_format(err, NULL, NULL, 72, "the ranks of the saved KV cache are damaged");
    RL_TRY(rl_kv_basis_create(&basis, kv, h->rank_k, h->rank_v, err));
    rl_status st = get(read, arg, basis->values, basis->n * sizeof(float), err);
    if (st == RL_OK) st = rl_kv_low_create(&kv->low, kv, basis, err);
    if (st == RL_OK) st = rl_kv_load(kv->low->kv, read, arg, err);
    if (st == RL_OK && rl_kv_compressed(kv) != h->compressed)
        st = rl_fail_format(err, NULL, NULL, 64, "the saved KV cache says %llu compressed tokens and has %zu",
                            (unsigned long long)h->compressed, rl_kv_compressed(kv));
    rl_kv_basis_free(basis);
    return st;
}

rl_status rl_kv_load(rl_kv *kv, rl_read_fn read, void *arg, rl_err *err) {
    kv_header h;
    RL_TRY(get(read, arg, &h, sizeof h, err));
    RL_TRY(check(kv, &h, err));
    RL_TRY(rl_kv_rewind(kv, 0, err));
    rl_status st = load_low(kv, &h, read, arg, err);
    rl_kv_set_counts(kv, h.dropped, h.dropped); // whose originals load_layer reads
    for (size_t i = 0; i < kv->config.n_layer && st == RL_OK; i++) st = load_layer(kv, i, h.length, read, arg, err);
    rl_kv_set_counts(kv, h.length + h.dropped, h.dropped);
    kv->stale = true;
    if (st != RL_OK) {
        // Pages of all layers go, also of those that were not reached.
        for (size_t i = 0; i < kv->config.n_layer; i++) {
            rl_kv_layer *l = &kv->layers[i];
            while (l->n_pages > l->first) rl_page_release(&l->slots[--l->n_pages]);
            l->first = l->n_pages = 0;
            for (size_t p = 0; p < kv->config.sinks / RL_PAGE_TOKENS; p++) rl_page_release(&l->originals[p]);
        }
        rl_kv_set_counts(kv, 0, 0);
        rl_kv_low_free(kv->low);
        kv->low = NULL;
    }
    return st;
}
