// SPDX-License-Identifier: Apache-2.0
// What this extension was built with: two results from different compilers or flags are not the same program.
// setup.py hands the flags to this file.
#include "py/state.h"

#ifndef RL_BUILD_FLAGS
#define RL_BUILD_FLAGS ""
#endif

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

#ifdef NDEBUG
#define ASSERTS 0
#else
#define ASSERTS 1
#endif

static PyObject *build(PyObject *m, PyObject *unused) {
    (void)m;
    (void)unused;
    return Py_BuildValue("{s:s,s:s,s:O}", "compiler", COMPILER, "flags", RL_BUILD_FLAGS, "asserts",
                         ASSERTS ? Py_True : Py_False);
}

static PyMethodDef methods[] = {
    {"_build", build, METH_NOARGS,
     "_build()\n--\n\nCompiler, its flags without those of single tiers, and whether assertions are in."},
    {NULL, NULL, 0, NULL}};

int rl_py_add_build(PyObject *m, rl_state *st) {
    (void)st;
    return PyModule_AddFunctions(m, methods);
}
