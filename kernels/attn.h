// SPDX-License-Identifier: Apache-2.0
// Attention kernels: what one side (K or V) of a 64-token page looks like, and the signatures that work on
// one KV head of one page. Registry entries of RL_FAM_ATTN are told apart by `layout`:
//   "k.tile" "k.row"   scores of up to RL_ATTN_MAX_Q query rows against 64 keys        rl_attn_k_fn
//   "v.tile" "v.row"   weighted sums of 64 values                                       rl_attn_v_fn
//   "k.load.tile", "k.load.row", "v.load.tile", "v.load.row"
//                      one head of a page as float32, for prompts                       rl_attn_load_fn
//   "softmax"          one step of the online softmax (type RL_TYPE_NONE)               rl_attn_softmax_fn
//   "mul.k" "mul.v"    blocks of float32 queries times a loaded page (RL_TYPE_NONE)     rl_attn_mul_{k,v}_fn
// `act` says in which format a "k.*" kernel wants its queries: RL_ACT_F32 or RL_ACT_Q16.
//
// Tile layout, per head, dims padded with zeros to a multiple of 16 (`pad`):
//   q8_0 K  [16-token group][pad/4][16 tokens][4 dims] int8, then scales [16-token group][group of 32][16 tokens]
//   q8_0 V  [4-token group][pad][4 tokens] int8,             then scales [group of 32][64 tokens]
//   float K [16-token group][pad][16 tokens]        float V [64 tokens][pad]
// so that K needs no horizontal sums and both are read in the order they lie in. Row layouts keep a token's
// head as `dim` consecutive values, and its scales apart: only strides differ between token- and head-major.
#ifndef RL_KERNELS_ATTN_H
#define RL_KERNELS_ATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

#define RL_ATTN_PAGE 64  // tokens of a page
#define RL_ATTN_MAX_Q 16 // query rows of one call of a "k.*" or "v.*" kernel
#define RL_ATTN_MUL_Q 64 // query rows of one call of a "mul.*" kernel
#define RL_ATTN_MAX_DIM 1024
#define RL_ATTN_Q_MAX 32639 // of a query as int16: 127 * 256 + 127, so that two signed bytes hold it, too

// One side of a page. Strides are in bytes from the start of the side.
typedef struct rl_attn_side {
    rl_type type; // RL_F32, RL_F16, RL_Q8_0
    bool tile;
    size_t dim, pad;    // values of a head; the same with padding (tile)
    size_t groups;      // scales of one token's head: ceil(dim / 32), 0 for floats
    size_t head, token; // data: from one head to the next, from one token to the next (row layouts)
    size_t scales, scales_head, scales_token;
    size_t bytes; // of the whole side, a multiple of 64
    size_t n_head;
} rl_attn_side;

// One head of one page. `next` is the same head in the page that will be read next (or NULL): a kernel
// prefetches it line by line while it computes, since hardware prefetchers stop at 4 KB.
typedef struct rl_attn_head {
    const uint8_t *data;
    const float *scales;
    const uint8_t *next;
} rl_attn_head;

static inline rl_attn_head rl_attn_head_at(const rl_attn_side *s, const void *side, size_t h, const void *next) {
    const uint8_t *b = (const uint8_t *)side;
    rl_attn_head r = {b + h * s->head, (const float *)(const void *)(b + s->scales + h * s->scales_head),
                      next ? (const uint8_t *)next + h * s->head : 0};
    return r;
}

// Scores s[r][t] = scale of row r * (q[r] . k[t]) for all 64 tokens; what lies beyond the last token is the
// caller's to mask. q is float [nq][ld_q], padded with zeros to side->pad; or int16 in which every four
// values (0 1 2 3) lie as (0 2 1 3), at most RL_ATTN_Q_MAX in magnitude, with a float scale per row.
typedef struct rl_attn_k_args {
    const rl_attn_side *side;
    rl_attn_head head;
    const void *q;
    size_t ld_q;
    const float *q_scale; // RL_ACT_Q16 only
    size_t nq;
    float *s; // [nq][64]
} rl_attn_k_args;
typedef void (*rl_attn_k_fn)(const rl_attn_k_args *a);

// acc[r][i] = acc[r][i] * corr[r] + sum over t of p[r][t] * v[t][i].
typedef struct rl_attn_v_args {
    const rl_attn_side *side;
    rl_attn_head head;
    const float *p; // [nq][64], zero where masked
    const float *corr;
    size_t nq;
    size_t n_tok; // tokens from this one on have p = 0 in every row
    float *acc;   // [nq][ld_acc], ld_acc >= pad
    size_t ld_acc;
} rl_attn_v_args;
typedef void (*rl_attn_v_fn)(const rl_attn_v_args *a);

// k.load: out[i * 64 + t]; v.load: out[t * pad + i].
typedef void (*rl_attn_load_fn)(const rl_attn_side *side, const rl_attn_head *head, float *out);

// s[r][0..63] -> exp(s - m'), m' = max(m, max s); l = l * corr + sum; corr = exp(m - m'). A row that is all
// -inf so far gets zeros and corr 1.
typedef void (*rl_attn_softmax_fn)(float *s, size_t nq, float *m, float *l, float *corr);

// s[r][t] = sum over i of q[r * ld_q + i] * kt[i * 64 + t], for t < n_tok at least
typedef void (*rl_attn_mul_k_fn)(const float *q, size_t ld_q, size_t nq, const float *kt, size_t pad, size_t n_tok,
                                 float *s);
// acc[r][i] = acc[r][i] * corr[r] + sum over t < n_tok of p[r][t] * v[t * pad + i]
typedef void (*rl_attn_mul_v_fn)(const float *p, const float *corr, size_t nq, const float *v, size_t pad, size_t n_tok,
                                 float *acc, size_t ld_acc);

/// Offset in values of token t, dimension i in a tile head, and of the scale of its group.
static inline size_t rl_attn_tile_k(const rl_attn_side *s, size_t t, size_t i) {
    size_t in = s->type == RL_Q8_0 ? 4 : 1;
    return (t / 16 * (s->pad / in) + i / in) * (16 * in) + t % 16 * in + i % in;
}
static inline size_t rl_attn_tile_v(const rl_attn_side *s, size_t t, size_t i) {
    size_t in = s->type == RL_Q8_0 ? 4 : 1;
    return (t / in * s->pad + i) * in + t % in;
}
static inline size_t rl_attn_tile_k_scale(const rl_attn_side *s, size_t t, size_t g) {
    return (t / 16 * s->groups + g) * 16 + t % 16;
}
static inline size_t rl_attn_tile_v_scale(size_t t, size_t g) {
    return g * RL_ATTN_PAGE + t;
}

#endif
