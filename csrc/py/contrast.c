// SPDX-License-Identifier: Apache-2.0
// Rows of logits against those of a reference, streamed: the logits of the session are compared as they are made.
#include "py/session.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

#include "run/score.h"

// One array per field of rl_contrast.
enum { KL, LOGP, LOGQ, TOP_P, TOP_Q, SHARED, N_COLUMNS };
static const char *const column_names[N_COLUMNS] = {"kl", "logp", "logq", "top_p", "top_q", "shared"};

typedef struct columns {
    PyObject *arrays[N_COLUMNS];
    double *kl, *logp, *logq;
    int32_t *top_p, *top_q, *shared;
} columns;

static void columns_free(columns *c) {
    for (int i = 0; i < N_COLUMNS; i++) Py_CLEAR(c->arrays[i]);
}

static int columns_make(columns *c, npy_intp rows) {
    memset(c, 0, sizeof *c);
    for (int i = 0; i < N_COLUMNS; i++)
        if (!(c->arrays[i] = PyArray_SimpleNew(1, &rows, i < TOP_P ? NPY_FLOAT64 : NPY_INT32))) {
            columns_free(c);
            return -1;
        }
    c->kl = PyArray_DATA((PyArrayObject *)c->arrays[KL]);
    c->logp = PyArray_DATA((PyArrayObject *)c->arrays[LOGP]);
    c->logq = PyArray_DATA((PyArrayObject *)c->arrays[LOGQ]);
    c->top_p = PyArray_DATA((PyArrayObject *)c->arrays[TOP_P]);
    c->top_q = PyArray_DATA((PyArrayObject *)c->arrays[TOP_Q]);
    c->shared = PyArray_DATA((PyArrayObject *)c->arrays[SHARED]);
    return 0;
}

static void put(columns *c, size_t row, const rl_contrast *r) {
    c->kl[row] = r->kl;
    c->logp[row] = r->logp;
    c->logq[row] = r->logq;
    c->top_p[row] = r->top_p;
    c->top_q[row] = r->top_q;
    c->shared[row] = r->shared;
}

static PyObject *as_dict(columns *c) {
    PyObject *d = PyDict_New();
    for (int i = 0; d && i < N_COLUMNS; i++)
        if (PyDict_SetItemString(d, column_names[i], c->arrays[i]) < 0) Py_CLEAR(d);
    return d;
}

// float32 (rows, vocab), C-contiguous; borrowed, or NULL with an exception.
static PyArrayObject *logits_of(PyObject *o, const char *what) {
    PyArrayObject *a = (PyArrayObject *)o;
    if (PyArray_Check(o) && PyArray_TYPE(a) == NPY_FLOAT32 && PyArray_NDIM(a) == 2 && PyArray_IS_C_CONTIGUOUS(a) &&
        PyArray_ISALIGNED(a) && PyArray_DIM(a, 1) > 0)
        return a;
    PyErr_Format(PyExc_TypeError, "%s must be a C-contiguous float32 array of shape (rows, vocabulary)", what);
    return NULL;
}

// The ids that follow each row, int32 and inside the vocabulary; a new reference.
static PyObject *next_ids(PyObject *o, npy_intp rows, npy_intp vocab) {
    PyObject *a = rl_py_token_array(o);
    if (!a) return NULL;
    const int32_t *ids = PyArray_DATA((PyArrayObject *)a);
    bool fits = PyArray_SIZE((PyArrayObject *)a) == rows;
    for (npy_intp i = 0; fits && i < rows; i++) fits = ids[i] >= 0 && ids[i] < vocab;
    if (fits) return a;
    PyErr_Format(PyExc_ValueError, "next must have one id below %zd for each of the %zd rows", (Py_ssize_t)vocab,
                 (Py_ssize_t)rows);
    Py_DECREF(a);
    return NULL;
}

typedef struct stream {
    columns c;
    const float *reference;
    const int32_t *next;
    size_t vocab;
} stream;

static void compare_rows(void *arg, int ith, int nth, float *logits, size_t row0, size_t n_rows) {
    stream *s = arg;
    for (size_t r = (size_t)ith; r < n_rows; r += (size_t)nth) {
        rl_contrast one;
        rl_contrast_rows(s->reference + (row0 + r) * s->vocab, logits + r * s->vocab, s->vocab, s->next[row0 + r],
                         &one);
        put(&s->c, row0 + r, &one);
    }
}

