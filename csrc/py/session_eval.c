// SPDX-License-Identifier: Apache-2.0
// What computes in rooflm._core.Session: eval, streamed log-probabilities, one step over several sessions.
#include "py/session.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

#include "py/kernels.h"
#include "run/score.h"

static rl_state *state_of(py_session *self) {
    return rl_state_of_type(Py_TYPE(self));
}

PyObject *rl_py_token_array(PyObject *tokens) {
    PyObject *any = PyArray_FROM_O(tokens);
    if (!any) return NULL;
    PyArrayObject *a = (PyArrayObject *)any;
    bool empty = PyArray_SIZE(a) == 0;
    if (PyArray_NDIM(a) > 1 || !(PyArray_ISINTEGER(a) || empty)) {
        PyErr_Format(PyExc_TypeError, "tokens must be a one-dimensional sequence of integers (use tokenizer.encode for "
                                      "text)");
        Py_DECREF(any);
        return NULL;
    }
    PyObject *wide = PyArray_FROMANY(any, NPY_INT64, 0, 1, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST);
    Py_DECREF(any);
    if (!wide) return NULL;
    npy_intp n = PyArray_SIZE((PyArrayObject *)wide);
    PyObject *out = PyArray_SimpleNew(1, &n, NPY_INT32);
    const int64_t *in = PyArray_DATA((PyArrayObject *)wide);
    int32_t *ids = out ? PyArray_DATA((PyArrayObject *)out) : NULL;
    for (npy_intp i = 0; out && i < n; i++) {
        if (in[i] < 0 || in[i] > INT32_MAX) {
            PyErr_Format(PyExc_ValueError, "token %zd is %lld: ids are not negative and below the vocabulary size",
                         (Py_ssize_t)i, (long long)in[i]);
            Py_CLEAR(out);
            break;
        }
        ids[i] = (int32_t)in[i];
    }
    Py_DECREF(wide);
    return out;
}

// ---- evaluation ----

