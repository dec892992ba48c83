// SPDX-License-Identifier: Apache-2.0
// rooflm.Tensor: one tensor where it lies in the file. Arrays made from it are views that keep the file open through
// the Tensor, which they have as their base.
#include "py/gguf.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>
#include <unistd.h>

#include "base/clock.h"
#include "py/kernels.h"

typedef struct {
    PyObject_HEAD rl_gguf *g;
    const rl_tensor *t;
    rl_dequant_fn fn; // chosen at first use
} py_tensor;

// Below this a second thread costs more than it brings.
#define PARALLEL_BYTES ((size_t)1 << 20)
// Rows multiplied at once by `@`: about this many bytes of float32 stay in the cache.
#define CHUNK_BYTES ((size_t)1 << 20)

PyObject *rl_py_tensor_new(rl_state *st, rl_gguf *g, const rl_tensor *t) {
    py_tensor *self = PyObject_New(py_tensor, st->TensorType);
    if (!self) return NULL;
    self->g = rl_gguf_ref(g);
    self->t = t;
    self->fn = NULL;
    return (PyObject *)self;
}

static void tensor_dealloc(py_tensor *self) {
    PyTypeObject *type = Py_TYPE(self);
    rl_gguf_release(self->g);
    PyObject_Free(self);
    Py_DECREF(type);
}

const rl_tensor *rl_py_tensor_get(rl_state *st, PyObject *tensor) {
    if (PyObject_TypeCheck(tensor, st->TensorType)) return ((py_tensor *)tensor)->t;
    PyErr_Format(PyExc_TypeError, "a rooflm.Tensor is needed, not %.200s", Py_TYPE(tensor)->tp_name);
    return NULL;
}

static size_t n_rows(const rl_tensor *t) {
    return (size_t)(t->dims[1] * t->dims[2] * t->dims[3]);
}
static size_t n_cols(const rl_tensor *t) {
    return (size_t)t->dims[0];
}

static PyObject *fail(py_tensor *self, const rl_err *err) {
    return rl_raise(rl_state_of_type(Py_TYPE(self)), err);
}

// The data, or NULL with an exception that names the tensor and its type id.
static const uint8_t *need_data(py_tensor *self) {
    if (self->t->data) return self->t->data;
    rl_err err;
    rl_fail_format(&err, NULL, self->t->name, self->t->offset,
                   "tensor %s has the type id %u, which is not known to this library", self->t->name, self->t->type_id);
    return (const uint8_t *)fail(self, &err);
}

// The same before the bytes are touched: 0, or -1 with OSError when the file was shortened meanwhile.
static int need_bytes(py_tensor *self) {
    rl_err err;
    if (!need_data(self)) return -1;
    if (rl_gguf_intact(self->g, &err) == RL_OK) return 0;
    fail(self, &err);
    return -1;
}

static rl_dequant_fn need_dequant(py_tensor *self) {
    if (need_bytes(self) < 0) return NULL;
    if (self->fn) return self->fn;
    rl_dispatch d;
    if (rl_py_dispatch(rl_state_of_type(Py_TYPE(self)), NULL, NULL, &d) < 0) return NULL;
    const rl_kernel *k = rl_kernel_find(&d, RL_FAM_DEQUANT, (rl_type)self->t->type_id, 0, NULL);
    if (k) return self->fn = (rl_dequant_fn)k->fn;
    rl_err err;
    rl_fail_format(&err, NULL, self->t->name, self->t->offset,
                   "tensor %s has the type %s (id %u), which cannot be dequantized here", self->t->name,
                   self->t->dtype->name, self->t->type_id);
    fail(self, &err);
    return NULL;
}

// --- attributes ----------------------------------------------------------------------------------------------

