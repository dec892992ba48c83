// SPDX-License-Identifier: Apache-2.0
// rooflm.attention: softmax(q k) v over a KVCache, the function that a session runs for each layer.
#include "py/kvcache.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "py/kernels.h"
#include "run/attention.h"

static void region_fn(void *arg, rl_team *team, int ith) {
    rl_attention_run(team, ith, arg);
}

// A number, or `none` for None; -1 with an exception set.
static int optional_float(PyObject *obj, const char *name, float none, float *out) {
    *out = none;
    if (obj == Py_None) return 0;
    double x = PyFloat_AsDouble(obj);
    if (x == -1.0 && PyErr_Occurred()) return -1;
    if (!isfinite(x)) {
        PyErr_Format(PyExc_ValueError, "%s must be finite", name);
        return -1;
    }
    *out = (float)x;
    return 0;
}

static int check_shape(PyArrayObject *q, const rl_kv *kv, Py_ssize_t layer) {
    const rl_kv_config *c = rl_kv_config_of(kv);
    const rl_kv_layer_config *l = &c->layers[layer];
    const npy_intp *d = PyArray_DIMS(q);
    PyObject *shape = PyObject_GetAttrString((PyObject *)q, "shape");
    if (!shape) return -1;
    if (PyArray_NDIM(q) != 3 || (size_t)d[2] != l->dim_k)
        PyErr_Format(PyExc_ValueError, "q has shape %R; it must be (tokens, heads, %zu), the cache's dim_k", shape,
                     l->dim_k);
    else if (d[0] < 1 || (size_t)d[0] > rl_kv_length(kv))
        PyErr_Format(PyExc_ValueError,
                     "q has shape %R: its %zd tokens must be the last ones of the cache, which has %zu", shape, d[0],
                     rl_kv_length(kv));
    else if (d[1] < 1 || (size_t)d[1] % l->n_head_kv != 0)
        PyErr_Format(PyExc_ValueError, "q has shape %R: its %zd heads must be a multiple of the cache's %zu KV heads",
                     shape, d[1], l->n_head_kv);
    Py_DECREF(shape);
    return PyErr_Occurred() ? -1 : 0;
}

// Everything the first query may see must still be there.
static int check_window(const rl_kv *kv, Py_ssize_t layer, size_t pos0, size_t window) {
    size_t own = rl_kv_config_of(kv)->layers[layer].window, first = rl_kv_first(kv, (size_t)layer);
    if (own && (!window || own < window)) window = own;
    size_t need = window && pos0 + 1 > window ? pos0 + 1 - window : 0;
    if (first <= need) return 0;
    PyErr_Format(PyExc_ValueError,
                 "the query at position %zu sees positions from %zu on, but layer %zd holds them from %zu on only",
                 pos0, need, layer, first);
    return -1;
}

