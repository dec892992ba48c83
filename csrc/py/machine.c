// SPDX-License-Identifier: Apache-2.0
// What the machine is and how fast its memory reads, as plain dicts; python/rooflm/device makes them readable.
#include "py/machine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "probe/bandwidth.h"
#include "probe/latency.h"
#include "py/kernels.h"

static const struct {
    uint64_t bit;
    const char *name;
} features[] = {
    {RL_CPU_AVX2, "avx2"},         {RL_CPU_FMA, "fma"},           {RL_CPU_F16C, "f16c"},
    {RL_CPU_AVXVNNI, "avxvnni"},   {RL_CPU_AVX512F, "avx512f"},   {RL_CPU_AVX512BW, "avx512bw"},
    {RL_CPU_AVX512VL, "avx512vl"}, {RL_CPU_AVX512DQ, "avx512dq"}, {RL_CPU_AVX512VNNI, "avx512vnni"},
    {RL_CPU_NEON, "neon"},         {RL_CPU_DOTPROD, "dotprod"},   {RL_CPU_I8MM, "i8mm"},
};

// Puts a new reference into the dict and lets go of it; -1 when value is NULL or the dict cannot grow.
static int put(PyObject *dict, const char *key, PyObject *value) {
    int rc = value ? PyDict_SetItemString(dict, key, value) : -1;
    Py_XDECREF(value);
    return rc;
}

static PyObject *int_or_none(int64_t v) {
    if (v > 0) return PyLong_FromLongLong(v);
    Py_RETURN_NONE;
}

static PyObject *int_list(const int *v, int n) {
    PyObject *list = PyList_New(n);
    for (int i = 0; list && i < n; i++) {
        PyObject *o = PyLong_FromLong(v[i]);
        if (!o)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, o);
    }
    return list;
}

// Number of CPUs in `list`, which has room for RL_MAX_CPUS; -1 with an exception set.
static int parse_cpus(PyObject *o, int *list) {
    int n = 0;
    if (PyUnicode_Check(o)) {
        const char *text = PyUnicode_AsUTF8(o);
        if (!text) return -1;
        n = rl_cpulist_parse(text, list, RL_MAX_CPUS, RL_MAX_CPUS);
        if (n < 0) {
            PyErr_Format(PyExc_ValueError, "cpus must look like '0-3,6', ascending, not %R", o);
            return -1;
        }
    } else {
        PyObject *seq = PySequence_Fast(o, "cpus must be None, a str like '0-3,6', or integers");
        if (!seq) return -1;
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(seq) && n < RL_MAX_CPUS; i++) {
            long v = PyLong_AsLong(PySequence_Fast_GET_ITEM(seq, i));
            if (v == -1 && PyErr_Occurred()) {
                Py_DECREF(seq);
                return -1;
            }
            if (v < 0 || v >= RL_MAX_CPUS) {
                PyErr_Format(PyExc_ValueError, "cpus: there is no CPU %ld", v);
                Py_DECREF(seq);
                return -1;
            }
            list[n++] = (int)v;
        }
        Py_DECREF(seq);
    }
    return n;
}

int rl_py_cpus(PyObject *o, int n_threads, int *out) {
    if (!o || o == Py_None) return 0;
    int list[RL_MAX_CPUS], n = parse_cpus(o, list);
    if (n < 0) return -1;
    if (n < n_threads) {
        PyErr_Format(PyExc_ValueError, "cpus names %d CPUs for %d threads", n, n_threads);
        return -1;
    }
    memcpy(out, list, (size_t)n_threads * sizeof *out);
    return 1;
}

static int read_cpus(rl_state *st, const char *root, rl_cpus **out) {
    rl_err err;
    *out = malloc(sizeof **out);
    if (!*out) {
        PyErr_NoMemory();
        return -1;
    }
    if (rl_cpus_read(*out, root, &err) == RL_OK) return 0;
    free(*out);
    rl_raise(st, &err);
    return -1;
}

