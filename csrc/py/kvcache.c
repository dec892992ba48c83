// SPDX-License-Identifier: Apache-2.0
// rooflm.KVCache: the paged cache without a model.
#include "py/kvcache.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

#include <stdio.h>
#include <string.h>

#include "kernels/attn.h"
#include "py/files.h"

typedef struct {
    PyObject_HEAD rl_kv *kv;
    int busy; // changed with the GIL held
} kvcache;

static const char *const TYPES[] = {"f32", "f16", "q8_0"};
static const char *const LAYOUTS[] = {"tile", "token", "head"};

static int parse_type(const char *s, size_t n, rl_kv_type *out) {
    for (int i = 0; i < 3; i++)
        if (strlen(TYPES[i]) == n && memcmp(TYPES[i], s, n) == 0) {
            *out = (rl_kv_type)i;
            return 0;
        }
    return -1;
}

int rl_py_kv_parse(const char *text, rl_kv_type *k, rl_kv_type *v) {
    const char *slash = strchr(text, '/');
    size_t n = slash ? (size_t)(slash - text) : strlen(text);
    const char *second = slash ? slash + 1 : text;
    if (parse_type(text, n, k) == 0 && parse_type(second, strlen(second), v) == 0) return 0;
    PyErr_Format(PyExc_ValueError,
                 "kv is '%.60s'; it is \"f32\", \"f16\" or \"q8_0\", or two of them for K and V such as \"q8_0/f16\"",
                 text);
    return -1;
}

void rl_py_kv_format(rl_kv_type k, rl_kv_type v, char *out) {
    if (k == v)
        snprintf(out, 16, "%s", TYPES[k]);
    else
        snprintf(out, 16, "%s/%s", TYPES[k], TYPES[v]);
}

static int take(kvcache *self) {
    if (self->busy) {
        PyErr_SetString(rl_state_of_type(Py_TYPE(self))->SessionBusy, "the KV cache is in use by another thread");
        return -1;
    }
    self->busy = 1;
    return 0;
}

rl_kv *rl_py_kvcache_acquire(rl_state *st, PyObject *obj) {
    if (!PyObject_TypeCheck(obj, st->KVCacheType)) {
        PyErr_Format(PyExc_TypeError, "kv must be a KVCache, not %.100s", Py_TYPE(obj)->tp_name);
        return NULL;
    }
    return take((kvcache *)obj) < 0 ? NULL : ((kvcache *)obj)->kv;
}

void rl_py_kvcache_release(PyObject *obj) {
    ((kvcache *)obj)->busy = 0;
}

static const rl_kv *get_kv(PyObject *owner) {
    kvcache *self = (kvcache *)owner;
    if (self->busy) {
        PyErr_SetString(rl_state_of_type(Py_TYPE(self))->SessionBusy, "the KV cache is in use by another thread");
        return NULL;
    }
    return self->kv;
}

// ---- making one ----

// A window per layer from None, one number or a sequence (None or 0: full attention).
static int parse_windows(PyObject *window, rl_kv_layer_config *layers, Py_ssize_t n_layer) {
    PyObject *seq = NULL;
    if (PySequence_Check(window)) {
        seq = PySequence_Fast(window, "window must be None, a number, or one of these per layer");
        if (!seq) return -1;
        if (PySequence_Fast_GET_SIZE(seq) != n_layer) {
            PyErr_Format(PyExc_ValueError, "window has %zd entries for %zd layers", PySequence_Fast_GET_SIZE(seq),
                         n_layer);
            Py_DECREF(seq);
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < n_layer; i++) {
        PyObject *w = seq ? PySequence_Fast_GET_ITEM(seq, i) : window;
        if (w == Py_None) continue;
        Py_ssize_t n = rl_py_check_whole("window", w) < 0 ? -1 : PyNumber_AsSsize_t(w, PyExc_OverflowError);
        if (n < 0) {
            if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "window is %zd, it must not be negative", n);
            Py_XDECREF(seq);
            return -1;
        }
        layers[i].window = (size_t)n;
    }
    Py_XDECREF(seq);
    return 0;
}

