// SPDX-License-Identifier: Apache-2.0
// A session: one sequence of tokens, its KV cache, and the engine that computes it. Sessions may share an engine
// (forks, batches); their steps then queue up.
#ifndef RL_RUN_SESSION_H
#define RL_RUN_SESSION_H

#include "run/engine.h"

typedef struct rl_session {
    rl_engine *engine;
    rl_kv *kv;
    int32_t *tokens; // history, rl_session_length of them; grows beyond n_ctx where the cache evicts
    size_t cap;
    size_t held;  // tokens evaluated beyond the length, see rl_eval
    float *block; // RL_HEAD_BLOCK x n_vocab, made on the first call that streams logits
} rl_session;

rl_status rl_session_create(rl_session **out, rl_engine *engine, rl_err *err);
void rl_session_free(rl_session *s);
/// A second session at the same position that shares full pages and the engine.
rl_status rl_session_fork(const rl_session *s, rl_session **out, rl_err *err);
size_t rl_session_length(const rl_session *s); // with the tokens that were evicted
/// Tokens that may come: SIZE_MAX where the cache evicts.
size_t rl_session_room(const rl_session *s);
/// Most tokens of one step: of an evicting session those before the next page goes.
size_t rl_session_step_room(const rl_session *s);
rl_status rl_session_rewind(rl_session *s, size_t n, rl_err *err);

typedef struct rl_eval {
    const int32_t *tokens;
    size_t n_tok;
    size_t first, step, n_out; // tokens first, first + step, ... of this call want logits
    float *logits;             // n_out x n_vocab, or NULL with `consume`
    // Called by every thread for each block; row0 counts from 0 over the whole call.
    void (*consume)(void *arg, int ith, int nth, float *logits, size_t row0, size_t n_rows);
    void *consume_arg;
    rl_taps *taps;
    // Called before each chunk with its position and length, for taps that must make room; may fail.
    rl_status (*before_chunk)(void *arg, size_t pos0, size_t n_tok, rl_err *err);
    void *chunk_arg;
    const rl_inputs *inputs; // NULL, or who collects the inputs of matrices
    rl_trace *trace;
    // The result is kept apart until rl_session_commit; whatever changes the session first, an evaluation for one,
    // forgets it. At most n_batch tokens.
    bool hold;
    rl_poll_fn poll;
    void *poll_arg;
} rl_eval;

/// Whether n more tokens can be evaluated and forgotten without a trace.
bool rl_session_can_hold(const rl_session *s, size_t n);
/// Makes what is held part of the session; false when nothing is.
bool rl_session_commit(rl_session *s);
void rl_session_forget(rl_session *s);

/// Appends tokens in chunks of n_batch. On failure or interruption the session is back where it was.
rl_status rl_session_eval(rl_session *s, const rl_eval *ev, rl_err *err);

/// One step over several sessions of one engine: n[i] tokens of session i, tokens one after the other; logits
/// (n_sessions x n_vocab) for the last token of each. The caller holds all of them.
rl_status rl_session_step_many(rl_session *const *s, size_t n_sessions, const int32_t *tokens, const size_t *n,
                               float *logits, rl_poll_fn poll, void *poll_arg, rl_err *err);

rl_status rl_session_save(const rl_session *s, rl_write_fn write, void *arg, rl_err *err);
/// Replaces the content. The model and the cache configuration must be those that were saved.
rl_status rl_session_load(rl_session *s, rl_read_fn read, void *arg, rl_err *err);

#endif