int rl_py_threads(rl_state *st, PyObject *o, const char *name) {
    if (!o || o == Py_None) {
        rl_cpus *c;
        if (read_cpus(st, NULL, &c) < 0) return -1;
        int n = c->default_threads;
        free(c);
        return n;
    }
    PyObject *index = PyNumber_Index(o);
    if (!index) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "%s must be an integer or None, not %.80s", name, Py_TYPE(o)->tp_name);
        return -1;
    }
    int overflow;
    long v = PyLong_AsLongAndOverflow(index, &overflow);
    Py_DECREF(index);
    if (overflow || v < 1 || v > RL_MAX_THREADS) {
        PyErr_Format(PyExc_ValueError, "%s must be from 1 to %d, not %R", name, RL_MAX_THREADS, o);
        return -1;
    }
    return (int)v;
}

int rl_py_place(rl_state *st, PyObject *threads, PyObject *cpus, rl_py_placement *out) {
    if (cpus && cpus != Py_None) {
        int list[RL_MAX_CPUS], n = parse_cpus(cpus, list);
        if (n < 0) return -1;
        out->n_threads = !threads || threads == Py_None ? (n < RL_MAX_THREADS ? n : RL_MAX_THREADS)
                                                        : rl_py_threads(st, threads, "n_threads");
        if (out->n_threads < 0) return -1;
        if (n != out->n_threads) {
            PyErr_Format(PyExc_ValueError, "cpus names %d CPUs for %d threads", n, out->n_threads);
            return -1;
        }
        memcpy(out->cpus, list, (size_t)n * sizeof *list);
        out->pinned = true;
        snprintf(out->reason, sizeof out->reason, "the CPUs asked for");
        return 0;
    }
    bool asked = threads && threads != Py_None;
    out->pinned = false;
    if (asked) {
        out->n_threads = rl_py_threads(st, threads, "n_threads");
        snprintf(out->reason, sizeof out->reason, "as asked");
        return out->n_threads < 0 ? -1 : 0;
    }
    rl_cpus *c;
    if (read_cpus(st, NULL, &c) < 0) return -1;
    out->n_threads = c->default_threads;
    // On unequal cores the scheduler may move a thread to a little one, and everybody waits for it.
    out->pinned = c->n_classes > 1;
    memcpy(out->cpus, c->default_cpus, (size_t)out->n_threads * sizeof *out->cpus);
    snprintf(out->reason, sizeof out->reason, "%s", c->reason);
    free(c);
    return 0;
}

static PyObject *cpu_dict(const rl_cpu *c) {
    PyObject *d = PyDict_New();
    if (d && put(d, "cpu", PyLong_FromLong(c->id)) == 0 && put(d, "allowed", PyBool_FromLong(c->allowed)) == 0 &&
        put(d, "class", PyLong_FromLong(c->cls)) == 0 && put(d, "max_khz", int_or_none(c->max_khz)) == 0 &&
        put(d, "capacity", int_or_none(c->capacity)) == 0 && put(d, "core", PyLong_FromLong(c->core)) == 0)
        return d;
    Py_XDECREF(d);
    return NULL;
}

static PyObject *class_dict(const rl_cpus *c, int k) {
    const rl_cpu_class *cls = &c->classes[k];
    int ids[RL_MAX_CPUS], n = 0;
    for (int i = 0; i < c->n; i++)
        if (c->cpu[i].cls == k) ids[n++] = c->cpu[i].id;
    PyObject *d = PyDict_New();
    if (d && put(d, "cpus", int_list(ids, n)) == 0 && put(d, "allowed", PyLong_FromLong(cls->n_allowed)) == 0 &&
        put(d, "max_khz", int_or_none(cls->max_khz)) == 0 && put(d, "capacity", int_or_none(cls->capacity)) == 0 &&
        put(d, "big", PyBool_FromLong(cls->big)) == 0)
        return d;
    Py_XDECREF(d);
    return NULL;
}

static PyObject *list_of(const rl_cpus *c, int n, int classes) {
    PyObject *list = PyList_New(n);
    for (int i = 0; list && i < n; i++) {
        PyObject *o = classes ? class_dict(c, i) : cpu_dict(&c->cpu[i]);
        if (!o)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, o);
    }
    return list;
}