static int parse_layout(const char *s, rl_kv_layout *out) {
    for (int i = 0; i < 3; i++)
        if (strcmp(LAYOUTS[i], s) == 0) {
            *out = (rl_kv_layout)i;
            return 0;
        }
    PyErr_Format(PyExc_ValueError, "layout is '%.60s'; it is \"tile\", \"token\" or \"head\"", s);
    return -1;
}

static PyObject *kvcache_wrap(PyTypeObject *type, rl_kv *kv) {
    kvcache *self = (kvcache *)type->tp_alloc(type, 0);
    if (!self)
        rl_kv_free(kv);
    else
        self->kv = kv;
    return (PyObject *)self;
}

static PyObject *kvcache_new(PyTypeObject *type, PyObject *args, PyObject *kw) {
    static char *names[] = {"n_layer", "n_head_kv", "head_dim", "dim_k",  "dim_v",        "n_ctx",
                            "kv",      "layout",    "window",   "rotate", "window_slack", NULL};
    static const char *const counts[] = {"n_layer", "n_head_kv", "head_dim",     "dim_k",
                                         "dim_v",   "n_ctx",     "window_slack", NULL};
    Py_ssize_t n_layer = 1, n_head_kv = 0, n_ctx = 0, slack = 512;
    PyObject *head_dim = Py_None, *dim_k = Py_None, *dim_v = Py_None, *window = Py_None, *rotate = Py_None;
    const char *kv_text = "f16", *layout = "tile";
    if (rl_py_check_keywords(kw, "KVCache", names) < 0 || rl_py_check_counts(kw, counts) < 0) return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|n$nOOOnssOOn:KVCache", names, &n_layer, &n_head_kv, &head_dim, &dim_k,
                                     &dim_v, &n_ctx, &kv_text, &layout, &window, &rotate, &slack))
        return NULL;
    if (n_layer < 1 || n_layer > 4096 || n_head_kv < 1 || n_ctx < 1 || slack < 0)
        return PyErr_Format(PyExc_ValueError,
                            "n_layer %zd must be from 1 to 4096, n_head_kv %zd and n_ctx %zd at least 1, window_slack "
                            "%zd at least 0",
                            n_layer, n_head_kv, n_ctx, slack);
    Py_ssize_t dims[2];
    for (int i = 0; i < 2; i++) {
        PyObject *d = i ? dim_v : dim_k;
        if (d == Py_None) d = head_dim;
        if (d == Py_None) return PyErr_Format(PyExc_TypeError, "KVCache needs head_dim, or dim_k and dim_v");
        dims[i] = PyNumber_AsSsize_t(d, PyExc_OverflowError);
        if (dims[i] == -1 && PyErr_Occurred()) return NULL;
        if (dims[i] < 1 || dims[i] > RL_ATTN_MAX_DIM)
            return PyErr_Format(PyExc_ValueError, "the head size is %zd, it must be from 1 to %d", dims[i],
                                RL_ATTN_MAX_DIM);
    }
    rl_kv_config c = {.n_layer = (size_t)n_layer, .n_ctx = (size_t)n_ctx, .window_slack = (size_t)slack};
    if (rl_py_kv_parse(kv_text, &c.type_k, &c.type_v) < 0 || parse_layout(layout, &c.layout) < 0) return NULL;
    int turn = rotate == Py_None ? c.type_k == RL_KV_Q8_0 : PyObject_IsTrue(rotate);
    if (turn < 0) return NULL;
    c.rotate = turn;
    rl_kv_layer_config *layers = PyMem_Calloc((size_t)n_layer, sizeof *layers);
    if (!layers) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n_layer; i++)
        layers[i] = (rl_kv_layer_config){(size_t)n_head_kv, (size_t)dims[0], (size_t)dims[1], 0};
    c.layers = layers;
    rl_kv *kv = NULL;
    rl_err err;
    rl_err_clear(&err);
    rl_status rc = RL_OK;
    int bad = parse_windows(window, layers, n_layer);
    if (!bad) rc = rl_kv_create(&kv, &c, &err);
    PyMem_Free(layers);
    if (bad) return NULL;
    if (rc != RL_OK) return rl_raise(rl_state_of_type(type), &err);
    return kvcache_wrap(type, kv);
}

