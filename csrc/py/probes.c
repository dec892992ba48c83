// SPDX-License-Identifier: Apache-2.0
// Peaks of arithmetic, copies and counters as plain functions; python/rooflm/device makes them readable.
#include "py/machine.h"

#include <string.h>

#include "base/clock.h"
#include "kernels/api.h"
#include "probe/counters.h"
#include "probe/peak.h"
#include "py/kernels.h"

static PyObject *peaks(PyObject *m, PyObject *args) {
    rl_state *st = rl_state_of_module(m);
    double seconds;
    PyObject *threads = NULL;
    if (!PyArg_ParseTuple(args, "d|O:_peaks", &seconds, &threads)) return NULL;
    int n_threads = threads ? rl_py_threads(st, threads, "threads") : 1;
    rl_pool *pool = n_threads < 0 ? NULL : rl_state_pool(st);
    PyObject *dict = pool ? PyDict_New() : NULL;
    size_t n;
    const rl_peak *p = rl_peaks(&n);
    uint64_t cpu = rl_cpu_features();
    for (size_t i = 0; dict && i < n; i++, p++) {
        if ((p->cpu & cpu) != p->cpu) continue;
        rl_err err;
        rl_err_clear(&err);
        double best = 0;
        PyThreadState *saved = PyEval_SaveThread();
        rl_status s = rl_probe_peak(pool, p, n_threads, seconds, rl_py_poll, &saved, &best, &err);
        PyEval_RestoreThread(saved);
        if (s != RL_OK) {
            Py_DECREF(dict);
            return PyErr_Occurred() ? NULL : rl_raise(st, &err);
        }
        PyObject *key = Py_BuildValue("(ss)", p->isa, p->kind), *value = PyFloat_FromDouble(best);
        if (!key || !value || PyDict_SetItem(dict, key, value) < 0) Py_CLEAR(dict);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return dict;
}

static PyObject *copy(PyObject *m, PyObject *args) {
    rl_state *st = rl_state_of_module(m);
    const char *name;
    Py_buffer to, from;
    if (!PyArg_ParseTuple(args, "sw*y*:_copy", &name, &to, &from)) return NULL;
    rl_dispatch d;
    rl_err err;
    rl_err_clear(&err);
    const rl_kernel *k = NULL;
    PyObject *result = NULL;
    if (rl_dispatch_init(&d, NULL, NULL, &err) != RL_OK || rl_kernel_named(&d, name, &k, &err) != RL_OK)
        rl_raise(st, &err);
    else if (k->family != RL_FAM_COPY)
        PyErr_Format(PyExc_ValueError, "%s is not a copy kernel", name);
    else if (to.len != from.len || (uintptr_t)to.buf % 64)
        PyErr_SetString(PyExc_ValueError, "both must have the same size, and the target be aligned to 64 bytes");
    else {
        ((rl_copy_bytes_fn)k->fn)(to.buf, from.buf, (size_t)to.len);
        result = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&to);
    PyBuffer_Release(&from);
    return result;
}

static PyObject *counter_open(PyObject *m, PyObject *args) {
    (void)m;
    unsigned type;
    unsigned long long config;
    int tid, kernel;
    if (!PyArg_ParseTuple(args, "IKip:_counter_open", &type, &config, &tid, &kernel)) return NULL;
    return PyLong_FromLong(rl_counter_open(type, config, tid, kernel));
}

static PyObject *counter_run(PyObject *m, PyObject *args) {
    (void)m;
    int fd, on;
    if (!PyArg_ParseTuple(args, "ip:_counter_run", &fd, &on)) return NULL;
    return PyLong_FromLong(rl_counter_run(fd, on));
}

static PyObject *counter_read(PyObject *m, PyObject *args) {
    (void)m;
    int fd;
    if (!PyArg_ParseTuple(args, "i:_counter_read", &fd)) return NULL;
    rl_counter_value v;
    int rc = rl_counter_read(fd, &v);
    if (rc < 0) return PyLong_FromLong(rc);
    return Py_BuildValue("(KKK)", (unsigned long long)v.value, (unsigned long long)v.enabled_ns,
                         (unsigned long long)v.running_ns);
}

static PyMethodDef methods[] = {
    {"_peaks", peaks, METH_VARARGS,
     "_peaks(seconds, threads=1, /)\n--\n\n"
     "Multiply-adds per second by (isa, kind), each measured for that long on so many threads at once."},
    {"_copy", copy, METH_VARARGS, "_copy(kernel, to, source, /)\n--\n\nCopies the bytes by the copy kernel named."},
    {"_counter_open", counter_open, METH_VARARGS,
     "_counter_open(type, config, tid, kernel, /)\n--\n\nA stopped counter of perf_event_open(2): a descriptor, or "
     "-errno."},
    {"_counter_run", counter_run, METH_VARARGS,
     "_counter_run(fd, on, /)\n--\n\nStarts or stops a counter: 0 or -errno."},
    {"_counter_read", counter_read, METH_VARARGS,
     "_counter_read(fd, /)\n--\n\n(value, ns enabled, ns running) of a counter, or -errno."},
    {NULL, NULL, 0, NULL},
};

int rl_py_add_probes(PyObject *m, rl_state *st) {
    (void)st;
    return PyModule_AddFunctions(m, methods);
}
