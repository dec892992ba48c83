// SPDX-License-Identifier: Apache-2.0
// The KV cache of one session: per layer a table of 64-token pages, K and V typed apart. Pages come from one
// block reserved at creation and touched only when used; sliding-window layers give pages back once they fall
// out of the window plus a stated slack; fork shares pages by reference count and copies the partial one.
#ifndef RL_RUN_KVCACHE_H
#define RL_RUN_KVCACHE_H

#include <stdbool.h>

#include "base/threads.h"
#include "kernels/api.h"

#define RL_PAGE_TOKENS 64
#define RL_KV_MAX_POSITIONS ((size_t)1 << 31) // of a sequence, those that were evicted among them

typedef enum rl_kv_type { RL_KV_F32, RL_KV_F16, RL_KV_Q8_0 } rl_kv_type;
// tile: made for the kernels (default); token: (token, head, dim); head: (head, token, dim) inside a page
typedef enum rl_kv_layout { RL_KV_TILE, RL_KV_TOKEN, RL_KV_HEAD } rl_kv_layout;

typedef struct rl_kv_layer_config {
    size_t n_head_kv, dim_k, dim_v;
    size_t window; // 0: full attention; else a query sees itself and window - 1 tokens before it
} rl_kv_layer_config;

typedef struct rl_kv_config {
    size_t n_layer;
    const rl_kv_layer_config *layers;
    size_t n_ctx;
    rl_kv_type type_k, type_v;
    rl_kv_layout layout;
    bool rotate;         // Walsh-Hadamard rotation of K (and of q on reading); only with a q8_0 K
    size_t window_slack; // tokens kept beyond a window, at least the largest batch written at once
    // What is full may drop its oldest page behind the first `sinks` tokens (rl_kv_evict). n_ctx and sinks are
    // multiples of the page then, and the n_ctx - sinks - 64 latest tokens always stay.
    bool evict;
    size_t sinks;
} rl_kv_config;

typedef struct rl_kv rl_kv;

/// Bytes reserved when every page is in use, and bytes of one token over all layers (full layers, windowed
/// layers).
rl_status rl_kv_plan(const rl_kv_config *c, size_t *bytes_reserved, size_t *bytes_per_token, rl_err *err);
rl_status rl_kv_create(rl_kv **out, const rl_kv_config *c, rl_err *err);
void rl_kv_free(rl_kv *kv);
/// A second cache with the same content: full pages shared, the last partial ones copied on fork.
rl_status rl_kv_fork(const rl_kv *kv, rl_kv **out, rl_err *err);

size_t rl_kv_length(const rl_kv *kv); // tokens committed, of which there are keys and values
/// With those that were evicted. This and rl_kv_dropped may be asked while another thread evaluates.
size_t rl_kv_end(const rl_kv *kv);
const rl_kv_config *rl_kv_config_of(const rl_kv *kv);
size_t rl_kv_bytes_in_use(const rl_kv *kv);
/// Calls fn for each page that the next token reads, those with compressed tokens among them.
void rl_kv_each_page(const rl_kv *kv, void (*fn)(void *arg, const void *data, size_t bytes), void *arg);

/// Makes room for n more tokens in every layer (called by one thread before a region). RL_ERR_CONTEXT_FULL
/// with limit and needed when n_ctx is too small. Copies a shared partial page before it is written.
rl_status rl_kv_reserve(rl_kv *kv, size_t n, rl_err *err);
/// Whether reserving n more tokens would give up pages of a sliding window, which a rewind could not bring back.
bool rl_kv_reserve_drops(const rl_kv *kv, size_t n);
/// Stores K and V of tokens pos0 + t0 .. pos0 + t1 for KV heads h0..h1 of a layer; k[t * ld_k + h * dim_k +
/// i], t from 0. Disjoint heads or tokens (multiples of 16 from the page start) may be written by different
/// threads.
void rl_kv_write(rl_kv *kv, const rl_dispatch *d, size_t layer, size_t pos0, size_t t0, size_t t1, size_t h0, size_t h1,
                 const float *k, size_t ld_k, const float *v, size_t ld_v);