static void kvcache_dealloc(kvcache *self) {
    PyTypeObject *type = Py_TYPE(self);
    rl_kv_free(self->kv);
    type->tp_free(self);
    Py_DECREF(type);
}

// ---- writing ----

// (n_layer, tokens, heads, dim) as C-contiguous float32, from that or, for one layer, (tokens, heads, dim).
static PyArrayObject *tokens_array(const kvcache *self, PyObject *obj, const char *name, size_t dim, npy_intp *n_tok) {
    const rl_kv_config *c = rl_kv_config_of(self->kv);
    PyArrayObject *a = (PyArrayObject *)PyArray_FROM_OTF(obj, NPY_FLOAT32, NPY_ARRAY_IN_ARRAY | NPY_ARRAY_FORCECAST);
    if (!a) return NULL;
    int n = PyArray_NDIM(a), skip = n == 4;
    const npy_intp *d = PyArray_DIMS(a);
    if ((n == 3 && c->n_layer == 1) || (n == 4 && (size_t)d[0] == c->n_layer))
        if ((size_t)d[skip + 1] == c->layers[0].n_head_kv && (size_t)d[skip + 2] == dim) {
            *n_tok = d[skip];
            return a;
        }
    PyObject *shape = PyObject_GetAttrString((PyObject *)a, "shape");
    if (shape)
        PyErr_Format(PyExc_ValueError, "%s has shape %R; it must be (%s%zu, %zu) with layers %zu", name, shape,
                     c->n_layer == 1 ? "tokens, " : "layers, tokens, ", c->layers[0].n_head_kv, dim, c->n_layer);
    Py_XDECREF(shape);
    Py_DECREF(a);
    return NULL;
}

static PyObject *kvcache_append(kvcache *self, PyObject *args, PyObject *kw) {
    static char *names[] = {"k", "v", NULL};
    PyObject *k_obj, *v_obj;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "OO:append", names, &k_obj, &v_obj)) return NULL;
    const rl_kv_config *c = rl_kv_config_of(self->kv);
    size_t heads = c->layers[0].n_head_kv, dk = c->layers[0].dim_k, dv = c->layers[0].dim_v;
    npy_intp n_k = 0, n_v = 0;
    PyArrayObject *k = tokens_array(self, k_obj, "k", dk, &n_k);
    PyArrayObject *v = k ? tokens_array(self, v_obj, "v", dv, &n_v) : NULL;
    rl_state *st = rl_state_of_type(Py_TYPE(self));
    rl_err err;
    rl_err_clear(&err);
    rl_dispatch d;
    if (v && n_k != n_v) PyErr_Format(PyExc_ValueError, "k has %zd tokens, v has %zd", n_k, n_v);
    if (!v || n_k != n_v || take(self) < 0) {
        Py_XDECREF(k);
        Py_XDECREF(v);
        return NULL;
    }
    rl_status rc = rl_dispatch_init(&d, NULL, NULL, &err);
    size_t n = (size_t)n_k, step = n, length = rl_kv_length(self->kv);
    bool windowed = false;
    for (size_t i = 0; i < c->n_layer; i++) windowed |= c->layers[i].window != 0;
    if (windowed && c->window_slack < step) step = c->window_slack;
    const float *kd = PyArray_DATA(k), *vd = PyArray_DATA(v);
    // All or nothing: a batch that does not fit must leave the cache as it was.
    if (rc == RL_OK && n > c->n_ctx - length) {
        rc =
            rl_fail(&err, RL_ERR_CONTEXT_FULL, "the cache holds %zu tokens, %zu + %zu are needed", c->n_ctx, length, n);
        err.limit = c->n_ctx;
        err.needed = length + n;
    }
    Py_BEGIN_ALLOW_THREADS;
    for (size_t t = 0; t < n && rc == RL_OK; t += step) {
        size_t m = n - t < step ? n - t : step;
        rc = rl_kv_reserve(self->kv, m, &err);
        for (size_t i = 0; i < c->n_layer && rc == RL_OK; i++)
            rl_kv_write(self->kv, &d, i, length + t, 0, m, 0, heads, kd + (i * n + t) * heads * dk, heads * dk,
                        vd + (i * n + t) * heads * dv, heads * dv);
        if (rc == RL_OK) rl_kv_commit(self->kv, m);
    }
    Py_END_ALLOW_THREADS;
    self->busy = 0;
    Py_DECREF(k);
    Py_DECREF(v);
    if (rc != RL_OK) return rl_raise(st, &err);
    Py_RETURN_NONE;
}

