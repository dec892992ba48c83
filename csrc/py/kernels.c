// SPDX-License-Identifier: Apache-2.0
// The table of kernels as Python sees it, multiplying with one tensor, and the entry points by which tests and
// benchmarks call each kernel on raw bytes.
#include "py/kernels.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

static const char *const family_names[RL_FAM_COUNT] = {
    [RL_FAM_DEQUANT] = "dequant",   [RL_FAM_ACT] = "act",
    [RL_FAM_ROWS] = "rows",         [RL_FAM_TILE_UNPACK] = "tile_unpack",
    [RL_FAM_TILE_MUL] = "tile_mul", [RL_FAM_ATTN] = "attn",
    [RL_FAM_VEC] = "vec",           [RL_FAM_READ] = "read",
    [RL_FAM_QUANT] = "quant",       [RL_FAM_COPY] = "copy",
};

static const struct {
    unsigned bit;
    const char *name;
} act_names[] = {{RL_ACT_F32, "f32"}, {RL_ACT_Q8, "int8"}, {RL_ACT_Q16, "int16"}};

static int text_or_env(PyObject *o, const char *env, const char *what, const char **out) {
    if (o == NULL || o == Py_None) {
        *out = getenv(env);
        return 0;
    }
    if (!PyUnicode_Check(o)) {
        PyErr_Format(PyExc_TypeError, "%s must be a str or None, not %.80s", what, Py_TYPE(o)->tp_name);
        return -1;
    }
    *out = PyUnicode_AsUTF8(o);
    return *out ? 0 : -1;
}

// ROOFLM_STRIPS overrides what the CPU wants.
static int strips_by_env(bool *strips) {
    const char *given = getenv("ROOFLM_STRIPS");
    if (!given || !*given) return 0;
    if ((given[0] != '0' && given[0] != '1') || given[1]) {
        PyErr_Format(PyExc_ValueError, "ROOFLM_STRIPS must be 0 or 1, not '%.40s'", given);
        return -1;
    }
#if !defined(__x86_64__)
    if (given[0] == '1') {
        PyErr_SetString(PyExc_ValueError,
                        "ROOFLM_STRIPS=1 is for x86-64: the kernels here read rows one after the other");
        return -1;
    }
#endif
    *strips = given[0] == '1';
    return 0;
}

int rl_py_dispatch(rl_state *st, PyObject *isa, PyObject *kernels, rl_dispatch *d) {
    const char *limit, *names;
    if (text_or_env(isa, "ROOFLM_ISA", "isa", &limit) < 0) return -1;
    if (text_or_env(kernels, "ROOFLM_KERNELS", "kernels", &names) < 0) return -1;
    rl_err err;
    rl_err_clear(&err);
    if (rl_dispatch_init(d, limit, names, &err) != RL_OK) {
        rl_raise(st, &err);
        return -1;
    }
    return strips_by_env(&d->strips);
}

int rl_py_compute(const char *name, rl_compute *out) {
    static const char *const names[] = {
        [RL_COMPUTE_AUTO] = "auto", [RL_COMPUTE_INT8] = "int8", [RL_COMPUTE_INT16] = "int16", [RL_COMPUTE_F32] = "f32"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (rl_compute)i;
            return 0;
        }
    PyErr_Format(PyExc_ValueError, "compute must be 'auto', 'int8', 'int16' or 'f32', not '%.80s'", name);
    return -1;
}

bool rl_py_poll(void *arg) {
    PyThreadState **saved = arg;
    PyEval_RestoreThread(*saved);
    int stop = PyErr_CheckSignals() < 0;
    *saved = PyEval_SaveThread();
    return stop;
}

int rl_py_run(rl_state *st, rl_region_fn fn, void *arg, int n_threads) {
    rl_pool *pool = rl_state_pool(st);
    if (!pool) return -1;
    rl_err err;
    rl_err_clear(&err);
    PyThreadState *saved = PyEval_SaveThread();
    rl_region region = {.fn = fn, .arg = arg, .n_threads = n_threads, .poll = rl_py_poll, .poll_arg = &saved};
    rl_status s = rl_pool_run(pool, &region, &err);
    PyEval_RestoreThread(saved);
    if (s == RL_OK) return 0;
    if (s != RL_ERR_INTERRUPTED || !PyErr_Occurred()) rl_raise(st, &err);
    return -1;
}

