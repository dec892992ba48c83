// SPDX-License-Identifier: Apache-2.0
// What the machine is, as plain dicts; python/rooflm/device makes them readable.
#include "py/machine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "py/kernels.h"

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
    if (d && rl_py_put(d, "cpu", PyLong_FromLong(c->id)) == 0 &&
        rl_py_put(d, "allowed", PyBool_FromLong(c->allowed)) == 0 &&
        rl_py_put(d, "class", PyLong_FromLong(c->cls)) == 0 && rl_py_put(d, "max_khz", int_or_none(c->max_khz)) == 0 &&
        rl_py_put(d, "capacity", int_or_none(c->capacity)) == 0 && rl_py_put(d, "core", PyLong_FromLong(c->core)) == 0)
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
    if (d && rl_py_put(d, "cpus", int_list(ids, n)) == 0 &&
        rl_py_put(d, "allowed", PyLong_FromLong(cls->n_allowed)) == 0 &&
        rl_py_put(d, "max_khz", int_or_none(cls->max_khz)) == 0 &&
        rl_py_put(d, "capacity", int_or_none(cls->capacity)) == 0 &&
        rl_py_put(d, "big", PyBool_FromLong(cls->big)) == 0)
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
    rc = rc ? rc : rl_py_put(d, "n", PyLong_FromLong(c->n));
    rc = rc ? rc : rl_py_put(d, "n_present", PyLong_FromLong(c->n_present));
    rc = rc ? rc : rl_py_put(d, "cpus", list_of(c, c->n, 0));
    rc = rc ? rc : rl_py_put(d, "classes", list_of(c, c->n_classes, 1));
    rc = rc ? rc : rl_py_put(d, "cgroup", int_or_none(c->cgroup));
    rc = rc ? rc : rl_py_put(d, "quota", c->quota > 0 ? PyFloat_FromDouble(c->quota) : Py_NewRef(none));
    rc = rc ? rc : rl_py_put(d, "memory_limit_bytes", int_or_none((int64_t)c->memory_limit));
    rc = rc ? rc : rl_py_put(d, "default_threads", PyLong_FromLong(c->default_threads));
    int named = 0; // with a quota there are more CPUs than threads
    while (named < c->default_threads && named < c->n) named++;
    rc = rc ? rc : rl_py_put(d, "default_cpus", int_list(c->default_cpus, named));
    rc = rc ? rc : rl_py_put(d, "reason", PyUnicode_DecodeUTF8(c->reason, (Py_ssize_t)strlen(c->reason), "replace"));
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
    size_t n_features;
    const rl_cpu_feature *features = rl_cpu_feature_names(&n_features);
    uint64_t cpu = rl_cpu_features();
    PyObject *names = PyList_New(0), *can = Py_BuildValue("[s]", "ref");
    for (size_t i = 0; names && i < n_features; i++) {
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
    PyObject *result = names && can ? Py_BuildValue("{s:s,s:O,s:O,s:O}", "in_use", d.isa, "available", can, "features",
                                                    names, "strips", d.strips ? Py_True : Py_False)
                                    : NULL;
    Py_XDECREF(names), Py_XDECREF(can);
    return result;
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

static PyMethodDef methods[] = {
    {"_cpus", cpus, METH_VARARGS, "_cpus(root='/', /)\n--\n\nCPUs, classes, limits, default threads; see machine()."},
    {"_isa", isa_info, METH_VARARGS,
     "_isa(isa=None, /)\n--\n\nTiers available and in use, CPU features, and whether rows are read in strips."},
    {"_last_threads", last_threads, METH_NOARGS,
     "_last_threads()\n--\n\n(CPU it ran on, None or why it could not be pinned) of each thread of the last parallel "
     "work."},
    {"core_clock", core_clock, METH_VARARGS,
     "core_clock(ms=2.0, /)\n--\n\nClock of the core under the calling thread in GHz, timed with dependent additions."},
    {NULL, NULL, 0, NULL}};

int rl_py_add_machine(PyObject *m, rl_state *st) {
    (void)st;
    return PyModule_AddFunctions(m, methods);
}
