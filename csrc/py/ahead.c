// SPDX-License-Identifier: Apache-2.0
// Steps run ahead, for rooflm/overlapping.py: begun, then fetched or taken back. Each has a number, so that a
// generation whose step was overtaken by another use of the session does not take the result of a later one for its
// own.
#include "py/session.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

#define WAIT_NS 50000000u // between two looks for signals

static rl_state *state_of(py_session *self) {
    return rl_state_of_type(Py_TYPE(self));
}

int rl_py_ahead_wait(py_session *self, bool interruptible) {
    py_ahead *a = &self->ahead;
    while (a->steps && rl_ahead_running(a->steps)) {
        Py_BEGIN_ALLOW_THREADS;
        (void)rl_ahead_wait(a->steps, WAIT_NS);
        Py_END_ALLOW_THREADS;
        if (interruptible && PyErr_CheckSignals() < 0) return -1;
    }
    return 0;
}

void rl_py_ahead_rest(py_session *self) {
    py_ahead *a = &self->ahead;
    if (a->steps) {
        rl_ahead_cancel(a->steps);
        rl_ahead_rest(a->steps);
    }
    a->number = 0;
    Py_CLEAR(a->ids);
    Py_CLEAR(a->logits);
}

void rl_py_ahead_free(py_session *self) {
    rl_py_ahead_rest(self);
    rl_ahead_free(self->ahead.steps);
    self->ahead.steps = NULL;
}

// With the session entered.
static PyObject *start(py_session *self, PyObject *ids, Py_ssize_t first, PyObject *out) {
    py_ahead *a = &self->ahead;
    npy_intp n = PyArray_SIZE((PyArrayObject *)ids);
    if (first < 0 || first >= n) {
        PyErr_Format(PyExc_ValueError, "logits from token %zd on of %zd: it must be one of them", first, (Py_ssize_t)n);
        return NULL;
    }
    // Arrays of what was captured or collected would show a step that is taken back later.
    if (self->capture || self->collected || !rl_session_can_hold(self->s, (size_t)n)) Py_RETURN_NONE;
    rl_err err;
    rl_err_clear(&err);
    if (!a->steps && rl_ahead_create(&a->steps, &err) != RL_OK) return rl_raise(state_of(self), &err);
    PyObject *logits =
        rl_py_logits_array(out, (size_t)(n - first), rl_engine_model(self->s->engine)->hp.n_vocab, false);
    PyObject *result = logits ? Py_BuildValue("KO", a->last_number + 1, logits) : NULL;
    if (!result) {
        Py_XDECREF(logits);
        return NULL;
    }
    Py_XSETREF(a->ids, Py_NewRef(ids));
    Py_XSETREF(a->logits, logits);
    a->number = ++a->last_number;
    rl_eval ev = {.tokens = PyArray_DATA((PyArrayObject *)ids),
                  .n_tok = (size_t)n,
                  .first = (size_t)first,
                  .step = 1,
                  .n_out = (size_t)(n - first),
                  .logits = PyArray_DATA((PyArrayObject *)logits),
                  .trace = self->trace.events ? &self->trace : NULL};
    if (rl_ahead_start(a->steps, self->s, &ev, &err) != RL_OK) {
        rl_py_ahead_rest(self);
        Py_DECREF(result);
        return rl_raise(state_of(self), &err);
    }
    return result;
}

PyObject *rl_py_ahead_start(py_session *self, PyObject *args) {
    PyObject *tokens, *out = Py_None, *result = NULL;
    Py_ssize_t first;
    if (!PyArg_ParseTuple(args, "On|O:_ahead_start", &tokens, &first, &out)) return NULL;
    PyObject *ids = rl_py_token_array(tokens);
    if (!ids) return NULL;
    if (rl_py_session_enter(state_of(self), self) == 0) {
        result = start(self, ids, first, out);
        rl_py_session_leave(self);
    }
    Py_DECREF(ids);
    return result;
}

static PyObject *times(const rl_ahead_result *r) {
    return Py_BuildValue("KK", (unsigned long long)r->start_ns, (unsigned long long)r->end_ns);
}

PyObject *rl_py_ahead_finish(py_session *self, PyObject *arg) {
    unsigned long long number = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    py_ahead *a = &self->ahead;
    if (rl_py_session_enter(state_of(self), self) < 0) return NULL; // waits for the step
    PyObject *result = NULL;
    if (a->number != number) {
        result = Py_NewRef(Py_None);
    } else {
        rl_ahead_result r = *rl_ahead_last(a->steps);
        a->number = 0;
        Py_CLEAR(a->ids);
        Py_CLEAR(a->logits);
        if (r.status != RL_OK)
            rl_raise(state_of(self), &r.err);
        else if (!rl_session_commit(self->s)) // something else came first
            result = Py_NewRef(Py_None);
        else if (rl_py_warn_unpinned(self) == 0)
            result = times(&r);
    }
    rl_py_session_leave(self);
    return result;
}

PyObject *rl_py_ahead_take_back(py_session *self, PyObject *arg) {
    unsigned long long number = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    py_ahead *a = &self->ahead;
    if (!a->steps || (a->number && a->number != number)) Py_RETURN_NONE; // another generation's
    PyObject *result = NULL;
    if (a->number) {
        rl_ahead_cancel(a->steps);
        (void)rl_py_ahead_wait(self, false); // some 50 ms at most, so after Ctrl-C, too
        if (a->number != number) Py_RETURN_NONE;
        if (!(result = times(rl_ahead_last(a->steps)))) return NULL;
        if (rl_py_session_enter(state_of(self), self) == 0) {
            rl_session_forget(self->s);
            rl_py_session_leave(self);
        } else {
            PyErr_Clear(); // another thread evaluates, which has forgotten it
        }
    }
    rl_py_ahead_rest(self);
    return result ? result : Py_NewRef(Py_None);
}

PyObject *rl_py_ahead_pause(py_session *self, PyObject *unused) {
    (void)unused;
    (void)rl_py_ahead_wait(self, false);
    if (self->ahead.steps) rl_ahead_rest(self->ahead.steps);
    Py_RETURN_NONE;
}

int rl_py_ahead_init(void) {
    import_array1(-1);
    return 0;
}