/// Begins to read what thread ith of nth will write and read of its heads for the last of `length` tokens, the last
/// page first. Tile layout only.
void rl_kv_prefetch(const rl_kv *kv, size_t layer, size_t length, int ith, int nth);
/// Advances the length by n after all layers have been written; drops pages that no window needs.
void rl_kv_commit(rl_kv *kv, size_t n);
/// Tokens that evict has dropped. The cache then holds positions 0 .. sinks and sinks + dropped .. length + dropped of
/// the sequence, one after the other; every other function counts positions inside the cache.
size_t rl_kv_dropped(const rl_kv *kv);
/// Tokens that fit before the cache is full; of a full one that may evict, those of a page.
size_t rl_kv_room(const rl_kv *kv);
/// Drops the oldest page behind the sinks of a full cache. turn is called with each key of the sinks (dim_k values, as
/// written) to turn it by dropped + 64 positions.
typedef void (*rl_kv_turn_fn)(void *arg, size_t layer, float *k);
rl_status rl_kv_evict(rl_kv *kv, rl_kv_turn_fn turn, void *arg, rl_err *err);
/// Shortens to n tokens of the sequence (with those dropped), and gives up pages reserved beyond them. Beyond what
/// windowed layers still hold, or behind the last eviction: RL_ERR_ARG naming the least n and the asked one. Up to the
/// sinks everything is there.
rl_status rl_kv_rewind(rl_kv *kv, size_t n, rl_err *err);
/// The matrices that compress the pages of the layers without window, orthonormal for each KV head, float32: of K
/// (head, dim, rank), of V (head, rank, dim), as attention multiplies with them. The caller fills them in.
typedef struct rl_kv_basis rl_kv_basis;
rl_status rl_kv_basis_create(rl_kv_basis **out, const rl_kv *kv, size_t rank_k, size_t rank_v, rl_err *err);
float *rl_kv_basis_of(const rl_kv *kv, const rl_kv_basis *b, size_t layer, bool is_v);
void rl_kv_basis_free(rl_kv_basis *b); // drops the caller's reference
/// Compresses the pages from position 64, or from where an earlier call ended, to `end`. basis: of the first call; NULL
/// of those that go on. RL_ERR_ARG where that is not possible; then nothing has changed.
rl_status rl_kv_compress(rl_kv *kv, size_t end, rl_kv_basis *basis, rl_err *err);
/// Tokens behind the first 64 that are compressed, and the ranks (0 without).
size_t rl_kv_compressed(const rl_kv *kv);
void rl_kv_ranks(const rl_kv *kv, size_t *rank_k, size_t *rank_v);
/// First position that `layer` still holds.
size_t rl_kv_first(const rl_kv *kv, size_t layer);
/// Copies positions p0..p1 of a layer as float32 (pos, head, dim). raw: as stored (rotated), else un-rotated.
rl_status rl_kv_read(const rl_kv *kv, size_t layer, bool want_v, bool raw, size_t p0, size_t p1, float *out,
                     rl_err *err);
/// Pages of a layer for zero-copy views: number of table slots, and the address of one (NULL when dropped).
size_t rl_kv_n_pages(const rl_kv *kv, size_t layer);
const void *rl_kv_page(const rl_kv *kv, size_t layer, size_t page, bool want_v, size_t *bytes);
/// Keeps a page alive and unchanged for a view, even after the cache is gone: the cache copies it before it
/// writes to it. {NULL, 0} for a page that is not held. Each hold is dropped once.
typedef struct rl_kv_hold {
    void *arena;
    uint32_t id;
} rl_kv_hold;
rl_kv_hold rl_kv_page_hold(const rl_kv *kv, size_t layer, size_t page);
void rl_kv_page_drop(rl_kv_hold *hold);
/// Serialisation of the content (config checked on load). write returns false to stop.
typedef bool (*rl_write_fn)(void *arg, const void *data, size_t n);
typedef bool (*rl_read_fn)(void *arg, void *data, size_t n);
rl_status rl_kv_save(const rl_kv *kv, rl_write_fn write, void *arg, rl_err *err);
rl_status rl_kv_load(rl_kv *kv, rl_read_fn read, void *arg, rl_err *err);

#endif
