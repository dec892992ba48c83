// SPDX-License-Identifier: Apache-2.0
// Which pages of a tensor are in memory, and keeping them there; python/rooflm/residency.py makes it usable.
#include <string.h>

#include "py/gguf.h"
#include "py/kernels.h"

static PyObject *tensor_pages(PyObject *m, PyObject *args) {
    rl_state *st = rl_state_of_module(m);
    PyObject *file, *tensor;
    const char *what;
    if (!PyArg_ParseTuple(args, "OOs:_tensor_pages", &file, &tensor, &what)) return NULL;
    rl_gguf *g = rl_py_gguf_get(st, file);
    const rl_tensor *t = g ? rl_py_tensor_get(st, tensor) : NULL;
    if (!t) return NULL;
    if (rl_gguf_tensor(g, t->name) != t) return PyErr_Format(PyExc_ValueError, "%s is of another file", t->name);
    if (!t->data) return PyLong_FromLong(0);
    const rl_map *map = rl_gguf_shard_map(g, t->shard);
    size_t bytes = t->nbytes;
    rl_err err;
    rl_err_clear(&err);
    rl_gguf_ref(g); // another thread may close the file
    PyThreadState *saved = PyEval_SaveThread();
    rl_status s;
    if (strcmp(what, "preload") == 0)
        s = rl_map_preload(map, t->offset, t->nbytes, rl_py_poll, &saved, NULL, &err);
    else if (strcmp(what, "resident") == 0)
        s = rl_map_resident(map, t->offset, t->nbytes, &bytes, &err);
    else if (strcmp(what, "lock") == 0)
        s = rl_map_lock(map, t->offset, t->nbytes, &err);
    else if (strcmp(what, "unlock") == 0)
        s = rl_map_unlock(map, t->offset, t->nbytes, &err);
    else
        s = rl_fail(&err, RL_ERR_ARG, "%.40s is none of preload, resident, lock, unlock", what);
    PyEval_RestoreThread(saved);
    rl_gguf_release(g);
    if (s != RL_OK) return PyErr_Occurred() ? NULL : rl_raise(st, &err);
    return PyLong_FromSize_t(bytes);
}

static PyMethodDef methods[] = {
    {"_tensor_pages", tensor_pages, METH_VARARGS,
     "_tensor_pages(gguf, tensor, what, /)\n--\n\n"
     "\"preload\", \"lock\" or \"unlock\": does it and returns the tensor's bytes; \"resident\": its bytes in memory."},
    {NULL, NULL, 0, NULL},
};

int rl_py_add_residency(PyObject *m, rl_state *st) {
    (void)st;
    return PyModule_AddFunctions(m, methods);
}