// Which tokens want logits, from "last", "all", "none" or a slice. *one_row: the result is 1-D.
static int parse_logits(PyObject *spec, Py_ssize_t n, rl_eval *ev, bool *one_row) {
    *one_row = false;
    ev->first = 0;
    ev->step = 1;
    ev->n_out = 0;
    if (PySlice_Check(spec)) {
        Py_ssize_t start, stop, step;
        if (PySlice_Unpack(spec, &start, &stop, &step) < 0) return -1;
        if (step < 1) {
            PyErr_SetString(PyExc_ValueError, "logits takes a slice with a positive step");
            return -1;
        }
        ev->n_out = (size_t)PySlice_AdjustIndices(n, &start, &stop, step);
        ev->first = (size_t)start;
        ev->step = (size_t)step;
        return 0;
    }
    if (PyUnicode_Check(spec)) {
        if (PyUnicode_CompareWithASCIIString(spec, "none") == 0) return 0;
        if (PyUnicode_CompareWithASCIIString(spec, "all") == 0) {
            ev->n_out = (size_t)n;
            return 0;
        }
        if (PyUnicode_CompareWithASCIIString(spec, "last") == 0) {
            ev->first = (size_t)(n - 1);
            ev->n_out = 1;
            *one_row = true;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "logits is %R: it must be 'last', 'all', 'none' or a slice of the tokens", spec);
    return -1;
}

PyObject *rl_py_logits_array(PyObject *out, size_t rows, size_t vocab, bool one_row) {
    npy_intp dims[2] = {(npy_intp)rows, (npy_intp)vocab};
    if (out == Py_None) return PyArray_SimpleNew(one_row ? 1 : 2, one_row ? dims + 1 : dims, NPY_FLOAT32);
    PyArrayObject *a = (PyArrayObject *)out;
    bool fits = PyArray_Check(out) && PyArray_TYPE(a) == NPY_FLOAT32 && PyArray_ISCARRAY(a) &&
                (one_row ? PyArray_NDIM(a) == 1 && PyArray_DIM(a, 0) == dims[1]
                         : PyArray_NDIM(a) == 2 && PyArray_DIM(a, 0) == dims[0] && PyArray_DIM(a, 1) == dims[1]);
    if (!fits) {
        if (one_row)
            PyErr_Format(PyExc_ValueError, "out must be a writable C-contiguous float32 array of shape (%zu,)", vocab);
        else
            PyErr_Format(PyExc_ValueError, "out must be a writable C-contiguous float32 array of shape (%zu, %zu)",
                         rows, vocab);
        return NULL;
    }
    return Py_NewRef(out);
}

int rl_py_warn_unpinned(py_session *self) {
    const rl_engine_opts *o = rl_engine_options(self->s->engine);
    if (!self->pin_unchecked) return 0;
    self->pin_unchecked = false;
    rl_pool_report ran;
    rl_pool_last_report(o->pool, &ran);
    for (int i = 0; i < ran.n_threads && i < o->n_threads; i++)
        if (ran.pin_errno[i])
            return rl_warn_fallback(state_of(self),
                                    "thread %d could not be pinned to CPU %d (%s); it runs where the system puts it", i,
                                    o->cpus[i], strerror(ran.pin_errno[i]));
    return 0;
}

int rl_py_run_eval(py_session *self, rl_eval *ev) {
    rl_state *st = state_of(self);
    rl_err err;
    rl_err_clear(&err);
    rl_py_capture_attach(self, ev);
    rl_py_collect_attach(self, ev);
    if (self->trace.events) ev->trace = &self->trace;
    PyThreadState *saved = PyEval_SaveThread();
    ev->poll = rl_py_poll;
    ev->poll_arg = &saved;
    rl_status s = rl_session_eval(self->s, ev, &err);
    PyEval_RestoreThread(saved);
    if (s != RL_OK) {
        rl_raise(st, &err);
        return -1;
    }
    return rl_py_warn_unpinned(self);
}

PyObject *rl_py_session_eval(py_session *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"tokens", "logits", "out", NULL};
    PyObject *tokens, *spec = NULL, *out = Py_None, *result = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO:eval", names, &tokens, &spec, &out)) return NULL;
    PyObject *ids = rl_py_token_array(tokens);
    if (!ids) return NULL;
    Py_ssize_t n = PyArray_SIZE((PyArrayObject *)ids);
    rl_eval ev = {.tokens = PyArray_DATA((PyArrayObject *)ids), .n_tok = (size_t)n};
    bool one_row = true;
    PyObject *text = spec ? Py_NewRef(spec) : PyUnicode_FromString("last");
    if (!text) goto done;
    if (n == 0) {
        PyErr_SetString(PyExc_ValueError, "eval needs at least one token");
        goto done;
    }
    if (parse_logits(text, n, &ev, &one_row) < 0) goto done;
    if (rl_py_session_enter(state_of(self), self) < 0) goto done;
    bool wants_none = PyUnicode_Check(text) && PyUnicode_CompareWithASCIIString(text, "none") == 0;
    if (wants_none) {
        if (rl_py_run_eval(self, &ev) == 0) result = Py_NewRef(Py_None);
    } else {
        result = rl_py_logits_array(out, ev.n_out, rl_engine_model(self->s->engine)->hp.n_vocab, one_row);
        if (result) ev.logits = PyArray_DATA((PyArrayObject *)result);
        if (result && rl_py_run_eval(self, &ev) < 0) Py_CLEAR(result);
    }
    rl_py_session_leave(self);
done:
    Py_XDECREF(text);
    Py_DECREF(ids);
    return result;
}

// ---- log-probabilities, streamed ----

typedef struct scorer {
    const rl_vec *vec;
    const int32_t *ids; // tokens from the first scored row on
    size_t vocab, n_next, top;
    double *next;      // n_next: log-probability of the following token
    int32_t *top_ids;  // rows x top
    float *top_values; // rows x top, log-probabilities, descending
} scorer;

