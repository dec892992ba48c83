// SPDX-License-Identifier: Apache-2.0
// Shared by attention.c (planning, splitting, merging) and attention_block.c (one block of queries against
// one stretch of pages).
#ifndef RL_RUN_ATTENTION_INTERNAL_H
#define RL_RUN_ATTENTION_INTERNAL_H

#include "run/attention.h"
#include "run/kv_internal.h"

#define RL_ATTN_STRETCH 512         // positions of one piece of a decode step
#define RL_ATTN_STRETCH_PROMPT 2048 // and of a prompt that has too few blocks of queries for many threads
#define RL_ATTN_SPLIT_TOK 8         // up to this many tokens read the pages as they are stored
#define RL_ATTN_BLOCK_ROWS 64       // query rows that share a page made float32
#define RL_ATTN_FEW_BLOCKS 16

// The kernels of one cache under one dispatch.
typedef struct rl_attn_plan {
    uint64_t features;
    char overrides[sizeof((rl_dispatch *)0)->overrides];
    rl_attn_k_fn k;
    rl_attn_v_fn v;
    rl_attn_load_fn kload, vload;
    rl_attn_mul_k_fn mulk;
    rl_attn_mul_v_fn mulv;
    rl_attn_softmax_fn softmax;
    void (*softcap)(const float *x, float cap, float *out, size_t n);
    unsigned q_act;                                 // what k reads
    const rl_kernel *kernels[RL_ATTENTION_KERNELS]; // k, v, softmax, then kload, vload, mulk, mulv
} rl_attn_plan;

// How the work of one call is cut: the same for any number of threads.
typedef struct rl_attn_cut {
    size_t group;        // query heads per KV head
    size_t block_tok;    // tokens of a block
    size_t n_blocks;     // blocks of tokens
    size_t stretch;      // positions of a stretch
    size_t s0, n_s;      // first stretch and how many
    bool blocked;        // pages are made float32 first
    size_t heads;        // KV heads that one piece of work takes page by page: 1 or all
    size_t rows;         // most query rows of a block, for one KV head
    size_t ld_q, ld_acc; // padded head sizes
} rl_attn_cut;

// A thread's own buffers.
typedef struct rl_attn_local {
    float *q, *q_scale; // of each KV head of the piece; q as floats, or as int16 in the same room
    float *kt, *vt, *s;
    float *m, *l, *corr, *acc;
    float *q_low, *q_low_scale, *acc_low, *m_low; // the same queries for compressed pages; their sums; m before them
    size_t have_h, have_block;                    // whose queries are in q, from which KV head on; SIZE_MAX for none
} rl_attn_local;

// The compressed pages of the layer, if it may have some.
static inline const rl_kv_low *rl_attn_low(const rl_attention_args *a) {
    const rl_kv_low *low = a->kv->low;
    return low && low->layer_of[a->layer] != SIZE_MAX ? low : NULL;
}

// Where the sums of a block's rows lie: those of the next stretch and of the next KV head so many floats on.
typedef struct rl_attn_sums {
    float *m, *l, *acc;
    size_t stretch, head;
} rl_attn_sums;

/// Runs block `block` of cut->heads KV heads, from h0 on, over stretch s (counted from 0 in the cut): sets the sums.
void rl_attn_block(const rl_attention_args *a, const rl_attn_plan *p, const rl_attn_cut *c, rl_attn_local *local,
                   size_t h0, size_t block, size_t s, const rl_attn_sums *sums);

/// Scores of one page for all rows of a block, capped and masked, in local->s.
void rl_attn_page_scores(const rl_attention_args *a, const rl_attn_plan *p, const rl_attn_cut *c, rl_attn_local *local,
                         size_t h, size_t block, size_t page);

/// First position that token t of the batch sees, and one past the last.
static inline void rl_attn_range(const rl_attention_args *a, size_t t, size_t *lo, size_t *hi) {
    size_t pos = a->pos0 + t, w = a->window, own = a->kv->config.layers[a->layer].window;
    if (own && (!w || own < w)) w = own;
    size_t first = a->kv->layers[a->layer].first * RL_PAGE_TOKENS;
    *lo = w && pos + 1 > w ? pos + 1 - w : 0;
    if (*lo < first) *lo = first;
    *hi = a->causal ? pos + 1 : a->pos0 + a->n_tok;
}

#endif
