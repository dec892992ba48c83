// SPDX-License-Identifier: Apache-2.0
// Session._compress: old pages times a basis that Python has made.
#include "py/session.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

// One side of one layer: float32 (n_head_kv, rows, cols).
static int take_side(PyObject *obj, size_t layer, size_t n_head, size_t rows, size_t cols, float *to) {
    PyArrayObject *a = (PyArrayObject *)PyArray_FROM_OTF(obj, NPY_FLOAT32, NPY_ARRAY_IN_ARRAY);
    if (!a) return -1;
    const npy_intp *d = PyArray_DIMS(a);
    bool fits = PyArray_NDIM(a) == 3 && (size_t)d[0] == n_head && (size_t)d[1] == rows && (size_t)d[2] == cols;
    if (fits)
        memcpy(to, PyArray_DATA(a), n_head * rows * cols * sizeof *to);
    else
        PyErr_Format(PyExc_ValueError, "layer %zu: the basis must be (%zu, %zu, %zu)", layer, n_head, rows, cols);
    Py_DECREF(a);
    return fits ? 0 : -1;
}

// From a list with one entry per layer: None for a windowed one, else (k, v).
static rl_kv_basis *basis_of(rl_state *st, const rl_kv *kv, PyObject *list, size_t rank_k, size_t rank_v) {
    const rl_kv_config *c = rl_kv_config_of(kv);
    rl_err err;
    rl_err_clear(&err);
    rl_kv_basis *b;
    if (!PyList_Check(list) || (size_t)PyList_GET_SIZE(list) != c->n_layer) {
        PyErr_Format(PyExc_ValueError, "the basis must be a list of %zu layers", c->n_layer);
        return NULL;
    }
    if (rl_kv_basis_create(&b, kv, rank_k, rank_v, &err) != RL_OK) {
        rl_raise(st, &err);
        return NULL;
    }
    for (size_t i = 0; i < c->n_layer; i++) {
        const rl_kv_layer_config *l = &c->layers[i];
        PyObject *k, *v;
        if (l->window) continue;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, (Py_ssize_t)i), "OO", &k, &v) ||
            take_side(k, i, l->n_head_kv, l->dim_k, rank_k, rl_kv_basis_of(kv, b, i, false)) < 0 ||
            take_side(v, i, l->n_head_kv, rank_v, l->dim_v, rl_kv_basis_of(kv, b, i, true)) < 0)
            goto bad;
    }
    return b;
bad:
    rl_kv_basis_free(b);
    return NULL;
}

PyObject *rl_py_session_compress(py_session *self, PyObject *args) {
    Py_ssize_t end, rank_k, rank_v;
    PyObject *list;
    rl_state *st = rl_state_of_type(Py_TYPE(self));
    if (!PyArg_ParseTuple(args, "nnnO:_compress", &end, &rank_k, &rank_v, &list)) return NULL;
    if (end < 0 || rank_k < 0 || rank_v < 0) {
        PyErr_SetString(PyExc_ValueError, "end and ranks must not be negative");
        return NULL;
    }
    if (rl_py_session_enter(st, self) < 0) return NULL;
    rl_session_forget(self->s); // a step run ahead has seen what is compressed now
    rl_kv *kv = self->s->kv;
    rl_kv_basis *basis = NULL;
    if (list != Py_None && !(basis = basis_of(st, kv, list, (size_t)rank_k, (size_t)rank_v))) {
        rl_py_session_leave(self);
        return NULL;
    }
    rl_err err;
    rl_err_clear(&err);
    rl_status s;
    Py_BEGIN_ALLOW_THREADS;
    s = rl_kv_compress(kv, (size_t)end, basis, &err);
    Py_END_ALLOW_THREADS;
    rl_kv_basis_free(basis);
    rl_py_session_leave(self);
    if (s != RL_OK) return rl_raise(st, &err);
    Py_RETURN_NONE;
}

PyObject *rl_py_session_compressed(py_session *self, void *unused) {
    (void)unused;
    if (rl_py_session_enter(rl_state_of_type(Py_TYPE(self)), self) < 0) return NULL; // load() replaces them
    size_t rank_k, rank_v, n = rl_kv_compressed(self->s->kv);
    rl_kv_ranks(self->s->kv, &rank_k, &rank_v);
    rl_py_session_leave(self);
    return Py_BuildValue("(nnn)", (Py_ssize_t)n, (Py_ssize_t)rank_k, (Py_ssize_t)rank_v);
}

PyObject *rl_py_session_whole_layers(py_session *self, void *unused) {
    (void)unused;
    if (!self->s) {
        PyErr_SetString(PyExc_ValueError, "the session is closed");
        return NULL;
    }
    const rl_kv_config *c = rl_kv_config_of(self->s->kv);
    PyObject *list = PyList_New((Py_ssize_t)c->n_layer);
    for (size_t i = 0; list && i < c->n_layer; i++)
        PyList_SET_ITEM(list, (Py_ssize_t)i, PyBool_FromLong(!c->layers[i].window));
    return list;
}

int rl_py_compress_init(void) {
    import_array1(-1);
    return 0;
}
