// SPDX-License-Identifier: Apache-2.0
// What the Python types Model and Session share.
#ifndef RL_PY_SESSION_H
#define RL_PY_SESSION_H

#include <stdatomic.h>

#include "py/state.h"
#include "run/ahead.h"
#include "run/session.h"

typedef struct py_model {
    PyObject_HEAD rl_model *model;
    PyObject *gguf;               // the Python object, for .gguf
    PyObject *tokenizer;          // made when first asked for
    struct rl_replaced *replaced; // replace.c: tensors in memory that stand in for the file's
} py_model;

typedef struct py_ahead { // ahead.c
    rl_ahead *steps;      // NULL until the first
    PyObject *ids, *logits;
    unsigned long long number, last_number; // of the step that was begun and not fetched (0: none), and of the last one
} py_ahead;

typedef struct py_session {
    PyObject_HEAD rl_session *s; // NULL after close()
    py_model *model;
    atomic_flag busy;
    struct rl_capture *capture;     // taps.c; NULL when nothing is tapped
    struct rl_collected *collected; // inputs.c; NULL when no inputs are collected
    py_ahead ahead;
    rl_trace trace;     // events == NULL: off
    char placed[256];   // why so many threads
    bool pin_unchecked; // pinned, and not looked yet whether the system let us
} py_session;

/// 0 when the session is open and this thread may use it now, after waiting for a step that runs ahead; -1 with an
/// exception set: SessionBusy, ValueError, or what a signal raised.
int rl_py_session_enter(rl_state *st, py_session *s);
void rl_py_session_leave(py_session *s);

// ahead.c
int rl_py_ahead_init(void);
/// Waits for the step that runs ahead; -1 with the exception of a signal.
int rl_py_ahead_wait(py_session *s, bool interruptible);
/// Ends the thread of steps and forgets the step that was not fetched.
void rl_py_ahead_rest(py_session *s);
void rl_py_ahead_free(py_session *s);
/// (number, logits (rows, n_vocab)), or None where the step cannot be run ahead.
PyObject *rl_py_ahead_start(py_session *s, PyObject *args);
/// (start_ns, end_ns), and the step is part of the session; None when it was forgotten meanwhile.
PyObject *rl_py_ahead_finish(py_session *s, PyObject *number);
/// The step of this number never was; its (start_ns, end_ns), None when it is not there. No thread is left.
PyObject *rl_py_ahead_take_back(py_session *s, PyObject *number);
/// Waits for the step and ends the thread; the step can be fetched as before.
PyObject *rl_py_ahead_pause(py_session *s, PyObject *unused);

// replace.c
/// Reads [(name, type, shape, buffer)]; keeps the buffers until rl_py_replaced_free. NULL with an exception set.
struct rl_replaced *rl_py_replaced(PyObject *list);
const rl_tensor *rl_py_replaced_tensors(const struct rl_replaced *r, size_t *n);
void rl_py_replaced_free(struct rl_replaced *r);

// taps.c
int rl_py_taps_init(void);
/// Name of a tap: "blk.3.resid_post", "final_norm".
PyObject *rl_py_tap_full_name(size_t layer, rl_tap_point p);
/// Sets what to capture from now on: a sequence of names; an empty one ends it.
PyObject *rl_py_set_taps(py_session *s, PyObject *wanted);
/// What was captured since the last call, {name: array}.
PyObject *rl_py_take_taps(py_session *s);
/// Fills in an eval so that it captures.
void rl_py_capture_attach(py_session *s, rl_eval *ev);
void rl_py_capture_free(struct rl_capture *c);

// inputs.c
int rl_py_inputs_init(void);
/// Starts (from zero) or ends collecting the squares of every matrix' input.
PyObject *rl_py_collect_inputs(py_session *s, PyObject *on);
/// {tensor: (sums (experts, columns), rows seen (experts,))} since the last call.
PyObject *rl_py_take_inputs(py_session *s);
void rl_py_collect_attach(py_session *s, rl_eval *ev);
void rl_py_collected_free(struct rl_collected *c);

// trace.c
/// Keeps so many events of the evaluations from now on.
PyObject *rl_py_trace_start(py_session *s, PyObject *capacity);
/// (the events as bytes, the different numbers of tokens among them, how many were dropped); the trace ends.
PyObject *rl_py_trace_take(py_session *s, PyObject *unused);
/// [(layer or None, operation, t0_ns, t1_ns, wait_ns, tokens, position, experts)] of these bytes.
PyObject *rl_py_trace_rows(PyObject *unused, PyObject *raw);

// session_eval.c
int rl_py_session_eval_init(void);
/// Token ids as a new one-dimensional int32 array, or NULL with an exception set.
PyObject *rl_py_token_array(PyObject *tokens);
/// The array to write logits into: the caller's, checked, or a new one; (n_vocab,) for one_row, else (rows, n_vocab).
PyObject *rl_py_logits_array(PyObject *out, size_t rows, size_t vocab, bool one_row);
/// Runs an eval of an entered session without the GIL, with its taps and trace; -1 with an exception set.
int rl_py_run_eval(py_session *s, rl_eval *ev);
/// One warning, after the first evaluation of a pinned session.
int rl_py_warn_unpinned(py_session *s);
PyObject *rl_py_session_eval(py_session *self, PyObject *args, PyObject *kwargs);
PyObject *rl_py_session_logprobs(py_session *self, PyObject *args, PyObject *kwargs);
PyObject *rl_py_session_step_many(PyTypeObject *type, PyObject *args);

// compress.c
int rl_py_compress_init(void);
/// _compress(end, rank_k, rank_v, basis or None)
PyObject *rl_py_session_compress(py_session *self, PyObject *args);
/// (tokens, rank of K, rank of V)
PyObject *rl_py_session_whole_layers(py_session *self, void *unused); // [bool]: without a window
PyObject *rl_py_session_compressed(py_session *self, void *unused);

// contrast.c
int rl_py_add_contrast(PyObject *m);
PyObject *rl_py_session_contrast(py_session *self, PyObject *args);

// session_lists.c
/// Rules of compute from [(pattern, compute)], whose texts stay the caller's; None is none. Freed with PyMem_Free.
int rl_py_compute_rules(PyObject *list, rl_compute_rule **out, size_t *n);
/// The same of [(type, columns)].
int rl_py_int8_singles(PyObject *list, rl_int8_single **out, size_t *n);

// session.c
int rl_py_add_session(PyObject *m, rl_state *st);

#endif