PyObject *rl_py_session_contrast(py_session *self, PyObject *args) {
    PyObject *tokens, *reference, *next, *result = NULL;
    Py_ssize_t start;
    if (!PyArg_ParseTuple(args, "OOOn:_contrast", &tokens, &reference, &next, &start)) return NULL;
    PyArrayObject *ref = logits_of(reference, "reference");
    if (!ref) return NULL;
    npy_intp rows = PyArray_DIM(ref, 0), vocab = PyArray_DIM(ref, 1);
    PyObject *ids = rl_py_token_array(tokens), *following = ids ? next_ids(next, rows, vocab) : NULL;
    stream s = {.reference = PyArray_DATA(ref), .vocab = (size_t)vocab};
    rl_state *st = rl_state_of_type(Py_TYPE(self));
    if (!following || columns_make(&s.c, rows) < 0 || rl_py_session_enter(st, self) < 0) goto done;
    npy_intp n = PyArray_SIZE((PyArrayObject *)ids), own = rl_engine_model(self->s->engine)->hp.n_vocab;
    if (vocab != own) {
        PyErr_Format(PyExc_ValueError, "the reference has logits of %zd tokens and this model of %zd",
                     (Py_ssize_t)vocab, (Py_ssize_t)own);
    } else if (start < 0 || start > n || rows > n - start || !rows) {
        PyErr_Format(PyExc_ValueError, "%zd rows from token %zd on do not fit %zd tokens", (Py_ssize_t)rows, start,
                     (Py_ssize_t)n);
    } else {
        s.next = PyArray_DATA((PyArrayObject *)following);
        rl_eval ev = {.tokens = PyArray_DATA((PyArrayObject *)ids),
                      .n_tok = (size_t)n,
                      .first = (size_t)start,
                      .step = 1,
                      .n_out = (size_t)rows,
                      .consume = compare_rows,
                      .consume_arg = &s};
        if (rl_py_run_eval(self, &ev) == 0) result = as_dict(&s.c);
    }
    rl_py_session_leave(self);
done:
    columns_free(&s.c);
    Py_XDECREF(ids);
    Py_XDECREF(following);
    return result;
}

static PyObject *contrast_rows(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *p, *q, *next, *result = NULL;
    if (!PyArg_ParseTuple(args, "OOO:_contrast_rows", &p, &q, &next)) return NULL;
    PyArrayObject *a = logits_of(p, "p"), *b = a ? logits_of(q, "q") : NULL;
    if (!b) return NULL;
    npy_intp rows = PyArray_DIM(a, 0), vocab = PyArray_DIM(a, 1);
    if (PyArray_DIM(b, 0) != rows || PyArray_DIM(b, 1) != vocab) {
        PyErr_SetString(PyExc_ValueError, "p and q must have the same shape");
        return NULL;
    }
    columns c;
    PyObject *following = next_ids(next, rows, vocab);
    if (!following) return NULL;
    if (columns_make(&c, rows) == 0) {
        const float *x = PyArray_DATA(a), *y = PyArray_DATA(b);
        const int32_t *ids = PyArray_DATA((PyArrayObject *)following);
        Py_BEGIN_ALLOW_THREADS;
        for (npy_intp r = 0; r < rows; r++) {
            rl_contrast one;
            rl_contrast_rows(x + r * vocab, y + r * vocab, (size_t)vocab, ids[r], &one);
            put(&c, (size_t)r, &one);
        }
        Py_END_ALLOW_THREADS;
        result = as_dict(&c);
        columns_free(&c);
    }
    Py_DECREF(following);
    return result;
}

static PyMethodDef functions[] = {
    {"_contrast_rows", contrast_rows, METH_VARARGS,
     "_contrast_rows(p, q, next, /)\n--\n\nCompares float32 logits (rows, vocabulary) row by row: 'kl' of p against q "
     "in nats, 'logp' and 'logq' of the ids in next, the likeliest ids 'top_p' and 'top_q', and how many of the five "
     "likeliest are 'shared'."},
    {NULL, NULL, 0, NULL},
};

int rl_py_add_contrast(PyObject *m) {
    import_array1(-1);
    return PyModule_AddFunctions(m, functions);
}