static PyObject *get_name(py_tensor *self, void *unused) {
    (void)unused;
    return rl_py_text(self->t->name, strlen(self->t->name));
}
static PyObject *get_type(py_tensor *self, void *unused) {
    (void)unused;
    if (!self->t->dtype) return PyUnicode_FromFormat("unknown(%u)", self->t->type_id);
    return PyUnicode_FromString(self->t->dtype->name);
}
static PyObject *get_nbytes(py_tensor *self, void *unused) {
    (void)unused;
    return need_data(self) ? PyLong_FromSize_t(self->t->nbytes) : NULL;
}
static PyObject *get_bits(py_tensor *self, void *unused) {
    (void)unused;
    if (!need_data(self)) return NULL;
    return PyFloat_FromDouble(8.0 * (double)self->t->dtype->bytes / (double)self->t->dtype->block);
}
static PyObject *get_shape(py_tensor *self, void *unused) {
    (void)unused;
    Py_ssize_t n = (Py_ssize_t)self->t->n_dims;
    PyObject *shape = PyTuple_New(n);
    for (Py_ssize_t i = 0; shape && i < n; i++) {
        PyObject *v = PyLong_FromUnsignedLongLong(self->t->dims[n - 1 - i]);
        if (!v)
            Py_CLEAR(shape);
        else
            PyTuple_SET_ITEM(shape, i, v);
    }
    return shape;
}

// A read-only view of `dtype` (stolen) over the data.
static PyObject *view(py_tensor *self, PyArray_Descr *dtype, int nd, const npy_intp *dims) {
    PyObject *a =
        PyArray_NewFromDescr(&PyArray_Type, dtype, nd, dims, NULL, (void *)self->t->data, NPY_ARRAY_C_CONTIGUOUS, NULL);
    if (!a) return NULL;
    Py_INCREF(self);
    if (PyArray_SetBaseObject((PyArrayObject *)a, (PyObject *)self) < 0) Py_CLEAR(a);
    return a;
}

static PyObject *get_raw(py_tensor *self, void *unused) {
    (void)unused;
    if (need_bytes(self) < 0) return NULL;
    npy_intp dims[RL_MAX_DIMS] = {1};
    int nd = self->t->n_dims ? (int)self->t->n_dims : 1;
    for (int i = 0; i < nd; i++) dims[i] = (npy_intp)self->t->dims[nd - 1 - i];
    dims[nd - 1] = (npy_intp)self->t->row_bytes;
    return view(self, PyArray_DescrFromType(NPY_UINT8), nd, dims);
}

// Fields of a block in the order of the file, as NumPy writes them; the type itself where a block is one number.
static const char *block_fields(uint32_t id) {
    switch (id) {
    case RL_F32:
        return "<f4";
    case RL_F64:
        return "<f8";
    case RL_F16:
        return "<f2";
    case RL_BF16:
        return "<u2";
    case RL_I8:
        return "<i1";
    case RL_I16:
        return "<i2";
    case RL_I32:
        return "<i4";
    case RL_I64:
        return "<i8";
    case RL_Q4_0:
    case RL_IQ4_NL:
        return "d <f2 1 qs u1 16";
    case RL_Q4_1:
        return "d <f2 1 m <f2 1 qs u1 16";
    case RL_Q5_0:
        return "d <f2 1 qh u1 4 qs u1 16";
    case RL_Q5_1:
        return "d <f2 1 m <f2 1 qh u1 4 qs u1 16";
    case RL_Q8_0:
        return "d <f2 1 qs i1 32";
    case RL_Q2_K:
        return "scales u1 16 qs u1 64 d <f2 1 dmin <f2 1";
    case RL_Q3_K:
        return "hmask u1 32 qs u1 64 scales u1 12 d <f2 1";
    case RL_Q4_K:
        return "d <f2 1 dmin <f2 1 scales u1 12 qs u1 128";
    case RL_Q5_K:
        return "d <f2 1 dmin <f2 1 scales u1 12 qh u1 32 qs u1 128";
    case RL_Q6_K:
        return "ql u1 128 qh u1 64 scales i1 16 d <f2 1";
    case RL_Q8_K:
        return "d <f4 1 qs i1 256 bsums <i2 16";
    case RL_IQ4_XS:
        return "d <f2 1 scales_h <u2 1 scales_l u1 4 qs u1 128";
    default:
        return NULL;
    }
}

