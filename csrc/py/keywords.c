// SPDX-License-Identifier: Apache-2.0
// Unknown keywords of C functions, and counts that are none, get the same answer as those of Python functions:
// rooflm._keywords.
#include "py/state.h"

int rl_py_check_keywords(PyObject *kw, const char *function, char *const *names) {
    if (!kw) return 0;
    PyObject *key, *value;
    for (Py_ssize_t pos = 0; PyDict_Next(kw, &pos, &key, &value);) {
        int known = 0;
        for (char *const *n = names; *n && !known; n++)
            known = PyUnicode_Check(key) && PyUnicode_CompareWithASCIIString(key, *n) == 0;
        if (known) continue;
        PyObject *list = PyList_New(0), *module = NULL, *exc = NULL;
        for (char *const *n = names; list && *n; n++) {
            PyObject *name = PyUnicode_FromString(*n);
            if (!name || PyList_Append(list, name) < 0) Py_CLEAR(list);
            Py_XDECREF(name);
        }
        if (list) module = PyImport_ImportModule("rooflm._keywords");
        if (module) exc = PyObject_CallMethod(module, "unknown_keyword", "sOO", function, key, list);
        if (exc) PyErr_SetObject((PyObject *)Py_TYPE(exc), exc);
        Py_XDECREF(exc), Py_XDECREF(module), Py_XDECREF(list);
        return -1;
    }
    return 0;
}

int rl_py_check_whole(const char *name, PyObject *value) {
    if (PyIndex_Check(value) && !PyBool_Check(value)) return 0;
    PyErr_Format(PyExc_TypeError, "%s=%R: must be a whole number", name, value);
    return -1;
}

int rl_py_check_counts(PyObject *kw, const char *const *counts) {
    for (; kw && *counts; counts++) {
        PyObject *value = PyDict_GetItemString(kw, *counts);
        if (value && value != Py_None && rl_py_check_whole(*counts, value) < 0) return -1;
    }
    return 0;
}