// Why an entry is the chosen one of its slot, or why it is not.
static PyObject *reason(const rl_dispatch *d, uint64_t cpu, const rl_kernel *k, const rl_kernel *chosen) {
    if ((k->cpu & cpu) != k->cpu) {
        size_t n_features;
        const rl_cpu_feature *features = rl_cpu_feature_names(&n_features);
        char missing[160] = "";
        for (size_t i = 0; i < n_features; i++)
            if (k->cpu & ~cpu & features[i].bit) strcat(strcat(missing, *missing ? ", " : ""), features[i].name);
        return PyUnicode_FromFormat("this CPU lacks %s", missing);
    }
    if ((k->cpu & d->features) != k->cpu) return PyUnicode_FromFormat("limited to the %s tier", d->isa);
    if (chosen != k) return PyUnicode_FromFormat("%s is preferred", chosen->name);
    size_t n = strlen(k->name);
    for (const char *p = strstr(d->overrides, k->name); p; p = strstr(p + 1, k->name))
        if ((p == d->overrides || p[-1] == ',') && (p[n] == 0 || p[n] == ','))
            return PyUnicode_FromString("asked for by name");
    return PyUnicode_FromString("best tier here");
}

static PyObject *act_list(unsigned act) {
    for (size_t i = 0; i < sizeof act_names / sizeof *act_names; i++)
        if (act & act_names[i].bit) return PyUnicode_FromString(act_names[i].name);
    return Py_NewRef(Py_None);
}

