// SPDX-License-Identifier: Apache-2.0
// Values of a KV cache as NumPy arrays: copies in float32, and zero-copy views of the pages. A view holds its
// page: the cache copies a held page before it writes to it, so that what was seen stays as it was, and the
// memory outlives the cache.
#include "py/kvcache.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>
#include <structmember.h>

#include "run/kv_internal.h"

typedef struct {
    PyObject_HEAD PyObject *owner;
    rl_py_kv_get get;
    size_t layer;
} layer_view;

PyObject *rl_py_kv_values(rl_state *st, const rl_kv *kv, size_t layer, bool want_v, bool raw) {
    const rl_kv_layer_config *c = &rl_kv_config_of(kv)->layers[layer];
    size_t first = rl_kv_first(kv, layer), end = rl_kv_length(kv);
    npy_intp dims[3] = {(npy_intp)(end - first), (npy_intp)c->n_head_kv, (npy_intp)(want_v ? c->dim_v : c->dim_k)};
    PyObject *out = PyArray_SimpleNew(3, dims, NPY_FLOAT32);
    if (!out) return NULL;
    rl_err err;
    rl_err_clear(&err);
    if (rl_kv_read(kv, layer, want_v, raw, first, end, PyArray_DATA((PyArrayObject *)out), &err) != RL_OK) {
        Py_DECREF(out);
        return rl_raise(st, &err);
    }
    return out;
}

// ---- pages ----

static const char HOLD[] = "rooflm.page";

static void hold_free(PyObject *capsule) {
    rl_kv_hold *hold = PyCapsule_GetPointer(capsule, HOLD);
    if (!hold) return;
    rl_kv_page_drop(hold);
    PyMem_Free(hold);
}

static PyObject *hold_page(const rl_kv *kv, size_t layer, size_t page) {
    rl_kv_hold *hold = PyMem_Malloc(sizeof *hold);
    if (!hold) return PyErr_NoMemory();
    *hold = rl_kv_page_hold(kv, layer, page);
    PyObject *capsule = PyCapsule_New(hold, HOLD, hold_free);
    if (!capsule) {
        rl_kv_page_drop(hold);
        PyMem_Free(hold);
    }
    return capsule;
}

// A read-only array over memory that `base` keeps.
static PyObject *view(PyObject *base, const void *data, int type, int n_dim, const npy_intp *dims,
                      const npy_intp *strides) {
    PyArray_Descr *descr = PyArray_DescrFromType(type);
    PyObject *a = PyArray_NewFromDescr(&PyArray_Type, descr, n_dim, dims, strides, (void *)data, 0, NULL);
    if (!a) return NULL;
    if (PyArray_SetBaseObject((PyArrayObject *)a, Py_NewRef(base)) < 0) {
        Py_DECREF(a);
        return NULL;
    }
    return a;
}

static PyObject *data_view(PyObject *base, const rl_attn_side *s, bool is_v, const uint8_t *at) {
    int type = s->type == RL_F32 ? NPY_FLOAT32 : s->type == RL_F16 ? NPY_FLOAT16 : NPY_INT8;
    npy_intp size = s->type == RL_F32 ? 4 : s->type == RL_F16 ? 2 : 1, in = s->type == RL_Q8_0 ? 4 : 1;
    npy_intp heads = (npy_intp)s->n_head, head = (npy_intp)s->head, pad = (npy_intp)s->pad;
    if (!s->tile) {
        npy_intp dims[] = {heads, RL_PAGE_TOKENS, pad}, strides[] = {head, (npy_intp)s->token, size};
        return view(base, at, type, 3, dims, strides);
    }
    if (is_v) {
        npy_intp dims[] = {heads, RL_PAGE_TOKENS / in, pad, in};
        npy_intp strides[] = {head, pad * in * size, in * size, size};
        return view(base, at, type, 4, dims, strides);
    }
    npy_intp dims[] = {heads, RL_PAGE_TOKENS / 16, pad / in, 16, in};
    npy_intp strides[] = {head, 16 * pad * size, 16 * in * size, in * size, size};
    return view(base, at, type, 5, dims, strides);
}

