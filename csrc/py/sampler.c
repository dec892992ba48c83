// SPDX-License-Identifier: Apache-2.0
// rooflm.Sampler.
#include "py/sampler.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>
#include <stdlib.h>

typedef struct {
    PyObject_HEAD rl_sampler *s;
    PyObject *bias; // dict as given, or NULL
} py_sampler;

rl_sampler *rl_py_sampler_of(rl_state *st, PyObject *o) {
    if (PyObject_TypeCheck(o, st->SamplerType)) return ((py_sampler *)o)->s;
    PyErr_Format(PyExc_TypeError, "sampler must be a rooflm.Sampler, not %.80s", Py_TYPE(o)->tp_name);
    return NULL;
}

typedef struct {
    int32_t id;
    float bias;
} bias_entry;

static int by_id(const void *a, const void *b) {
    int32_t x = ((const bias_entry *)a)->id, y = ((const bias_entry *)b)->id;
    return (x > y) - (x < y);
}

// {id: bias} into ascending arrays, in one block at *ids (freed by the caller).
static int get_bias(PyObject *dict, rl_sampler_params *p, int32_t **ids) {
    *ids = NULL;
    if (!dict) return 0;
    size_t n = (size_t)PyDict_Size(dict), i = 0;
    bias_entry *e = PyMem_Malloc((n + 1) * (sizeof *e + sizeof **ids + sizeof(float)));
    if (!e) {
        PyErr_NoMemory();
        return -1;
    }
    PyObject *key, *value;
    for (Py_ssize_t pos = 0; PyDict_Next(dict, &pos, &key, &value); i++) {
        PyObject *index = PyNumber_Index(key);
        long long id = index ? PyLong_AsLongLong(index) : -1;
        Py_XDECREF(index);
        double b = PyErr_Occurred() ? 0.0 : PyFloat_AsDouble(value);
        if (PyErr_Occurred() || id < 0 || id > INT32_MAX) {
            if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_OverflowError))
                PyErr_Format(PyExc_ValueError, "logit_bias: %R is no token id", key);
            PyMem_Free(e);
            return -1;
        }
        e[i] = (bias_entry){(int32_t)id, (float)b};
    }
    qsort(e, n, sizeof *e, by_id);
    int32_t *id = PyMem_Malloc((n + 1) * sizeof *id * 2);
    if (!id) {
        PyMem_Free(e);
        PyErr_NoMemory();
        return -1;
    }
    float *b = (float *)(void *)(id + n);
    for (i = 0; i < n; i++) {
        id[i] = e[i].id;
        b[i] = e[i].bias;
    }
    PyMem_Free(e);
    p->bias_ids = *ids = id;
    p->bias = b;
    p->n_bias = n;
    return 0;
}

static int draw_seed(uint64_t *seed) {
    PyObject *os = PyImport_ImportModule("os"), *bytes = os ? PyObject_CallMethod(os, "urandom", "i", 4) : NULL;
    Py_XDECREF(os);
    if (!bytes) return -1;
    uint32_t v = 0; // 32 bits: enough to be told apart, short enough to be typed
    memcpy(&v, PyBytes_AS_STRING(bytes), sizeof v);
    Py_DECREF(bytes);
    *seed = v;
    return 0;
}

// An integer argument within [lo, hi], or a ValueError that names it.
static int get_integer(PyObject *o, const char *name, long long lo, long long hi, long long *out) {
    if (!o) return 0;
    PyObject *index = rl_py_check_whole(name, o) < 0 ? NULL : PyNumber_Index(o);
    if (!index) return -1;
    int overflow;
    long long v = PyLong_AsLongLongAndOverflow(index, &overflow);
    Py_DECREF(index);
    if (overflow || v < lo || v > hi) {
        PyErr_Format(PyExc_ValueError, "%s must be from %lld to %lld, not %R", name, lo, hi, o);
        return -1;
    }
    *out = v;
    return 0;
}

static int get_seed(PyObject *o, uint64_t *seed) {
    if (!o || o == Py_None) return draw_seed(seed);
    PyObject *index = rl_py_check_whole("seed", o) < 0 ? NULL : PyNumber_Index(o);
    if (!index) return -1;
    *seed = PyLong_AsUnsignedLongLong(index);
    Py_DECREF(index);
    if (!PyErr_Occurred()) return 0;
    PyErr_Format(PyExc_ValueError, "seed must be from 0 to 2**64 - 1, not %R", o);
    return -1;
}

