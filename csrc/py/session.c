// SPDX-License-Identifier: Apache-2.0
// rooflm._core.Session: life, state, evaluation. Logits that are streamed instead of returned are in logprobs.c.
#include "py/session.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>
#include <stdio.h>

#include "py/files.h"
#include "py/kernels.h"
#include "py/kvcache.h"
#include "py/machine.h"
#include "run/blas.h"

// ---- shared helpers ----

// Against other threads, but beside a step that runs ahead.
static int enter_beside(rl_state *st, py_session *s) {
    if (!s->s) {
        PyErr_SetString(PyExc_ValueError, "the session is closed");
        return -1;
    }
    if (atomic_flag_test_and_set_explicit(&s->busy, memory_order_acquire)) {
        PyErr_SetString(st->SessionBusy, "the session is computing in another thread; give each thread a session of "
                                         "its own (model.session() or session.fork())");
        return -1;
    }
    return 0;
}

int rl_py_session_enter(rl_state *st, py_session *s) {
    return rl_py_ahead_wait(s, true) < 0 ? -1 : enter_beside(st, s);
}

void rl_py_session_leave(py_session *s) {
    atomic_flag_clear_explicit(&s->busy, memory_order_release);
}

static rl_state *state_of(py_session *self) {
    return rl_state_of_type(Py_TYPE(self));
}

// ---- life ----

static py_session *alloc(PyTypeObject *type, py_model *model) {
    py_session *self = (py_session *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    atomic_flag_clear(&self->busy);
    self->model = (py_model *)Py_NewRef((PyObject *)model);
    return self;
}

static int kv_layout(const char *name, rl_kv_layout *out) {
    static const char *const names[] = {[RL_KV_TILE] = "tile", [RL_KV_TOKEN] = "token", [RL_KV_HEAD] = "head"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(names[i], name)) {
            *out = (rl_kv_layout)i;
            return 0;
        }
    PyErr_Format(PyExc_ValueError, "layout is '%.40s': it must be tile, token or head", name);
    return -1;
}

static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"model", "n_ctx",  "kv",          "n_threads", "n_batch", "compute",
                            "cpus",  "kernel", "layout",      "rope_base", "isa",     "blas",
                            "rules", "window", "int8_single", "sinks",     NULL};
    rl_state *st = rl_state_of_type(type);
    py_model *model;
    Py_ssize_t n_ctx = 4096, n_batch = 512;
    PyObject *threads = Py_None;
    const char *kv = "f16", *compute = "auto", *kernel = NULL, *layout = "tile";
    const char *blas = NULL;
    PyObject *cpus = Py_None, *isa = Py_None, *rules = Py_None, *singles = Py_None;
    double rope_base = 0;
    Py_ssize_t window = 0, sinks = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|$nsOnsOzsdOzOnOn:Session", names, st->ModelType, &model, &n_ctx,
                                     &kv, &threads, &n_batch, &compute, &cpus, &kernel, &layout, &rope_base, &isa,
                                     &blas, &rules, &window, &singles, &sinks))
        return NULL;
    rl_py_placement place;
    if (rl_py_place(st, threads, cpus, &place) < 0) return NULL;
    // One name must run, or it is an error; a list says which to prefer for each type of weights.
    const bool several = kernel && strchr(kernel, ',');
    rl_engine_opts o = {.n_threads = place.n_threads,
                        .cpus = place.pinned ? place.cpus : NULL,
                        .kernel = several ? NULL : kernel,
                        .rope_base = rope_base};
    if (n_ctx < 1 || n_batch < 1) {
        PyErr_Format(PyExc_ValueError, "n_ctx %zd and n_batch %zd must be positive", n_ctx, n_batch);
        return NULL;
    }
    if (rope_base != 0 && !(rope_base >= RL_ROPE_BASE_MIN && rope_base <= RL_ROPE_BASE_MAX)) {
        PyErr_SetString(PyExc_ValueError, "rope_base must be from 1e-3 to 1e18, or 0 for the file's own");
        return NULL;
    }
    if (window < 0) {
        PyErr_Format(PyExc_ValueError, "window is %zd: it must be positive, or 0 for the file's own", window);
        return NULL;
    }
    o.window = (size_t)window;
    o.evict = sinks >= 0;
    o.sinks = o.evict ? (size_t)sinks : 0;
    o.n_ctx = (size_t)n_ctx;
    o.n_batch = (size_t)n_batch;
    PyObject *preferred = several ? PyUnicode_FromString(kernel) : Py_NewRef(Py_None);
    if (!preferred) return NULL;
    const int dispatched = rl_py_dispatch(st, isa, preferred, &o.dispatch);
    Py_DECREF(preferred);
    if (dispatched < 0 || rl_py_kv_parse(kv, &o.type_k, &o.type_v) < 0 || rl_py_compute(compute, &o.compute) < 0 ||
        kv_layout(layout, &o.layout) < 0 || !(o.pool = rl_state_pool(st)))
        return NULL;
    rl_err err;
    rl_err_clear(&err);
    rl_engine *engine = NULL;
    py_session *self = NULL;
    rl_compute_rule *own_rules;
    rl_int8_single *own_singles;
    if (rl_py_compute_rules(rules, &own_rules, &o.n_rules) < 0) return NULL;
    if (rl_py_int8_singles(singles, &own_singles, &o.n_int8_single) < 0) {
        PyMem_Free(own_rules);
        return NULL;
    }
    o.rules = own_rules;
    o.int8_single = own_singles;
    if (blas && rl_blas_open(&o.blas, blas, &err) != RL_OK) {
        PyMem_Free(own_rules);
        PyMem_Free(own_singles);
        return rl_raise(st, &err);
    }
    if (rl_engine_create(&engine, model->model, &o, &err) != RL_OK) {
        rl_raise(st, &err);
    } else if ((self = alloc(type, model))) {
        if (rl_session_create(&self->s, engine, &err) != RL_OK) {
            rl_raise(st, &err);
            Py_CLEAR(self);
        } else {
            memcpy(self->placed, place.reason, sizeof self->placed);
            self->pin_unchecked = place.pinned;
        }
    }
    rl_engine_release(engine);
    rl_blas_release(o.blas);
    PyMem_Free(own_rules);
    PyMem_Free(own_singles);
    return (PyObject *)self;
}