static PyObject *kvcache_rewind(kvcache *self, PyObject *arg) {
    Py_ssize_t n = PyNumber_AsSsize_t(arg, PyExc_OverflowError);
    if (n == -1 && PyErr_Occurred()) return NULL;
    if (n < 0) return PyErr_Format(PyExc_ValueError, "cannot rewind to %zd tokens", n);
    if (take(self) < 0) return NULL;
    rl_err err;
    rl_err_clear(&err);
    rl_status rc = rl_kv_rewind(self->kv, (size_t)n, &err);
    self->busy = 0;
    if (rc != RL_OK) return rl_raise(rl_state_of_type(Py_TYPE(self)), &err);
    Py_RETURN_NONE;
}

static PyObject *kvcache_fork(kvcache *self, PyObject *ignored) {
    (void)ignored;
    if (take(self) < 0) return NULL;
    rl_err err;
    rl_err_clear(&err);
    rl_kv *copy = NULL;
    rl_status rc = rl_kv_fork(self->kv, &copy, &err);
    self->busy = 0;
    if (rc != RL_OK) return rl_raise(rl_state_of_type(Py_TYPE(self)), &err);
    return kvcache_wrap(Py_TYPE(self), copy);
}

static rl_status save_content(void *kv, rl_write_fn write, void *to, rl_err *err) {
    return rl_kv_save(kv, write, to, err);
}
static rl_status load_content(void *kv, rl_read_fn read, void *from, rl_err *err) {
    return rl_kv_load(kv, read, from, err);
}

static PyObject *kvcache_file(kvcache *self, PyObject *arg, bool save) {
    PyObject *path;
    if (!PyUnicode_FSConverter(arg, &path)) return NULL;
    if (take(self) < 0) {
        Py_DECREF(path);
        return NULL;
    }
    rl_err err;
    rl_err_clear(&err);
    rl_status rc;
    const char *name = PyBytes_AS_STRING(path);
    Py_BEGIN_ALLOW_THREADS;
    rc = save ? rl_py_save_file(name, save_content, self->kv, &err)
              : rl_py_load_file(name, load_content, self->kv, &err);
    Py_END_ALLOW_THREADS;
    self->busy = 0;
    Py_DECREF(path);
    if (rc != RL_OK) return rl_raise(rl_state_of_type(Py_TYPE(self)), &err);
    Py_RETURN_NONE;
}

static PyObject *kvcache_save(kvcache *self, PyObject *arg) {
    return kvcache_file(self, arg, true);
}
static PyObject *kvcache_load(kvcache *self, PyObject *arg) {
    return kvcache_file(self, arg, false);
}

// ---- reading ----

