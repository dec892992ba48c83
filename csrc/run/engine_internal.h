// SPDX-License-Identifier: Apache-2.0
// What engine.c lays out and forward.c, ffn.c walk through.
#ifndef RL_RUN_ENGINE_INTERNAL_H
#define RL_RUN_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "run/engine.h"

typedef struct rl_layer_plan {
    rl_linear q, k, v, o;
    rl_linear gate, up, down;
    rl_linear router, gate_exps, up_exps, down_exps;
    rl_linear gate_sh, up_sh, down_sh;
} rl_layer_plan;

// Buffers that a thread has to itself: its copy of the residual stream for few tokens, and tile scratch.
typedef struct rl_lane {
    float *x, *h, *keep, *ff; // RL_LANE_TOKENS rows each
    void *act;
    void *scratch;
} rl_lane;

struct rl_engine {
    atomic_int refs;
    pthread_mutex_t lock; // one step at a time
    rl_model *model;
    rl_engine_opts opts;
    int *cpus; // own copy of opts.cpus
    rl_vec vec;
    rl_rope rope[2]; // full, sliding layers
    rl_layer_plan *plans;
    rl_linear head;
    rl_dequant_fn embed; // rows of the embedding
    rl_kv_layer_config *kv_layers;
    // shared by the team; rows of n_batch tokens
    float *x, *h, *keep, *q, *k, *v, *att, *gate, *up, *proj;
    float *cs[2]; // cos, sin of each token, for the two RoPEs
    void *act;
    void *attention;
    // mixture of experts
    float *router_logits, *expert_weight, *expert_in, *expert_out;
    uint32_t *expert_id, *expert_slot, *expert_start; // [tok][used], [tok][used], [n_expert + 1]
    rl_lane *lanes;
    void *block;
    size_t block_bytes, used_bytes;
    size_t ld_q, ld_k, ld_v, ld_att, ld_ff;
};

// One thread's walk through one step.
typedef struct rl_pass {
    rl_engine *e;
    const rl_step *step;
    rl_team *team;
    int ith, nth;
    bool lanes;    // few tokens: every thread keeps its own x and h, and t0..t1 are all tokens
    size_t t0, t1; // tokens this thread norms, quantizes and adds up
    float *x, *h, *keep, *ff;
    void *act_storage, *scratch;
    uint64_t mark_ns, wait_ns; // trace
} rl_pass;

/// Barrier of the pass; false: return at once.
bool rl_pass_barrier(rl_pass *p);
/// A barrier only where threads share rows (many tokens).
static inline bool rl_pass_shared_barrier(rl_pass *p) {
    return p->lanes || rl_pass_barrier(p);
}
/// Ends an operation in the trace.
void rl_pass_mark(rl_pass *p, size_t layer, rl_op op);
/// The same where not all tokens took part, or only some of the experts.
void rl_pass_mark_part(rl_pass *p, size_t layer, rl_op op, size_t n_tok, size_t n_experts);
/// Hands rows to a tap that wants them.
bool rl_pass_tap(rl_pass *p, size_t layer, rl_tap_point point, const float *rows, size_t width, size_t ld);
/// Quantizes rows (stride ld) of the pass' own tokens for these matrices; includes the shared barrier.
bool rl_pass_quantize(rl_pass *p, rl_act *act, const rl_linear *const *lins, size_t n, const float *rows, size_t ld);

/// Hands the inputs of a matrix to who collects them: after the barrier that ends their making, before the one that
/// ends their use. With few tokens rows are each thread's own copy.
static inline void rl_pass_inputs(const rl_pass *p, const rl_weight *w, size_t expert, const float *rows, size_t n_tok,
                                  size_t ld) {
    const rl_inputs *in = p->step->inputs;
    if (in && w->t) in->take(in->arg, p->ith, p->nth, w, expert, rows, n_tok, ld);
}

/// Whether n_tok tokens pass gate, up and the activation in one piece, when nobody asks for what is in between.
bool rl_ffn_in_one_piece(const rl_engine *e, size_t layer, const rl_linear *gate, const rl_linear *up,
                         const rl_linear *down, size_t n_tok);

/// Adds the FFN of a layer, reading p->h; the result for the pass' own tokens is in p->h.
bool rl_pass_ffn(rl_pass *p, size_t layer);

#endif