static PyObject *attention(PyObject *module, PyObject *args, PyObject *kw) {
    static char *names[] = {"q",     "kv",      "layer",          "scale", "window",  "softcap", "causal",
                            "sinks", "threads", "return_weights", "isa",   "kernels", NULL};
    static const char *const counts[] = {"layer", "window", "threads", NULL};
    PyObject *q_obj, *kv_obj, *scale = Py_None, *window = Py_None, *softcap = Py_None, *sinks_obj = Py_None;
    Py_ssize_t layer = 0;
    int causal = 1, threads = 1, return_weights = 0;
    PyObject *isa = Py_None, *kernels = Py_None;
    if (rl_py_check_keywords(kw, "attention", names) < 0 || rl_py_check_counts(kw, counts) < 0) return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "OO|$nOOOpOipOO:attention", names, &q_obj, &kv_obj, &layer, &scale,
                                     &window, &softcap, &causal, &sinks_obj, &threads, &return_weights, &isa, &kernels))
        return NULL;
    rl_state *st = rl_state_of_module(module);
    rl_dispatch d;
    if (rl_py_dispatch(st, isa, kernels, &d) < 0) return NULL;
    if (threads < 1 || threads > RL_MAX_THREADS)
        return PyErr_Format(PyExc_ValueError, "threads is %d, it must be from 1 to %d", threads, RL_MAX_THREADS);
    Py_ssize_t w = 0;
    if (window != Py_None) {
        w = PyNumber_AsSsize_t(window, PyExc_OverflowError);
        if (w == -1 && PyErr_Occurred()) return NULL;
        if (w < 1) return PyErr_Format(PyExc_ValueError, "window is %zd, it must be None or at least 1", w);
    }
    rl_kv *kv = rl_py_kvcache_acquire(st, kv_obj);
    if (!kv) return NULL;

    PyObject *result = NULL, *out = NULL, *weights = NULL;
    PyArrayObject *q = NULL, *sinks = NULL;
    const rl_kv_config *c = rl_kv_config_of(kv);
    if (layer < 0 || (size_t)layer >= c->n_layer) {
        PyErr_Format(PyExc_ValueError, "layer %zd: the cache has %zu layers", layer, c->n_layer);
        goto done;
    }
    q = (PyArrayObject *)PyArray_FROM_OTF(q_obj, NPY_FLOAT32, NPY_ARRAY_IN_ARRAY | NPY_ARRAY_FORCECAST);
    if (!q || check_shape(q, kv, layer) < 0) goto done;
    const rl_kv_layer_config *l = &c->layers[layer];
    size_t n_tok = (size_t)PyArray_DIM(q, 0), n_head = (size_t)PyArray_DIM(q, 1), pos0 = rl_kv_length(kv) - n_tok;
    if (check_window(kv, layer, pos0, (size_t)w) < 0) goto done;
    if (sinks_obj != Py_None) {
        sinks = (PyArrayObject *)PyArray_FROM_OTF(sinks_obj, NPY_FLOAT32, NPY_ARRAY_IN_ARRAY | NPY_ARRAY_FORCECAST);
        if (!sinks) goto done;
        if (PyArray_NDIM(sinks) != 1 || (size_t)PyArray_DIM(sinks, 0) != n_head) {
            PyErr_Format(PyExc_ValueError, "sinks must have one logit per head: shape (%zu,)", n_head);
            goto done;
        }
    }
    npy_intp dims[3] = {(npy_intp)n_tok, (npy_intp)n_head, (npy_intp)l->dim_v};
    out = PyArray_SimpleNew(3, dims, NPY_FLOAT32);
    dims[2] = (npy_intp)rl_kv_length(kv);
    if (out && return_weights) weights = PyArray_SimpleNew(3, dims, NPY_FLOAT32);
    if (!out || (return_weights && !weights)) goto done;
    rl_attention_args a = {.kv = kv,
                           .d = &d,
                           .layer = (size_t)layer,
                           .q = PyArray_DATA(q),
                           .ld_q = n_head * l->dim_k,
                           .out = PyArray_DATA((PyArrayObject *)out),
                           .ld_out = n_head * l->dim_v,
                           .n_tok = n_tok,
                           .n_head = n_head,
                           .pos0 = pos0,
                           .window = (size_t)w,
                           .causal = causal,
                           .sinks = sinks ? PyArray_DATA(sinks) : NULL,
                           .weights = weights ? PyArray_DATA((PyArrayObject *)weights) : NULL};
    if (optional_float(scale, "scale", 1.0f / sqrtf((float)l->dim_k), &a.scale) < 0 ||
        optional_float(softcap, "softcap", 0.0f, &a.softcap) < 0)
        goto done;
    if (posix_memalign(&a.scratch, 64, rl_attention_scratch(c, n_head, n_tok, rl_kv_length(kv), threads) + 64) != 0) {
        PyErr_NoMemory();
        goto done;
    }
    if (rl_py_run(st, region_fn, &a, threads) == 0) result = weights ? PyTuple_Pack(2, out, weights) : Py_NewRef(out);
    free(a.scratch);
done:
    rl_py_kvcache_release(kv_obj);
    Py_XDECREF(q);
    Py_XDECREF(sinks);
    Py_XDECREF(out);
    Py_XDECREF(weights);
    return result;
}

static PyObject *attention_kernels(PyObject *module, PyObject *args) {
    PyObject *kv_obj, *isa = Py_None, *kernels = Py_None;
    Py_ssize_t n_tok;
    if (!PyArg_ParseTuple(args, "On|OO:_attention_kernels", &kv_obj, &n_tok, &isa, &kernels)) return NULL;
    rl_state *st = rl_state_of_module(module);
    rl_dispatch d;
    if (rl_py_dispatch(st, isa, kernels, &d) < 0) return NULL;
    rl_kv *kv = rl_py_kvcache_acquire(st, kv_obj);
    if (!kv) return NULL;
    const rl_kernel *found[RL_ATTENTION_KERNELS];
    size_t n = rl_attention_kernels(kv, &d, n_tok > 0 ? (size_t)n_tok : 1, found);
    rl_py_kvcache_release(kv_obj);
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list && i < n; i++) {
        PyObject *name = PyUnicode_FromString(found[i]->name);
        if (!name) Py_CLEAR(list);
        if (list) PyList_SET_ITEM(list, (Py_ssize_t)i, name);
    }
    return list;
}

// ---- timing: what bench/attention.py calls ----

typedef struct {
    rl_attention_args args;
    size_t n_layer, repeats;
    double *seconds;
} timing;

static void timing_fn(void *arg, rl_team *team, int ith) {
    timing *t = arg;
    rl_attention_args a = t->args;
    for (size_t i = 0; i <= t->repeats; i++) { // the first walk warms up
        uint64_t start = rl_clock_ns();
        for (size_t layer = 0; layer < t->n_layer; layer++) {
            a.layer = layer;
            if (!rl_attention_run(team, ith, &a) || !rl_team_barrier(team, ith)) return;
        }
        if (ith == 0 && i > 0) t->seconds[i - 1] = (double)(rl_clock_ns() - start) * 1e-9;
    }
}

