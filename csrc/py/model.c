// SPDX-License-Identifier: Apache-2.0
// rooflm._core.Model: a GGUF file that can run.
#include "py/session.h"

#include "py/gguf.h"

static PyObject *model_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"file", "load", "replace", NULL};
    rl_state *st = rl_state_of_type(type);
    PyObject *file, *replace = Py_None;
    const char *load = "auto";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$sO:Model", names, &file, &load, &replace)) return NULL;
    PyObject *gguf;
    if (PyObject_TypeCheck(file, st->GGUFType)) {
        gguf = Py_NewRef(file);
    } else {
        PyObject *a = PyTuple_Pack(1, file), *k = Py_BuildValue("{s:s}", "load", load);
        gguf = a && k ? PyObject_Call((PyObject *)st->GGUFType, a, k) : NULL;
        Py_XDECREF(a);
        Py_XDECREF(k);
        if (!gguf) return NULL;
    }
    rl_gguf *g = rl_py_gguf_get(st, gguf);
    py_model *self = g ? (py_model *)type->tp_alloc(type, 0) : NULL;
    if (!self) {
        Py_DECREF(gguf);
        return NULL;
    }
    self->gguf = gguf;
    if (replace != Py_None && !(self->replaced = rl_py_replaced(replace))) {
        Py_DECREF(self);
        return NULL;
    }
    size_t n_replaced = 0;
    const rl_tensor *replaced = self->replaced ? rl_py_replaced_tensors(self->replaced, &n_replaced) : NULL;
    rl_err err;
    rl_err_clear(&err);
    if (rl_model_open(&self->model, g, replaced, n_replaced, &err) != RL_OK) {
        rl_py_name_file(&err, rl_gguf_shard_path(g, 0));
        rl_raise(st, &err);
        Py_DECREF(self);
        return NULL;
    }
    const rl_notes *notes = &self->model->notes;
    for (size_t at = 0; at < notes->len; at += strlen(notes->text + at) + 1)
        if (rl_warn_fallback(st, "%s", notes->text + at) < 0) {
            Py_DECREF(self);
            return NULL;
        }
    return (PyObject *)self;
}

static int model_traverse(py_model *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->gguf);
    Py_VISIT(self->tokenizer);
    return 0;
}

static int model_clear(py_model *self) {
    Py_CLEAR(self->gguf);
    Py_CLEAR(self->tokenizer);
    return 0;
}

static void model_dealloc(py_model *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    model_clear(self);
    rl_model_release(self->model);
    rl_py_replaced_free(self->replaced); // after the model that reads them
    type->tp_free(self);
    Py_DECREF(type);
}

static const rl_hparams *hp_of(py_model *self) {
    return &self->model->hp;
}

static PyObject *get_gguf(py_model *self, void *u) {
    (void)u;
    return Py_NewRef(self->gguf);
}

static PyObject *get_arch(py_model *self, void *u) {
    (void)u;
    return PyUnicode_FromString(hp_of(self)->arch->name);
}

static PyObject *get_tokenizer(py_model *self, void *u) {
    (void)u;
    if (!self->tokenizer) {
        rl_state *st = rl_state_of_type(Py_TYPE(self));
        self->tokenizer = PyObject_CallMethod((PyObject *)st->TokenizerType, "from_gguf", "O", self->gguf);
        if (!self->tokenizer) return NULL;
    }
    return Py_NewRef(self->tokenizer);
}

// Offsets of plain uint32 fields, so that one getter serves them.
static PyObject *get_u32(py_model *self, void *offset) {
    uint32_t v;
    memcpy(&v, (const char *)hp_of(self) + (uintptr_t)offset, sizeof v);
    return PyLong_FromUnsignedLong(v);
}

static PyObject *get_n_head(py_model *self, void *kv) {
    const rl_layer_hp *l = &hp_of(self)->layer[0];
    return PyLong_FromUnsignedLong(kv ? l->n_head_kv : l->n_head);
}

static PyObject *get_bytes_per_token(py_model *self, void *u) {
    (void)u;
    return PyLong_FromUnsignedLongLong(rl_model_bytes_per_token(self->model));
}

static PyObject *layer_list(const rl_hparams *hp, PyObject *(*item)(const rl_layer_hp *)) {
    PyObject *list = PyList_New(hp->n_layer);
    for (uint32_t i = 0; list && i < hp->n_layer; i++) {
        PyObject *v = item(&hp->layer[i]);
        if (!v) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, v);
    }
    return list;
}