static PyArray_Descr *block_dtype(uint32_t id, const rl_dtype *type) {
    const char *s = block_fields(id);
    PyObject *spec = NULL;
    if (!s) {
        spec = Py_BuildValue("[(s,s,(i))]", "bytes", "u1", (int)type->bytes);
    } else if (*s == '<') {
        spec = PyUnicode_FromString(s);
    } else {
        spec = PyList_New(0);
        char name[16], kind[8];
        int count, used;
        for (; spec && sscanf(s, "%15s %7s %d%n", name, kind, &count, &used) == 3; s += used) {
            PyObject *field =
                count == 1 ? Py_BuildValue("(ss)", name, kind) : Py_BuildValue("(ss(i))", name, kind, count);
            if (!field || PyList_Append(spec, field) < 0) Py_CLEAR(spec);
            Py_XDECREF(field);
        }
    }
    PyArray_Descr *dtype = NULL;
    if (spec && !PyArray_DescrConverter(spec, &dtype)) dtype = NULL;
    Py_XDECREF(spec);
    return dtype;
}

static PyObject *get_blocks(py_tensor *self, void *unused) {
    (void)unused;
    if (need_bytes(self) < 0) return NULL;
    PyArray_Descr *dtype = block_dtype(self->t->type_id, self->t->dtype);
    if (!dtype) return NULL;
    npy_intp dims[2] = {(npy_intp)n_rows(self->t), (npy_intp)(n_cols(self->t) / self->t->dtype->block)};
    return view(self, dtype, 2, dims);
}

static PyGetSetDef tensor_getset[] = {
    {"name", (getter)get_name, NULL, "Name in the file.", NULL},
    {"type", (getter)get_type, NULL,
     "Name of the type, such as \"Q4_K\"; \"unknown(42)\" for an id this library does not know.", NULL},
    {"shape", (getter)get_shape, NULL, "Shape in NumPy's order: (out, in) for a matrix.", NULL},
    {"nbytes", (getter)get_nbytes, NULL, "Bytes in the file.", NULL},
    {"bits_per_weight", (getter)get_bits, NULL, "Bits of the file for each element, scales included.", NULL},
    {"raw", (getter)get_raw, NULL,
     "The bytes, uint8, read-only view of the file: the shape with the last axis in bytes.", NULL},
    {"blocks", (getter)get_blocks, NULL,
     "The blocks, structured read-only view of the file with the format's own fields: (rows, blocks per row), all "
     "axes\n"
     "but the last joined to rows. Half scales are float16. Types without blocks give plain numbers (BF16 as uint16).",
     NULL},
    {0},
};

// --- dequantize ----------------------------------------------------------------------------------------------

typedef struct {
    const rl_tensor *t;
    rl_dequant_fn fn;
    const npy_intp *rows; // NULL: first, first + step, ...
    npy_intp first, step;
    size_t n;
    float *out;
} dequant_job;

static const uint8_t *job_row(const dequant_job *j, size_t i) {
    npy_intp row = j->rows ? j->rows[i] : j->first + (npy_intp)i * j->step;
    return j->t->data + (size_t)row * j->t->row_bytes;
}

// Rows a..b of the job.
static void dequant_part(const dequant_job *j, size_t a, size_t b) {
    size_t cols = n_cols(j->t);
    if (!j->rows && j->step == 1) {
        j->fn(job_row(j, a), j->out + a * cols, (b - a) * cols);
        return;
    }
    for (size_t i = a; i < b; i++) j->fn(job_row(j, i), j->out + i * cols, cols);
}