static PyObject *make(PyTypeObject *type, rl_sampler_params *p, PyObject *bias) {
    rl_state *st = rl_state_of_type(type);
    rl_err err;
    rl_sampler *s;
    int32_t *ids;
    if (get_bias(bias, p, &ids) < 0) return NULL;
    rl_status rc = rl_sampler_create(&s, p, &err);
    PyMem_Free(ids);
    if (rc != RL_OK) return rl_raise(st, &err);
    py_sampler *self = (py_sampler *)type->tp_alloc(type, 0);
    if (!self) {
        rl_sampler_free(s);
        return NULL;
    }
    self->s = s;
    self->bias = bias ? PyDict_Copy(bias) : NULL;
    if (bias && !self->bias) Py_CLEAR(self);
    return (PyObject *)self;
}

static PyObject *sampler_new(PyTypeObject *type, PyObject *args, PyObject *kw) {
    static char *names[] = {"temperature",   "top_k",      "top_p", "min_p", "repeat_penalty",
                            "repeat_last_n", "logit_bias", "seed",  NULL};
    rl_sampler_params p = {.temperature = 0.8, .top_p = 0.95, .min_p = 0.05, .repeat_penalty = 1.0};
    PyObject *top_k = NULL, *last_n = NULL, *bias = NULL, *seed = NULL;
    if (rl_py_check_keywords(kw, "Sampler", names) < 0) return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|$dOdddOOO:Sampler", names, &p.temperature, &top_k, &p.top_p, &p.min_p,
                                     &p.repeat_penalty, &last_n, &bias, &seed))
        return NULL;
    long long k = 40, n = 64;
    if (get_integer(top_k, "top_k", 0, INT32_MAX, &k) < 0) return NULL;
    if (get_integer(last_n, "repeat_last_n", -1, INT32_MAX, &n) < 0 || get_seed(seed, &p.seed) < 0) return NULL;
    if (bias == Py_None) bias = NULL;
    if (bias && !PyDict_Check(bias)) {
        PyErr_Format(PyExc_TypeError, "logit_bias must be a dict {id: bias}, not %.80s", Py_TYPE(bias)->tp_name);
        return NULL;
    }
    p.top_k = (size_t)k;
    p.repeat_last_n = n;
    return make(type, &p, bias);
}

static PyObject *sampler_greedy(PyObject *type, PyObject *unused) {
    (void)unused;
    rl_sampler_params p = {.temperature = 0.0, .top_p = 1.0, .repeat_penalty = 1.0, .repeat_last_n = 64};
    return make((PyTypeObject *)type, &p, NULL);
}

static void sampler_dealloc(py_sampler *self) {
    PyTypeObject *type = Py_TYPE(self);
    rl_sampler_free(self->s);
    Py_XDECREF(self->bias);
    type->tp_free(self);
    Py_DECREF(type);
}

// A one-dimensional array of numbers as float32 or int32; the name is for the messages.
static PyArrayObject *get_logits(PyObject *o) {
    PyArrayObject *a = (PyArrayObject *)PyArray_FROM_O(o);
    if (!a) return NULL;
    if (PyArray_NDIM(a) != 1 || PyArray_SIZE(a) == 0 || !(PyArray_ISFLOAT(a) || PyArray_ISINTEGER(a))) {
        PyErr_Format(PyExc_ValueError, "logits must be numbers in one dimension, not %R of %d dimensions",
                     (PyObject *)PyArray_DESCR(a), PyArray_NDIM(a));
        Py_DECREF(a);
        return NULL;
    }
    PyArrayObject *f =
        (PyArrayObject *)PyArray_FROMANY((PyObject *)a, NPY_FLOAT32, 1, 1, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST);
    Py_DECREF(a);
    return f;
}

static PyArrayObject *get_history(PyObject *o) {
    npy_intp none = 0;
    if (!o || o == Py_None) return (PyArrayObject *)PyArray_SimpleNew(1, &none, NPY_INT32);
    PyArrayObject *a = (PyArrayObject *)PyArray_FROM_O(o), *wide = NULL, *ids = NULL;
    if (!a) return NULL;
    if (PyArray_NDIM(a) != 1 || !(PyArray_ISINTEGER(a) || PyArray_SIZE(a) == 0)) {
        PyErr_SetString(PyExc_ValueError, "history must be token ids in one dimension");
        goto done;
    }
    wide = (PyArrayObject *)PyArray_FROMANY((PyObject *)a, NPY_INT64, 1, 1, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST);
    npy_intp n = wide ? PyArray_SIZE(wide) : 0;
    if (wide) ids = (PyArrayObject *)PyArray_SimpleNew(1, &n, NPY_INT32);
    for (npy_intp i = 0; ids && i < n; i++) {
        int64_t v = ((const int64_t *)PyArray_DATA(wide))[i];
        if (v < 0 || v > INT32_MAX) {
            PyErr_Format(PyExc_ValueError, "history[%zd] is no token id: %lld", (Py_ssize_t)i, (long long)v);
            Py_CLEAR(ids);
        } else {
            ((int32_t *)PyArray_DATA(ids))[i] = (int32_t)v;
        }
    }
done:
    Py_DECREF(a);
    Py_XDECREF(wide);
    return ids;
}