static PyObject *item_n_head(const rl_layer_hp *l) {
    return PyLong_FromUnsignedLong(l->n_head);
}
static PyObject *item_n_head_kv(const rl_layer_hp *l) {
    return PyLong_FromUnsignedLong(l->n_head_kv);
}
static PyObject *item_n_ff(const rl_layer_hp *l) {
    return PyLong_FromUnsignedLong(l->n_ff);
}
static PyObject *item_sliding(const rl_layer_hp *l) {
    return PyBool_FromLong(l->sliding);
}
static PyObject *item_rope(const rl_layer_hp *l) {
    return PyBool_FromLong(l->rope);
}

static PyObject *get_hparams(py_model *self, void *u) {
    (void)u;
    static const char *const scaling[] = {"none", "linear", "yarn", "longrope"};
    const rl_hparams *hp = hp_of(self);
    PyObject *d = PyDict_New();
    if (!d) return NULL;
    int bad =
        rl_py_put(d, "arch", PyUnicode_FromString(hp->arch->name)) ||
        rl_py_put(d, "n_layer", PyLong_FromLong(hp->n_layer)) || rl_py_put(d, "n_embd", PyLong_FromLong(hp->n_embd)) ||
        rl_py_put(d, "n_vocab", PyLong_FromLong(hp->n_vocab)) ||
        rl_py_put(d, "n_ctx_train", PyLong_FromLong(hp->n_ctx_train)) ||
        rl_py_put(d, "head_dim_k", PyLong_FromLong(hp->dim_k)) ||
        rl_py_put(d, "head_dim_v", PyLong_FromLong(hp->dim_v)) || rl_py_put(d, "n_rot", PyLong_FromLong(hp->n_rot)) ||
        rl_py_put(d, "n_head", layer_list(hp, item_n_head)) ||
        rl_py_put(d, "n_head_kv", layer_list(hp, item_n_head_kv)) || rl_py_put(d, "n_ff", layer_list(hp, item_n_ff)) ||
        rl_py_put(d, "sliding", layer_list(hp, item_sliding)) || rl_py_put(d, "rope", layer_list(hp, item_rope)) ||
        rl_py_put(d, "norm_eps", PyFloat_FromDouble(hp->norm_eps)) ||
        rl_py_put(d, "window", PyLong_FromLong(hp->window)) ||
        rl_py_put(d, "rope_base", PyFloat_FromDouble(hp->rope_base)) ||
        rl_py_put(d, "rope_base_swa", PyFloat_FromDouble(hp->rope_base_swa)) ||
        rl_py_put(d, "rope_scaling", PyUnicode_FromString(scaling[hp->scaling])) ||
        rl_py_put(d, "rope_factor", PyFloat_FromDouble(hp->rope_factor)) ||
        rl_py_put(d, "n_ctx_orig", PyLong_FromLong(hp->n_ctx_orig)) ||
        rl_py_put(d, "attn_scale", PyFloat_FromDouble(hp->attn_scale)) ||
        rl_py_put(d, "attn_softcap", PyFloat_FromDouble(hp->attn_softcap)) ||
        rl_py_put(d, "final_softcap", PyFloat_FromDouble(hp->final_softcap)) ||
        rl_py_put(d, "embed_scale", PyFloat_FromDouble(hp->embed_scale)) ||
        rl_py_put(d, "residual_scale", PyFloat_FromDouble(hp->residual_scale)) ||
        rl_py_put(d, "logit_scale", PyFloat_FromDouble(hp->logit_scale)) ||
        rl_py_put(d, "n_expert", PyLong_FromLong(hp->n_expert)) ||
        rl_py_put(d, "n_expert_used", PyLong_FromLong(hp->n_expert_used)) ||
        rl_py_put(d, "n_ff_expert", PyLong_FromLong(hp->n_ff_exp)) ||
        rl_py_put(d, "tied_output", PyBool_FromLong(self->model->w.tied));
    if (bad) Py_CLEAR(d);
    return d;
}

static PyObject *get_notes(py_model *self, void *u) {
    (void)u;
    PyObject *list = PyList_New(0);
    const rl_notes *notes = &self->model->notes;
    for (size_t at = 0; list && at < notes->len; at += strlen(notes->text + at) + 1) {
        PyObject *s = PyUnicode_DecodeUTF8(notes->text + at, (Py_ssize_t)strlen(notes->text + at), "replace");
        if (!s || PyList_Append(list, s) < 0) Py_CLEAR(list);
        Py_XDECREF(s);
    }
    return list;
}

// {"name", "shape", "dtype"} of one tap; None in a shape stands for tokens or positions.
static PyObject *tap_record(const rl_hparams *hp, size_t layer, rl_tap_point p) {
    size_t width = rl_tap_width(hp, layer, p);
    PyObject *shape = width ? Py_BuildValue("(On)", Py_None, (Py_ssize_t)width)
                            : Py_BuildValue("(OIO)", Py_None, hp->layer[layer].n_head, Py_None);
    PyObject *name = rl_py_tap_full_name(layer, p);
    return name && shape ? Py_BuildValue("{s:N,s:N,s:s}", "name", name, "shape", shape, "dtype", "float32") : NULL;
}