static PyObject *cpus(PyObject *m, PyObject *args) {
    const char *root = "/";
    if (!PyArg_ParseTuple(args, "|s:_cpus", &root)) return NULL;
    rl_cpus *c;
    if (read_cpus(rl_state_of_module(m), root, &c) < 0) return NULL;
    PyObject *d = PyDict_New(), *none = Py_None;
    int rc = d ? 0 : -1;
    rc = rc ? rc : put(d, "n", PyLong_FromLong(c->n));
    rc = rc ? rc : put(d, "n_present", PyLong_FromLong(c->n_present));
    rc = rc ? rc : put(d, "cpus", list_of(c, c->n, 0));
    rc = rc ? rc : put(d, "classes", list_of(c, c->n_classes, 1));
    rc = rc ? rc : put(d, "cgroup", int_or_none(c->cgroup));
    rc = rc ? rc : put(d, "quota", c->quota > 0 ? PyFloat_FromDouble(c->quota) : Py_NewRef(none));
    rc = rc ? rc : put(d, "memory_limit_bytes", int_or_none((int64_t)c->memory_limit));
    rc = rc ? rc : put(d, "default_threads", PyLong_FromLong(c->default_threads));
    int named = 0; // with a quota there are more CPUs than threads
    while (named < c->default_threads && named < c->n) named++;
    rc = rc ? rc : put(d, "default_cpus", int_list(c->default_cpus, named));
    rc = rc ? rc : put(d, "reason", PyUnicode_DecodeUTF8(c->reason, (Py_ssize_t)strlen(c->reason), "replace"));
    free(c);
    if (rc == 0) return d;
    Py_XDECREF(d);
    return NULL;
}

static PyObject *isa_info(PyObject *m, PyObject *args) {
    PyObject *isa = NULL;
    if (!PyArg_ParseTuple(args, "|O:_isa", &isa)) return NULL;
    rl_dispatch d;
    if (rl_py_dispatch(rl_state_of_module(m), isa, NULL, &d) < 0) return NULL;
    static const struct {
        const char *name, *arch;
        uint64_t mask;
    } tiers[] = {
#define RL_TIER(name, arch, flags, mask) {#name, #arch, mask},
#include "kernels/tiers.h"
#undef RL_TIER
    };
#if defined(__x86_64__)
    const char *arch = "x86";
#else
    const char *arch = "arm";
#endif
    uint64_t cpu = rl_cpu_features();
    PyObject *names = PyList_New(0), *can = Py_BuildValue("[s]", "ref");
    for (size_t i = 0; names && i < sizeof features / sizeof *features; i++) {
        if (!(cpu & features[i].bit)) continue;
        PyObject *s = PyUnicode_FromString(features[i].name);
        if (!s || PyList_Append(names, s) < 0) Py_CLEAR(names);
        Py_XDECREF(s);
    }
    for (size_t i = 0; can && i < sizeof tiers / sizeof *tiers; i++) {
        if (strcmp(tiers[i].arch, arch) != 0 || (tiers[i].mask & cpu) != tiers[i].mask) continue;
        PyObject *s = PyUnicode_FromString(tiers[i].name);
        if (!s || PyList_Append(can, s) < 0) Py_CLEAR(can);
        Py_XDECREF(s);
    }
    PyObject *result =
        names && can ? Py_BuildValue("{s:s,s:O,s:O}", "in_use", d.isa, "available", can, "features", names) : NULL;
    Py_XDECREF(names), Py_XDECREF(can);
    return result;
}

static PyObject *float_list(const double *v, int n) {
    PyObject *list = PyList_New(n);
    for (int i = 0; list && i < n; i++) {
        PyObject *o = PyFloat_FromDouble(v[i]);
        if (!o)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, o);
    }
    return list;
}

static PyObject *result_dict(const rl_read_result *r, int threads) {
    PyObject *passes = float_list(r->seconds, r->passes), *busy = float_list(r->busy, r->passes);
    if (!passes || !busy) {
        Py_XDECREF(passes), Py_XDECREF(busy);
        return NULL;
    }
    return Py_BuildValue("{s:d,s:d,s:K,s:N,s:N,s:i,s:z,s:K}", "gbs", r->gbs, "median_s", r->median_s, "bytes",
                         (unsigned long long)r->bytes, "passes_s", passes, "passes_busy", busy, "threads", threads,
                         "kernel", r->kernel ? r->kernel->name : NULL, "checksum", (unsigned long long)r->checksum);
}

