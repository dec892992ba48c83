// SPDX-License-Identifier: Apache-2.0
// rooflm.GGUF: an open file (or all shards of a split one). Weights are not read here; Tensor views them in place.
#include "py/gguf.h"

typedef struct {
    PyObject_HEAD rl_gguf *g; // NULL when closed
    PyObject *path, *metadata, *tensors;
} py_gguf;

static int parse_load(const char *s, rl_load *out) {
    static const char *const names[] = {[RL_LOAD_AUTO] = "auto", [RL_LOAD_MMAP] = "mmap", [RL_LOAD_COPY] = "copy"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(s, names[i]) == 0) {
            *out = (rl_load)i;
            return 0;
        }
    PyErr_Format(PyExc_ValueError, "load must be \"auto\", \"mmap\" or \"copy\", not \"%s\"", s);
    return -1;
}

static PyObject *wrap(rl_state *st, PyTypeObject *type, rl_gguf *g, PyObject *path) {
    py_gguf *self = path ? (py_gguf *)type->tp_alloc(type, 0) : NULL;
    if (!self) {
        rl_gguf_release(g);
        Py_XDECREF(path);
        return NULL;
    }
    self->g = g;
    self->path = path;
    self->metadata = rl_py_file_map_new(st, g, 0);
    self->tensors = rl_py_file_map_new(st, g, 1);
    if (!self->metadata || !self->tensors) Py_CLEAR(self);
    return (PyObject *)self;
}

PyObject *rl_py_gguf_wrap(rl_state *st, rl_gguf *g) {
    return wrap(st, st->GGUFType, g, PyUnicode_DecodeFSDefault(rl_gguf_shard_path(g, 0)));
}

static PyObject *gguf_new(PyTypeObject *type, PyObject *args, PyObject *kwds) {
    static char *names[] = {"path", "load", NULL};
    PyObject *bytes = NULL;
    const char *how = "auto";
    if (rl_py_check_keywords(kwds, "GGUF", names) < 0) return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "O&|$s:GGUF", names, PyUnicode_FSConverter, &bytes, &how)) return NULL;
    rl_state *st = rl_state_of_type(type);
    rl_load load;
    if (parse_load(how, &load) < 0) {
        Py_DECREF(bytes);
        return NULL;
    }
    rl_gguf *g = NULL;
    rl_err err;
    rl_err_clear(&err);
    bool fell_back = false;
    rl_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = rl_gguf_open(&g, PyBytes_AS_STRING(bytes), load, &fell_back, &err);
    Py_END_ALLOW_THREADS;
    // "smollm2" is what the command line takes, so users of Python try it, too.
    int is_word = !strpbrk(PyBytes_AS_STRING(bytes), "/.");
    PyObject *path = PyUnicode_DecodeFSDefaultAndSize(PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes));
    Py_DECREF(bytes);
    if (status != RL_OK) {
        Py_XDECREF(path);
        if (err.os_errno == ENOENT && is_word) {
            size_t n = strlen(err.msg);
            snprintf(err.msg + n, sizeof err.msg - n, "; for a model by name: rooflm.fetch(name) gives its path");
        }
        return rl_raise(st, &err);
    }
    if (fell_back && path &&
        rl_warn_fallback(st, "%s could not be mapped, so it was copied into memory", rl_gguf_shard_path(g, 0)) < 0) {
        rl_gguf_release(g);
        Py_DECREF(path);
        return NULL;
    }
    return wrap(st, type, g, path);
}

static int gguf_traverse(py_gguf *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->metadata);
    Py_VISIT(self->tensors);
    return 0;
}

static int gguf_clear(py_gguf *self) {
    Py_CLEAR(self->path);
    Py_CLEAR(self->metadata);
    Py_CLEAR(self->tensors);
    return 0;
}

static void gguf_dealloc(py_gguf *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    gguf_clear(self);
    rl_gguf_release(self->g);
    type->tp_free(self);
    Py_DECREF(type);
}

static rl_gguf *need(py_gguf *self) {
    if (!self->g) PyErr_SetString(PyExc_ValueError, "this GGUF is closed");
    return self->g;
}

rl_gguf *rl_py_gguf_get(rl_state *st, PyObject *gguf) {
    if (!PyObject_TypeCheck(gguf, st->GGUFType)) {
        PyErr_Format(PyExc_TypeError, "a rooflm.GGUF is needed, not %.200s", Py_TYPE(gguf)->tp_name);
        return NULL;
    }
    rl_gguf *g = need((py_gguf *)gguf);
    rl_err err;
    return !g || rl_gguf_intact(g, &err) == RL_OK ? g : (rl_gguf *)rl_raise(st, &err);
}

