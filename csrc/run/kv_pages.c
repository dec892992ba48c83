// SPDX-License-Identifier: Apache-2.0
// Where the pages of a KV cache come from: one reserved block per cache, touched only when a page is used,
// with reference counts so that forks share pages beyond the life of the cache that made them.
#include "run/kv_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t system_page(void) {
    long n = sysconf(_SC_PAGESIZE);
    return n > 0 ? (size_t)n : 4096;
}

static void arena_unref(rl_arena *a) {
    if (atomic_fetch_sub_explicit(&a->holders, 1, memory_order_acq_rel) != 1) return;
    if (a->base) munmap(a->base, a->bytes);
    pthread_mutex_destroy(&a->lock);
    if (a->regions)
        for (size_t i = 0; i < a->n_regions; i++) free(a->regions[i].free_ids);
    free(a->regions);
    free(a->region_of);
    free(a->page_refs);
    free(a);
}

rl_status rl_arena_create(rl_arena **out, const rl_kv *kv, rl_err *err) {
    size_t n_layer = kv->config.n_layer, sys = system_page(), total = 0, pages = 0;
    rl_arena *a = calloc(1, sizeof *a);
    if (!a) return rl_fail(err, RL_ERR_NOMEM, "out of memory for a KV cache");
    atomic_init(&a->holders, 1);
    pthread_mutex_init(&a->lock, NULL);
    a->open = true;
    a->regions = calloc(n_layer, sizeof *a->regions);
    a->region_of = calloc(n_layer, sizeof *a->region_of);
    if (!a->regions || !a->region_of) goto nomem;
    for (size_t i = 0; i < n_layer; i++) {
        size_t n = 0;
        while (n < a->n_regions && a->regions[n].page_bytes != kv->layers[i].page_bytes) n++;
        a->region_of[i] = n;
        if (n == a->n_regions) a->n_regions++;
        a->regions[n].page_bytes = kv->layers[i].page_bytes;
        a->regions[n].capacity += (uint32_t)kv->layers[i].capacity; // all of them: checked by rl_kv_check_config
    }
    for (size_t i = 0; i < a->n_regions; i++) {
        rl_region_pages *r = &a->regions[i];
        r->offset = total;
        r->id0 = (uint32_t)pages;
        r->free_ids = calloc(r->capacity, sizeof *r->free_ids);
        if (!r->free_ids) goto nomem;
        pages += r->capacity;
        total += (r->page_bytes * r->capacity + sys - 1) / sys * sys; // checked, too
    }
    a->page_refs = calloc(pages, sizeof *a->page_refs);
    if (!a->page_refs) goto nomem;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    void *base = mmap(NULL, total, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (base == MAP_FAILED) {
        rl_status st =
            rl_fail(err, RL_ERR_NOMEM, "cannot reserve %zu bytes of address space for the KV cache (n_ctx %zu): %s",
                    total, kv->config.n_ctx, strerror(errno));
        arena_unref(a);
        return st;
    }
    a->base = base;
    a->bytes = total;
#ifdef MADV_NOHUGEPAGE
    // A huge page would make the first token cost 2 MB: see huge_when_full. Failure changes nothing but
    // that.
    (void)madvise(base, total, MADV_NOHUGEPAGE);
#endif
    *out = a;
    return RL_OK;
nomem:
    arena_unref(a);
    return rl_fail(err, RL_ERR_NOMEM, "out of memory for the page tables of a KV cache (n_ctx %zu)", kv->config.n_ctx);
}

void rl_arena_close(rl_arena *a) {
    pthread_mutex_lock(&a->lock);
    a->open = false;
    pthread_mutex_unlock(&a->lock);
    arena_unref(a);
}

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 // Linux 6.1; older kernels refuse it, and gather the pages in their own time
#endif
#define HUGE_PAGE ((uintptr_t)2 << 20)

// A head of a page is read in pieces of a few KB, so that the walk of the page table for each is a good part of the
// reading. Whenever a new page (n bytes at `data`) begins another huge page of its region, the one before is in use
// throughout and is made one. A system that has no huge pages, or none left, goes on with small ones.
static void huge_when_full(const uint8_t *region, const uint8_t *data, size_t n) {
#ifdef MADV_HUGEPAGE
    if (system_page() != 4096) return; // elsewhere huge pages have another size
    uintptr_t end = (uintptr_t)(data + n) / HUGE_PAGE * HUGE_PAGE;
    if (end <= (uintptr_t)data || end < (uintptr_t)region + HUGE_PAGE) return;
    void *full = (void *)(end - HUGE_PAGE);
    if (madvise(full, HUGE_PAGE, MADV_HUGEPAGE) == 0) (void)madvise(full, HUGE_PAGE, MADV_COLLAPSE);
#else
    (void)region, (void)data, (void)n;
#endif
}

static bool arena_take(rl_arena *a, size_t layer, rl_slot *out) {
    rl_region_pages *r = &a->regions[a->region_of[layer]];
    bool recycled = false, found = true;
    uint32_t id = 0;
    pthread_mutex_lock(&a->lock);
    if (r->n_free) {
        id = r->free_ids[--r->n_free];
        recycled = true;
    } else if (r->fresh < r->capacity) {
        id = r->id0 + r->fresh++;
    } else {
        found = false;
    }
    pthread_mutex_unlock(&a->lock);
    if (!found) return false;
    out->data = a->base + r->offset + (size_t)(id - r->id0) * r->page_bytes;
    out->arena = a;
    out->id = id;
    // An old Inf or NaN in a value that is not used yet would survive a weight of zero.
    if (recycled)
        memset(out->data, 0, r->page_bytes);
    else
        huge_when_full(a->base + r->offset, out->data, r->page_bytes);
    atomic_store_explicit(&a->page_refs[id], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&a->holders, 1, memory_order_relaxed);
    return true;
}

rl_status rl_page_alloc(rl_kv *kv, size_t layer, rl_slot *out, rl_err *err) {
    if (arena_take(kv->arena, layer, out)) return RL_OK;
    // Forks or views still hold pages that this cache gave up: go on in a new block.
    rl_arena *fresh = NULL;
    RL_TRY(rl_arena_create(&fresh, kv, err));
    rl_arena_close(kv->arena);
    kv->arena = fresh;
    if (arena_take(fresh, layer, out)) return RL_OK;
    return rl_fail(err, RL_ERR_NOMEM, "layer %zu of the KV cache has no page left", layer);
}

bool rl_page_shared(const rl_slot *s) {
    return atomic_load_explicit(&s->arena->page_refs[s->id], memory_order_acquire) > 1;
}

void rl_page_hold(const rl_slot *s) {
    atomic_fetch_add_explicit(&s->arena->page_refs[s->id], 1, memory_order_relaxed);
}

static void discard(uint8_t *data, size_t n) {
    size_t sys = system_page();
    uintptr_t a = ((uintptr_t)data + sys - 1) / sys * sys, b = ((uintptr_t)data + n) / sys * sys;
    if (a < b) (void)madvise((void *)a, b - a, MADV_DONTNEED);
}

rl_region_pages *rl_arena_region(rl_arena *a, uint32_t id) {
    size_t i = 0;
    while (i + 1 < a->n_regions && id >= a->regions[i + 1].id0) i++;
    return &a->regions[i];
}

void rl_page_release(rl_slot *s) {
    rl_arena *a = s->arena;
    if (!a) return;
    if (atomic_fetch_sub_explicit(&a->page_refs[s->id], 1, memory_order_acq_rel) == 1) {
        rl_region_pages *r = rl_arena_region(a, s->id);
        pthread_mutex_lock(&a->lock);
        if (a->open)
            r->free_ids[r->n_free++] = s->id;
        else
            discard(s->data, r->page_bytes);
        pthread_mutex_unlock(&a->lock);
        arena_unref(a);
    }
    memset(s, 0, sizeof *s);
}

// First position that layer i must still hold when n more tokens are written.
static size_t keep_from(const rl_kv *kv, size_t i, size_t n) {
    const rl_kv_config *c = &kv->config;
    size_t w = c->layers[i].window, slack = c->window_slack > n ? c->window_slack - n : 0;
    size_t length = rl_kv_length(kv);
    return w && length + 1 > w + slack ? length + 1 - w - slack : 0;
}

bool rl_kv_reserve_drops(const rl_kv *kv, size_t n) {
    for (size_t i = 0; i < kv->config.n_layer; i++) {
        const rl_kv_layer *l = &kv->layers[i];
        if (l->first < l->n_pages && (l->first + 1) * RL_PAGE_TOKENS <= keep_from(kv, i, n)) return true;
    }
    return false;
}

// Gives back pages of a windowed layer whose positions are all below `keep`.
static void drop_before(rl_kv_layer *l, size_t keep) {
    while (l->first < l->n_pages && (l->first + 1) * RL_PAGE_TOKENS <= keep) rl_page_release(&l->slots[l->first++]);
}

static rl_status own_page(rl_kv *kv, size_t layer, size_t page, size_t used, rl_err *err) {
    rl_kv_layer *l = &kv->layers[layer];
    rl_slot *s = &l->slots[page];
    if (page >= l->n_pages) {
        RL_TRY(rl_page_alloc(kv, layer, s, err));
        if (l->first == l->n_pages) l->first = page;
        l->n_pages = page + 1;
        return RL_OK;
    }
    if (rl_page_shared(s)) {
        rl_slot copy;
        RL_TRY(rl_page_alloc(kv, layer, &copy, err));
        memcpy(copy.data, s->data, l->page_bytes);
        rl_page_release(s);
        *s = copy;
    }
    if (kv->stale) rl_kv_zero_tail(l, s->data, used);
    return RL_OK;
}

rl_status rl_kv_reserve(rl_kv *kv, size_t n, rl_err *err) {
    size_t from = rl_kv_length(kv), to;
    const rl_kv_config *c = &kv->config;
    if (!rl_add_size(from, n, &to) || to > c->n_ctx) {
        rl_status st =
            rl_fail(err, RL_ERR_CONTEXT_FULL, "the context holds %zu tokens, %zu + %zu are needed", c->n_ctx, from, n);
        if (err) err->limit = c->n_ctx, err->needed = from + n;
        return st;
    }
    if (n == 0) return RL_OK;
    for (size_t i = 0; i < c->n_layer; i++) {
        size_t w = c->layers[i].window;
        if (w && n > c->window_slack && to > w)
            return rl_fail(err, RL_ERR_ARG,
                           "%zu tokens at once are more than window_slack %zu, which layer %zu keeps beyond its "
                           "window of %zu",
                           n, c->window_slack, i, w);
    }
    for (size_t i = 0; i < c->n_layer; i++) {
        drop_before(&kv->layers[i], keep_from(kv, i, n));
        for (size_t p = from / RL_PAGE_TOKENS; p <= (to - 1) / RL_PAGE_TOKENS; p++) {
            size_t start = p * RL_PAGE_TOKENS;
            RL_TRY(own_page(kv, i, p, from > start ? from - start : 0, err));
        }
    }
    kv->stale = true; // until the commit: an interrupted batch leaves values behind
    return RL_OK;
}

void rl_kv_commit(rl_kv *kv, size_t n) {
    rl_kv_set_counts(kv, rl_kv_end(kv) + n, rl_kv_dropped(kv));
    kv->stale = false;
}

size_t rl_kv_first(const rl_kv *kv, size_t layer) {
    const rl_kv_layer *l = &kv->layers[layer];
    size_t first = l->first * RL_PAGE_TOKENS, length = rl_kv_length(kv);
    return first < length ? first : length;
}

rl_status rl_kv_rewind(rl_kv *kv, size_t asked, rl_err *err) {
    size_t sinks = kv->config.sinks, dropped = rl_kv_dropped(kv), end = rl_kv_end(kv);
    if (asked > end) return rl_fail(err, RL_ERR_ARG, "cannot rewind to %zu tokens, the cache holds %zu", asked, end);
    bool to_sinks = dropped && asked <= sinks;
    size_t n = to_sinks ? asked : asked - dropped, evicted_at = dropped + kv->config.n_ctx - RL_PAGE_TOKENS;
    if (dropped && !to_sinks && asked < evicted_at)
        return rl_fail(err, RL_ERR_ARG,
                       "cannot rewind to %zu tokens: positions %zu to %zu were evicted when there were %zu, which is "
                       "the least (or at most the %zu sinks)",
                       asked, sinks, sinks + dropped, evicted_at, sinks);
    size_t compressed = kv->low ? RL_PAGE_TOKENS + rl_kv_compressed(kv) : 0;
    if (n > RL_PAGE_TOKENS && n < compressed)
        return rl_fail(
            err, RL_ERR_ARG,
            "cannot rewind to %zu tokens: positions %d to %zu are compressed, so %zu is the least (or at most "
            "%d)",
            asked, RL_PAGE_TOKENS, compressed, compressed, RL_PAGE_TOKENS);
    for (size_t i = 0; i < kv->config.n_layer; i++) {
        size_t first = rl_kv_first(kv, i), w = kv->config.layers[i].window;
        if (!w || !first || asked == end || n == 0) continue;
        size_t least = first + w - 1;
        if (n < least)
            return rl_fail(err, RL_ERR_ARG,
                           "cannot rewind to %zu tokens: layer %zu (window %zu) holds positions from %zu on, so %zu is "
                           "the least (or 0)",
                           asked, i, w, first + dropped, least + dropped);
    }
    if (to_sinks) rl_kv_forget_evicted(kv);
    if (n < compressed) {
        rl_kv_low_free(kv->low);
        kv->low = NULL;
    }
    size_t keep = (n + RL_PAGE_TOKENS - 1) / RL_PAGE_TOKENS;
    for (size_t i = 0; i < kv->config.n_layer; i++) {
        rl_kv_layer *l = &kv->layers[i];
        while (l->n_pages > keep && l->n_pages > l->first) rl_page_release(&l->slots[--l->n_pages]);
        if (l->n_pages == l->first) l->n_pages = l->first = keep;
    }
    if (asked != end) kv->stale = true;
    rl_kv_set_counts(kv, asked, to_sinks ? 0 : dropped);
    return RL_OK;
}

rl_status rl_kv_fork(const rl_kv *kv, rl_kv **out, rl_err *err) {
    rl_kv *copy = NULL;
    RL_TRY(rl_kv_create(&copy, &kv->config, err));
    size_t length = rl_kv_length(kv), full = length / RL_PAGE_TOKENS;
    size_t end = (length + RL_PAGE_TOKENS - 1) / RL_PAGE_TOKENS;
    rl_kv_set_counts(copy, rl_kv_end(kv), rl_kv_dropped(kv));
    copy->stale = kv->stale;
    rl_status low = rl_kv_low_fork(kv, copy, err);
    if (low != RL_OK) {
        rl_kv_free(copy);
        return low;
    }
    for (size_t i = 0; i < kv->config.n_layer; i++) {
        const rl_kv_layer *from = &kv->layers[i];
        rl_kv_layer *to = &copy->layers[i];
        to->first = to->n_pages = from->first < end ? from->first : end;
        for (size_t p = to->first; p < end; p++) {
            if (p < full) {
                to->slots[p] = from->slots[p];
                if (to->slots[p].data) rl_page_hold(&to->slots[p]);
            } else {
                rl_status st = rl_page_alloc(copy, i, &to->slots[p], err);
                if (st != RL_OK) {
                    rl_kv_free(copy);
                    return st;
                }
                memcpy(to->slots[p].data, from->slots[p].data, to->page_bytes);
            }
            to->n_pages = p + 1;
        }
        for (size_t p = 0; rl_kv_has_originals(kv, i) && p < kv->config.sinks / RL_PAGE_TOKENS; p++) {
            to->originals[p] = from->originals[p];
            rl_page_hold(&to->originals[p]);
        }
    }
    *out = copy;
    return RL_OK;
}
