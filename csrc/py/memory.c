// SPDX-License-Identifier: Apache-2.0
// How fast memory reads and answers, as plain dicts: of given bytes, of the pages of a KV cache, of memory of its own.
#include <stdlib.h>
#include <string.h>

#include "probe/bandwidth.h"
#include "probe/latency.h"
#include "py/kernels.h"
#include "py/kvcache.h"
#include "py/machine.h"
#include "py/session.h"

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
    "read_bandwidth(arrays, *, kv=None, threads=None, passes=5, cpus=None, kernel=None, repeat=1, isa=None)\n--\n\n"
    "Reads the bytes of these buffers (NumPy arrays, Tensor.raw, ...) the way a session reads its weights:\n"
    "each one shared among the threads, who steal from each other; and behind them the pages of `kv` (a Session or\n"
    "KVCache) that its next token reads, in the order of their addresses. Returns a dict: gbs (bytes / median_s /\n"
    "1e9), median_s, passes_s, passes_busy (share of each pass that the threads, together, were on a core: less\n"
    "than 1 when others had it), bytes, threads, kernel (the fastest of all read kernels unless one is named)\n"
    "and checksum, the XOR of all 64-bit words, which proves that every byte was read.\n\n"
    "repeat > 1 goes over the buffers so often in one pass, each thread over its own part: for what fits a\n"
    "cache.");

// Ranges that grow; p is NULL when memory ran out.
typedef struct range_list {
    rl_range *p;
    size_t n, cap;
} range_list;

static void add_page(void *arg, const void *data, size_t bytes) {
    range_list *l = arg;
    if (l->p && l->n == l->cap) {
        rl_range *more = PyMem_Realloc(l->p, 2 * l->cap * sizeof *more);
        if (!more) PyMem_Free(l->p);
        l->p = more;
        l->cap *= 2;
    }
    if (l->p) l->p[l->n++] = (rl_range){data, bytes};
}

static int by_address(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const rl_range *)a)->p, y = (uintptr_t)((const rl_range *)b)->p;
    return (x > y) - (x < y);
}

// Appends the pages of a cache: as few ranges as possible, since each is handed out to the threads anew.
static void add_cache(range_list *l, const rl_kv *kv) {
    size_t from = l->n, to = from;
    rl_kv_each_page(kv, add_page, l);
    if (!l->p || l->n == from) return;
    qsort(l->p + from, l->n - from, sizeof *l->p, by_address);
    for (size_t i = from + 1; i < l->n; i++) {
        if ((const uint8_t *)l->p[to].p + l->p[to].n == l->p[i].p)
            l->p[to].n += l->p[i].n;
        else
            l->p[++to] = l->p[i];
    }
    l->n = to + 1;
}

// The cache of a Session or KVCache, which nobody else may use until it is released; NULL with an exception set.
static const rl_kv *hold_cache(rl_state *st, PyObject *o) {
    if (PyObject_TypeCheck(o, st->KVCacheType)) return rl_py_kvcache_acquire(st, o);
    if (!PyObject_TypeCheck(o, st->SessionType)) {
        PyErr_Format(PyExc_TypeError, "kv must be a Session or KVCache of the extension, not %.80s",
                     Py_TYPE(o)->tp_name);
        return NULL;
    }
    py_session *s = (py_session *)o;
    return rl_py_session_enter(st, s) < 0 ? NULL : s->s->kv;
}

static void release_cache(rl_state *st, PyObject *o) {
    if (PyObject_TypeCheck(o, st->SessionType))
        rl_py_session_leave((py_session *)o);
    else
        rl_py_kvcache_release(o);
}

static PyObject *read_bandwidth(PyObject *m, PyObject *args, PyObject *kw) {
    static char *names[] = {"arrays", "kv", "threads", "passes", "cpus", "kernel", "repeat", "isa", NULL};
    static const char *const counts[] = {"threads", "passes", "repeat", NULL};
    PyObject *arrays, *kv = Py_None, *threads = NULL, *cpu_list = NULL, *isa = NULL, *result = NULL;
    const char *kernel = NULL;
    Py_ssize_t repeat = 1;
    int passes = 5;
    if (rl_py_check_keywords(kw, "read_bandwidth", names) < 0 || rl_py_check_counts(kw, counts) < 0) return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "O|$OOiOznO:read_bandwidth", names, &arrays, &kv, &threads, &passes,
                                     &cpu_list, &kernel, &repeat, &isa))
        return NULL;
    common c;
    if (get_common(m, &c, threads, passes, cpu_list, kernel, repeat, isa) < 0) return NULL;
    PyObject *seq = PySequence_Fast(arrays, "arrays must be a sequence of buffers");
    if (!seq) return NULL;
    size_t n = (size_t)PySequence_Fast_GET_SIZE(seq), have = 0;
    Py_buffer *views = PyMem_Calloc(n + 1, sizeof *views);
    range_list ranges = {PyMem_Calloc(n + 1, sizeof *ranges.p), n, n + 1};
    rl_read_result r;
    rl_err err;
    if (!views || !ranges.p) {
        PyErr_NoMemory();
        goto done;
    }
    for (; have < n; have++) {
        if (PyObject_GetBuffer(PySequence_Fast_GET_ITEM(seq, have), &views[have], PyBUF_C_CONTIGUOUS) < 0) goto done;
        ranges.p[have] = (rl_range){views[have].buf, (size_t)views[have].len};
    }
    if (kv != Py_None) {
        const rl_kv *cache = hold_cache(c.st, kv);
        if (!cache) goto done;
        add_cache(&ranges, cache);
        if (!ranges.p) {
            release_cache(c.st, kv);
            PyErr_NoMemory();
            goto done;
        }
    }
    c.saved = PyEval_SaveThread();
    rl_status rc = rl_probe_read(c.pool, &c.d, ranges.p, ranges.n, &c.o, &r, &err);
    PyEval_RestoreThread(c.saved);
    if (kv != Py_None) release_cache(c.st, kv);
    result = rc == RL_OK ? result_dict(&r, c.o.n_threads) : raise_unless_pending(&c, &err);
done:
    while (have > 0) PyBuffer_Release(&views[--have]);
    PyMem_Free(views), PyMem_Free(ranges.p);
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
    if (d && rl_py_put(d, "huge_bytes", PyLong_FromSize_t(huge_bytes)) < 0) Py_CLEAR(d);
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

#define KEYWORDS(f) (PyCFunction)(void (*)(void)) f, METH_VARARGS | METH_KEYWORDS
static PyMethodDef methods[] = {{"read_bandwidth", KEYWORDS(read_bandwidth), read_doc},
                                {"memory_bandwidth", KEYWORDS(memory_bandwidth), memory_doc},
                                {"random_latency", KEYWORDS(random_latency), latency_doc},
                                {NULL, NULL, 0, NULL}};

int rl_py_add_memory(PyObject *m, rl_state *st) {
    (void)st;
    return PyModule_AddFunctions(m, methods);
}