static int parse_layer(kvcache *self, Py_ssize_t layer) {
    size_t n = rl_kv_config_of(self->kv)->n_layer;
    if (layer >= 0 && (size_t)layer < n) return 0;
    PyErr_Format(PyExc_ValueError, "layer %zd: the cache has %zu layers", layer, n);
    return -1;
}

static PyObject *kvcache_values(kvcache *self, PyObject *args, PyObject *kw, bool want_v) {
    static char *names[] = {"layer", "raw", NULL};
    Py_ssize_t layer = 0;
    int raw = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kw, want_v ? "|n$p:v" : "|n$p:k", names, &layer, &raw)) return NULL;
    if (parse_layer(self, layer) < 0 || !get_kv((PyObject *)self)) return NULL;
    return rl_py_kv_values(rl_state_of_type(Py_TYPE(self)), self->kv, (size_t)layer, want_v, raw);
}
static PyObject *kvcache_k(kvcache *self, PyObject *args, PyObject *kw) {
    return kvcache_values(self, args, kw, false);
}
static PyObject *kvcache_v(kvcache *self, PyObject *args, PyObject *kw) {
    return kvcache_values(self, args, kw, true);
}

static PyObject *kvcache_pages(kvcache *self, PyObject *args, PyObject *kw) {
    static char *names[] = {"layer", NULL};
    Py_ssize_t layer = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|n:pages", names, &layer)) return NULL;
    if (parse_layer(self, layer) < 0 || !get_kv((PyObject *)self)) return NULL;
    return rl_py_kv_pages(rl_state_of_type(Py_TYPE(self)), self->kv, (size_t)layer);
}

static PyObject *kvcache_first(kvcache *self, PyObject *args, PyObject *kw) {
    static char *names[] = {"layer", NULL};
    Py_ssize_t layer = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|n:first", names, &layer)) return NULL;
    if (parse_layer(self, layer) < 0 || !get_kv((PyObject *)self)) return NULL;
    return PyLong_FromSize_t(rl_kv_first(self->kv, (size_t)layer));
}

static Py_ssize_t kvcache_len(PyObject *self) {
    return (Py_ssize_t)rl_kv_config_of(((kvcache *)self)->kv)->n_layer;
}

static PyObject *kvcache_item(PyObject *self, Py_ssize_t i) {
    if (i < 0 || i >= kvcache_len(self)) {
        PyErr_Format(PyExc_IndexError, "layer %zd: the cache has %zd layers", i, kvcache_len(self));
        return NULL;
    }
    return rl_py_kv_layer(rl_state_of_type(Py_TYPE(self)), self, get_kv, (size_t)i);
}

static PyObject *kvcache_repr(kvcache *self) {
    const rl_kv_config *c = rl_kv_config_of(self->kv);
    const rl_kv_layer_config *l = &c->layers[0];
    char type[16];
    rl_py_kv_format(c->type_k, c->type_v, type);
    return PyUnicode_FromFormat(
        "<KVCache %zu of %zu tokens, %zu layers, %zu heads of %zu/%zu, %s%s, layout %s, %zu bytes>",
        rl_kv_length(self->kv), c->n_ctx, c->n_layer, l->n_head_kv, l->dim_k, l->dim_v, type,
        c->rotate ? " rotated" : "", LAYOUTS[c->layout], rl_kv_bytes_in_use(self->kv));
}

enum {
    GET_LENGTH,
    GET_N_CTX,
    GET_N_LAYER,
    GET_HEADS,
    GET_DIM_K,
    GET_DIM_V,
    GET_NBYTES,
    GET_RESERVED,
    GET_PER_TOKEN,
    GET_SLACK
};