static void dequant_region(void *arg, rl_team *team, int ith) {
    const dequant_job *j = arg;
    size_t cols = n_cols(j->t), grain = (PARALLEL_BYTES / 4) / (cols * sizeof(float)) + 1, a, b;
    rl_work w;
    rl_work_begin(&w, team, ith, j->n, grain);
    while (rl_work_next(&w, team, ith, &a, &b)) dequant_part(j, a, b);
}

static int n_cpus(void) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : (n > 64 ? 64 : (int)n);
}

// False with an exception set.
static int dequant_run(py_tensor *self, dequant_job *j, int threads) {
    size_t bytes = j->n * n_cols(j->t) * sizeof(float);
    if (threads <= 0) threads = n_cpus();
    if (threads == 1 || bytes < 2 * PARALLEL_BYTES) {
        Py_BEGIN_ALLOW_THREADS;
        dequant_part(j, 0, j->n);
        Py_END_ALLOW_THREADS;
        return 1;
    }
    return rl_py_run(rl_state_of_type(Py_TYPE(self)), dequant_region, j, threads) == 0;
}

// Reads rows=: None, an integer, a slice, or indices (integers or a mask). *keep owns an index array. *single tells
// that the row axis is dropped.
static int parse_rows(const rl_tensor *t, PyObject *rows, dequant_job *j, PyObject **keep, int *single) {
    npy_intp total = (npy_intp)n_rows(t);
    *keep = NULL;
    *single = 0;
    j->first = 0;
    j->step = 1;
    j->n = (size_t)total;
    if (rows == Py_None) return 0;
    if (PySlice_Check(rows)) {
        Py_ssize_t start, stop, step;
        if (PySlice_Unpack(rows, &start, &stop, &step) < 0) return -1;
        j->n = (size_t)PySlice_AdjustIndices(total, &start, &stop, step);
        j->first = start;
        j->step = step;
        return 0;
    }
    if (PyIndex_Check(rows) && !PyArray_Check(rows) && !PyBool_Check(rows)) {
        Py_ssize_t i = PyNumber_AsSsize_t(rows, PyExc_IndexError);
        if (i == -1 && PyErr_Occurred()) return -1;
        if (i < -total || i >= total) {
            PyErr_Format(PyExc_IndexError, "row %zd is out of range: %s has %zd rows", i, t->name, (Py_ssize_t)total);
            return -1;
        }
        j->first = i < 0 ? i + total : i;
        j->n = 1;
        *single = 1;
        return 0;
    }
    PyArrayObject *a = (PyArrayObject *)PyArray_FROM_O(rows);
    if (!a) return -1;
    if (PyArray_NDIM(a) != 1 || !(PyArray_ISINTEGER(a) || PyArray_ISBOOL(a) || PyArray_SIZE(a) == 0)) {
        PyErr_SetString(PyExc_TypeError, "rows must be None, an integer, a slice, a 1-D array of integers or a mask");
        Py_DECREF(a);
        return -1;
    }
    PyArrayObject *index = NULL;
    if (PyArray_ISBOOL(a)) {
        if (PyArray_SIZE(a) != total) {
            PyErr_Format(PyExc_IndexError, "the mask has %zd values, %s has %zd rows", (Py_ssize_t)PyArray_SIZE(a),
                         t->name, (Py_ssize_t)total);
        } else {
            PyObject *where = PyArray_Nonzero(a);
            if (where)
                index = (PyArrayObject *)PyArray_FROMANY(PyTuple_GET_ITEM(where, 0), NPY_INTP, 1, 1,
                                                         NPY_ARRAY_IN_ARRAY | NPY_ARRAY_ENSURECOPY);
            Py_XDECREF(where);
        }
    } else {
        index = (PyArrayObject *)PyArray_FROMANY((PyObject *)a, NPY_INTP, 1, 1,
                                                 NPY_ARRAY_CARRAY | NPY_ARRAY_ENSURECOPY | NPY_ARRAY_FORCECAST);
    }
    Py_DECREF(a);
    if (!index) return -1;
    npy_intp *p = PyArray_DATA(index), n = PyArray_SIZE(index);
    for (npy_intp i = 0; i < n; i++) {
        if (p[i] < -total || p[i] >= total) {
            PyErr_Format(PyExc_IndexError, "row %zd is out of range: %s has %zd rows", (Py_ssize_t)p[i], t->name,
                         (Py_ssize_t)total);
            Py_DECREF(index);
            return -1;
        }
        if (p[i] < 0) p[i] += total;
    }
    j->rows = p;
    j->n = (size_t)n;
    *keep = (PyObject *)index;
    return 0;
}