static PyObject *kernel_table(PyObject *m, PyObject *args) {
    PyObject *isa = NULL, *names = NULL;
    if (!PyArg_ParseTuple(args, "|OO:_kernel_table", &isa, &names)) return NULL;
    rl_dispatch d;
    if (rl_py_dispatch(rl_state_of_module(m), isa, names, &d) < 0) return NULL;
    size_t n;
    const rl_kernel *k = rl_kernels(&n);
    uint64_t cpu = rl_cpu_features();
    size_t n_features;
    const rl_cpu_feature *features = rl_cpu_feature_names(&n_features);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < n; i++, k++) {
        // The layout of a tile follows from its unpack, so it is no part of that choice.
        const char *layout = k->family == RL_FAM_TILE_UNPACK ? NULL : k->layout;
        unsigned act_in = k->act & 7 ? k->act & 7 : k->act;
        // Rows for tokens in pairs give way to rows that were asked for by name.
        const rl_kernel *chosen = k->family == RL_FAM_ROWS && *k->layout
                                      ? rl_kernel_find_rows(&d, k->type, act_in, 2)
                                      : rl_kernel_find(&d, k->family, k->type, act_in, layout);
        const rl_dtype *t = k->type == RL_TYPE_NONE ? NULL : rl_dtype_of(k->type);
        PyObject *needs = PyList_New(0);
        for (size_t f = 0; needs && f < n_features; f++)
            if (k->cpu & features[f].bit) {
                PyObject *s = PyUnicode_FromString(features[f].name);
                if (!s || PyList_Append(needs, s) < 0) Py_CLEAR(needs);
                Py_XDECREF(s);
            }
        PyObject *act = act_list(k->act), *why = reason(&d, cpu, k, chosen);
        PyObject *row = needs && act && why ? Py_BuildValue("(sszNsNNOOOs)", k->name, family_names[k->family],
                                                            t ? t->name : NULL, act, k->isa, PyList_AsTuple(needs),
                                                            Py_BuildValue("(ii)", k->tile_rows, k->tile_cols),
                                                            (k->cpu & d.features) == k->cpu ? Py_True : Py_False,
                                                            chosen == k ? Py_True : Py_False, why, k->layout)
                                            : NULL;
        if (!needs || !act || !why) Py_XDECREF(act); // Py_BuildValue takes it, also when it fails
        Py_XDECREF(needs);
        Py_XDECREF(why);
        if (!row || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

// One activation matrix in storage of its own.
typedef struct {
    rl_act act;
    void *raw;
} owned_act;

static int act_alloc(owned_act *o, unsigned formats, size_t cols, size_t n_tok) {
    size_t bytes = rl_act_bytes(formats, cols, n_tok);
    o->raw = PyMem_RawCalloc(1, bytes + 64);
    if (!o->raw) {
        PyErr_NoMemory();
        return -1;
    }
    rl_act_bind(&o->act, formats, cols, n_tok, (void *)(((uintptr_t)o->raw + 63) & ~(uintptr_t)63));
    return 0;
}

// A C-contiguous float32 matrix through the buffer protocol.
static int get_matrix(PyObject *o, Py_buffer *b, int writable, const char *what) {
    if (PyObject_GetBuffer(o, b, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) < 0) return -1;
    if (b->ndim == 2 && b->itemsize == 4 && b->format && strcmp(b->format, "f") == 0 && b->shape[0] > 0 &&
        b->shape[1] > 0)
        return 0;
    PyBuffer_Release(b);
    PyErr_Format(PyExc_ValueError, "%s must be a C-contiguous float32 matrix with at least one element", what);
    return -1;
}

typedef struct {
    const rl_dispatch *d;
    owned_act act;
    rl_linear lin;
    const float *x;
    size_t n_tok;
    float *out;
    uint8_t *scratch;
    size_t scratch_bytes;
    int repeats;
    bool timed;
    uint64_t ns; // of all repeats, once the team runs
} linear_job;

static void linear_region(void *arg, rl_team *team, int ith) {
    linear_job *j = arg;
    size_t t0, t1;
    rl_split(j->n_tok, 1, ith, rl_team_size(team), &t0, &t1);
    rl_linear_call call = {
        .lin = &j->lin, .act = &j->act.act, .n_tok = j->n_tok, .out = j->out, .ld_out = j->lin.w.rows};
    if (j->timed && !rl_team_barrier(team, ith)) return; // all are there before the clock starts
    uint64_t start = rl_clock_ns();
    for (int r = 0; r < j->repeats; r++) {
        if (r && !rl_team_barrier(team, ith)) return; // the product before is done with the activations
        if (t0 < t1) rl_act_fill(&j->act.act, j->d, j->x, j->lin.w.cols, t0, t1);
        if (!rl_team_barrier(team, ith)) return;
        rl_linear_run(team, ith, &call, 1, j->scratch + (size_t)ith * j->scratch_bytes);
    }
    if (j->timed && !rl_team_barrier(team, ith)) return;
    if (ith == 0) j->ns = rl_clock_ns() - start;
}

// Arguments of _linear, and of _linear_seconds, which ends with the number of repeats.
static PyObject *linear_args(PyObject *m, PyObject *args, bool timed) {
    rl_state *st = rl_state_of_module(m);
    PyObject *xo, *outo, *isa = NULL, *names = NULL, *result = NULL;
    Py_buffer raw, x = {0}, out = {0};
    const char *type, *compute, *kernel;
    Py_ssize_t rows;
    int threads, repeats = 1;
    if (!PyArg_ParseTuple(args, timed ? "Oy*snOsziOOi:_linear_seconds" : "Oy*snOszi|OO:_linear", &xo, &raw, &type,
                          &rows, &outo, &compute, &kernel, &threads, &isa, &names, &repeats))
        return NULL;
    linear_job j = {.repeats = repeats > 1 ? repeats : 1, .timed = timed};
    rl_dispatch d;
    rl_linear_opts opts = {.kernel = kernel};
    void *scratch = NULL;
    rl_err err;
    rl_err_clear(&err);
    if (get_matrix(xo, &x, 0, "X") < 0) goto done;
    if (get_matrix(outo, &out, 1, "out") < 0) goto done;
    if (rl_py_dispatch(st, isa, names, &d) < 0 || rl_py_compute(compute, &opts.compute) < 0) goto done;
    if (threads < 1 || threads > RL_MAX_THREADS) {
        PyErr_Format(PyExc_ValueError, "threads must be from 1 to %d, not %d", RL_MAX_THREADS, threads);
        goto done;
    }
    rl_type id = rl_dtype_parse(type);
    const rl_dtype *t = id == RL_TYPE_NONE ? NULL : rl_dtype_of(id);
    size_t cols = (size_t)x.shape[1], need;
    if (!t || rows < 1 || out.shape[0] != x.shape[0] || out.shape[1] != rows) {
        PyErr_SetString(PyExc_ValueError, "out must be (tokens, rows) and the type a GGUF type");
        goto done;
    }
    size_t row_bytes = (cols + t->block - 1) / t->block * t->bytes;
    if (!rl_mul_size(row_bytes, (size_t)rows, &need) || (size_t)raw.len < need) {
        PyErr_Format(PyExc_ValueError, "%zd rows of %zu %s values need more than %zd bytes", rows, cols, t->name,
                     raw.len);
        goto done;
    }
    rl_mat w = {.type = id, .rows = (size_t)rows, .cols = cols, .row_bytes = row_bytes, .data = raw.buf};
    if (rl_linear_plan(&j.lin, &d, &w, &opts, &err) != RL_OK) {
        rl_raise(st, &err);
        goto done;
    }
    j.d = &d;
    j.x = x.buf;
    j.out = out.buf;
    j.n_tok = (size_t)x.shape[0];
    const rl_linear *lins[] = {&j.lin};
    j.scratch_bytes = (rl_linear_scratch(lins, 1, j.n_tok) + 63) / 64 * 64;
    scratch = PyMem_RawMalloc(j.scratch_bytes * (size_t)threads + 64);
    if (!scratch) {
        PyErr_NoMemory();
        goto done;
    }
    j.scratch = (uint8_t *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    if (act_alloc(&j.act, rl_linear_formats(&j.lin, j.n_tok), cols, j.n_tok) < 0) goto done;
    if (rl_py_run(st, linear_region, &j, threads) < 0) goto done;
    result = timed ? PyFloat_FromDouble((double)j.ns * 1e-9 / j.repeats)
                   : PyUnicode_FromString(rl_linear_kernel(&j.lin, j.n_tok)->name);
done:
    PyMem_RawFree(scratch);
    PyMem_RawFree(j.act.raw);
    if (x.obj) PyBuffer_Release(&x);
    if (out.obj) PyBuffer_Release(&out);
    PyBuffer_Release(&raw);
    return result;
}

// -> name of the kernel that ran
static PyObject *linear(PyObject *m, PyObject *args) {
    return linear_args(m, args, false);
}

// -> seconds of one product in a team that runs already, the quantizing of activations included
static PyObject *linear_seconds(PyObject *m, PyObject *args) {
    return linear_args(m, args, true);
}

// _rows(kernel, w, row_bytes, n_rows, x, out, repeats=1, isa=None, strips=False) -> seconds of all repeats. Calls one
// rows kernel on raw bytes; `isa` limits the kernels that quantize x; strips: by turns, one token, n_rows a multiple
// of 8. out may be wider than n_rows.
static PyObject *rows(PyObject *m, PyObject *args) {
    rl_state *st = rl_state_of_module(m);
    const char *name;
    Py_buffer w, x = {0}, out = {0};
    Py_ssize_t row_bytes, n_rows;
    PyObject *xo, *outo, *isa = NULL, *result = NULL;
    int repeats = 1, strips = 0;
    if (!PyArg_ParseTuple(args, "sy*nnOO|iOp:_rows", &name, &w, &row_bytes, &n_rows, &xo, &outo, &repeats, &isa,
                          &strips))
        return NULL;
    owned_act act = {0};
    rl_dispatch d, act_d;
    rl_err err;
    rl_err_clear(&err);
    const rl_kernel *k = NULL;
    if (get_matrix(xo, &x, 0, "x") < 0) goto done;
    if (get_matrix(outo, &out, 1, "out") < 0) goto done;
    if (rl_py_dispatch(st, NULL, NULL, &d) < 0 || rl_py_dispatch(st, isa, NULL, &act_d) < 0) goto done;
    if (rl_kernel_named(&d, name, &k, &err) != RL_OK) {
        rl_raise(st, &err);
        goto done;
    }
    const rl_dtype *t = k->family == RL_FAM_ROWS ? rl_dtype_of(k->type) : NULL;
    size_t cols = (size_t)x.shape[1], n_tok = (size_t)x.shape[0];
    if (!t || cols % t->block || row_bytes < (Py_ssize_t)(cols / t->block * t->bytes) || n_rows < 1 ||
        (strips && (n_rows % RL_ROWS_STRIPS || n_tok != 1)) || out.shape[0] != x.shape[0] || out.shape[1] < n_rows ||
        w.len / row_bytes + (w.len % row_bytes >= (Py_ssize_t)(cols / t->block * t->bytes)) < n_rows) {
        PyErr_SetString(PyExc_ValueError, "sizes do not fit");
        goto done;
    }
    if (act_alloc(&act, k->act, cols, n_tok) < 0) goto done;
    rl_act_fill(&act.act, &act_d, x.buf, cols, 0, n_tok);
    uint64_t ns;
    Py_BEGIN_ALLOW_THREADS ns = rl_clock_ns();
    for (int r = 0; r < repeats; r++)
        for (size_t t0 = 0; t0 < n_tok; t0 += RL_ROWS_MAX_TOK) {
            rl_rows_args a = {
                .w = w.buf,
                .row_bytes = (size_t)row_bytes,
                .cols = cols,
                .n_rows = (size_t)n_rows,
                .apart = strips ? (size_t)n_rows / RL_ROWS_STRIPS : 0,
                .act = &act.act,
                .tok0 = t0,
                .n_tok = n_tok - t0 < RL_ROWS_MAX_TOK ? n_tok - t0 : RL_ROWS_MAX_TOK,
                .out = (float *)out.buf + t0 * (size_t)out.shape[1],
                .ld_out = (size_t)out.shape[1],
            };
            ((rl_rows_fn)k->fn)(&a);
        }
    ns = rl_clock_ns() - ns;
    Py_END_ALLOW_THREADS result = PyFloat_FromDouble((double)ns * 1e-9);
done:
    PyMem_RawFree(act.raw);
    if (x.obj) PyBuffer_Release(&x);
    if (out.obj) PyBuffer_Release(&out);
    PyBuffer_Release(&w);
    return result;
}

static int put_bytes(PyObject *dict, const char *key, const void *p, size_t n) {
    PyObject *b = p ? PyBytes_FromStringAndSize(p, (Py_ssize_t)n) : Py_NewRef(Py_None);
    int rc = b ? PyDict_SetItemString(dict, key, b) : -1;
    Py_XDECREF(b);
    return rc;
}

// _act(x, formats, isa=None) -> {"q8": bytes, ...}: the arrays of rl_act, padded as there.
static PyObject *act(PyObject *m, PyObject *args) {
    PyObject *xo, *isa = NULL, *dict = NULL;
    Py_buffer x = {0};
    unsigned formats;
    owned_act o = {0};
    rl_dispatch d;
    if (!PyArg_ParseTuple(args, "OI|O:_act", &xo, &formats, &isa) || get_matrix(xo, &x, 0, "x") < 0) return NULL;
    size_t n = (size_t)x.shape[0];
    if (rl_py_dispatch(rl_state_of_module(m), isa, NULL, &d) < 0 || act_alloc(&o, formats, (size_t)x.shape[1], n) < 0)
        goto done;
    rl_act_fill(&o.act, &d, x.buf, (size_t)x.shape[1], 0, n);
    const rl_act *a = &o.act;
    size_t even = (n + 1) / 2 * 2;
    dict = PyDict_New();
    if (!dict || put_bytes(dict, "q8", a->q8, n * a->ld_q) < 0 || put_bytes(dict, "d8", a->d8, n * a->ld_d * 4) < 0 ||
        put_bytes(dict, "s8", a->s8, n * a->ld_d * 4) < 0 || put_bytes(dict, "b8", a->b8, n * a->ld_d * 4) < 0 ||
        put_bytes(dict, "q8n", a->q8n, n * a->ld_q) < 0 || put_bytes(dict, "q8p", a->q8p, n * a->ld_q) < 0 ||
        put_bytes(dict, "q16s", a->q16s, n * a->ld_q * 2) < 0 || put_bytes(dict, "q8m", a->q8m, even * a->ld_q) < 0 ||
        put_bytes(dict, "q16m", a->q16m, even * a->ld_q * 2) < 0 ||
        put_bytes(dict, "q16p", a->q16p, n * a->ld_q * 2) < 0 || put_bytes(dict, "q16", a->q16, n * a->ld_q * 2) < 0 ||
        put_bytes(dict, "d16", a->d16, n * a->ld_d16 * 4) < 0 || put_bytes(dict, "s16", a->s16, n * a->ld_d * 4) < 0 ||
        put_bytes(dict, "b16", a->b16, n * a->ld_d * 8) < 0 || put_bytes(dict, "q16n", a->q16n, n * a->ld_q * 2) < 0 ||
        put_bytes(dict, "q16e", a->q16e, n * a->ld_q * 2) < 0)
        Py_CLEAR(dict);
done:
    PyMem_RawFree(o.raw);
    PyBuffer_Release(&x);
    return dict;
}

static PyMethodDef methods[] = {
    {"_kernel_table", kernel_table, METH_VARARGS,
     "_kernel_table(isa=None, kernels=None, /)\n--\n\nThe table of kernels as tuples; see rooflm.kernels()."},
    {"_linear", linear, METH_VARARGS,
     "_linear(x, raw, type, rows, out, compute, kernel, threads, isa=None, kernels=None, /)\n--\n\n"
     "Multiplies float32 x (tokens, in) with raw blocks into out (tokens, rows); returns the kernel's name."},
    {"_linear_seconds", linear_seconds, METH_VARARGS,
     "_linear_seconds(x, raw, type, rows, out, compute, kernel, threads, isa, kernels, repeats, /)\n--\n\n"
     "The same, repeated in a team of threads that runs already; returns the seconds of one product."},
    {"_rows", rows, METH_VARARGS,
     "_rows(kernel, w, row_bytes, n_rows, x, out, repeats=1, isa=None, strips=False, /)\n--\n\n"
     "Calls one rows kernel on raw bytes; returns the seconds of all repeats together."},
    {"_act", act, METH_VARARGS,
     "_act(x, formats, isa=None, /)\n--\n\nQuantizes activations; returns the padded arrays as bytes."},
    {NULL, NULL, 0, NULL},
};

int rl_py_add_kernels(PyObject *m, rl_state *st) {
    (void)st;
    return PyModule_AddFunctions(m, methods);
}
