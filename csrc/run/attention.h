// SPDX-License-Identifier: Apache-2.0
// Attention over a paged cache: one online-softmax pass, K and V of one KV head read once for all its query
// heads, split over heads and over fixed stretches of 512 positions that are merged in order, so that the
// result does not depend on the number of threads.
#ifndef RL_RUN_ATTENTION_H
#define RL_RUN_ATTENTION_H

#include "run/kvcache.h"

typedef struct rl_attention_args {
    const rl_kv *kv;
    const rl_dispatch *d;
    size_t layer;
    const float *q; // [n_tok][n_head][dim_k], token stride ld_q; already rotated by RoPE
    size_t ld_q;
    float *out; // [n_tok][n_head][dim_v], token stride ld_out
    size_t ld_out;
    size_t n_tok, n_head;
    size_t pos0;        // position of the first query; K and V of pos0 .. pos0 + n_tok are written already
    float scale;        // multiplies q.k
    float softcap;      // 0: none; else cap * tanh(x / cap) on the scaled score
    size_t window;      // 0: all earlier positions; may be smaller than the cache's own
    bool causal;        // false: every query sees all positions up to pos0 + n_tok
    const float *sinks; // NULL or one logit per head that joins the softmax without a value
    void *scratch;      // shared by the team: rl_attention_scratch bytes, 64-byte aligned
    float *weights;     // NULL, or [n_tok][n_head][pos0 + n_tok] that receives the softmax (slow path, for
                        // inspection)
    uint64_t *wait_ns;  // NULL, or where this thread's wait at the barrier inside is added
} rl_attention_args;

size_t rl_attention_scratch(const rl_kv_config *c, size_t n_head, size_t max_tok, size_t n_ctx, int n_threads);
/// Bytes of it that single tokens and batches of max_tok touch; batches between may touch more.
size_t rl_attention_scratch_used(const rl_kv_config *c, size_t n_head, size_t max_tok, size_t n_ctx, int n_threads);

/// The kernels that a call with n_tok tokens runs; returns how many.
#define RL_ATTENTION_KERNELS 7
size_t rl_attention_kernels(const rl_kv *kv, const rl_dispatch *d, size_t n_tok,
                            const rl_kernel *out[RL_ATTENTION_KERNELS]);

/// Called by every thread of the team with the same arguments. Has barriers inside: false when asked to stop.
/// The caller meets at a barrier before it reads `out` or calls it again with the same scratch.
bool rl_attention_run(rl_team *team, int ith, const rl_attention_args *a);

#endif
