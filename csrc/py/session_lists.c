// SPDX-License-Identifier: Apache-2.0
// The lists that a session is made with.
#include "py/session.h"

#include "py/kernels.h"

// [(pattern, compute)]; the texts stay those of the tuples, which the caller holds.
int rl_py_compute_rules(PyObject *list, rl_compute_rule **out, size_t *n) {
    *out = NULL;
    *n = 0;
    if (list == Py_None) return 0;
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "rules must be a list of (pattern, compute)");
        return -1;
    }
    Py_ssize_t count = PyList_GET_SIZE(list);
    rl_compute_rule *rules = PyMem_Calloc(count ? (size_t)count : 1, sizeof *rules);
    if (!rules) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyList_GET_ITEM(list, i);
        const char *compute;
        if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "ss:rules", &rules[i].pattern, &compute) ||
            rl_py_compute(compute, &rules[i].compute) < 0) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "rules must be a list of (pattern, compute)");
            PyMem_Free(rules);
            return -1;
        }
    }
    *out = rules;
    *n = (size_t)count;
    return 0;
}

// [(type, columns)]
int rl_py_int8_singles(PyObject *list, rl_int8_single **out, size_t *n) {
    *out = NULL;
    *n = 0;
    if (list == Py_None) return 0;
    Py_ssize_t count = PyList_Check(list) ? PyList_GET_SIZE(list) : -1;
    rl_int8_single *all = count < 0 ? NULL : PyMem_Calloc(count ? (size_t)count : 1, sizeof *all);
    if (count >= 0 && !all) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyList_GET_ITEM(list, i);
        const char *type;
        Py_ssize_t cols;
        if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "sn:int8_single", &type, &cols)) {
            PyMem_Free(all);
            count = -1;
            break;
        }
        all[i] = (rl_int8_single){rl_dtype_parse(type), (size_t)cols};
    }
    if (count < 0) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "int8_single must be a list of (type, columns)");
        return -1;
    }
    *out = all;
    *n = (size_t)count;
    return 0;
}