static PyObject *scales_view(PyObject *base, const rl_attn_side *s, bool is_v, const uint8_t *at) {
    if (!s->groups) Py_RETURN_NONE;
    npy_intp heads = (npy_intp)s->n_head, head = (npy_intp)s->scales_head, groups = (npy_intp)s->groups;
    at += s->scales;
    if (!s->tile) {
        npy_intp dims[] = {heads, RL_PAGE_TOKENS, groups}, strides[] = {head, (npy_intp)s->scales_token, 4};
        return view(base, at, NPY_FLOAT32, 3, dims, strides);
    }
    if (is_v) {
        npy_intp dims[] = {heads, groups, RL_PAGE_TOKENS}, strides[] = {head, RL_PAGE_TOKENS * 4, 4};
        return view(base, at, NPY_FLOAT32, 3, dims, strides);
    }
    npy_intp dims[] = {heads, RL_PAGE_TOKENS / 16, groups, 16}, strides[] = {head, groups * 64, 64, 4};
    return view(base, at, NPY_FLOAT32, 4, dims, strides);
}

static PyObject *one_page(rl_state *st, const rl_kv *kv, size_t layer, size_t page) {
    size_t at;
    const rl_kv_layer *l = rl_kv_layer_of(kv, layer, page, &at);
    const rl_slot *slot = &l->slots[at];
    unsigned shared = atomic_load_explicit(&slot->arena->page_refs[slot->id], memory_order_relaxed);
    size_t position = page * RL_PAGE_TOKENS, length = rl_kv_length(kv);
    size_t used = length > position ? length - position : 0;
    if (used > RL_PAGE_TOKENS) used = RL_PAGE_TOKENS;
    PyObject *base = hold_page(kv, layer, page), *out = base ? PyStructSequence_New(st->KVPageType) : NULL;
    if (!out) {
        Py_XDECREF(base);
        return NULL;
    }
    PyObject *items[] = {
        PyLong_FromSize_t(position < rl_kv_config_of(kv)->sinks ? position : position + rl_kv_dropped(kv)),
        PyLong_FromSize_t(used),
        PyLong_FromVoidPtr(slot->data),
        PyLong_FromUnsignedLong(shared),
        data_view(base, &l->k, false, slot->data),
        scales_view(base, &l->k, false, slot->data),
        data_view(base, &l->v, true, slot->data + l->k.bytes),
        scales_view(base, &l->v, true, slot->data + l->k.bytes),
        l == &kv->layers[layer] ? Py_NewRef(Py_None)
                                : Py_BuildValue("(nn)", (Py_ssize_t)l->k.dim, (Py_ssize_t)l->v.dim),
    };
    int ok = 1;
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        ok &= items[i] != NULL;
        PyStructSequence_SetItem(out, (Py_ssize_t)i, items[i]);
    }
    Py_DECREF(base);
    if (!ok) Py_CLEAR(out);
    return out;
}

PyObject *rl_py_kv_pages(rl_state *st, const rl_kv *kv, size_t layer) {
    PyObject *list = PyList_New(0);
    size_t end = (rl_kv_length(kv) + RL_PAGE_TOKENS - 1) / RL_PAGE_TOKENS;
    for (size_t p = kv->layers[layer].first; list && p < end; p++) {
        PyObject *page = one_page(st, kv, layer, p);
        if (!page || PyList_Append(list, page) < 0) Py_CLEAR(list);
        Py_XDECREF(page);
    }
    return list;
}

// ---- the view of one layer ----

PyObject *rl_py_kv_layer(rl_state *st, PyObject *owner, rl_py_kv_get get, size_t layer) {
    layer_view *self = (layer_view *)st->KVLayerType->tp_alloc(st->KVLayerType, 0);
    if (!self) return NULL;
    self->owner = Py_NewRef(owner);
    self->get = get;
    self->layer = layer;
    return (PyObject *)self;
}

static int layer_traverse(layer_view *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->owner);
    return 0;
}

static int layer_clear(layer_view *self) {
    Py_CLEAR(self->owner);
    return 0;
}

static void layer_dealloc(layer_view *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    layer_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *layer_values(layer_view *self, PyObject *args, PyObject *kw, bool want_v) {
    static char *names[] = {"raw", NULL};
    int raw = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kw, want_v ? "|$p:v" : "|$p:k", names, &raw)) return NULL;
    const rl_kv *kv = self->get(self->owner);
    return kv ? rl_py_kv_values(rl_state_of_type(Py_TYPE(self)), kv, self->layer, want_v, raw) : NULL;
}

static PyObject *layer_k(layer_view *self, PyObject *args, PyObject *kw) {
    return layer_values(self, args, kw, false);
}
static PyObject *layer_v(layer_view *self, PyObject *args, PyObject *kw) {
    return layer_values(self, args, kw, true);
}