static void score_rows(void *arg, int ith, int nth, float *logits, size_t row0, size_t n_rows) {
    scorer *s = arg;
    for (size_t r = (size_t)ith; r < n_rows; r += (size_t)nth) {
        const float *x = logits + r * s->vocab;
        size_t row = row0 + r;
        double lse = s->vec->logsumexp(x, s->vocab);
        if (row < s->n_next) s->next[row] = x[s->ids[row + 1]] - lse;
        float *best = s->top_values + row * s->top;
        rl_score_top(x, s->vocab, s->top, s->top_ids + row * s->top, best);
        for (size_t j = 0; j < s->top; j++) best[j] = (float)(best[j] - lse);
    }
}

PyObject *rl_py_session_logprobs(py_session *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"tokens", "top", "start", NULL};
    PyObject *tokens, *next = NULL, *top_ids = NULL, *top_values = NULL, *result = NULL;
    Py_ssize_t top = 0, start = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$nn:logprobs", names, &tokens, &top, &start)) return NULL;
    PyObject *ids = rl_py_token_array(tokens);
    if (!ids) return NULL;
    npy_intp n = PyArray_SIZE((PyArrayObject *)ids);
    if (n == 0 || start < 0 || start >= n || top < 0) {
        PyErr_Format(PyExc_ValueError,
                     "logprobs of %zd tokens from position %zd with the top %zd: needs at least one "
                     "token, 0 <= start < tokens, top >= 0",
                     (Py_ssize_t)n, start, top);
        goto done;
    }
    if (rl_py_session_enter(state_of(self), self) < 0) goto done;
    size_t vocab = rl_engine_model(self->s->engine)->hp.n_vocab;
    rl_vec vec;
    rl_vec_init(&vec, &rl_engine_options(self->s->engine)->dispatch);
    if ((size_t)top > vocab) top = (Py_ssize_t)vocab;
    npy_intp n_next = n - 1 - start, dims[2] = {n - start, top};
    next = PyArray_SimpleNew(1, &n_next, NPY_FLOAT64);
    top_ids = PyArray_SimpleNew(2, dims, NPY_INT32);
    top_values = PyArray_SimpleNew(2, dims, NPY_FLOAT32);
    if (next && top_ids && top_values) {
        const int32_t *data = PyArray_DATA((PyArrayObject *)ids);
        scorer s = {.vec = &vec,
                    .ids = data + start,
                    .vocab = vocab,
                    .n_next = (size_t)n_next,
                    .top = (size_t)top,
                    .next = PyArray_DATA((PyArrayObject *)next),
                    .top_ids = PyArray_DATA((PyArrayObject *)top_ids),
                    .top_values = PyArray_DATA((PyArrayObject *)top_values)};
        rl_eval ev = {.tokens = data,
                      .n_tok = (size_t)n,
                      .first = (size_t)start,
                      .step = 1,
                      .n_out = (size_t)(n - start),
                      .consume = score_rows,
                      .consume_arg = &s};
        if (rl_py_run_eval(self, &ev) == 0) result = PyTuple_Pack(3, next, top_ids, top_values);
    }
    rl_py_session_leave(self);
done:
    Py_XDECREF(next);
    Py_XDECREF(top_ids);
    Py_XDECREF(top_values);
    Py_DECREF(ids);
    return result;
}

// ---- several sequences in one step ----

typedef struct group {
    py_session **members;
    rl_session **sessions;
    size_t *n;
    Py_ssize_t entered;
} group;

