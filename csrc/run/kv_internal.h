// SPDX-License-Identifier: Apache-2.0
// Inside the KV cache: shared by kvcache.c, kv_pages.c, kv_store.c, kv_io.c and the attention that reads it.
#ifndef RL_RUN_KV_INTERNAL_H
#define RL_RUN_KV_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/half.h"
#include "kernels/attn.h"
#include "run/kvcache.h"

// One block of address space with a region of pages for each size of page: layers alike share one, so that what they
// fill together becomes huge pages early. A cache owns one arena and takes its pages from it; forks hold references to
// single pages, so the arena lives until its owner and the last of its pages are gone.
typedef struct rl_region_pages {
    size_t offset, page_bytes; // in the block
    uint32_t id0, capacity;    // pages of this region are id0 .. id0 + capacity of the arena
    uint32_t fresh;            // pages never handed out start here
    uint32_t n_free;
    uint32_t *free_ids; // capacity entries, used as a stack
} rl_region_pages;

typedef struct rl_arena {
    atomic_size_t holders; // the owner and each page in use
    pthread_mutex_t lock;  // of the free lists and `open`
    bool open;             // the owner is there: freed pages can be handed out again
    uint8_t *base;
    size_t bytes, n_regions;
    rl_region_pages *regions;
    size_t *region_of; // by layer
    atomic_uint *page_refs;
} rl_arena;

typedef struct rl_slot {
    uint8_t *data; // NULL: not held
    rl_arena *arena;
    uint32_t id;
} rl_slot;

typedef struct rl_kv_layer {
    rl_attn_side k, v; // V of a page starts at k.bytes
    size_t page_bytes, capacity;
    rl_slot *slots;        // n_slots, indexed by position / 64
    size_t first, n_pages; // slots first .. n_pages hold pages
    // Of the pages of the sinks: as they were before the first eviction, and taken for the next one. Empty else.
    rl_slot *originals, *spares;
} rl_kv_layer;

struct rl_kv_basis {
    atomic_int refs;
    size_t rank_k, rank_v, n; // n values
    size_t *at;               // by layer, where its parts begin
    float *values;
};

// Pages 1 .. of a cache as those of another one with shorter heads (kv_low.c).
typedef struct rl_kv_low {
    rl_kv *kv;
    rl_kv_basis *basis;
    size_t *layer_of; // of the other cache; SIZE_MAX: not compressed
} rl_kv_low;

struct rl_kv {
    rl_kv_config config;
    rl_kv_layer_config *layer_config;
    rl_kv_layer *layers;
    size_t n_slots;
    _Atomic size_t end;     // tokens of the sequence; this and `dropped` are read while another thread evaluates
    _Atomic size_t dropped; // of them, those evicted between the sinks and what follows
    bool stale;             // values beyond the length may lie in the last pages (after a rewind)
    rl_arena *arena;
    rl_kv_low *low;       // NULL: nothing is compressed
    bool is_low;          // it is the one of another cache
    _Atomic(void *) plan; // kernels chosen by the first attention call (attention.c), freed with free()
};

/// The tokens of the sequence and those of them that were evicted. Relaxed: who uses the cache holds it, and who only
/// looks at a number takes no other from it.
static inline void rl_kv_set_counts(rl_kv *kv, size_t end, size_t dropped) {
    atomic_store_explicit(&kv->dropped, dropped, memory_order_relaxed);
    atomic_store_explicit(&kv->end, end, memory_order_relaxed);
}

rl_status rl_kv_check_config(const rl_kv_config *c, rl_err *err);
void rl_kv_geometry(const rl_kv_config *c, size_t layer, rl_kv_layer *out);

// kv_evict.c
rl_status rl_kv_check_evict(const rl_kv_config *c, rl_err *err);
/// Whether the sinks of a layer have been turned and its `originals` are held.
bool rl_kv_has_originals(const rl_kv *kv, size_t layer);
/// Puts the sinks back as they were stored, for a cache that is cut to them. The counts are the caller's to set.
void rl_kv_forget_evicted(rl_kv *kv);
/// Turns the keys of all tokens of a page, as they are stored.
void rl_kv_turn_page(const rl_kv *kv, size_t layer, uint8_t *page, rl_kv_turn_fn turn, void *arg);

// kv_low.c
rl_status rl_kv_low_create(rl_kv_low **out, const rl_kv *kv, rl_kv_basis *basis, rl_err *err);
void rl_kv_low_free(rl_kv_low *low);
rl_status rl_kv_low_fork(const rl_kv *kv, rl_kv *to, rl_err *err);
/// out[j] = sum over the rows of x[i] m[i][j]; and out[i] = sum over the columns of x[j] m[i][j], which is slower.
void rl_kv_times(const float *x, const float *m, size_t rows, size_t cols, float *out);
void rl_kv_dots(const float *x, const float *m, size_t rows, size_t cols, float *out);
/// The layer that holds `page`, and its place there: of the cache itself, or of its compressed pages.
static inline const rl_kv_layer *rl_kv_layer_of(const rl_kv *kv, size_t layer, size_t page, size_t *at) {
    *at = page;
    const rl_kv_low *low = kv->low;
    if (!low || !page || low->layer_of[layer] == SIZE_MAX || (page - 1) * RL_PAGE_TOKENS >= rl_kv_length(low->kv))
        return &kv->layers[layer];
    *at = page - 1;
    return &low->kv->layers[low->layer_of[layer]];
}

rl_status rl_arena_create(rl_arena **out, const rl_kv *kv, rl_err *err);
void rl_arena_close(rl_arena *a); // the owner leaves
/// The region of page `id`.
rl_region_pages *rl_arena_region(rl_arena *a, uint32_t id);
/// A page of `layer`, zeroed; replaces kv->arena by a new one when forks still hold all of its pages.
rl_status rl_page_alloc(rl_kv *kv, size_t layer, rl_slot *out, rl_err *err);
/// Whether others than one cache hold the page: forks and views.
bool rl_page_shared(const rl_slot *s);
void rl_page_hold(const rl_slot *s);
void rl_page_release(rl_slot *s);

static inline rl_type rl_kv_dtype(rl_kv_type t) {
    return t == RL_KV_F32 ? RL_F32 : t == RL_KV_F16 ? RL_F16 : RL_Q8_0;
}

/// Sets the values of tokens t0..63 of a page to zero.
void rl_kv_zero_tail(const rl_kv_layer *l, uint8_t *page, size_t t0);

/// Nearest integer, ties to even, of |x| < 2^22; an addition, so that loops of it become vectors.
static inline int32_t rl_round_int(float x) {
    return (int32_t)(rl_f32_bits(x + 0x1.8p23f) - 0x4B400000u);
}

/// Largest power of two that divides dim: the block of the Walsh-Hadamard rotation.
static inline size_t rl_hadamard_block(size_t dim) {
    return dim & (~dim + 1);
}
/// Rotates x in place, block by block, orthonormal and its own inverse.
void rl_hadamard(float *x, size_t dim);

#endif