static PyObject *layer_pages(layer_view *self, void *closure) {
    (void)closure;
    const rl_kv *kv = self->get(self->owner);
    return kv ? rl_py_kv_pages(rl_state_of_type(Py_TYPE(self)), kv, self->layer) : NULL;
}

static PyObject *layer_length(layer_view *self, void *closure) {
    (void)closure;
    const rl_kv *kv = self->get(self->owner);
    return kv ? PyLong_FromSize_t(rl_kv_length(kv)) : NULL;
}

static PyObject *layer_first(layer_view *self, void *closure) {
    (void)closure;
    const rl_kv *kv = self->get(self->owner);
    return kv ? PyLong_FromSize_t(rl_kv_first(kv, self->layer)) : NULL;
}

static PyObject *layer_repr(layer_view *self) {
    const rl_kv *kv = self->get(self->owner);
    if (!kv) return NULL;
    const rl_kv_layer_config *c = &rl_kv_config_of(kv)->layers[self->layer];
    return PyUnicode_FromFormat("<KVLayer %zu: positions %zu to %zu, %zu heads of %zu/%zu>", self->layer,
                                rl_kv_first(kv, self->layer), rl_kv_length(kv), c->n_head_kv, c->dim_k, c->dim_v);
}

static PyMethodDef layer_methods[] = {
    {"k", (PyCFunction)(void (*)(void))layer_k, METH_VARARGS | METH_KEYWORDS,
     "k($self, *, raw=False)\n--\n\nKeys as a float32 copy (pos, kv_head, dim), the first row being position .first.\n"
     "raw=True gives them as stored: rotated where the cache rotates."},
    {"v", (PyCFunction)(void (*)(void))layer_v, METH_VARARGS | METH_KEYWORDS,
     "v($self, *, raw=False)\n--\n\nValues as a float32 copy (pos, kv_head, dim), the first row being position "
     ".first."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef layer_getset[] = {
    {"pages", (getter)layer_pages, NULL, "List of KVPage: zero-copy, read-only views, and where each page lies.", NULL},
    {"length", (getter)layer_length, NULL, "Tokens in the cache.", NULL},
    {"first", (getter)layer_first, NULL, "First position that this layer still holds.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot layer_slots[] = {{Py_tp_doc, "One layer of a KV cache."},
                                    {Py_tp_dealloc, layer_dealloc},
                                    {Py_tp_traverse, layer_traverse},
                                    {Py_tp_clear, layer_clear},
                                    {Py_tp_repr, layer_repr},
                                    {Py_tp_methods, layer_methods},
                                    {Py_tp_getset, layer_getset},
                                    {0, NULL}};
static PyType_Spec layer_spec = {"rooflm.KVLayer", sizeof(layer_view), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                 layer_slots};

static PyStructSequence_Field page_fields[] = {
    {"position", "position of the page's first token"},
    {"n_tokens", "tokens in use, 1 to 64"},
    {"address", "where the page lies in memory"},
    {"holders", "caches and earlier views that share it"},
    {"k", "keys as stored: row layouts (head, token, dim), tile (head, group, dim, token, dim)"},
    {"k_scales", "scales of the keys, None for float types"},
    {"v", "values as stored: row layouts (head, token, dim), tile (head, group, dim, token)"},
    {"v_scales", "scales of the values, None for float types"},
    {"ranks", "of K and V of a compressed page, whose heads have so many values; None where they are whole"},
    {NULL, NULL}};
static PyStructSequence_Desc page_desc = {"rooflm.KVPage", "One page of 64 tokens of one layer of a KV cache.",
                                          page_fields, 9};

int rl_py_add_kvlayer(PyObject *m, rl_state *st) {
    import_array1(-1);
    st->KVLayerType = (PyTypeObject *)PyType_FromModuleAndSpec(m, &layer_spec, NULL);
    if (!st->KVLayerType) return -1;
    st->KVLayerType->tp_new = NULL; // made by its owner only
    st->KVPageType = PyStructSequence_NewType(&page_desc);
    if (!st->KVPageType) return -1;
    return PyModule_AddObjectRef(m, "KVLayer", (PyObject *)st->KVLayerType) < 0 ||
                   PyModule_AddObjectRef(m, "KVPage", (PyObject *)st->KVPageType) < 0
               ? -1
               : 0;
}
