// SPDX-License-Identifier: Apache-2.0
// Status codes become Python exceptions here and nowhere else.
#include "py/state.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void rl_py_name_file(rl_err *err, const char *path) {
    if ((err->code != RL_ERR_FORMAT && err->code != RL_ERR_UNSUPPORTED) || strstr(err->msg, path)) return;
    char what[sizeof err->msg];
    memcpy(what, err->msg, sizeof what);
    snprintf(err->msg, sizeof err->msg, "%.200s: %.300s", path, what);
}

static PyObject *base_for(const rl_state *st, rl_status code) {
    switch (code) {
    case RL_ERR_NOMEM:
        return PyExc_MemoryError;
    case RL_ERR_ARG:
        return PyExc_ValueError;
    case RL_ERR_FORMAT:
        return st->FormatError;
    case RL_ERR_CONTEXT_FULL:
        return st->ContextFull;
    case RL_ERR_KERNEL:
        return st->KernelUnavailable;
    case RL_ERR_BUSY:
        return st->SessionBusy;
    default:
        return st->Error;
    }
}

static int set_attribute(PyObject *exc, const char *name, PyObject *value) {
    int rc = value ? PyObject_SetAttrString(exc, name, value) : -1;
    Py_XDECREF(value);
    return rc;
}

static PyObject *text_or_none(const char *s) {
    if (*s) return PyUnicode_DecodeUTF8(s, (Py_ssize_t)strlen(s), "replace");
    Py_RETURN_NONE;
}

static PyObject *offset_or_none(uint64_t v) {
    if (v != UINT64_MAX) return PyLong_FromUnsignedLongLong(v);
    Py_RETURN_NONE;
}

PyObject *rl_raise(rl_state *st, const rl_err *err) {
    if (err->code == RL_ERR_INTERRUPTED && PyErr_Occurred()) return NULL;
    if (err->code == RL_ERR_INTERRUPTED) {
        PyErr_SetNone(PyExc_KeyboardInterrupt);
        return NULL;
    }
    PyObject *text = PyUnicode_DecodeUTF8(err->msg, (Py_ssize_t)strlen(err->msg), "replace");
    if (!text) return NULL;
    PyObject *type = base_for(st, err->code), *exc;
    if (err->code == RL_ERR_IO && err->os_errno) {
        type = PyExc_OSError;
        exc = PyObject_CallFunction(type, "iO", err->os_errno, text);
    } else {
        exc = PyObject_CallOneArg(type, text);
    }
    Py_DECREF(text);
    if (!exc) return NULL;
    int rc = 0;
    if (err->code == RL_ERR_FORMAT) {
        rc |= set_attribute(exc, "key", text_or_none(err->key));
        rc |= set_attribute(exc, "tensor", text_or_none(err->tensor));
        rc |= set_attribute(exc, "offset", offset_or_none(err->offset));
    } else if (err->code == RL_ERR_CONTEXT_FULL) {
        rc |= set_attribute(exc, "n_ctx", PyLong_FromUnsignedLongLong(err->limit));
        rc |= set_attribute(exc, "needed", PyLong_FromUnsignedLongLong(err->needed));
    }
    if (rc == 0) PyErr_SetObject((PyObject *)Py_TYPE(exc), exc);
    Py_DECREF(exc);
    return NULL;
}

int rl_warn_fallback(rl_state *st, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    PyObject *shown = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"); // names come from files
    int rc = shown ? PyErr_WarnFormat(st->FallbackWarning, 1, "%U", shown) : -1;
    Py_XDECREF(shown);
    return rc;
}

static int add_exception(PyObject *m, PyObject **slot, const char *name, const char *doc, PyObject *bases,
                         PyObject *dict) {
    char full[96];
    snprintf(full, sizeof full, "rooflm.%s", name);
    *slot = PyErr_NewExceptionWithDoc(full, doc, bases, dict);
    if (!*slot) return -1;
    return PyModule_AddObjectRef(m, name, *slot);
}

int rl_py_add_errors(PyObject *m, rl_state *st) {
    if (add_exception(m, &st->Error, "Error", "Base of the errors that rooflm raises.", NULL, NULL) < 0) return -1;
    PyObject *value_bases = PyTuple_Pack(2, st->Error, PyExc_ValueError);
    PyObject *runtime_bases = PyTuple_Pack(2, st->Error, PyExc_RuntimeError);
    PyObject *none3 = Py_BuildValue("{s:O,s:O,s:O}", "key", Py_None, "tensor", Py_None, "offset", Py_None);
    PyObject *none2 = Py_BuildValue("{s:O,s:O}", "n_ctx", Py_None, "needed", Py_None);
    int rc = -1;
    if (value_bases && runtime_bases && none3 && none2) {
        rc = add_exception(m, &st->FormatError, "FormatError",
                           "The file is not what it claims to be; .key, .tensor and .offset say where.", value_bases,
                           none3);
        if (rc == 0)
            rc = add_exception(m, &st->ContextFull, "ContextFull",
                               "More positions were asked for than the session has; .n_ctx and .needed.", runtime_bases,
                               none2);
        if (rc == 0)
            rc = add_exception(m, &st->SessionBusy, "SessionBusy", "The session is in use by another thread.",
                               runtime_bases, NULL);
        if (rc == 0)
            rc = add_exception(m, &st->KernelUnavailable, "KernelUnavailable",
                               "The kernel that was asked for does not exist or cannot run on this CPU.", value_bases,
                               NULL);
        if (rc == 0)
            rc = add_exception(m, &st->FallbackWarning, "FallbackWarning",
                               "Something other than what was asked for, or than the best, was used.",
                               PyExc_UserWarning, NULL);
    }
    Py_XDECREF(value_bases);
    Py_XDECREF(runtime_bases);
    Py_XDECREF(none3);
    Py_XDECREF(none2);
    return rc;
}
