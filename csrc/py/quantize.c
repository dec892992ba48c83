// SPDX-License-Identifier: Apache-2.0
// quantize_rows: float32 rows to blocks, for the quantizer and the laboratories of the Python half.
#include "quant/quantize.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

#include "py/kernels.h"

PyDoc_STRVAR(quantize_doc,
             "quantize_rows(x, type, importance=None, out=None, *, threads=1, errors=None, isa=None)\n--\n\n"
             "Quantizes float32 rows to GGUF blocks.\n\n"
             "x (rows, n): C-contiguous float32, n a multiple of the type's block. type: 'Q4_0', 'Q4_1', 'Q5_0',\n"
             "'Q5_1', 'Q8_0', 'Q2_K' to 'Q6_K', 'IQ4_NL', 'IQ4_XS', 'F16', 'BF16' or 'F32'. importance (n,): finite\n"
             "weights >= 0 of the columns, such as mean squares of their activations; only ratios matter. out:\n"
             "uint8 (rows, row bytes), made when None; returned. errors: float64 (rows, 2) that receives the sum of\n"
             "squared errors and of squares of each row. The blocks do not depend on threads or isa.\n\n"
             "Raises ValueError naming the row and column of a NaN or infinity, the row whose scale leaves half\n"
             "precision, a length that is no multiple of the block, or importance that is negative or not finite.");

static PyArrayObject *array(PyObject *o, int type, int nd, int flags, const char *what) {
    PyArrayObject *a = (PyArrayObject *)o;
    if (PyArray_Check(o) && PyArray_TYPE(a) == type && PyArray_NDIM(a) == nd && PyArray_ISNOTSWAPPED(a) &&
        PyArray_CHKFLAGS(a, flags))
        return a;
    PyErr_Format(PyExc_ValueError, "%s", what);
    return NULL;
}

static PyObject *quantize_rows(PyObject *m, PyObject *args, PyObject *kw) {
    static char *names[] = {"x", "type", "importance", "out", "threads", "errors", "isa", NULL};
    static const char *const counts[] = {"threads", NULL};
    rl_state *st = rl_state_of_module(m);
    PyObject *xo, *imp = Py_None, *outo = Py_None, *erro = Py_None, *isa = Py_None;
    const char *type_name;
    int threads = 1;
    if (rl_py_check_keywords(kw, "quantize_rows", names) < 0 || rl_py_check_counts(kw, counts) < 0) return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "Os|OO$iOO:quantize_rows", names, &xo, &type_name, &imp, &outo, &threads,
                                     &erro, &isa))
        return NULL;
    PyArrayObject *x = array(xo, NPY_FLOAT32, 2, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED,
                             "x must be a C-contiguous float32 array of shape (rows, n)");
    if (!x) return NULL;
    rl_quantize q = {.type = rl_dtype_parse(type_name), .x = PyArray_DATA(x)};
    q.rows = (size_t)PyArray_DIM(x, 0);
    q.cols = (size_t)PyArray_DIM(x, 1);
    if (q.type == RL_TYPE_NONE) return PyErr_Format(PyExc_ValueError, "there is no type '%.40s'", type_name);
    if (threads < 1 || threads > RL_MAX_THREADS)
        return PyErr_Format(PyExc_ValueError, "threads must be 1 to %d", RL_MAX_THREADS);
    if (imp != Py_None) {
        PyArrayObject *a = array(imp, NPY_FLOAT32, 1, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED,
                                 "importance must be a C-contiguous float32 array of shape (n,)");
        if (!a) return NULL;
        if ((size_t)PyArray_DIM(a, 0) != q.cols)
            return PyErr_Format(PyExc_ValueError, "importance has %zd values for rows of %zu",
                                (Py_ssize_t)PyArray_DIM(a, 0), q.cols);
        q.importance = PyArray_DATA(a);
    }
    if (erro != Py_None) {
        PyArrayObject *a = array(erro, NPY_FLOAT64, 2, NPY_ARRAY_CARRAY,
                                 "errors must be a writeable C-contiguous float64 array of shape (rows, 2)");
        if (!a) return NULL;
        if ((size_t)PyArray_DIM(a, 0) != q.rows || PyArray_DIM(a, 1) != 2)
            return PyErr_Format(PyExc_ValueError, "errors must have the shape (%zu, 2)", q.rows);
        q.errors = PyArray_DATA(a);
    }
    rl_dispatch d;
    if (rl_py_dispatch(st, isa, NULL, &d) < 0) return NULL;
    rl_err err;
    rl_err_clear(&err);
    PyObject *out = NULL;
    if (rl_quantize_init(&q, &d, threads, &err) != RL_OK) {
        rl_raise(st, &err);
        goto done;
    }
    npy_intp dims[2] = {(npy_intp)q.rows, (npy_intp)q.row_bytes};
    if (outo == Py_None) {
        out = PyArray_SimpleNew(2, dims, NPY_UINT8);
    } else if (array(outo, NPY_UINT8, 2, NPY_ARRAY_CARRAY, "out must be a writeable C-contiguous uint8 matrix")) {
        if (PyArray_CompareLists(PyArray_DIMS((PyArrayObject *)outo), dims, 2))
            out = Py_NewRef(outo);
        else
            PyErr_Format(PyExc_ValueError, "out must have the shape (%zu, %zu)", q.rows, q.row_bytes);
    }
    if (!out) goto done;
    q.out = PyArray_DATA((PyArrayObject *)out);
    if ((uintptr_t)q.out % 2) {
        Py_CLEAR(out);
        PyErr_SetString(PyExc_ValueError, "out must begin at an even address");
        goto done;
    }
    if (q.rows && rl_py_run(st, rl_quantize_region, &q, threads) < 0) Py_CLEAR(out);
    if (out && rl_quantize_result(&q, &err) != RL_OK) {
        rl_raise(st, &err);
        Py_CLEAR(out);
    }
done:
    rl_quantize_free(&q);
    return out;
}

static PyMethodDef methods[] = {
    {"quantize_rows", (PyCFunction)(void (*)(void))quantize_rows, METH_VARARGS | METH_KEYWORDS, quantize_doc},
    {NULL, NULL, 0, NULL}};

int rl_py_add_quantize(PyObject *m, rl_state *st) {
    (void)st;
    import_array1(-1);
    return PyModule_AddFunctions(m, methods);
}