static int get_both(PyObject *args, PyObject *kw, const char *function, const char *format, PyArrayObject **logits,
                    PyArrayObject **history) {
    static char *names[] = {"logits", "history", NULL};
    PyObject *l, *h = NULL;
    if (rl_py_check_keywords(kw, function, names) < 0) return -1;
    if (!PyArg_ParseTupleAndKeywords(args, kw, format, names, &l, &h)) return -1;
    *logits = get_logits(l);
    *history = *logits ? get_history(h) : NULL;
    if (*history) return 0;
    Py_XDECREF(*logits);
    return -1;
}

static PyObject *sampler_sample(py_sampler *self, PyObject *args, PyObject *kw) {
    PyArrayObject *l, *h;
    if (get_both(args, kw, "Sampler.sample", "O|O:sample", &l, &h) < 0) return NULL;
    rl_err err;
    int32_t id;
    rl_status rc = rl_sampler_sample(self->s, PyArray_DATA(l), (size_t)PyArray_SIZE(l), PyArray_DATA(h),
                                     (size_t)PyArray_SIZE(h), &id, &err);
    Py_DECREF(l), Py_DECREF(h);
    if (rc != RL_OK) return rl_raise(rl_state_of_type(Py_TYPE(self)), &err);
    return PyLong_FromLong(id);
}

static PyObject *sampler_probs(py_sampler *self, PyObject *args, PyObject *kw) {
    PyArrayObject *l, *h;
    if (get_both(args, kw, "Sampler.probs", "O|O:probs", &l, &h) < 0) return NULL;
    npy_intp n = PyArray_SIZE(l);
    PyObject *out = PyArray_SimpleNew(1, &n, NPY_FLOAT64);
    rl_err err;
    rl_status rc = RL_OK;
    if (out)
        rc = rl_sampler_probs(self->s, PyArray_DATA(l), (size_t)n, PyArray_DATA(h), (size_t)PyArray_SIZE(h),
                              PyArray_DATA((PyArrayObject *)out), &err);
    Py_DECREF(l), Py_DECREF(h);
    if (rc == RL_OK) return out;
    Py_DECREF(out);
    return rl_raise(rl_state_of_type(Py_TYPE(self)), &err);
}

static PyObject *sampler_reset(py_sampler *self, PyObject *unused) {
    (void)unused;
    rl_sampler_reset(self->s);
    Py_RETURN_NONE;
}

static PyObject *sampler_repr(py_sampler *self) {
    const rl_sampler_params *p = rl_sampler_params_of(self->s);
    if (p->temperature == 0.0 && p->repeat_penalty == 1.0 && !p->n_bias)
        return PyUnicode_FromString("Sampler(temperature=0.0)");
    char text[256];
    char *f[4] = {PyOS_double_to_string(p->temperature, 'r', 0, Py_DTSF_ADD_DOT_0, NULL),
                  PyOS_double_to_string(p->top_p, 'r', 0, Py_DTSF_ADD_DOT_0, NULL),
                  PyOS_double_to_string(p->min_p, 'r', 0, Py_DTSF_ADD_DOT_0, NULL),
                  PyOS_double_to_string(p->repeat_penalty, 'r', 0, Py_DTSF_ADD_DOT_0, NULL)};
    int ok = f[0] && f[1] && f[2] && f[3];
    if (ok)
        PyOS_snprintf(text, sizeof text,
                      "temperature=%s, top_k=%zu, top_p=%s, min_p=%s, repeat_penalty=%s, repeat_last_n=%lld", f[0],
                      p->top_k, f[1], f[2], f[3], (long long)p->repeat_last_n);
    for (int i = 0; i < 4; i++) PyMem_Free(f[i]);
    if (!ok) return NULL;
    if (self->bias)
        return PyUnicode_FromFormat("Sampler(%s, logit_bias=%R, seed=%llu)", text, self->bias,
                                    (unsigned long long)p->seed);
    return PyUnicode_FromFormat("Sampler(%s, seed=%llu)", text, (unsigned long long)p->seed);
}

enum { TEMPERATURE, TOP_K, TOP_P, MIN_P, REPEAT_PENALTY, REPEAT_LAST_N, LOGIT_BIAS, SEED };