static PyObject *make_out(PyObject *given, int nd, const npy_intp *dims) {
    if (given == Py_None) return PyArray_SimpleNew(nd, dims, NPY_FLOAT32);
    PyArrayObject *a = (PyArrayObject *)given;
    int right = PyArray_Check(given) && PyArray_TYPE(a) == NPY_FLOAT32 && PyArray_ISNOTSWAPPED(a) &&
                PyArray_ISCARRAY(a) && PyArray_NDIM(a) == nd && PyArray_CompareLists(PyArray_DIMS(a), dims, nd);
    if (right) return Py_NewRef(given);
    PyObject *shape = PyTuple_New(nd);
    for (int i = 0; shape && i < nd; i++) PyTuple_SET_ITEM(shape, i, PyLong_FromSsize_t((Py_ssize_t)dims[i]));
    if (shape) PyErr_Format(PyExc_ValueError, "out must be a writeable C-contiguous float32 array of shape %R", shape);
    Py_XDECREF(shape);
    return NULL;
}

static PyObject *tensor_dequantize(py_tensor *self, PyObject *args, PyObject *kwds) {
    static char *names[] = {"rows", "out", "threads", NULL};
    static const char *const counts[] = {"threads", NULL};
    PyObject *rows = Py_None, *given = Py_None, *n_threads = Py_None, *keep;
    if (rl_py_check_keywords(kwds, "dequantize", names) < 0 || rl_py_check_counts(kwds, counts) < 0) return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "|OO$O:dequantize", names, &rows, &given, &n_threads)) return NULL;
    long threads = 0;
    if (n_threads != Py_None) {
        threads = PyLong_AsLong(n_threads);
        if (threads == -1 && PyErr_Occurred()) return NULL;
        if (threads < 1 || threads > RL_MAX_THREADS) {
            PyErr_Format(PyExc_ValueError, "threads must be 1 to %d", RL_MAX_THREADS);
            return NULL;
        }
    }
    const rl_tensor *t = self->t;
    dequant_job j = {.t = t, .fn = need_dequant(self)};
    int single;
    if (!j.fn || parse_rows(t, rows, &j, &keep, &single) < 0) return NULL;
    npy_intp dims[RL_MAX_DIMS];
    int nd = 0;
    if (rows == Py_None) {
        nd = (int)t->n_dims;
        for (int i = 0; i < nd; i++) dims[i] = (npy_intp)t->dims[nd - 1 - i];
    } else {
        if (!single) dims[nd++] = (npy_intp)j.n;
        dims[nd++] = (npy_intp)n_cols(t);
    }
    PyObject *out = make_out(given, nd, dims);
    if (out) {
        j.out = PyArray_DATA((PyArrayObject *)out);
        if (!dequant_run(self, &j, (int)threads)) Py_CLEAR(out);
    }
    Py_XDECREF(keep);
    return out;
}

// What NumPy calls for np.asarray(tensor) and np.array(tensor): without it they give an array of one Python object.
static PyObject *tensor_array(py_tensor *self, PyObject *args, PyObject *kwds) {
    static char *names[] = {"dtype", "copy", NULL};
    PyObject *dtype = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "|OO:__array__", names, &dtype, &copy)) return NULL;
    if (copy == Py_False)
        return PyErr_Format(PyExc_ValueError,
                            "the values of %s are made from its blocks, so they cannot be had without a copy; .blocks "
                            "and .raw are views",
                            self->t->name);
    PyObject *values = PyObject_CallMethod((PyObject *)self, "dequantize", NULL);
    if (!values || dtype == Py_None) return values;
    PyObject *cast = PyObject_CallMethod(values, "astype", "O", dtype);
    Py_DECREF(values);
    return cast;
}

