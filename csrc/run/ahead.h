// SPDX-License-Identifier: Apache-2.0
// A step run ahead: one evaluation of a session on a thread of its own, while its caller does something else. What it
// computed is held (see session.h), so that whoever looks at the session sees nothing of it until it is committed.
#ifndef RL_RUN_AHEAD_H
#define RL_RUN_AHEAD_H

#include <stdbool.h>

#include "run/session.h"

typedef struct rl_ahead rl_ahead;

typedef struct rl_ahead_result {
    rl_status status;
    rl_err err;
    uint64_t start_ns, end_ns; // of the evaluation, monotonic clock
} rl_ahead_result;

rl_status rl_ahead_create(rl_ahead **out, rl_err *err);
/// Nobody may be waiting.
void rl_ahead_free(rl_ahead *a);

/// Begins the evaluation, held. What `ev` points to must live until it has ended; its poll is taken from
/// rl_ahead_cancel. Nothing may be running.
rl_status rl_ahead_start(rl_ahead *a, rl_session *s, const rl_eval *ev, rl_err *err);
bool rl_ahead_running(rl_ahead *a);
/// Waits for the end, at most so long; false when it is still running then.
bool rl_ahead_wait(rl_ahead *a, uint64_t ns);
/// Asks the evaluation to stop, which it does within some 50 ms; its result is RL_ERR_INTERRUPTED then.
void rl_ahead_cancel(rl_ahead *a);
/// Of the last one that ended.
const rl_ahead_result *rl_ahead_last(const rl_ahead *a);
/// Ends the thread after what it is at; the next start makes another.
void rl_ahead_rest(rl_ahead *a);

#endif
