// SPDX-License-Identifier: Apache-2.0
// Module state and the helpers that every Python type shares. The only place where C meets Python's C API.
#ifndef RL_PY_STATE_H
#define RL_PY_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/status.h"
#include "base/threads.h"

#if PY_VERSION_HEX < 0x030A0000 // 3.9 lacks these two
static inline PyObject *Py_NewRef(PyObject *o) {
    Py_INCREF(o);
    return o;
}
static inline int PyModule_AddObjectRef(PyObject *m, const char *name, PyObject *value) {
    Py_XINCREF(value);
    int rc = PyModule_AddObject(m, name, value);
    if (rc < 0) Py_XDECREF(value);
    return rc;
}
#endif

// What the module owns: exceptions and the warning (errors.c), then heap types.
// clang-format off
#define RL_STATE_OBJECTS(X) \
    X(PyObject, Error) \
    X(PyObject, FormatError) \
    X(PyObject, ContextFull) \
    X(PyObject, SessionBusy) \
    X(PyObject, KernelUnavailable) \
    X(PyObject, FallbackWarning) \
    X(PyTypeObject, GGUFType) \
    X(PyTypeObject, TensorType) \
    X(PyTypeObject, TokenizerType) \
    X(PyTypeObject, ModelType) \
    X(PyTypeObject, SessionType) \
    X(PyTypeObject, KVCacheType) \
    X(PyTypeObject, DecoderType) \
    X(PyTypeObject, FileMapType) \
    X(PyTypeObject, KVLayerType) \
    X(PyTypeObject, KVPageType) \
    X(PyTypeObject, SamplerType)
// clang-format on

typedef struct rl_state {
#define X(type, name) type *name;
    RL_STATE_OBJECTS(X)
#undef X
    rl_pool *pool; // one per process, made on first use
} rl_state;

extern struct PyModuleDef rl_module_def;

rl_state *rl_state_of_module(PyObject *module);
rl_state *rl_state_of_type(PyTypeObject *type); // by PyType_GetModule; for methods with METH_METHOD or own types
/// The pool, made when first asked for; NULL with an exception set.
rl_pool *rl_state_pool(rl_state *st);

/// Raises the exception that fits err->code with its attributes (.key, .tensor, .offset; .n_ctx, .needed);
/// returns NULL.
PyObject *rl_raise(rl_state *st, const rl_err *err);
/// Puts the path before the message about a file that is wrong, where it does not name it: below, readers know no
/// names.
void rl_py_name_file(rl_err *err, const char *path);
/// A TypeError that suggests the right keyword when kw has one that is not in names (NULL-terminated); -1 then.
int rl_py_check_keywords(PyObject *kw, const char *function, char *const *names);
/// A TypeError for an argument that is no whole number, as rooflm._keywords.whole() says it; -1 then.
int rl_py_check_whole(const char *name, PyObject *value);
/// The same for all keywords among counts (NULL-terminated). None is for the caller to judge.
int rl_py_check_counts(PyObject *kw, const char *const *counts);
/// Puts a new reference into the dict and lets go of it; -1 when value is NULL or the dict cannot grow.
static inline int rl_py_put(PyObject *dict, const char *key, PyObject *value) {
    int rc = value ? PyDict_SetItemString(dict, key, value) : -1;
    Py_XDECREF(value);
    return rc;
}
/// One FallbackWarning; -1 with an exception set when warnings are errors.
int rl_warn_fallback(rl_state *st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// One per Python type or group of functions: adds what it defines to the module; -1 with an exception set.
int rl_py_add_errors(PyObject *m, rl_state *st);
int rl_py_add_gguf(PyObject *m, rl_state *st);
int rl_py_add_residency(PyObject *m, rl_state *st);
int rl_py_add_tokenizer(PyObject *m, rl_state *st);
int rl_py_add_kernels(PyObject *m, rl_state *st);
int rl_py_add_vec(PyObject *m, rl_state *st);
int rl_py_add_tiles(PyObject *m, rl_state *st);
int rl_py_add_kvcache(PyObject *m, rl_state *st);
int rl_py_add_machine(PyObject *m, rl_state *st);
int rl_py_add_memory(PyObject *m, rl_state *st);
int rl_py_add_probes(PyObject *m, rl_state *st);
int rl_py_add_sampler(PyObject *m, rl_state *st);
int rl_py_add_model(PyObject *m, rl_state *st);
int rl_py_add_build(PyObject *m, rl_state *st);
int rl_py_add_quantize(PyObject *m, rl_state *st);

#endif