static PyObject *attention_time(PyObject *module, PyObject *args) {
    PyObject *q_obj, *kv_obj, *isa = Py_None, *kernels = Py_None, *out = NULL;
    int threads;
    Py_ssize_t repeats;
    if (!PyArg_ParseTuple(args, "OOin|OO:_attention_time", &q_obj, &kv_obj, &threads, &repeats, &isa, &kernels))
        return NULL;
    rl_state *st = rl_state_of_module(module);
    rl_dispatch d;
    if (threads < 1 || threads > RL_MAX_THREADS || repeats < 1 || repeats > 1000000)
        return PyErr_Format(PyExc_ValueError, "threads %d, repeats %zd", threads, repeats);
    if (rl_py_dispatch(st, isa, kernels, &d) < 0) return NULL;
    rl_kv *kv = rl_py_kvcache_acquire(st, kv_obj);
    if (!kv) return NULL;
    PyArrayObject *q = (PyArrayObject *)PyArray_FROM_OTF(q_obj, NPY_FLOAT32, NPY_ARRAY_IN_ARRAY);
    const rl_kv_config *c = rl_kv_config_of(kv);
    const rl_kv_layer_config *l = &c->layers[0];
    float *result = NULL;
    double *seconds = NULL;
    void *scratch = NULL;
    if (!q || check_shape(q, kv, 0) < 0) goto done;
    size_t n_tok = (size_t)PyArray_DIM(q, 0), n_head = (size_t)PyArray_DIM(q, 1);
    result = malloc(n_tok * n_head * l->dim_v * sizeof *result);
    seconds = malloc((size_t)repeats * sizeof *seconds);
    if (!result || !seconds ||
        posix_memalign(&scratch, 64, rl_attention_scratch(c, n_head, n_tok, rl_kv_length(kv), threads) + 64) != 0) {
        PyErr_NoMemory();
        goto done;
    }
    timing t = {.args = {.kv = kv,
                         .d = &d,
                         .q = PyArray_DATA(q),
                         .ld_q = n_head * l->dim_k,
                         .out = result,
                         .ld_out = n_head * l->dim_v,
                         .n_tok = n_tok,
                         .n_head = n_head,
                         .pos0 = rl_kv_length(kv) - n_tok,
                         .scale = 1.0f / sqrtf((float)l->dim_k),
                         .causal = true,
                         .scratch = scratch},
                .n_layer = c->n_layer,
                .repeats = (size_t)repeats,
                .seconds = seconds};
    if (rl_py_run(st, timing_fn, &t, threads) == 0) {
        out = PyList_New(repeats);
        for (Py_ssize_t i = 0; out && i < repeats; i++) {
            PyObject *x = PyFloat_FromDouble(seconds[i]);
            if (!x) Py_CLEAR(out);
            if (out) PyList_SET_ITEM(out, i, x);
        }
    }
done:
    rl_py_kvcache_release(kv_obj);
    Py_XDECREF(q);
    free(result);
    free(seconds);
    free(scratch);
    return out;
}

static PyMethodDef functions[] = {
    {"_attention_time", attention_time, METH_VARARGS,
     "_attention_time($module, q, kv, threads, repeats, isa=None, kernels=None, /)\n--\n\n"
     "Seconds of each of `repeats` walks of attention over all layers of a KVCache, in one parallel region after\n"
     "one walk to warm up."},
    {"_attention_kernels", attention_kernels, METH_VARARGS,
     "_attention_kernels($module, kv, tokens, isa=None, kernels=None, /)\n--\n\n"
     "Names of the kernels that attention over this cache runs for so many tokens."},
    {"attention", (PyCFunction)(void (*)(void))attention, METH_VARARGS | METH_KEYWORDS,
     "attention($module, q, kv, *, layer=0, scale=None, window=None, softcap=None, causal=True, sinks=None, threads=1, "
     "return_weights=False, isa=None, kernels=None)\n--\n\n"
     "Attention of the last tokens of a KVCache: q (tokens, n_head, dim_k) to float32 (tokens, n_head, dim_v).\n\n"
     "n_head is a multiple of the cache's KV heads; head h reads KV head h // (n_head / n_head_kv). scale: 1 /\n"
     "sqrt(dim_k) by default. window: tokens a query sees, itself included (a layer's own window applies as well).\n"
     "softcap: cap * tanh(score / cap). causal=False: every query sees all tokens. sinks: a logit per head that\n"
     "joins the softmax without a value. return_weights=True: also the softmax, (tokens, n_head, length).\n"
     "isa: the best tier of kernels to use (\"ref\", \"avx2\", ...), kernels: names of kernels to prefer.\n"
     "The result has the same bits for any number of threads. ValueError for sizes that do not fit or positions\n"
     "that a window no longer holds."},
    {NULL, NULL, 0, NULL}};

int rl_py_add_attention(PyObject *m, rl_state *st) {
    (void)st;
    import_array1(-1);
    return PyModule_AddFunctions(m, functions);
}