// What all measurements share.
typedef struct common {
    rl_state *st;
    rl_pool *pool;
    rl_dispatch d;
    rl_read_opts o;
    int cpus[RL_MAX_THREADS];
    PyThreadState *saved;
} common;

static int get_common(PyObject *m, common *c, PyObject *threads, int passes, PyObject *cpu_list, const char *kernel,
                      Py_ssize_t repeat, PyObject *isa) {
    memset(c, 0, sizeof *c);
    c->st = rl_state_of_module(m);
    int n = rl_py_threads(c->st, threads, "threads");
    if (n < 0) return -1;
    int pinned = rl_py_cpus(cpu_list, n, c->cpus);
    if (pinned < 0 || rl_py_dispatch(c->st, isa, NULL, &c->d) < 0) return -1;
    if (repeat < 1) {
        PyErr_SetString(PyExc_ValueError, "repeat must be at least 1");
        return -1;
    }
    c->pool = rl_state_pool(c->st);
    c->o = (rl_read_opts){.n_threads = n,
                          .cpus = pinned ? c->cpus : NULL,
                          .passes = passes,
                          .repeat = (size_t)repeat,
                          .kernel = kernel,
                          .poll = rl_py_poll,
                          .poll_arg = &c->saved};
    return c->pool ? 0 : -1;
}

static PyObject *raise_unless_pending(common *c, const rl_err *err) {
    return err->code == RL_ERR_INTERRUPTED && PyErr_Occurred() ? NULL : rl_raise(c->st, err);
}

PyDoc_STRVAR(
    read_doc,
    "read_bandwidth(arrays, *, threads=None, passes=5, cpus=None, kernel=None, repeat=1, isa=None)\n--\n\n"
    "Reads the bytes of these buffers (NumPy arrays, Tensor.raw, ...) the way a session reads its weights:\n"
    "each one shared among the threads, who steal from each other. Returns a dict: gbs (bytes / median_s /\n"
    "1e9), median_s, passes_s, passes_busy (share of each pass that the threads, together, were on a core: less\n"
    "than 1 when others had it), bytes, threads, kernel (the fastest of all read kernels unless one is named)\n"
    "and checksum, the XOR of all 64-bit words, which proves that every byte was read.\n\n"
    "repeat > 1 goes over the buffers so often in one pass, each thread over its own part: for what fits a\n"
    "cache.");

static PyObject *read_bandwidth(PyObject *m, PyObject *args, PyObject *kw) {
    static char *names[] = {"arrays", "threads", "passes", "cpus", "kernel", "repeat", "isa", NULL};
    static const char *const counts[] = {"threads", "passes", "repeat", NULL};
    PyObject *arrays, *threads = NULL, *cpu_list = NULL, *isa = NULL, *result = NULL;
    const char *kernel = NULL;
    Py_ssize_t repeat = 1;
    int passes = 5;
    if (rl_py_check_keywords(kw, "read_bandwidth", names) < 0 || rl_py_check_counts(kw, counts) < 0) return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O|$OiOznO:read_bandwidth", names, &arrays, &threads, &passes, &cpu_list,
                                     &kernel, &repeat, &isa))
        return NULL;
    common c;
    if (get_common(m, &c, threads, passes, cpu_list, kernel, repeat, isa) < 0) return NULL;
    PyObject *seq = PySequence_Fast(arrays, "arrays must be a sequence of buffers");
    if (!seq) return NULL;
    size_t n = (size_t)PySequence_Fast_GET_SIZE(seq), have = 0;
    Py_buffer *views = PyMem_Calloc(n + 1, sizeof *views);
    rl_range *ranges = PyMem_Calloc(n + 1, sizeof *ranges);
    rl_read_result r;
    rl_err err;
    if (!views || !ranges) {
        PyErr_NoMemory();
        goto done;
    }
    for (; have < n; have++) {
        if (PyObject_GetBuffer(PySequence_Fast_GET_ITEM(seq, have), &views[have], PyBUF_C_CONTIGUOUS) < 0) goto done;
        ranges[have] = (rl_range){views[have].buf, (size_t)views[have].len};
    }
    c.saved = PyEval_SaveThread();
    rl_status rc = rl_probe_read(c.pool, &c.d, ranges, n, &c.o, &r, &err);
    PyEval_RestoreThread(c.saved);
    result = rc == RL_OK ? result_dict(&r, c.o.n_threads) : raise_unless_pending(&c, &err);
