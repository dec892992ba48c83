// SPDX-License-Identifier: Apache-2.0
// Sums of squares of the inputs of every weight matrix, collected while a session runs: what an importance matrix is
// made of. Sums are in double and each column belongs to one thread, so they do not depend on the number of threads.
#include "py/session.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>
#include <stdlib.h>

typedef struct fed {
    const rl_tensor *t;
    size_t experts, cols;
    double *sums;   // experts x cols
    double *counts; // experts: rows that went in
} fed;

struct rl_collected {
    fed *all; // sorted by t
    size_t n;
    rl_inputs callbacks;
};

static int by_tensor(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const fed *)a)->t, y = (uintptr_t)((const fed *)b)->t;
    return x < y ? -1 : x > y;
}

static void take(void *arg, int ith, int nth, const rl_weight *w, size_t expert, const float *rows, size_t n_tok,
                 size_t ld) {
    const struct rl_collected *c = arg;
    // Slices of one fused matrix have the same input: the first speaks for all.
    if (w->row0) return;
    fed key = {.t = w->t};
    fed *f = bsearch(&key, c->all, c->n, sizeof key, by_tensor);
    size_t c0, c1;
    if (!f) return;
    rl_split(f->cols, 16, ith, nth, &c0, &c1);
    double *sums = f->sums + expert * f->cols;
    for (size_t t = 0; t < n_tok; t++)
        for (size_t i = c0; i < c1; i++) sums[i] += (double)rows[t * ld + i] * (double)rows[t * ld + i];
    if (ith == 0) f->counts[expert] += (double)n_tok;
}

void rl_py_collected_free(struct rl_collected *c) {
    if (!c) return;
    for (size_t i = 0; i < c->n; i++) {
        free(c->all[i].sums);
        free(c->all[i].counts);
    }
    free(c->all);
    free(c);
}

static bool add(struct rl_collected *c, const rl_weight *w) {
    if (!w->t || w->row0) return true;
    for (size_t i = 0; i < c->n; i++)
        if (c->all[i].t == w->t) return true;
    fed *f = &c->all[c->n++];
    *f = (fed){.t = w->t, .experts = w->experts, .cols = w->cols};
    f->sums = calloc(f->experts * f->cols, sizeof *f->sums);
    f->counts = calloc(f->experts, sizeof *f->counts);
    return f->sums && f->counts;
}

// All matrices that a pass feeds, but routers, which are no matter of quantization.
static struct rl_collected *start(const rl_model *m) {
    enum { PER_LAYER = 13 };
    struct rl_collected *c = calloc(1, sizeof *c);
    if (c) c->all = calloc((size_t)m->hp.n_layer * PER_LAYER + 1, sizeof *c->all);
    bool whole = c && c->all && add(c, &m->w.output);
    for (size_t i = 0; whole && i < m->hp.n_layer; i++) {
        const rl_layer *l = &m->w.layers[i];
        const rl_weight *of_layer[PER_LAYER] = {&l->q,       &l->k,     &l->v,         &l->o,       &l->gate,
                                                &l->up,      &l->down,  &l->gate_exps, &l->up_exps, &l->down_exps,
                                                &l->gate_sh, &l->up_sh, &l->down_sh};
        for (size_t k = 0; whole && k < PER_LAYER; k++) whole = add(c, of_layer[k]);
    }
    if (!whole) {
        rl_py_collected_free(c);
        return NULL;
    }
    qsort(c->all, c->n, sizeof *c->all, by_tensor);
    c->callbacks = (rl_inputs){.take = take, .arg = c};
    return c;
}

void rl_py_collect_attach(py_session *s, rl_eval *ev) {
    if (s->collected) ev->inputs = &s->collected->callbacks;
}

PyObject *rl_py_collect_inputs(py_session *s, PyObject *on) {
    int wanted = PyObject_IsTrue(on);
    if (wanted < 0) return NULL;
    rl_py_collected_free(s->collected);
    s->collected = wanted ? start(rl_engine_model(s->s->engine)) : NULL;
    if (wanted && !s->collected) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *array_of(const double *from, int nd, const npy_intp *dims) {
    PyObject *a = PyArray_SimpleNew(nd, dims, NPY_FLOAT64);
    if (a) memcpy(PyArray_DATA((PyArrayObject *)a), from, (size_t)PyArray_NBYTES((PyArrayObject *)a));
    return a;
}

PyObject *rl_py_take_inputs(py_session *s) {
    PyObject *d = PyDict_New();
    const struct rl_collected *c = s->collected;
    for (size_t i = 0; d && c && i < c->n; i++) {
        const fed *f = &c->all[i];
        npy_intp dims[2] = {(npy_intp)f->experts, (npy_intp)f->cols};
        PyObject *pair =
            Py_BuildValue("(NN)", array_of(f->sums, 2, dims), array_of(f->counts, 1, dims)); // NULL when either is
        if (!pair || PyDict_SetItemString(d, f->t->name, pair) < 0) Py_CLEAR(d);
        Py_XDECREF(pair);
        memset(f->sums, 0, f->experts * f->cols * sizeof *f->sums);
        memset(f->counts, 0, f->experts * sizeof *f->counts);
    }
    return d;
}

int rl_py_inputs_init(void) {
    import_array1(-1);
    return 0;
}