// --- matmul --------------------------------------------------------------------------------------------------

// Rows a..b of `tensor @ x` into the same rows of `out`, by NumPy's own product of float32 rows.
static int matmul_chunk(py_tensor *self, PyObject *buffer, PyArrayObject *x, PyArrayObject *out, size_t a, size_t b,
                        rl_dequant_fn fn) {
    dequant_job j = {.t = self->t, .fn = fn, .first = (npy_intp)a, .step = 1, .n = b - a};
    j.out = PyArray_DATA((PyArrayObject *)buffer);
    if (!dequant_run(self, &j, 1)) return -1;
    PyObject *part = PySequence_GetSlice(buffer, 0, (Py_ssize_t)(b - a));
    PyObject *dest = PySequence_GetSlice((PyObject *)out, (Py_ssize_t)a, (Py_ssize_t)b);
    PyObject *done = part && dest ? PyArray_MatrixProduct2(part, (PyObject *)x, (PyArrayObject *)dest) : NULL;
    Py_XDECREF(part);
    Py_XDECREF(dest);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

// The type cannot be subclassed, so its deallocator tells it; number slots have no way to the module state.
static int is_tensor(PyObject *o) {
    return Py_TYPE(o)->tp_dealloc == (destructor)tensor_dealloc;
}

static PyObject *tensor_matmul(PyObject *left, PyObject *right) {
    if (!is_tensor(left)) Py_RETURN_NOTIMPLEMENTED; // array @ tensor: dequantize says what it costs
    py_tensor *self = (py_tensor *)left;
    rl_dequant_fn fn = need_dequant(self);
    if (!fn) return NULL;
    PyArrayObject *x = (PyArrayObject *)PyArray_FROM_O(right);
    if (!x) return NULL;
    int type = PyArray_TYPE(x), nd = PyArray_NDIM(x);
    size_t rows = n_rows(self->t), cols = n_cols(self->t);
    if (type != NPY_FLOAT32 && type != NPY_FLOAT64) {
        PyErr_Format(PyExc_TypeError, "tensor @ X needs X in float32 or float64, not %S", (PyObject *)PyArray_DESCR(x));
        Py_DECREF(x);
        return NULL;
    }
    if (nd < 1 || nd > 2 || (size_t)PyArray_DIM(x, 0) != cols || self->t->n_dims < 1) {
        PyErr_Format(PyExc_ValueError, "tensor @ X: %s has %zu columns, so X must have the shape (%zu,) or (%zu, n)",
                     self->t->name, cols, cols, cols);
        Py_DECREF(x);
        return NULL;
    }
    npy_intp flat[2] = {(npy_intp)rows, nd == 2 ? PyArray_DIM(x, 1) : 0};
    PyArrayObject *out = (PyArrayObject *)PyArray_SimpleNew(nd, flat, type);
    size_t step = CHUNK_BYTES / (cols * sizeof(float)) + 1;
    if (step > rows) step = rows;
    npy_intp shape[2] = {(npy_intp)step, (npy_intp)cols};
    PyObject *buffer = out ? PyArray_SimpleNew(2, shape, NPY_FLOAT32) : NULL;
    int rc = buffer ? 0 : -1;
    for (size_t a = 0; rc == 0 && a < rows; a += step) {
        rc = matmul_chunk(self, buffer, x, out, a, a + step < rows ? a + step : rows, fn);
        if (rc == 0) rc = PyErr_CheckSignals();
    }
    Py_XDECREF(buffer);
    PyObject *result = NULL;
    if (rc == 0) { // (rows, n) back to the tensor's axes
        npy_intp dims[RL_MAX_DIMS + 1];
        int k = 0;
        for (int d = (int)self->t->n_dims - 1; d >= 1; d--) dims[k++] = (npy_intp)self->t->dims[d];
        if (nd == 2) dims[k++] = flat[1];
        PyArray_Dims all = {dims, k};
        result = PyArray_Newshape(out, &all, NPY_CORDER);
        if (result && k == 0) result = PyArray_Return((PyArrayObject *)result);
    }
    Py_XDECREF(out);
    Py_DECREF(x);
    return result;
}

static PyObject *tensor_repr(py_tensor *self) {
    PyObject *name = get_name(self, NULL), *type = get_type(self, NULL), *shape = get_shape(self, NULL), *out = NULL;
    if (name && type && shape && self->t->dtype) {
        char bits[24];
        PyOS_snprintf(bits, sizeof bits, "%.4g", 8.0 * (double)self->t->dtype->bytes / (double)self->t->dtype->block);
        out = PyUnicode_FromFormat("<rooflm.Tensor %R: %U %R, %zu bytes, %s bits per weight>", name, type, shape,
                                   self->t->nbytes, bits);
    } else if (name && type && shape) {
        out = PyUnicode_FromFormat("<rooflm.Tensor %R: %U %R>", name, type, shape);
    }
    Py_XDECREF(name);
    Py_XDECREF(type);
    Py_XDECREF(shape);
    return out;
}

// _dequantize(kernel, raw, out, repeats=1) -> seconds of all repeats: one kernel of the table on raw bytes.
static PyObject *run_kernel(PyObject *m, PyObject *args) {
    rl_state *st = rl_state_of_module(m);
    const char *name;
    Py_buffer raw, out;
    int repeats = 1;
    if (!PyArg_ParseTuple(args, "sy*w*|i:_dequantize", &name, &raw, &out, &repeats)) return NULL;
    PyObject *result = NULL;
    rl_dispatch d;
    rl_err err;
    rl_err_clear(&err);
    const rl_kernel *k = NULL;
    if (rl_py_dispatch(st, NULL, NULL, &d) == 0 && rl_kernel_named(&d, name, &k, &err) != RL_OK) rl_raise(st, &err);
    if (k && !PyErr_Occurred()) {
        const rl_dtype *t = k->family == RL_FAM_DEQUANT ? rl_dtype_of(k->type) : NULL;
        size_t n = (size_t)out.len / sizeof(float);
        if (!t || out.len % sizeof(float) || n % t->block || (size_t)raw.len != n / t->block * t->bytes) {
            PyErr_SetString(PyExc_ValueError,
                            "_dequantize needs a dequant kernel and an out of as many float32 as raw has weights");
        } else {
            uint64_t ns;
            Py_BEGIN_ALLOW_THREADS;
            ns = rl_clock_ns();
            for (int i = 0; i < repeats; i++) ((rl_dequant_fn)k->fn)(raw.buf, out.buf, n);
            ns = rl_clock_ns() - ns;
            Py_END_ALLOW_THREADS;
            result = PyFloat_FromDouble((double)ns * 1e-9);
        }
    }
    PyBuffer_Release(&raw);
    PyBuffer_Release(&out);
    return result;
}

// The id and traits of a type by name; NULL with ValueError.
static const rl_dtype *type_named(PyObject *arg, uint32_t *id) {
    const char *name = PyUnicode_AsUTF8(arg);
    if (!name) return NULL;
    *id = rl_dtype_parse(name);
    const rl_dtype *t = rl_dtype_of(*id);
    if (!t) PyErr_Format(PyExc_ValueError, "no GGUF type is called %R", arg);
    return t;
}

static PyObject *type_info(PyObject *m, PyObject *arg) {
    (void)m;
    uint32_t id;
    const rl_dtype *t = type_named(arg, &id);
    return t ? Py_BuildValue("(Inn)", id, (Py_ssize_t)t->block, (Py_ssize_t)t->bytes) : NULL;
}

static PyObject *type_block_dtype(PyObject *m, PyObject *arg) {
    (void)m;
    uint32_t id;
    const rl_dtype *t = type_named(arg, &id);
    return t ? (PyObject *)block_dtype(id, t) : NULL;
}

static PyMethodDef functions[] = {
    {"_dequantize", run_kernel, METH_VARARGS,
     "_dequantize(kernel, raw, out, repeats=1, /)\n--\n\n"
     "Calls one dequantizer of the table on raw bytes into a float32 buffer; returns the seconds of all repeats."},
    {"_type_info", type_info, METH_O,
     "_type_info(type, /)\n--\n\n(id, values per block, bytes per block) of a GGUF type by name."},
    {"_block_dtype", type_block_dtype, METH_O,
     "_block_dtype(type, /)\n--\n\nThe NumPy dtype of one block of a GGUF type, as in Tensor.blocks."},
    {0},
};

static PyMethodDef tensor_methods[] = {
    {"dequantize", (PyCFunction)(void (*)(void))tensor_dequantize, METH_VARARGS | METH_KEYWORDS,
     "dequantize($self, rows=None, out=None, *, threads=None)\n--\n\n"
     "The values as float32, equal to the bit whatever kernel and number of threads.\n\n"
     "rows: None for all, in the tensor's shape; an integer for one row, shape (in,); a slice, indices or a mask for\n"
     "several, shape (n, in). Rows are those of `blocks`: all axes but the last, joined. out: a writeable "
     "C-contiguous\n"
     "float32 array of that shape, which is returned. threads: None for all CPUs when the result is large. The GIL is\n"
     "released. Raises FormatError (.tensor) for a type that cannot be dequantized, IndexError, ValueError."},
    {"__array__", (PyCFunction)(void (*)(void))tensor_array, METH_VARARGS | METH_KEYWORDS,
     "__array__($self, dtype=None, copy=None)\n--\n\n"
     "All values, as dequantize() gives them: np.asarray(tensor) is a float32 array of the tensor's shape. ValueError "
     "with\n"
     "copy=False."},
    {0},
};

static PyType_Slot tensor_slots[] = {
    {Py_tp_doc,
     "One tensor of a GGUF file, in place. `tensor @ X` is the exact product in X's precision: dequantized rows\n"
     "(out, in) times X of shape (in, n) or (in,), float32 or float64, without the whole matrix in memory."},
    {Py_tp_dealloc, tensor_dealloc},
    {Py_tp_repr, tensor_repr},
    {Py_tp_methods, tensor_methods},
    {Py_tp_getset, tensor_getset},
    {Py_nb_matrix_multiply, tensor_matmul},
    {0, NULL},
};

static PyType_Spec tensor_spec = {
    .name = "rooflm._core.Tensor",
    .basicsize = sizeof(py_tensor),
    .flags = Py_TPFLAGS_DEFAULT
#ifdef Py_TPFLAGS_DISALLOW_INSTANTIATION
             | Py_TPFLAGS_DISALLOW_INSTANTIATION
#endif
    ,
    .slots = tensor_slots,
};

int rl_py_add_tensor(PyObject *m, rl_state *st) {
    import_array1(-1);
    st->TensorType = (PyTypeObject *)PyType_FromModuleAndSpec(m, &tensor_spec, NULL);
    if (!st->TensorType) return -1;
#ifndef Py_TPFLAGS_DISALLOW_INSTANTIATION
    st->TensorType->tp_new = NULL;
#endif
    // `array @ tensor` must fail clearly instead of treating the tensor as an object scalar.
    if (PyObject_SetAttrString((PyObject *)st->TensorType, "__array_ufunc__", Py_None) < 0) return -1;
    if (PyModule_AddFunctions(m, functions) < 0) return -1;
    return PyModule_AddObjectRef(m, "Tensor", (PyObject *)st->TensorType);
}