static PyObject *model_taps(py_model *self, PyObject *unused) {
    (void)unused;
    const rl_hparams *hp = hp_of(self);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i <= hp->n_layer; i++) {
        bool of_layer = i < hp->n_layer;
        int p = of_layer ? 0 : RL_TAP_LAYER_POINTS, last = of_layer ? RL_TAP_LAYER_POINTS : RL_TAP_POINTS;
        for (; list && p < last; p++) {
            PyObject *row = tap_record(hp, of_layer ? i : 0, (rl_tap_point)p);
            if (!row || PyList_Append(list, row) < 0) Py_CLEAR(list);
            Py_XDECREF(row);
        }
    }
    return list;
}

static PyObject *model_repr(py_model *self) {
    const rl_hparams *hp = hp_of(self);
    return PyUnicode_FromFormat("<Model %s: %u layers, width %u, %u query and %u KV heads of %u, vocabulary %u>",
                                hp->arch->name, hp->n_layer, hp->n_embd, hp->layer[0].n_head, hp->layer[0].n_head_kv,
                                hp->dim_k, hp->n_vocab);
}

#define U32(field) (void *)offsetof(rl_hparams, field)
static PyGetSetDef model_getset[] = {
    {"gguf", (getter)get_gguf, NULL, "The GGUF object the model was opened from.", NULL},
    {"arch", (getter)get_arch, NULL, "Name of the architecture, general.architecture of the file.", NULL},
    {"tokenizer", (getter)get_tokenizer, NULL, "The Tokenizer of the file, made when first asked for.", NULL},
    {"n_layer", (getter)get_u32, NULL, "Number of layers.", U32(n_layer)},
    {"n_embd", (getter)get_u32, NULL, "Width of the residual stream.", U32(n_embd)},
    {"n_vocab", (getter)get_u32, NULL, "Number of logits.", U32(n_vocab)},
    {"n_ctx_train", (getter)get_u32, NULL, "Context length the model was trained for, tokens.", U32(n_ctx_train)},
    {"head_dim", (getter)get_u32, NULL, "Values per key head.", U32(dim_k)},
    {"n_head", (getter)get_n_head, NULL, "Query heads of the first layer.", NULL},
    {"n_head_kv", (getter)get_n_head, NULL, "KV heads of the first layer.", (void *)1},
    {"hparams", (getter)get_hparams, NULL, "All hyper-parameters, as read and completed, in a dict.", NULL},
    {"notes", (getter)get_notes, NULL, "What the file states and the engine does not use, as sentences.", NULL},
    {"weight_bytes_per_token", (getter)get_bytes_per_token, NULL,
     "Bytes of weights one token reads: every matrix once, of experts the chosen ones, of the embedding one row.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef model_methods[] = {
    {"taps", (PyCFunction)model_taps, METH_NOARGS,
     "taps($self, /)\n--\n\nWhat a session can capture: a list of {'name', 'shape', 'dtype'}; None in a shape stands "
     "for tokens or positions."},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(model_doc, "Model(file, *, load='auto', replace=None)\n--\n\n"
                        "A GGUF file bound to its architecture. `file` is a path or a GGUF. `replace` is a list of\n"
                        "(name, type, shape, buffer): tensors in memory that stand in for the file's.\n\n"
                        "Raises FormatError naming the key or tensor that is missing or wrong, and Error for an\n"
                        "architecture or setting that this engine cannot honour. A metadata key that has no effect\n"
                        "gives one FallbackWarning and stands in .notes.");

static PyType_Slot model_slots[] = {
    {Py_tp_new, model_new},         {Py_tp_dealloc, model_dealloc}, {Py_tp_traverse, model_traverse},
    {Py_tp_clear, model_clear},     {Py_tp_repr, model_repr},       {Py_tp_getset, model_getset},
    {Py_tp_methods, model_methods}, {Py_tp_doc, (void *)model_doc}, {0, NULL},
};

static PyType_Spec model_spec = {
    .name = "rooflm._core.Model",
    .basicsize = sizeof(py_model),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = model_slots,
};

int rl_py_add_model(PyObject *m, rl_state *st) {
    st->ModelType = (PyTypeObject *)PyType_FromModuleAndSpec(m, &model_spec, NULL);
    if (!st->ModelType || PyModule_AddObjectRef(m, "Model", (PyObject *)st->ModelType) < 0) return -1;
    return rl_py_add_session(m, st);
}