// --- attributes ----------------------------------------------------------------------------------------------

static PyObject *get_path(py_gguf *self, void *unused) {
    (void)unused;
    return Py_NewRef(self->path);
}
static PyObject *get_closed(py_gguf *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(!self->g);
}
static PyObject *get_version(py_gguf *self, void *unused) {
    (void)unused;
    return need(self) ? PyLong_FromUnsignedLong(rl_gguf_version(self->g)) : NULL;
}
static PyObject *get_alignment(py_gguf *self, void *unused) {
    (void)unused;
    return need(self) ? PyLong_FromUnsignedLongLong(rl_gguf_alignment(self->g)) : NULL;
}
static PyObject *get_nbytes(py_gguf *self, void *unused) {
    (void)unused;
    return need(self) ? PyLong_FromUnsignedLongLong(rl_gguf_file_bytes(self->g)) : NULL;
}
static PyObject *get_mapped(py_gguf *self, void *unused) {
    (void)unused;
    return need(self) ? PyBool_FromLong(rl_gguf_is_mapped(self->g)) : NULL;
}
static PyObject *get_metadata(py_gguf *self, void *unused) {
    (void)unused;
    return need(self) ? Py_NewRef(self->metadata) : NULL;
}
static PyObject *get_tensors(py_gguf *self, void *unused) {
    (void)unused;
    return need(self) ? Py_NewRef(self->tensors) : NULL;
}

static PyObject *get_shards(py_gguf *self, void *unused) {
    (void)unused;
    if (!need(self)) return NULL;
    Py_ssize_t n = (Py_ssize_t)rl_gguf_n_shards(self->g);
    PyObject *all = PyTuple_New(n);
    for (Py_ssize_t i = 0; all && i < n; i++) {
        PyObject *path = PyUnicode_DecodeFSDefault(rl_gguf_shard_path(self->g, (size_t)i));
        if (!path)
            Py_CLEAR(all);
        else
            PyTuple_SET_ITEM(all, i, path);
    }
    return all;
}

static PyObject *get_architecture(py_gguf *self, void *unused) {
    (void)unused;
    if (!need(self)) return NULL;
    const char *s;
    size_t n;
    bool found;
    rl_err err;
    if (rl_gguf_get_str(self->g, "general.architecture", &s, &n, &found, &err) != RL_OK)
        return rl_raise(rl_state_of_type(Py_TYPE(self)), &err);
    if (!found) Py_RETURN_NONE;
    return rl_py_text(s, n);
}

static PyGetSetDef gguf_getset[] = {
    {"path", (getter)get_path, NULL, "Path as given.", NULL},
    {"closed", (getter)get_closed, NULL, "True after close().", NULL},
    {"version", (getter)get_version, NULL, "Version of the format, 2 or 3.", NULL},
    {"alignment", (getter)get_alignment, NULL, "Bytes that tensors are aligned to in the file.", NULL},
    {"nbytes", (getter)get_nbytes, NULL, "Size of the file, or of all shards, in bytes.", NULL},
    {"mapped", (getter)get_mapped, NULL, "True: file pages are used in place; False: they were copied into memory.",
     NULL},
    {"metadata", (getter)get_metadata, NULL, "Mapping of key to value, decoded when first asked for.", NULL},
    {"tensors", (getter)get_tensors, NULL, "Mapping of name to Tensor, in the order of the file.", NULL},
    {"shards", (getter)get_shards, NULL, "Paths of the files, in order.", NULL},
    {"architecture", (getter)get_architecture, NULL, "general.architecture, or None.", NULL},
    {0},
};

// --- methods -------------------------------------------------------------------------------------------------

static PyObject *gguf_close(py_gguf *self, PyObject *unused) {
    (void)unused;
    rl_gguf *g = self->g;
    self->g = NULL;
    Py_CLEAR(self->metadata);
    Py_CLEAR(self->tensors);
    rl_gguf_release(g);
    Py_RETURN_NONE;
}

static PyObject *gguf_enter(py_gguf *self, PyObject *unused) {
    (void)unused;
    return need(self) ? Py_NewRef((PyObject *)self) : NULL;
}

static PyObject *gguf_exit(py_gguf *self, PyObject *args) {
    (void)args;
    return gguf_close(self, NULL);
}

