// SPDX-License-Identifier: Apache-2.0
// The trace of a session: events are kept as they are, and become Python objects only when somebody looks at them, so
// that ending a trace costs little, too.
#include "py/session.h"

#include <string.h>

PyObject *rl_py_trace_start(py_session *self, PyObject *arg) {
    Py_ssize_t cap = PyNumber_AsSsize_t(arg, PyExc_OverflowError);
    if (cap < 1) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a trace keeps at least one event");
        return NULL;
    }
    if (rl_py_session_enter(rl_state_of_type(Py_TYPE(self)), self) < 0) return NULL;
    rl_session_forget(self->s); // what was run ahead belongs to the trace: it is evaluated anew
    PyMem_RawFree(self->trace.events);
    self->trace = (rl_trace){.events = PyMem_RawCalloc((size_t)cap, sizeof(rl_trace_event)), .cap = (size_t)cap};
    rl_py_session_leave(self);
    if (!self->trace.events) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

// The different numbers of tokens of the events, as a set.
static PyObject *token_counts(const rl_trace *t) {
    PyObject *set = PySet_New(NULL);
    for (size_t i = 0; set && i < t->n; i++) {
        if (i && t->events[i].n_tok == t->events[i - 1].n_tok) continue;
        PyObject *n = PyLong_FromUnsignedLong(t->events[i].n_tok);
        if (!n || PySet_Add(set, n) < 0) Py_CLEAR(set);
        Py_XDECREF(n);
    }
    return set;
}

PyObject *rl_py_trace_take(py_session *self, PyObject *unused) {
    (void)unused;
    if (rl_py_session_enter(rl_state_of_type(Py_TYPE(self)), self) < 0) return NULL;
    const rl_trace *t = &self->trace; // its memory held the events, so their bytes are a size
    PyObject *raw = PyBytes_FromStringAndSize((const char *)t->events, (Py_ssize_t)(t->n * sizeof *t->events));
    PyObject *counts = raw ? token_counts(t) : NULL;
    PyObject *result = counts ? Py_BuildValue("(OOn)", raw, counts, (Py_ssize_t)t->dropped) : NULL;
    Py_XDECREF(raw);
    Py_XDECREF(counts);
    if (result) {
        PyMem_RawFree(self->trace.events);
        self->trace = (rl_trace){0};
    }
    rl_py_session_leave(self);
    return result;
}

PyObject *rl_py_trace_rows(PyObject *unused, PyObject *raw) {
    (void)unused;
    if (!PyBytes_Check(raw) || PyBytes_GET_SIZE(raw) % (Py_ssize_t)sizeof(rl_trace_event)) {
        PyErr_SetString(PyExc_ValueError, "not the events of a trace");
        return NULL;
    }
    Py_ssize_t n = PyBytes_GET_SIZE(raw) / (Py_ssize_t)sizeof(rl_trace_event);
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; list && i < n; i++) {
        rl_trace_event e;
        memcpy(&e, PyBytes_AS_STRING(raw) + (size_t)i * sizeof e, sizeof e);
        PyObject *layer = e.layer == UINT16_MAX ? Py_NewRef(Py_None) : PyLong_FromLong(e.layer);
        PyObject *row = layer ? Py_BuildValue("(NsKKIIIH)", layer, rl_op_name((rl_op)e.op), (unsigned long long)e.t0_ns,
                                              (unsigned long long)e.t1_ns, e.wait_ns, e.n_tok, e.pos0, e.n_experts)
                              : NULL;
        if (row)
            PyList_SET_ITEM(list, i, row);
        else
            Py_CLEAR(list);
    }
    return list;
}
