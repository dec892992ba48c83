// SPDX-License-Identifier: Apache-2.0
// Tensors in Python's memory that stand in for those of a file.
#include "py/session.h"

typedef struct rl_replaced {
    rl_tensor *tensors;
    Py_buffer *buffers;
    PyObject **names; // own the text that tensors[i].name points to
    size_t n;
} rl_replaced;

void rl_py_replaced_free(rl_replaced *r) {
    if (!r) return;
    for (size_t i = 0; i < r->n; i++) {
        if (r->buffers[i].obj) PyBuffer_Release(&r->buffers[i]);
        Py_XDECREF(r->names[i]);
    }
    PyMem_Free(r->tensors);
    PyMem_Free(r->buffers);
    PyMem_Free(r->names);
    PyMem_Free(r);
}

const rl_tensor *rl_py_replaced_tensors(const rl_replaced *r, size_t *n) {
    *n = r->n;
    return r->tensors;
}

// dims from a shape in NumPy's order, and the bytes that they take.
static int set_shape(rl_tensor *t, PyObject *shape) {
    Py_ssize_t n = PyTuple_Check(shape) ? PyTuple_GET_SIZE(shape) : 0;
    size_t rows = 1;
    bool fits = n >= 1 && n <= RL_MAX_DIMS;
    t->n_dims = (unsigned)n;
    for (int i = 0; i < RL_MAX_DIMS; i++) t->dims[i] = 1;
    for (Py_ssize_t i = 0; fits && i < n; i++) {
        Py_ssize_t d = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, n - 1 - i));
        if (d == -1 && PyErr_Occurred()) return -1;
        fits = d > 0 && (!i || rl_mul_size(rows, (size_t)d, &rows));
        t->dims[i] = (uint64_t)d;
    }
    fits = fits && t->dims[0] % t->dtype->block == 0 &&
           rl_mul_size((size_t)t->dims[0] / t->dtype->block, t->dtype->bytes, &t->row_bytes) &&
           rl_mul_size(t->row_bytes, rows, &t->nbytes);
    if (!fits)
        PyErr_Format(PyExc_ValueError, "tensor '%s': %R is no shape of %s, which has blocks of %zu values", t->name,
                     shape, t->dtype->name, t->dtype->block);
    return fits ? 0 : -1;
}

static int read_one(rl_replaced *r, PyObject *item) {
    PyObject *name, *shape, *data;
    const char *type;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "replace takes (name, type, shape, buffer)");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "UsOO:replace", &name, &type, &shape, &data)) return -1;
    rl_tensor *t = &r->tensors[r->n];
    Py_buffer *view = &r->buffers[r->n];
    r->names[r->n] = Py_NewRef(name);
    r->n++;
    t->name = PyUnicode_AsUTF8(name);
    t->type_id = rl_dtype_parse(type);
    t->dtype = t->type_id == RL_TYPE_NONE ? NULL : rl_dtype_of(t->type_id);
    t->offset = UINT64_MAX; // in no file
    if (!t->name) return -1;
    if (!t->dtype) {
        PyErr_Format(PyExc_ValueError, "tensor '%s': type '%.40s' is not known", t->name, type);
        return -1;
    }
    if (set_shape(t, shape) < 0 || PyObject_GetBuffer(data, view, PyBUF_SIMPLE) < 0) return -1;
    if ((size_t)view->len != t->nbytes) {
        PyErr_Format(PyExc_ValueError, "tensor '%s': %R of %s takes %zu bytes, not %zd", t->name, shape, t->dtype->name,
                     t->nbytes, view->len);
        return -1;
    }
    t->data = view->buf;
    return 0;
}

rl_replaced *rl_py_replaced(PyObject *list) {
    PyObject *seq = PySequence_Fast(list, "replace must be a list of (name, type, shape, buffer)");
    if (!seq) return NULL;
    size_t n = (size_t)PySequence_Fast_GET_SIZE(seq);
    rl_replaced *r = PyMem_Calloc(1, sizeof *r);
    if (r) {
        r->tensors = PyMem_Calloc(n ? n : 1, sizeof *r->tensors);
        r->buffers = PyMem_Calloc(n ? n : 1, sizeof *r->buffers);
        r->names = PyMem_Calloc(n ? n : 1, sizeof *r->names);
    }
    bool ok = r && r->tensors && r->buffers && r->names;
    if (!ok) PyErr_NoMemory();
    for (size_t i = 0; ok && i < n; i++) ok = read_one(r, PySequence_Fast_GET_ITEM(seq, (Py_ssize_t)i)) == 0;
    Py_DECREF(seq);
    if (ok) return r;
    rl_py_replaced_free(r);
    return NULL;
}
