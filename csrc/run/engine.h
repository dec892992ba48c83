// SPDX-License-Identifier: Apache-2.0
// The engine of a loaded model: which kernel multiplies what, the scratch memory, and one step of the forward pass
// over any mix of sequences. It holds no text and no position: those are a session's.
#ifndef RL_RUN_ENGINE_H
#define RL_RUN_ENGINE_H

#include "model/model.h"
#include "model/rope.h"
#include "run/attention.h"
#include "run/linear.h"
#include "run/trace.h"

// Up to this many tokens every thread norms and quantizes its own copy of the input, which saves barriers.
#define RL_LANE_TOKENS 4

// The points of a layer that can be tapped. Shapes: (tokens, width).
typedef enum rl_tap_point {
    RL_TAP_RESID_PRE,    // residual stream entering the layer
    RL_TAP_ATTN_NORM,    // input of the Q, K, V projections
    RL_TAP_Q,            // queries after bias, norm and RoPE
    RL_TAP_K,            // keys after the same, as written to the cache
    RL_TAP_V,            // values
    RL_TAP_ATTN_OUT,     // heads' outputs before the output projection
    RL_TAP_ATTN_PROJ,    // what attention adds to the residual stream
    RL_TAP_RESID_MID,    // residual stream between attention and FFN
    RL_TAP_FFN_NORM,     // input of the FFN
    RL_TAP_FFN_ACT,      // act(gate) * up
    RL_TAP_FFN_OUT,      // what the FFN adds to the residual stream
    RL_TAP_RESID_POST,   // residual stream leaving the layer
    RL_TAP_ATTN_WEIGHTS, // softmax of the scores: (tokens, heads, positions)
    RL_TAP_LAYER_POINTS,
    RL_TAP_EMBED = RL_TAP_LAYER_POINTS, // of the whole model
    RL_TAP_FINAL_NORM,
    RL_TAP_POINTS
} rl_tap_point;
const char *rl_tap_name(rl_tap_point p);                                 // "resid_pre", ...
size_t rl_tap_width(const rl_hparams *hp, size_t layer, rl_tap_point p); // 0 for attn_weights: heads x positions

// Called by one thread between barriers with n_tok rows of `width` values, `ld` apart.
typedef struct rl_taps {
    bool (*wants)(void *arg, size_t layer, rl_tap_point p);
    void (*take)(void *arg, size_t layer, rl_tap_point p, const float *rows, size_t n_tok, size_t width, size_t ld);
    void *arg;
    float *attn_weights; // room for n_tok x n_head x (pos0 + n_tok) of the step's one segment, where wanted
} rl_taps;

// Another compute for some operations. Patterns as in fnmatch, over "attn_q" and over "blk.3.attn_q"; the output matrix
// is "output". Of several rules that match the last one holds.
typedef struct rl_compute_rule {
    const char *pattern;
    rl_compute compute;
} rl_compute_rule;

// Called by every thread of the team with the inputs of a matrix (n_tok rows of w.cols values, `ld` apart), expert 0
// where the matrix is no stack. Threads share the work by columns: each takes those of rl_split by ith of nth.
typedef struct rl_inputs {
    void (*take)(void *arg, int ith, int nth, const rl_weight *w, size_t expert, const float *rows, size_t n_tok,
                 size_t ld);
    void *arg;
} rl_inputs;

// Matrices of a type and width that compute "auto" multiplies in int8 when there is one token.
typedef struct rl_int8_single {
    rl_type type;
    size_t cols;
} rl_int8_single;

typedef struct rl_engine_opts {
    rl_dispatch dispatch;
    rl_pool *pool;
    size_t n_batch; // most tokens of one step
    size_t n_ctx;   // longest sequence, for RoPE factors and attention scratch
    int n_threads;
    const int *cpus; // NULL, or n_threads CPU numbers
    rl_compute compute;
    const char *kernel; // NULL, or the rows kernel every matrix that has one of its type must use
    rl_blas *blas;      // NULL, or OpenBLAS for prompts; the engine takes its own reference
    double rope_base;   // 0: the file's
    size_t window;      // 0: the file's; else no layer attends further back, as if its sliding window were this
    const rl_compute_rule *rules; // n_rules of them; read while the engine is made
    size_t n_rules;
    const rl_int8_single *int8_single; // n_int8_single of them; read while the engine is made
    size_t n_int8_single;
    rl_kv_type type_k, type_v;
    rl_kv_layout layout;
    bool evict; // a full cache drops its oldest page behind the first `sinks` tokens
    size_t sinks;
} rl_engine_opts;

typedef struct rl_segment { // consecutive tokens of one sequence within a step
    rl_kv *kv;
    size_t pos0, tok0, n_tok; // pos0: inside the cache
} rl_segment;

typedef struct rl_step {
    const int32_t *tokens;
    size_t n_tok;
    const rl_segment *segments;
    size_t n_segments;
    const uint32_t *out_rows; // tokens that want logits, ascending
    size_t n_out;
    float *logits; // n_out rows of n_vocab, or NULL with `consume`
    // Called by every thread for each block of at most RL_HEAD_BLOCK rows; logits may be overwritten.
    void (*consume)(void *arg, int ith, int nth, float *logits, size_t row0, size_t n_rows);
    void *consume_arg;
    float *consume_block; // RL_HEAD_BLOCK x n_vocab
    const rl_taps *taps;
    const rl_inputs *inputs; // NULL: off
    rl_trace *trace;         // NULL: off
    rl_poll_fn poll;
    void *poll_arg;
} rl_step;

#define RL_HEAD_BLOCK 16 // of a large vocabulary (262,144) 16 MB

typedef struct rl_engine rl_engine;

rl_status rl_engine_create(rl_engine **out, rl_model *model, const rl_engine_opts *opts, rl_err *err);
rl_engine *rl_engine_ref(rl_engine *e);
void rl_engine_release(rl_engine *e);

const rl_model *rl_engine_model(const rl_engine *e);
const rl_engine_opts *rl_engine_options(const rl_engine *e);
size_t rl_engine_scratch_bytes(const rl_engine *e);
/// Bytes of it that single tokens and batches of n_batch touch; batches between may touch more.
size_t rl_engine_scratch_used(const rl_engine *e);
/// The cache configuration that fits this engine; layers stays owned by the engine.
void rl_engine_kv_config(const rl_engine *e, rl_kv_config *c);

/// Makes room in a full cache that may evict, see rl_kv_evict.
rl_status rl_engine_evict(const rl_engine *e, rl_kv *kv, rl_err *err);

/// One step. The caller has reserved room in every cache and commits after success. Steps of one engine queue up.
rl_status rl_engine_step(rl_engine *e, const rl_step *step, rl_err *err);

// What ran: calls back once per matrix with the kernel for n_tok tokens.
typedef void (*rl_engine_op_fn)(void *arg, int layer, const char *op, const rl_weight *w, const rl_kernel *kernel);
void rl_engine_each_op(const rl_engine *e, size_t n_tok, rl_engine_op_fn fn, void *arg);

#endif