static PyObject *sampler_get(py_sampler *self, void *which) {
    const rl_sampler_params *p = rl_sampler_params_of(self->s);
    switch ((intptr_t)which) {
    case TEMPERATURE:
        return PyFloat_FromDouble(p->temperature);
    case TOP_K:
        return PyLong_FromSize_t(p->top_k);
    case TOP_P:
        return PyFloat_FromDouble(p->top_p);
    case MIN_P:
        return PyFloat_FromDouble(p->min_p);
    case REPEAT_PENALTY:
        return PyFloat_FromDouble(p->repeat_penalty);
    case REPEAT_LAST_N:
        return PyLong_FromLongLong(p->repeat_last_n);
    case LOGIT_BIAS:
        if (self->bias) return PyDict_Copy(self->bias);
        Py_RETURN_NONE;
    default:
        return PyLong_FromUnsignedLongLong(p->seed);
    }
}

#define GET(name, which, doc)                                                                                          \
    { name, (getter)sampler_get, NULL, doc, (void *)(intptr_t)which }
static PyGetSetDef getset[] = {GET("temperature", TEMPERATURE, "0 is greedy."),
                               GET("top_k", TOP_K, "How many of the likeliest tokens stay; 0: all."),
                               GET("top_p", TOP_P, "Share of probability that the likeliest tokens must hold."),
                               GET("min_p", MIN_P, "Least probability, as a share of the likeliest token's."),
                               GET("repeat_penalty", REPEAT_PENALTY, "1: none."),
                               GET("repeat_last_n", REPEAT_LAST_N, "Recent tokens that are penalized; -1: all."),
                               GET("logit_bias", LOGIT_BIAS, "{id: what is added to its logit}, or None."),
                               GET("seed", SEED, "The seed in use, also when it was drawn."),
                               {NULL, NULL, NULL, NULL, NULL}};

PyDoc_STRVAR(
    sampler_doc,
    "Sampler(*, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repeat_penalty=1.0, repeat_last_n=64, "
    "logit_bias=None, seed=None)\n--\n\n"
    "Chooses a token from logits. The steps, in this order: logit_bias ({id: float}, -inf bans), repeat\n"
    "penalty on the last repeat_last_n tokens of the history (-1: all), top_k (0: all), top_p, min_p (both of\n"
    "the probabilities before the temperature), temperature (0: greedy, the first of equals), draw.\n\n"
    "The same seed and calls give the same ids; seed=None draws a seed, which .seed and repr show. A value out\n"
    "of range is a ValueError that names it.");
PyDoc_STRVAR(greedy_doc, "greedy()\n--\n\nA sampler that always takes the greatest logit, the first of equals.");
PyDoc_STRVAR(sample_doc,
             "sample(logits, history=None)\n--\n\n"
             "One token id from logits (n_vocab,). history: ids so far, for the repeat penalty. ValueError\n"
             "for a NaN or +inf logit, for logits that are all -inf, and for ids not below n_vocab.");
PyDoc_STRVAR(probs_doc, "probs(logits, history=None)\n--\n\n"
                        "The probabilities that sample() draws from, (n_vocab,) float64, sum 1. Uses up no draw.");
PyDoc_STRVAR(reset_doc, "reset()\n--\n\nBegins the draws again, as after creation with the same seed.");

static PyMethodDef methods[] = {
    {"greedy", sampler_greedy, METH_NOARGS | METH_CLASS, greedy_doc},
    {"sample", (PyCFunction)(void (*)(void))sampler_sample, METH_VARARGS | METH_KEYWORDS, sample_doc},
    {"probs", (PyCFunction)(void (*)(void))sampler_probs, METH_VARARGS | METH_KEYWORDS, probs_doc},
    {"reset", (PyCFunction)sampler_reset, METH_NOARGS, reset_doc},
    {NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {{Py_tp_new, sampler_new},
                              {Py_tp_dealloc, sampler_dealloc},
                              {Py_tp_repr, sampler_repr},
                              {Py_tp_methods, methods},
                              {Py_tp_getset, getset},
                              {Py_tp_doc, (void *)sampler_doc},
                              {0, NULL}};
static PyType_Spec spec = {"rooflm.Sampler", sizeof(py_sampler), 0, Py_TPFLAGS_DEFAULT, slots};

static int import_numpy(void) {
    import_array1(-1);
    return 0;
}

int rl_py_add_sampler(PyObject *m, rl_state *st) {
    if (import_numpy() < 0) return -1;
    st->SamplerType = (PyTypeObject *)PyType_FromModuleAndSpec(m, &spec, NULL);
    if (!st->SamplerType) return -1;
    return PyModule_AddObjectRef(m, "Sampler", (PyObject *)st->SamplerType);
}