static int session_traverse(py_session *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->model);
    return 0;
}

static int session_clear(py_session *self) {
    Py_CLEAR(self->model);
    return 0;
}

static void free_content(py_session *self) {
    rl_py_ahead_rest(self);
    rl_py_capture_free(self->capture);
    rl_py_collected_free(self->collected);
    self->capture = NULL;
    rl_session_free(self->s);
    self->s = NULL;
    PyMem_RawFree(self->trace.events);
    self->trace = (rl_trace){0};
}

static void session_dealloc(py_session *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    free_content(self);
    rl_py_ahead_free(self);
    session_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *session_close(py_session *self, PyObject *unused) {
    (void)unused;
    if (!self->s) Py_RETURN_NONE;
    if (rl_py_session_enter(state_of(self), self) < 0) return NULL;
    free_content(self);
    rl_py_session_leave(self);
    Py_RETURN_NONE;
}

// ---- state ----

static PyObject *session_rewind(py_session *self, PyObject *arg) {
    Py_ssize_t n = PyNumber_AsSsize_t(arg, PyExc_OverflowError);
    if (n == -1 && PyErr_Occurred()) return NULL;
    rl_state *st = state_of(self);
    if (rl_py_session_enter(st, self) < 0) return NULL;
    rl_err err;
    rl_err_clear(&err);
    rl_status s;
    if (n < 0)
        s = rl_fail(&err, RL_ERR_ARG, "rewind to %zd: it must be 0 to the %zu tokens there are", n,
                    rl_session_length(self->s));
    else
        s = rl_session_rewind(self->s, (size_t)n, &err);
    rl_py_session_leave(self);
    if (s != RL_OK) return rl_raise(st, &err);
    Py_RETURN_NONE;
}

static PyObject *session_fork(py_session *self, PyObject *unused) {
    (void)unused;
    rl_state *st = state_of(self);
    if (rl_py_session_enter(st, self) < 0) return NULL;
    rl_err err;
    rl_err_clear(&err);
    py_session *f = alloc(Py_TYPE(self), self->model);
    if (f && rl_session_fork(self->s, &f->s, &err) != RL_OK) {
        rl_raise(st, &err);
        Py_CLEAR(f);
    }
    rl_py_session_leave(self);
    return (PyObject *)f;
}

static rl_status save_state(void *s, rl_write_fn write, void *to, rl_err *err) {
    return rl_session_save(s, write, to, err);
}
static rl_status load_state(void *s, rl_read_fn read, void *from, rl_err *err) {
    return rl_session_load(s, read, from, err);
}

static PyObject *transfer(py_session *self, PyObject *path, bool save) {
    rl_state *st = state_of(self);
    PyObject *bytes = NULL;
    if (!PyUnicode_FSConverter(path, &bytes)) return NULL;
    if (rl_py_session_enter(st, self) < 0) {
        Py_DECREF(bytes);
        return NULL;
    }
    rl_err err;
    rl_err_clear(&err);
    rl_status s;
    const char *name = PyBytes_AS_STRING(bytes);
    Py_BEGIN_ALLOW_THREADS;
    s = save ? rl_py_save_file(name, save_state, self->s, &err) : rl_py_load_file(name, load_state, self->s, &err);
    Py_END_ALLOW_THREADS;
    rl_py_session_leave(self);
    Py_DECREF(bytes);
    if (s != RL_OK) return rl_raise(st, &err);
    Py_RETURN_NONE;
}

static PyObject *session_save(py_session *self, PyObject *path) {
    return transfer(self, path, true);
}
static PyObject *session_load(py_session *self, PyObject *path) {
    return transfer(self, path, false);
}

static PyObject *set_taps(py_session *self, PyObject *wanted) {
    if (rl_py_session_enter(state_of(self), self) < 0) return NULL;
    rl_session_forget(self->s); // to be evaluated anew, and captured
    PyObject *r = rl_py_set_taps(self, wanted);
    rl_py_session_leave(self);
    return r;
}

static PyObject *take_taps(py_session *self, PyObject *unused) {
    (void)unused;
    if (rl_py_session_enter(state_of(self), self) < 0) return NULL;
    PyObject *r = rl_py_take_taps(self);
    rl_py_session_leave(self);
    return r;
}

static PyObject *collect_inputs(py_session *self, PyObject *on) {
    if (rl_py_session_enter(state_of(self), self) < 0) return NULL;
    rl_session_forget(self->s);
    PyObject *r = rl_py_collect_inputs(self, on);
    rl_py_session_leave(self);
    return r;
}

static PyObject *take_inputs(py_session *self, PyObject *unused) {
    (void)unused;
    if (rl_py_session_enter(state_of(self), self) < 0) return NULL;
    PyObject *r = rl_py_take_inputs(self);
    rl_py_session_leave(self);
    return r;
}

static void collect_op(void *arg, int layer, const char *op, const rl_weight *w, const rl_kernel *k) {
    PyObject **list = arg;
    if (!*list) return;
    PyObject *at = layer < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(layer);
    PyObject *row =
        at ? Py_BuildValue("{s:N,s:s,s:s,s:s,s:s,s:s,s:n,s:n,s:n,s:n}", "layer", at, "op", op, "type",
                           w->t->dtype->name, "kernel", k->name, "isa", k->isa, "tensor", w->t->name, "rows",
                           (Py_ssize_t)w->rows, "columns", (Py_ssize_t)w->cols, "experts", (Py_ssize_t)w->experts,
                           "nbytes", (Py_ssize_t)(w->rows * w->experts * w->t->row_bytes))
           : NULL;
    if (!row || PyList_Append(*list, row) < 0) Py_CLEAR(*list);
    Py_XDECREF(row);
}

static PyObject *session_kernels(py_session *self, PyObject *args) {
    Py_ssize_t n_tok = 1;
    if (!PyArg_ParseTuple(args, "|n:kernels", &n_tok)) return NULL;
    if (n_tok < 1) {
        PyErr_SetString(PyExc_ValueError, "n_tokens must be positive");
        return NULL;
    }
    if (rl_py_session_enter(state_of(self), self) < 0) return NULL;
    PyObject *list = PyList_New(0);
    rl_engine_each_op(self->s->engine, (size_t)n_tok, collect_op, &list);
    rl_py_session_leave(self);
    return list;
}

// ---- attributes ----

static const rl_engine_opts *opts_of(py_session *self) {
    if (self->s) return rl_engine_options(self->s->engine);
    PyErr_SetString(PyExc_ValueError, "the session is closed");
    return NULL;
}

enum {
    GET_N_PAST,
    GET_N_CTX,
    GET_N_BATCH,
    GET_N_THREADS,
    GET_SCRATCH,
    GET_SCRATCH_USED,
    GET_KV_BYTES,
    GET_EVICTED,
    GET_ROOM,
    GET_STEP_ROOM
};

static PyObject *get_size(py_session *self, void *which) {
    const rl_engine_opts *o = opts_of(self);
    if (!o) return NULL;
    switch ((int)(intptr_t)which) {
    case GET_N_PAST:
        return PyLong_FromSize_t(rl_session_length(self->s));
    case GET_N_CTX:
        return PyLong_FromSize_t(o->n_ctx);
    case GET_N_BATCH:
        return PyLong_FromSize_t(o->n_batch);
    case GET_N_THREADS:
        return PyLong_FromLong(o->n_threads);
    case GET_SCRATCH:
        return PyLong_FromSize_t(rl_engine_scratch_bytes(self->s->engine));
    case GET_SCRATCH_USED:
        return PyLong_FromSize_t(rl_engine_scratch_used(self->s->engine));
    case GET_EVICTED:
        return PyLong_FromSize_t(rl_kv_dropped(self->s->kv));
    case GET_ROOM:
        return PyLong_FromSize_t(rl_session_room(self->s));
    case GET_STEP_ROOM:
        return PyLong_FromSize_t(rl_session_step_room(self->s));
    default: { // pages change hands while a step runs
        if (rl_py_session_enter(state_of(self), self) < 0) return NULL;
        size_t n = rl_kv_bytes_in_use(self->s->kv);
        rl_py_session_leave(self);
        return PyLong_FromSize_t(n);
    }
    }
}

static PyObject *get_model(py_session *self, void *u) {
    (void)u;
    return Py_NewRef((PyObject *)self->model);
}

static PyObject *get_compute(py_session *self, void *u) {
    (void)u;
    static const char *const names[] = {"auto", "int8", "int16", "f32"};
    const rl_engine_opts *o = opts_of(self);
    return o ? PyUnicode_FromString(names[o->compute]) : NULL;
}

static PyObject *get_kv_type(py_session *self, void *u) {
    (void)u;
    const rl_engine_opts *o = opts_of(self);
    if (!o) return NULL;
    char text[16];
    rl_py_kv_format(o->type_k, o->type_v, text);
    return PyUnicode_FromString(text);
}

static PyObject *get_isa(py_session *self, void *u) {
    (void)u;
    const rl_engine_opts *o = opts_of(self);
    return o ? PyUnicode_FromString(o->dispatch.isa) : NULL;
}

static PyObject *get_blas(py_session *self, void *u) {
    (void)u;
    const rl_engine_opts *o = opts_of(self);
    if (!o) return NULL;
    if (!o->blas) return Py_NewRef(Py_None);
    return Py_BuildValue("{s:s,s:s,s:s}", "path", rl_blas_path(o->blas), "config", rl_blas_config(o->blas), "core",
                         rl_blas_core(o->blas));
}

// Where the threads were put and where they ran last.
static PyObject *get_placement(py_session *self, void *u) {
    (void)u;
    const rl_engine_opts *o = opts_of(self);
    if (!o) return NULL;
    rl_pool_report ran;
    rl_pool_last_report(o->pool, &ran);
    PyObject *cpus = o->cpus ? PyList_New(o->n_threads) : Py_NewRef(Py_None);
    PyObject *ran_on = PyList_New(ran.n_threads);
    for (int i = 0; cpus && o->cpus && i < o->n_threads; i++) PyList_SET_ITEM(cpus, i, PyLong_FromLong(o->cpus[i]));
    for (int i = 0; ran_on && i < ran.n_threads; i++) PyList_SET_ITEM(ran_on, i, PyLong_FromLong(ran.cpu[i]));
    if (!cpus || !ran_on) {
        Py_XDECREF(cpus);
        Py_XDECREF(ran_on);
        return NULL;
    }
    return Py_BuildValue("{s:i,s:s,s:N,s:N}", "n_threads", o->n_threads, "reason", self->placed, "cpus", cpus, "ran_on",
                         ran_on);
}

static PyObject *get_tokens(py_session *self, void *u) {
    (void)u;
    // An evaluation may move them; a step that runs ahead is begun only where it need not.
    if (enter_beside(state_of(self), self) < 0) return NULL;
    npy_intp n = (npy_intp)rl_session_length(self->s);
    PyObject *a = PyArray_SimpleNew(1, &n, NPY_INT32);
    if (a && n) memcpy(PyArray_DATA((PyArrayObject *)a), self->s->tokens, (size_t)n * sizeof(int32_t));
    rl_py_session_leave(self);
    return a;
}

// For layer views: they copy with the GIL held, so no step can begin meanwhile, and one that runs is seen here.
static const rl_kv *idle_cache(PyObject *owner) {
    py_session *self = (py_session *)owner;
    if (rl_py_session_enter(state_of(self), self) < 0) return NULL;
    rl_py_session_leave(self);
    return self->s->kv;
}

static PyObject *get_kv(py_session *self, void *u) {
    (void)u;
    if (!opts_of(self)) return NULL;
    rl_state *st = state_of(self);
    size_t n = rl_engine_model(self->s->engine)->hp.n_layer;
    PyObject *t = PyTuple_New((Py_ssize_t)n);
    for (size_t i = 0; t && i < n; i++) {
        PyObject *view = rl_py_kv_layer(st, (PyObject *)self, idle_cache, i);
        if (!view)
            Py_CLEAR(t);
        else
            PyTuple_SET_ITEM(t, (Py_ssize_t)i, view);
    }
    return t;
}

static PyObject *session_repr(py_session *self) {
    if (!self->s) return PyUnicode_FromString("<Session closed>");
    const rl_engine_opts *o = opts_of(self);
    static const char *const names[] = {"auto", "int8", "int16", "f32"};
    char kv[16];
    rl_py_kv_format(o->type_k, o->type_v, kv);
    return PyUnicode_FromFormat("<Session of %s: %zu of %zu positions, kv %s, %d threads, compute %s>",
                                self->model->model->hp.arch->name, rl_session_length(self->s), o->n_ctx, kv,
                                o->n_threads, names[o->compute]);
}

#define WHICH(x) (void *)(intptr_t)x
static PyGetSetDef session_getset[] = {
    {"model", (getter)get_model, NULL, "The Model the session computes.", NULL},
    {"n_past", (getter)get_size, NULL, "Tokens evaluated so far.", WHICH(GET_N_PAST)},
    {"n_ctx", (getter)get_size, NULL, "Positions the session has.", WHICH(GET_N_CTX)},
    {"n_batch", (getter)get_size, NULL, "Most tokens computed in one step.", WHICH(GET_N_BATCH)},
    {"n_threads", (getter)get_size, NULL, "Threads that compute, the calling one included.", WHICH(GET_N_THREADS)},
    {"scratch_nbytes", (getter)get_size, NULL, "Bytes of working memory, reserved at creation.", WHICH(GET_SCRATCH)},
    {"scratch_used_nbytes", (getter)get_size, NULL,
     "Bytes of it that single tokens and batches of n_batch touch: what is resident then.", WHICH(GET_SCRATCH_USED)},
    {"kv_nbytes", (getter)get_size, NULL, "Bytes of the KV pages in use.", WHICH(GET_KV_BYTES)},
    {"evicted", (getter)get_size, NULL, "Positions that the cache dropped behind its sinks.", WHICH(GET_EVICTED)},
    {"_compressed", (getter)rl_py_session_compressed, NULL, "(tokens, rank of K, rank of V) of compressed pages.",
     NULL},
    {"_whole_layers", (getter)rl_py_session_whole_layers, NULL, "By layer, whether it has no window.", NULL},
    {"room", (getter)get_size, NULL, "Positions that may come.", WHICH(GET_ROOM)},
    {"_step_room", (getter)get_size, NULL, "Most tokens of one step: those before the next page is evicted.",
     WHICH(GET_STEP_ROOM)},
    {"compute", (getter)get_compute, NULL, "'auto', 'int8', 'int16' or 'f32'.", NULL},
    {"kv_type", (getter)get_kv_type, NULL, "Type of the KV cache, 'f16' or 'q8_0/f16' (K/V).", NULL},
    {"isa", (getter)get_isa, NULL, "Best instruction set tier in use.", NULL},
    {"placement", (getter)get_placement, NULL,
     "{'n_threads', 'reason', 'cpus', 'ran_on'}: why so many threads, the CPUs they are pinned to (None: free), and "
     "the CPU each was seen on at the end of the last parallel work of this process.",
     NULL},
    {"blas", (getter)get_blas, NULL, "What multiplies prompts, {'path', 'config', 'core'}; None: our own kernels.",
     NULL},
    {"tokens", (getter)get_tokens, NULL, "The tokens evaluated so far, int32 (a copy).", NULL},
    {"kv", (getter)get_kv, NULL, "One view per layer: .k(raw=False), .v(raw=False), .pages.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(
    eval_doc,
    "eval($self, /, tokens, logits='last', out=None)\n--\n\n"
    "Appends tokens (integers, shape (n,)) and returns float32 logits that the caller owns: 'last' gives shape\n"
    "(n_vocab,), 'all' (n, n_vocab), a slice of the tokens (rows, n_vocab), 'none' gives None. `out` is a\n"
    "writable C-contiguous float32 array of that shape to write into.\n\n"
    "Raises ContextFull (with .n_ctx and .needed) and ValueError for ids outside the vocabulary; the session\n"
    "stays as it was, also after Ctrl-C. SessionBusy when another thread is using it.");
PyDoc_STRVAR(logprobs_doc,
             "logprobs($self, /, tokens, *, top=0, start=0)\n--\n\n"
             "Appends tokens and returns (next, top_ids, top_logprobs) in nats, streamed: the logits are never kept.\n"
             "next: float64 (n - 1 - start,), log-probability of token i + 1 given all up to i, for i >= start.\n"
             "top_ids int32 and top_logprobs float32 (n - start, top): the likeliest continuations of each position.");
PyDoc_STRVAR(rewind_doc, "rewind($self, n, /)\n--\n\nKeeps the first n tokens. ValueError names the least n when a "
                         "sliding-window layer has already dropped what is needed.");
PyDoc_STRVAR(fork_doc, "fork($self, /)\n--\n\nA session at the same position that shares full KV pages.");
PyDoc_STRVAR(save_doc, "save($self, path, /)\n--\n\nWrites tokens and KV cache to a file.");
PyDoc_STRVAR(load_doc,
             "load($self, path, /)\n--\n\nReplaces tokens and KV cache by those of a file that the same model "
             "and KV settings saved. FormatError when they differ.");

static PyMethodDef session_methods[] = {
    {"eval", (PyCFunction)(void (*)(void))rl_py_session_eval, METH_VARARGS | METH_KEYWORDS, eval_doc},
    {"logprobs", (PyCFunction)(void (*)(void))rl_py_session_logprobs, METH_VARARGS | METH_KEYWORDS, logprobs_doc},
    {"rewind", (PyCFunction)session_rewind, METH_O, rewind_doc},
    {"fork", (PyCFunction)session_fork, METH_NOARGS, fork_doc},
    {"save", (PyCFunction)session_save, METH_O, save_doc},
    {"load", (PyCFunction)session_load, METH_O, load_doc},
    {"close", (PyCFunction)session_close, METH_NOARGS,
     "close($self, /)\n--\n\nFrees the cache and the scratch memory."},
    {"_set_taps", (PyCFunction)set_taps, METH_O, "_set_taps($self, wanted, /)\n--\n\n"},
    {"_take_taps", (PyCFunction)take_taps, METH_NOARGS, "_take_taps($self, /)\n--\n\n"},
    {"_collect_inputs", (PyCFunction)collect_inputs, METH_O, "_collect_inputs($self, on, /)\n--\n\n"},
    {"_take_inputs", (PyCFunction)take_inputs, METH_NOARGS, "_take_inputs($self, /)\n--\n\n"},
    {"_ahead_start", (PyCFunction)rl_py_ahead_start, METH_VARARGS,
     "_ahead_start($self, tokens, first, out=None, /)\n--\n\n"},
    {"_ahead_finish", (PyCFunction)rl_py_ahead_finish, METH_O, "_ahead_finish($self, number, /)\n--\n\n"},
    {"_ahead_take_back", (PyCFunction)rl_py_ahead_take_back, METH_O, "_ahead_take_back($self, number, /)\n--\n\n"},
    {"_ahead_pause", (PyCFunction)rl_py_ahead_pause, METH_NOARGS, "_ahead_pause($self, /)\n--\n\n"},
    {"_trace_start", (PyCFunction)rl_py_trace_start, METH_O, "_trace_start($self, capacity, /)\n--\n\n"},
    {"_trace_take", (PyCFunction)rl_py_trace_take, METH_NOARGS, "_trace_take($self, /)\n--\n\n"},
    {"_trace_rows", rl_py_trace_rows, METH_O | METH_STATIC, "_trace_rows(raw, /)\n--\n\n"},
    {"kernels", (PyCFunction)session_kernels, METH_VARARGS,
     "kernels($self, n_tokens=1, /)\n--\n\nPer matrix, the kernel that multiplies n_tokens tokens: a list of {'layer', "
     "'op', 'type', 'kernel', 'isa', 'tensor'}."},
    {"_contrast", (PyCFunction)rl_py_session_contrast, METH_VARARGS,
     "_contrast($self, tokens, reference, next, start, /)\n--\n\nEvaluates tokens and compares the logits of rows from "
     "`start` on with those of the reference, see _contrast_rows."},
    {"_compress", (PyCFunction)rl_py_session_compress, METH_VARARGS,
     "_compress($self, end, rank_k, rank_v, basis, /)\n--\n\nCompresses the pages from position 64 to end. basis: for "
     "each "
     "layer None where it has a window, else (K (n_head_kv, dim, rank), V (n_head_kv, rank, dim)); None where pages "
     "are "
     "compressed already."},
    {"_step_many", (PyCFunction)rl_py_session_step_many, METH_VARARGS | METH_CLASS, NULL},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(session_doc, "Session(model, *, n_ctx=4096, kv='f16', n_threads=None, n_batch=512, compute='auto', "
                          "cpus=None, kernel=None, layout='tile', "
                          "rope_base=0.0, isa=None, blas=None, rules=None, window=0, "
                          "int8_single=None, sinks=-1)\n--\n\n"
                          "One sequence of tokens with its KV cache. Use Model.session(), which has defaults.");

static PyType_Slot session_slots[] = {
    {Py_tp_new, session_new},         {Py_tp_dealloc, session_dealloc}, {Py_tp_traverse, session_traverse},
    {Py_tp_clear, session_clear},     {Py_tp_repr, session_repr},       {Py_tp_getset, session_getset},
    {Py_tp_methods, session_methods}, {Py_tp_doc, (void *)session_doc}, {0, NULL},
};

static PyType_Spec session_spec = {
    .name = "rooflm._core.Session",
    .basicsize = sizeof(py_session),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = session_slots,
};

int rl_py_add_session(PyObject *m, rl_state *st) {
    import_array1(-1);
    if (rl_py_taps_init() < 0 || rl_py_inputs_init() < 0 || rl_py_session_eval_init() < 0 || rl_py_ahead_init() < 0 ||
        rl_py_compress_init() < 0 || rl_py_add_contrast(m) < 0)
        return -1;
    st->SessionType = (PyTypeObject *)PyType_FromModuleAndSpec(m, &session_spec, NULL);
    return st->SessionType ? PyModule_AddObjectRef(m, "Session", (PyObject *)st->SessionType) : -1;
}