done:
    while (have > 0) PyBuffer_Release(&views[--have]);
    PyMem_Free(views), PyMem_Free(ranges);
    Py_DECREF(seq);
    return result;
}

PyDoc_STRVAR(
    memory_doc,
    "memory_bandwidth(size, *, threads=None, passes=5, huge=True, copy=None, cpus=None, kernel=None, repeat=1, "
    "isa=None)\n--\n\n"
    "The same on `size` bytes of anonymous memory, in transparent huge pages or in small ones. The dict has\n"
    "huge_bytes too: how much really is in huge pages. copy copies one half onto the other:\n"
    "\"plain\" through the caches, \"stream\" with stores that go around them. Its bytes are those read plus those\n"
    "written, as STREAM counts; that plain stores make the caches read the target first is not counted.");

static PyObject *memory_bandwidth(PyObject *m, PyObject *args, PyObject *kw) {
    static char *names[] = {"size", "threads", "passes", "huge", "copy", "cpus", "kernel", "repeat", "isa", NULL};
    PyObject *threads = NULL, *cpu_list = NULL, *isa = NULL;
    const char *kernel = NULL, *copy = NULL;
    Py_ssize_t size, repeat = 1;
    int passes = 5, huge = 1;
    if (rl_py_check_keywords(kw, "memory_bandwidth", names) < 0) return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "n|$OipzOznO:memory_bandwidth", names, &size, &threads, &passes, &huge,
                                     &copy, &cpu_list, &kernel, &repeat, &isa))
        return NULL;
    if (copy && strcmp(copy, "plain") && strcmp(copy, "stream")) {
        PyErr_Format(PyExc_ValueError, "copy must be None, 'plain' or 'stream', not '%s'", copy);
        return NULL;
    }
    common c;
    if (get_common(m, &c, threads, passes, cpu_list, kernel, repeat, isa) < 0) return NULL;
    rl_probe_memory mem;
    rl_read_result r;
    rl_err err;
    c.saved = PyEval_SaveThread();
    rl_status rc = rl_probe_memory_make(&mem, c.pool, size > 0 ? (size_t)size : 0, huge, c.o.n_threads, c.o.cpus, &err);
    if (rc == RL_OK) {
        rl_range range = {mem.p, mem.n};
        rc = copy ? rl_probe_copy(c.pool, &c.d, &mem, copy, &c.o, &r, &err)
                  : rl_probe_read(c.pool, &c.d, &range, 1, &c.o, &r, &err);
    }
    size_t huge_bytes = rc == RL_OK ? mem.huge_bytes : 0;
    rl_probe_memory_free(&mem);
    PyEval_RestoreThread(c.saved);
    if (rc != RL_OK) return raise_unless_pending(&c, &err);
    PyObject *d = result_dict(&r, c.o.n_threads);
    if (d && put(d, "huge_bytes", PyLong_FromSize_t(huge_bytes)) < 0) Py_CLEAR(d);
    return d;
}

PyDoc_STRVAR(
    latency_doc,
    "random_latency(size, stride=64, iters=1000000, *, huge=True, random=True, seed=0)\n--\n\n"
    "Nanoseconds per access when each waits for the last: a walk of `iters` steps along one cycle through all\n"
    "of `size` bytes, one node per `stride`. random=False walks them in order. Returns a dict: ns, seconds,\n"
    "parts_ns (of five equal stretches of the walk), nodes, huge_bytes, end. A stride of 4096 visits a page per step, "
    "so that it measures the TLB too, and the\n"
    "nodes compete for few sets of each cache.");