static PyObject *step_group(rl_state *st, group *g, Py_ssize_t count, PyObject *seqs, PyObject *lists) {
    PyObject *joined = NULL, *out = NULL;
    size_t total = 0;
    PyObject *arrays = PyList_New(0);
    for (Py_ssize_t i = 0; arrays && i < count; i++) {
        PyObject *o = PyTuple_GET_ITEM(seqs, i);
        PyObject *ids = NULL;
        if (!PyObject_TypeCheck(o, st->SessionType))
            PyErr_Format(PyExc_TypeError, "item %zd is no Session", i);
        else if (rl_py_session_enter(st, (py_session *)o) == 0) { // the same one twice is busy
            g->members[g->entered++] = (py_session *)o;
            g->sessions[i] = ((py_session *)o)->s;
            ids = rl_py_token_array(PyTuple_GET_ITEM(lists, i));
        }
        if (!ids || PyList_Append(arrays, ids) < 0) {
            Py_XDECREF(ids);
            Py_CLEAR(arrays);
            break;
        }
        g->n[i] = (size_t)PyArray_SIZE((PyArrayObject *)ids);
        total += g->n[i];
        Py_DECREF(ids);
    }
    if (!arrays) return NULL;
    npy_intp dims[2] = {(npy_intp)count, (npy_intp)rl_engine_model(g->sessions[0]->engine)->hp.n_vocab};
    npy_intp n_all = (npy_intp)total;
    joined = PyArray_SimpleNew(1, &n_all, NPY_INT32);
    out = PyArray_SimpleNew(2, dims, NPY_FLOAT32);
    if (joined && out) {
        int32_t *to = PyArray_DATA((PyArrayObject *)joined);
        for (Py_ssize_t i = 0; i < count; i++) {
            memcpy(to, PyArray_DATA((PyArrayObject *)PyList_GET_ITEM(arrays, i)), g->n[i] * sizeof *to);
            to += g->n[i];
        }
        rl_err err;
        rl_err_clear(&err);
        PyThreadState *saved = PyEval_SaveThread();
        rl_status s = rl_session_step_many(g->sessions, (size_t)count, PyArray_DATA((PyArrayObject *)joined), g->n,
                                           PyArray_DATA((PyArrayObject *)out), rl_py_poll, &saved, &err);
        PyEval_RestoreThread(saved);
        if (s != RL_OK) {
            rl_raise(st, &err);
            Py_CLEAR(out);
        }
    } else {
        Py_CLEAR(out);
    }
    Py_XDECREF(joined);
    Py_DECREF(arrays);
    return out;
}

PyObject *rl_py_session_step_many(PyTypeObject *type, PyObject *args) {
    rl_state *st = rl_state_of_type(type);
    PyObject *sessions, *tokens, *result = NULL;
    if (!PyArg_ParseTuple(args, "OO:_step_many", &sessions, &tokens)) return NULL;
    // Tuples of our own: reading the ids may run Python code, which could change a list.
    PyObject *seqs = PySequence_Tuple(sessions), *lists = seqs ? PySequence_Tuple(tokens) : NULL;
    Py_ssize_t count = seqs ? PyTuple_GET_SIZE(seqs) : 0;
    if (seqs && lists && (count < 1 || PyTuple_GET_SIZE(lists) != count)) {
        PyErr_Format(PyExc_ValueError, "a step takes one token array for each of at least one session");
    } else if (seqs && lists) {
        group g = {.members = PyMem_Calloc((size_t)count, sizeof *g.members),
                   .sessions = PyMem_Calloc((size_t)count, sizeof *g.sessions),
                   .n = PyMem_Calloc((size_t)count, sizeof *g.n)};
        if (g.members && g.sessions && g.n)
            result = step_group(st, &g, count, seqs, lists);
        else
            PyErr_NoMemory();
        for (Py_ssize_t i = 0; i < g.entered; i++) rl_py_session_leave(g.members[i]);
        PyMem_Free(g.members);
        PyMem_Free(g.sessions);
        PyMem_Free(g.n);
    }
    Py_XDECREF(seqs);
    Py_XDECREF(lists);
    return result;
}

int rl_py_session_eval_init(void) {
    import_array1(-1);
    return 0;
}