static PyObject *kvcache_get_size(kvcache *self, void *what) {
    const rl_kv_config *c = rl_kv_config_of(self->kv);
    size_t reserved = 0, per_token = 0, n = 0;
    switch ((int)(intptr_t)what) {
    case GET_LENGTH:
        n = rl_kv_length(self->kv);
        break;
    case GET_N_CTX:
        n = c->n_ctx;
        break;
    case GET_N_LAYER:
        n = c->n_layer;
        break;
    case GET_HEADS:
        n = c->layers[0].n_head_kv;
        break;
    case GET_DIM_K:
        n = c->layers[0].dim_k;
        break;
    case GET_DIM_V:
        n = c->layers[0].dim_v;
        break;
    case GET_NBYTES:
        n = rl_kv_bytes_in_use(self->kv);
        break;
    case GET_SLACK:
        n = c->window_slack;
        break;
    default:
        rl_kv_plan(c, &reserved, &per_token, NULL); // checked when the cache was made
        n = (int)(intptr_t)what == GET_RESERVED ? reserved : per_token;
    }
    return PyLong_FromSize_t(n);
}

static PyObject *kvcache_get_kv(kvcache *self, void *closure) {
    (void)closure;
    char text[16];
    rl_py_kv_format(rl_kv_config_of(self->kv)->type_k, rl_kv_config_of(self->kv)->type_v, text);
    return PyUnicode_FromString(text);
}
static PyObject *kvcache_get_layout(kvcache *self, void *closure) {
    (void)closure;
    return PyUnicode_FromString(LAYOUTS[rl_kv_config_of(self->kv)->layout]);
}
static PyObject *kvcache_get_rotate(kvcache *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(rl_kv_config_of(self->kv)->rotate);
}
static PyObject *kvcache_get_window(kvcache *self, void *closure) {
    (void)closure;
    const rl_kv_config *c = rl_kv_config_of(self->kv);
    PyObject *list = PyList_New((Py_ssize_t)c->n_layer);
    for (size_t i = 0; list && i < c->n_layer; i++) {
        PyObject *w = c->layers[i].window ? PyLong_FromSize_t(c->layers[i].window) : Py_NewRef(Py_None);
        if (!w) Py_CLEAR(list);
        if (list) PyList_SET_ITEM(list, (Py_ssize_t)i, w);
    }
    return list;
}

#define SIZE(name, what, doc)                                                                                          \
    { name, (getter)kvcache_get_size, NULL, doc, (void *)(intptr_t)(what) }