static PyObject *random_latency(PyObject *m, PyObject *args, PyObject *kw) {
    static char *names[] = {"size", "stride", "iters", "huge", "random", "seed", NULL};
    Py_ssize_t size, stride = 64, iters = 1000000;
    int huge = 1, random = 1;
    unsigned long long seed = 0;
    if (rl_py_check_keywords(kw, "random_latency", names) < 0) return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "n|nn$ppK:random_latency", names, &size, &stride, &iters, &huge, &random,
                                     &seed))
        return NULL;
    common c;
    PyObject *one = PyLong_FromLong(1);
    if (!one || get_common(m, &c, one, 1, NULL, NULL, 1, NULL) < 0) {
        Py_XDECREF(one);
        return NULL;
    }
    Py_DECREF(one);
    rl_probe_memory mem;
    rl_latency_result r;
    rl_err err;
    c.saved = PyEval_SaveThread();
    rl_status rc = rl_probe_memory_make(&mem, c.pool, size > 0 ? (size_t)size : 0, huge, 1, NULL, &err);
    size_t huge_bytes = mem.huge_bytes;
    if (rc == RL_OK)
        rc = rl_probe_latency(&mem, stride > 0 ? (size_t)stride : 0, iters > 0 ? (size_t)iters : 0, random, seed,
                              rl_py_poll, &c.saved, &r, &err);
    rl_probe_memory_free(&mem);
    PyEval_RestoreThread(c.saved);
    if (rc != RL_OK) return raise_unless_pending(&c, &err);
    PyObject *parts = float_list(r.part_ns, r.parts);
    if (!parts) return NULL;
    return Py_BuildValue("{s:d,s:d,s:N,s:n,s:n,s:n}", "ns", r.ns, "seconds", r.seconds, "parts_ns", parts, "nodes",
                         (Py_ssize_t)r.nodes, "huge_bytes", (Py_ssize_t)huge_bytes, "end", (Py_ssize_t)r.end);
}

static PyObject *core_clock(PyObject *m, PyObject *args) {
    (void)m;
    double ms = 2.0, ghz;
    if (!PyArg_ParseTuple(args, "|d:core_clock", &ms)) return NULL;
    if (!(ms > 0 && ms <= 10000)) {
        PyErr_SetString(PyExc_ValueError, "ms must be above 0 and at most 10000");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    ghz = rl_clock_core_ghz(ms);
    Py_END_ALLOW_THREADS;
    return PyFloat_FromDouble(ghz);
}

static PyObject *last_threads(PyObject *m, PyObject *unused) {
    (void)unused;
    rl_pool *pool = rl_state_pool(rl_state_of_module(m));
    if (!pool) return NULL;
    rl_pool_report *r = malloc(sizeof *r);
    if (!r) return PyErr_NoMemory();
    rl_pool_last_report(pool, r);
    PyObject *list = PyList_New(r->n_threads);
    for (int i = 0; list && i < r->n_threads; i++) {
        PyObject *o = r->pin_errno[i] ? Py_BuildValue("(is)", r->cpu[i], strerror(r->pin_errno[i]))
                                      : Py_BuildValue("(iO)", r->cpu[i], Py_None);
        if (!o)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, o);
    }
    free(r);
    return list;
}

#define KEYWORDS(f) (PyCFunction)(void (*)(void)) f, METH_VARARGS | METH_KEYWORDS
static PyMethodDef methods[] = {
    {"_cpus", cpus, METH_VARARGS, "_cpus(root='/', /)\n--\n\nCPUs, classes, limits, default threads; see machine()."},
    {"_isa", isa_info, METH_VARARGS, "_isa(isa=None, /)\n--\n\nTiers available and in use, CPU features."},
    {"_last_threads", last_threads, METH_NOARGS,
     "_last_threads()\n--\n\n(CPU it ran on, None or why it could not be pinned) of each thread of the last parallel "
     "work."},
    {"read_bandwidth", KEYWORDS(read_bandwidth), read_doc},
    {"memory_bandwidth", KEYWORDS(memory_bandwidth), memory_doc},
    {"random_latency", KEYWORDS(random_latency), latency_doc},
    {"core_clock", core_clock, METH_VARARGS,
     "core_clock(ms=2.0, /)\n--\n\nClock of the core under the calling thread in GHz, timed with dependent additions."},
    {NULL, NULL, 0, NULL}};

int rl_py_add_machine(PyObject *m, rl_state *st) {
    (void)st;
    return PyModule_AddFunctions(m, methods);
}
