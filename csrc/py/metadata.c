// SPDX-License-Identifier: Apache-2.0
// The two read-only mappings of a GGUF: metadata (key to value) and tensors (name to Tensor). Values are made when
// first asked for and kept; a vocabulary of 262,144 strings costs nothing until somebody looks at it.
#include "py/gguf.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

typedef struct {
    PyObject_HEAD rl_gguf *g;
    int of_tensors;
    PyObject *cache; // dict
} file_map;

PyObject *rl_py_text(const char *s, size_t n) {
    return PyUnicode_DecodeUTF8(s, (Py_ssize_t)n, "surrogateescape");
}

PyObject *rl_py_file_map_new(rl_state *st, rl_gguf *g, int of_tensors) {
    file_map *self = PyObject_GC_New(file_map, st->FileMapType);
    if (!self) return NULL;
    self->g = rl_gguf_ref(g);
    self->of_tensors = of_tensors;
    self->cache = PyDict_New();
    if (!self->cache) {
        Py_DECREF(self);
        return NULL;
    }
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static int map_traverse(file_map *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->cache);
    return 0;
}

static int map_clear(file_map *self) {
    Py_CLEAR(self->cache);
    return 0;
}

static void map_dealloc(file_map *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    map_clear(self);
    rl_gguf_release(self->g);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

// --- values --------------------------------------------------------------------------------------------------

static uint64_t load_u64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static int numpy_type(rl_meta_type t, size_t *bytes) {
    static const struct {
        int num;
        size_t bytes;
    } table[] = {
        [RL_META_U8] = {NPY_UINT8, 1},    [RL_META_I8] = {NPY_INT8, 1},    [RL_META_U16] = {NPY_UINT16, 2},
        [RL_META_I16] = {NPY_INT16, 2},   [RL_META_U32] = {NPY_UINT32, 4}, [RL_META_I32] = {NPY_INT32, 4},
        [RL_META_F32] = {NPY_FLOAT32, 4}, [RL_META_BOOL] = {NPY_BOOL, 1},  [RL_META_STRING] = {-1, 0},
        [RL_META_ARRAY] = {-1, 0},        [RL_META_U64] = {NPY_UINT64, 8}, [RL_META_I64] = {NPY_INT64, 8},
        [RL_META_F64] = {NPY_FLOAT64, 8},
    };
    *bytes = table[t].bytes;
    return table[t].num;
}

// Elements at *p, which moves past them. The directory has checked all lengths when the file was opened.
static PyObject *elements(rl_meta_type elem, uint64_t count, const uint8_t **p) {
    size_t bytes;
    int num = numpy_type(elem, &bytes);
    if (num >= 0) {
        npy_intp n = (npy_intp)count;
        PyObject *a = PyArray_SimpleNew(1, &n, num); // a copy: the file's bytes are unaligned
        if (!a) return NULL;
        uint8_t *out = PyArray_DATA((PyArrayObject *)a);
        memcpy(out, *p, (size_t)count * bytes);
        if (elem == RL_META_BOOL)
            for (uint64_t i = 0; i < count; i++) out[i] = out[i] != 0;
        PyArray_CLEARFLAGS((PyArrayObject *)a, NPY_ARRAY_WRITEABLE);
        *p += (size_t)count * bytes;
        return a;
    }
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (uint64_t i = 0; list && i < count; i++) {
        PyObject *v;
        if (elem == RL_META_STRING) {
            uint64_t n = load_u64(*p);
            v = rl_py_text((const char *)*p + 8, (size_t)n);
            *p += 8 + n;
        } else {
            uint32_t inner;
            memcpy(&inner, *p, 4);
            uint64_t n = load_u64(*p + 4);
            *p += 12;
            v = elements((rl_meta_type)inner, n, p);
        }
        if (!v)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, v);
    }
    return list;
}

static PyObject *decode(const rl_meta *m) {
    const uint8_t *p = m->data;
    int64_t i;
    uint64_t u;
    double f;
    switch (m->type) {
    case RL_META_STRING:
        return rl_py_text((const char *)p, m->bytes);
    case RL_META_ARRAY:
        return elements(m->elem, m->count, &p);
    case RL_META_BOOL:
        return PyBool_FromLong(*p);
    case RL_META_F32:
    case RL_META_F64:
        rl_meta_get_f64(m, 0, &f, NULL);
        return PyFloat_FromDouble(f);
    case RL_META_U64:
    case RL_META_U32:
    case RL_META_U16:
    case RL_META_U8:
        rl_meta_get_u64(m, 0, &u, NULL);
        return PyLong_FromUnsignedLongLong(u);
    default:
        rl_meta_get_i64(m, 0, &i, NULL);
        return PyLong_FromLongLong(i);
    }
}