static PyObject *gguf_repr(py_gguf *self) {
    if (!self->g) return PyUnicode_FromFormat("<rooflm.GGUF %R, closed>", self->path);
    PyObject *arch = get_architecture(self, NULL);
    if (!arch) PyErr_Clear();
    char mb[32];
    PyOS_snprintf(mb, sizeof mb, "%.1f", (double)rl_gguf_file_bytes(self->g) / 1e6);
    PyObject *out =
        PyUnicode_FromFormat("<rooflm.GGUF %R: %S, version %u, %zu tensors, %zu keys, %s MB, %s>", self->path,
                             arch ? arch : Py_None, rl_gguf_version(self->g), rl_gguf_n_tensors(self->g),
                             rl_gguf_n_meta(self->g), mb, rl_gguf_is_mapped(self->g) ? "mapped" : "copied");
    Py_XDECREF(arch);
    return out;
}

static PyObject *gguf_html(PyObject *self, PyObject *unused) {
    (void)unused;
    PyObject *view = PyImport_ImportModule("rooflm._show");
    PyObject *out = view ? PyObject_CallMethod(view, "gguf_html", "O", self) : NULL;
    Py_XDECREF(view);
    return out;
}

static PyMethodDef gguf_methods[] = {
    {"close", (PyCFunction)gguf_close, METH_NOARGS,
     "close($self)\n--\n\nDrops this object's hold on the file. Tensors and arrays taken from it stay valid; the "
     "mapping "
     "goes\n"
     "with the last of them. Closing twice is allowed."},
    {"__enter__", (PyCFunction)gguf_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)gguf_exit, METH_VARARGS, NULL},
    {"_repr_html_", (PyCFunction)gguf_html, METH_NOARGS, NULL},
    {0},
};

// _raw_value(gguf, key) -> type id and payload as they lie in the file, for copying.
static PyObject *raw_value(PyObject *m, PyObject *args) {
    PyObject *o;
    const char *key;
    if (!PyArg_ParseTuple(args, "Os:_raw_value", &o, &key)) return NULL;
    rl_gguf *g = rl_py_gguf_get(rl_state_of_module(m), o);
    if (!g) return NULL;
    const rl_meta *e = rl_gguf_find(g, key);
    if (!e) return PyErr_Format(PyExc_KeyError, "%s", key);
    size_t head = 4 + (e->type == RL_META_ARRAY ? 12 : e->type == RL_META_STRING ? 8 : 0);
    return PyBytes_FromStringAndSize((const char *)e->data - head, (Py_ssize_t)(head + e->bytes));
}

static PyMethodDef functions[] = {
    {"_raw_value", raw_value, METH_VARARGS,
     "_raw_value(gguf, key, /)\n--\n\nA metadata value as it lies in the file, type id first, for copying."},
    {0},
};

static PyType_Slot gguf_slots[] = {
    {Py_tp_doc,
     "GGUF(path, *, load=\"auto\")\n--\n\n"
     "Opens a GGUF file, version 2 or 3; any shard opens the whole of a split file. Reads the header only.\n\n"
     "load: \"mmap\" uses the file's pages in place; \"copy\" reads them into memory of our own; \"auto\" maps and,\n"
     "where the system refuses, copies with one FallbackWarning. Raises FormatError (.key, .tensor, .offset) for a\n"
     "file that is damaged or not GGUF, OSError for one that cannot be read. A file that another program shortens\n"
     "while it is mapped ends the process with SIGBUS; \"copy\" is safe from that."},
    {Py_tp_new, gguf_new},
    {Py_tp_dealloc, gguf_dealloc},
    {Py_tp_traverse, gguf_traverse},
    {Py_tp_clear, gguf_clear},
    {Py_tp_repr, gguf_repr},
    {Py_tp_methods, gguf_methods},
    {Py_tp_getset, gguf_getset},
    {0, NULL},
};

static PyType_Spec gguf_spec = {
    .name = "rooflm._core.GGUF",
    .basicsize = sizeof(py_gguf),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = gguf_slots,
};

int rl_py_add_gguf(PyObject *m, rl_state *st) {
    if (rl_py_add_metadata(m, st) < 0 || rl_py_add_tensor(m, st) < 0) return -1;
    st->GGUFType = (PyTypeObject *)PyType_FromModuleAndSpec(m, &gguf_spec, NULL);
    if (!st->GGUFType) return -1;
    if (PyModule_AddFunctions(m, functions) < 0) return -1;
    return PyModule_AddObjectRef(m, "GGUF", (PyObject *)st->GGUFType);
}