static PyGetSetDef kvcache_getset[] = {
    SIZE("length", GET_LENGTH, "Tokens in the cache."),
    SIZE("n_ctx", GET_N_CTX, "Tokens it can hold."),
    SIZE("n_layer", GET_N_LAYER, "Layers."),
    SIZE("n_head_kv", GET_HEADS, "KV heads."),
    SIZE("dim_k", GET_DIM_K, "Head size of the keys."),
    SIZE("dim_v", GET_DIM_V, "Head size of the values."),
    SIZE("nbytes", GET_NBYTES, "Bytes of the pages in use, shared ones included."),
    SIZE("nbytes_reserved", GET_RESERVED, "Bytes when every page is in use; address space until then."),
    SIZE("nbytes_per_token", GET_PER_TOKEN, "Bytes of one token over all layers."),
    SIZE("window_slack", GET_SLACK, "Tokens that windowed layers keep beyond their window."),
    {"kv", (getter)kvcache_get_kv, NULL, "Types of K and V, such as \"f16\" or \"q8_0/f16\".", NULL},
    {"layout", (getter)kvcache_get_layout, NULL, "\"tile\", \"token\" or \"head\".", NULL},
    {"rotate", (getter)kvcache_get_rotate, NULL, "Whether keys are stored rotated (Walsh-Hadamard).", NULL},
    {"window", (getter)kvcache_get_window, NULL, "The window of each layer, None for full attention.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

#define KW(f) (PyCFunction)(void (*)(void)) f, METH_VARARGS | METH_KEYWORDS
static PyMethodDef kvcache_methods[] = {
    {"append", KW(kvcache_append),
     "append($self, k, v)\n--\n\nAppends tokens: k (tokens, n_head_kv, dim_k) and v (tokens, n_head_kv, dim_v), or "
     "with a "
     "leading\naxis of layers where there are several. Raises ContextFull beyond n_ctx and ValueError on other sizes;\n"
     "the cache is then as it was."},
    {"k", KW(kvcache_k),
     "k($self, layer=0, *, raw=False)\n--\n\nKeys as a float32 copy (pos, kv_head, dim) from position first(layer) on. "
     "raw=True gives them as\nstored: rotated where the cache rotates."},
    {"v", KW(kvcache_v),
     "v($self, layer=0, *, raw=False)\n--\n\nValues as a float32 copy (pos, kv_head, dim) from position first(layer) "
     "on."},
    {"pages", KW(kvcache_pages),
     "pages($self, layer=0)\n--\n\nList of KVPage: zero-copy, read-only views of a layer's pages, and where each lies. "
     "A "
     "page in view\nis copied before the cache writes to it again, so a view stays as it was."},
    {"first", KW(kvcache_first),
     "first($self, layer=0)\n--\n\nFirst position that a layer still holds: 0 without a window."},
    {"rewind", (PyCFunction)kvcache_rewind, METH_O,
     "rewind($self, n, /)\n--\n\nShortens to n tokens. ValueError names the least n when a window has moved on."},
    {"fork", (PyCFunction)kvcache_fork, METH_NOARGS,
     "fork($self)\n--\n\nA second cache with the same content that shares full pages and copies the last one."},
    {"save", (PyCFunction)kvcache_save, METH_O,
     "save($self, path, /)\n--\n\nWrites the content to a file, pages as they are stored."},
    {"load", (PyCFunction)kvcache_load, METH_O,
     "load($self, path, /)\n--\n\nReplaces the content by that of a file saved from a cache of the same "
     "configuration;\n"
     "n_ctx may differ. FormatError for a damaged file, which leaves the cache empty."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot kvcache_slots[] = {
    {Py_tp_doc,
     "KVCache(n_layer=1, *, n_head_kv, head_dim=None, dim_k=None, dim_v=None, n_ctx, kv='f16', layout='tile', "
     "window=None,\n        rotate=None, window_slack=512)\n\nKeys and values of past tokens in pages of 64, reserved "
     "at once and "
     "touched only when used.\n\nkv: 'f32', 'f16' or 'q8_0' (int8 with a float32 scale per 32 values of a head), or "
     "two for K "
     "and V\n('q8_0/f16'). layout: 'tile' (what the kernels like best), 'token' (token, head, dim) or 'head' "
     "(head,\ntoken, "
     "dim) within a page. window: tokens a query sees, itself included; None for all; or one per\nlayer. rotate: keys "
     "stored "
     "after a Walsh-Hadamard rotation, by default where K is q8_0, which halves\nthe loss. window_slack: tokens kept "
     "beyond a "
     "window: how far rewind may go back.\ncache[i] is the view of layer i."},
    {Py_tp_new, kvcache_new},
    {Py_tp_dealloc, kvcache_dealloc},
    {Py_tp_repr, kvcache_repr},
    {Py_tp_methods, kvcache_methods},
    {Py_tp_getset, kvcache_getset},
    {Py_sq_length, kvcache_len},
    {Py_sq_item, kvcache_item},
    {0, NULL}};
static PyType_Spec kvcache_spec = {"rooflm.KVCache", sizeof(kvcache), 0, Py_TPFLAGS_DEFAULT, kvcache_slots};

int rl_py_add_kvcache(PyObject *m, rl_state *st) {
    import_array1(-1);
    st->KVCacheType = (PyTypeObject *)PyType_FromModuleAndSpec(m, &kvcache_spec, NULL);
    if (!st->KVCacheType || PyModule_AddObjectRef(m, "KVCache", (PyObject *)st->KVCacheType) < 0) return -1;
    return rl_py_add_kvlayer(m, st) < 0 || rl_py_add_attention(m, st) < 0 ? -1 : 0;
}