// --- the mapping ---------------------------------------------------------------------------------------------

static Py_ssize_t map_len(file_map *self) {
    return (Py_ssize_t)(self->of_tensors ? rl_gguf_n_tensors(self->g) : rl_gguf_n_meta(self->g));
}

static PyObject *name_at(const file_map *self, size_t i) {
    const char *s = self->of_tensors ? rl_gguf_tensor_at(self->g, i)->name : rl_gguf_meta(self->g, i)->key;
    return rl_py_text(s, strlen(s));
}

// The entry of a key (rl_meta or rl_tensor), NULL when absent; NULL with an exception when the key cannot be asked.
static const void *entry(const file_map *self, PyObject *key) {
    if (!PyUnicode_Check(key)) return NULL;
    PyObject *bytes = PyUnicode_AsEncodedString(key, "utf-8", "surrogateescape");
    if (!bytes) { // a surrogate that no file can hold
        if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) PyErr_Clear();
        return NULL;
    }
    const char *s = PyBytes_AS_STRING(bytes);
    const void *found = NULL;
    if (strlen(s) == (size_t)PyBytes_GET_SIZE(bytes))
        found = self->of_tensors ? (const void *)rl_gguf_tensor(self->g, s) : (const void *)rl_gguf_find(self->g, s);
    Py_DECREF(bytes);
    return found;
}

// A new reference, NULL without an exception when absent.
static PyObject *lookup(file_map *self, PyObject *key) {
    PyObject *have = PyUnicode_Check(key) ? PyDict_GetItemWithError(self->cache, key) : NULL;
    if (have) return Py_NewRef(have);
    const void *e = PyErr_Occurred() ? NULL : entry(self, key);
    if (!e) return NULL;
    rl_err err;
    if (!self->of_tensors && rl_gguf_intact(self->g, &err) != RL_OK)
        return rl_raise(rl_state_of_type(Py_TYPE(self)), &err);
    PyObject *v = self->of_tensors ? rl_py_tensor_new(rl_state_of_type(Py_TYPE(self)), self->g, e) : decode(e);
    if (v && PyDict_SetItem(self->cache, key, v) < 0) Py_CLEAR(v);
    return v;
}

// KeyError that names the nearest key there is.
static void raise_missing(file_map *self, PyObject *key) {
    PyObject *keys = PySequence_List((PyObject *)self), *module = NULL, *exc = NULL;
    if (keys) module = PyImport_ImportModule("rooflm._keywords");
    if (module) exc = PyObject_CallMethod(module, "unknown_key", "sOO", self->of_tensors ? "tensor" : "key", key, keys);
    if (exc) PyErr_SetObject(PyExc_KeyError, exc);
    Py_XDECREF(exc), Py_XDECREF(module), Py_XDECREF(keys);
}

static PyObject *map_subscript(file_map *self, PyObject *key) {
    PyObject *v = lookup(self, key);
    if (!v && !PyErr_Occurred()) raise_missing(self, key);
    return v;
}

static int map_contains(file_map *self, PyObject *key) {
    const void *e = entry(self, key);
    return e ? 1 : (PyErr_Occurred() ? -1 : 0);
}

static PyObject *map_get(file_map *self, PyObject *args, PyObject *kwds) {
    static char *names[] = {"key", "default", NULL};
    PyObject *key, *otherwise = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "O|O:get", names, &key, &otherwise)) return NULL;
    PyObject *v = lookup(self, key);
    return v || PyErr_Occurred() ? v : Py_NewRef(otherwise);
}

static PyObject *map_iter(file_map *self) {
    Py_ssize_t n = map_len(self);
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; list && i < n; i++) {
        PyObject *name = name_at(self, (size_t)i);
        if (!name)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, name);
    }
    PyObject *it = list ? PyObject_GetIter(list) : NULL;
    Py_XDECREF(list);
    return it;
}

