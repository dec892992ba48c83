// SPDX-License-Identifier: Apache-2.0
// The extension module rooflm._core: multi-phase initialisation, state in the module, heap types only.
#include "py/state.h"

rl_state *rl_state_of_module(PyObject *module) {
    return PyModule_GetState(module);
}
rl_state *rl_state_of_type(PyTypeObject *type) {
    return PyType_GetModuleState(type);
}

rl_pool *rl_state_pool(rl_state *st) {
    if (!st->pool) {
        rl_err err;
        if (rl_pool_create(&st->pool, &err) != RL_OK) {
            rl_raise(st, &err);
            return NULL;
        }
    }
    return st->pool;
}

static int module_exec(PyObject *m) {
    // Ahead of NumPy's own macro for that, which makes an ImportError of whatever happens meanwhile: Ctrl-C, too.
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (!numpy) return -1;
    Py_DECREF(numpy);
    static int (*const parts[])(PyObject *, rl_state *) = {
        rl_py_add_errors,    //
        rl_py_add_kvcache,   //
        rl_py_add_kernels,   //
        rl_py_add_gguf,      //
        rl_py_add_residency, //
        rl_py_add_vec,       //
        rl_py_add_tiles,     //
        rl_py_add_sampler,   //
        rl_py_add_machine,   //
        rl_py_add_memory,    //
        rl_py_add_probes,    //
        rl_py_add_tokenizer, //
        rl_py_add_model,     //
        rl_py_add_build,     //
        rl_py_add_quantize,  //
    };
    rl_state *st = rl_state_of_module(m);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i](m, st) < 0) return -1;
    return 0;
}

static int module_traverse(PyObject *m, visitproc visit, void *arg) {
    rl_state *st = rl_state_of_module(m);
#define X(type, name) Py_VISIT(st->name);
    RL_STATE_OBJECTS(X)
#undef X
    return 0;
}

static int module_clear(PyObject *m) {
    rl_state *st = rl_state_of_module(m);
#define X(type, name) Py_CLEAR(st->name);
    RL_STATE_OBJECTS(X)
#undef X
    return 0;
}

static void module_free(void *m) {
    module_clear(m);
    rl_state *st = rl_state_of_module(m);
    if (st && st->pool) rl_pool_destroy(st->pool);
    if (st) st->pool = NULL;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

struct PyModuleDef rl_module_def = {
    PyModuleDef_HEAD_INIT,      .m_name = "rooflm._core", .m_doc = "C core of rooflm: GGUF files, kernels, sessions.",
    .m_size = sizeof(rl_state), .m_slots = slots,         .m_traverse = module_traverse,
    .m_clear = module_clear,    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__core(void) {
    return PyModuleDef_Init(&rl_module_def);
}