static PyObject *view(file_map *self, const char *kind) {
    PyObject *abc = PyImport_ImportModule("collections.abc");
    PyObject *v = abc ? PyObject_CallMethod(abc, kind, "O", self) : NULL;
    Py_XDECREF(abc);
    return v;
}
static PyObject *map_keys(file_map *self, PyObject *unused) {
    (void)unused;
    return view(self, "KeysView");
}
static PyObject *map_values(file_map *self, PyObject *unused) {
    (void)unused;
    return view(self, "ValuesView");
}
static PyObject *map_items(file_map *self, PyObject *unused) {
    (void)unused;
    return view(self, "ItemsView");
}

static PyObject *map_repr(file_map *self) {
    const char *what = self->of_tensors ? "tensors" : "keys";
    PyObject *it = map_iter(self), *first = PyList_New(0), *sep = NULL, *joined = NULL, *out = NULL, *name;
    while (it && first && PyList_GET_SIZE(first) < 4 && (name = PyIter_Next(it))) {
        PyObject *r = PyObject_Repr(name);
        Py_DECREF(name);
        if (!r || PyList_Append(first, r) < 0) Py_CLEAR(first);
        Py_XDECREF(r);
    }
    if (it && first && !PyErr_Occurred()) sep = PyUnicode_FromString(", ");
    if (sep) joined = PyUnicode_Join(sep, first);
    if (joined)
        out = PyUnicode_FromFormat("<%zd %s: %U%s>", map_len(self), what, joined,
                                   map_len(self) > PyList_GET_SIZE(first) ? ", ..." : "");
    Py_XDECREF(it);
    Py_XDECREF(first);
    Py_XDECREF(sep);
    Py_XDECREF(joined);
    return out;
}

static PyMethodDef map_methods[] = {
    {"get", (PyCFunction)(void (*)(void))map_get, METH_VARARGS | METH_KEYWORDS,
     "get($self, key, default=None)\n--\n\nThe value of a key, or the default where there is none."},
    {"keys", (PyCFunction)map_keys, METH_NOARGS, "keys($self)\n--\n\nThe names, in the order of the file."},
    {"values", (PyCFunction)map_values, METH_NOARGS, "values($self)\n--\n\nThe values, in the order of the file."},
    {"items", (PyCFunction)map_items, METH_NOARGS,
     "items($self)\n--\n\nPairs of name and value, in the order of the file."},
    {0},
};

static PyType_Slot map_slots[] = {
    {Py_tp_doc, "Read-only mapping of a GGUF file, in the order of the file. Metadata: strings become str (bytes that\n"
                "are not UTF-8 as lone surrogates), numbers int, float or bool, arrays of numbers read-only NumPy\n"
                "arrays, arrays of strings and of arrays lists. Tensors: name to Tensor."},
    {Py_tp_dealloc, map_dealloc},
    {Py_tp_traverse, map_traverse},
    {Py_tp_clear, map_clear},
    {Py_tp_repr, map_repr},
    {Py_tp_iter, map_iter},
    {Py_tp_methods, map_methods},
    {Py_mp_length, map_len},
    {Py_mp_subscript, map_subscript},
    {Py_sq_contains, map_contains},
    {0, NULL},
};

// Not creatable from Python: the default tp_new would leave it without a file.
static PyType_Spec map_spec = {
    .name = "rooflm._core.FileMap",
    .basicsize = sizeof(file_map),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC
#ifdef Py_TPFLAGS_DISALLOW_INSTANTIATION
             | Py_TPFLAGS_DISALLOW_INSTANTIATION
#endif
    ,
    .slots = map_slots,
};

int rl_py_add_metadata(PyObject *m, rl_state *st) {
    import_array1(-1);
    st->FileMapType = (PyTypeObject *)PyType_FromModuleAndSpec(m, &map_spec, NULL);
    if (!st->FileMapType) return -1;
#ifndef Py_TPFLAGS_DISALLOW_INSTANTIATION
    st->FileMapType->tp_new = NULL;
#endif
    PyObject *abc = PyImport_ImportModule("collections.abc");
    PyObject *mapping = abc ? PyObject_GetAttrString(abc, "Mapping") : NULL;
    PyObject *done = mapping ? PyObject_CallMethod(mapping, "register", "O", st->FileMapType) : NULL;
    Py_XDECREF(abc);
    Py_XDECREF(mapping);
    Py_XDECREF(done);
    if (!done) return -1;
    return PyModule_AddObjectRef(m, "FileMap", (PyObject *)st->FileMapType);
}
