// SPDX-License-Identifier: Apache-2.0
// Which pages of a file or a tensor are in memory, and keeping them there; python/rooflm/residency.py makes it usable.
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

static PyObject *file_resident(PyObject *m, PyObject *arg) {
    rl_state *st = rl_state_of_module(m);
    PyObject *path;
    if (!PyUnicode_FSConverter(arg, &path)) return NULL;
    rl_err err;
    rl_err_clear(&err);
    size_t bytes = 0, size = 0;
    rl_map map;
    PyThreadState *saved = PyEval_SaveThread();
    rl_status s = rl_map_open(&map, PyBytes_AS_STRING(path), RL_LOAD_MMAP, &err);
    if (s == RL_OK) {
        size = map.size;
        s = rl_map_resident(&map, 0, size, &bytes, &err);
        rl_map_close(&map);
    }
    PyEval_RestoreThread(saved);
    Py_DECREF(path);
    if (s != RL_OK) return rl_raise(st, &err);
    if (!size) Py_RETURN_NONE;
    return PyFloat_FromDouble((double)bytes / (double)size);
}

static PyMethodDef methods[] = {
    {"_file_resident", file_resident, METH_O,
     "_file_resident(path, /)\n--\n\nThe share of a file that is in memory now; None of an empty one. OSError where "
     "the system does not tell, or refuses to map it."},
    {"_tensor_pages", tensor_pages, METH_VARARGS,
     "_tensor_pages(gguf, tensor, what, /)\n--\n\n"
     "\"preload\", \"lock\" or \"unlock\": does it and returns the tensor's bytes; \"resident\": its bytes in memory."},
    {NULL, NULL, 0, NULL},
};

int rl_py_add_residency(PyObject *m, rl_state *st) {
    (void)st;
    return PyModule_AddFunctions(m, methods);
}
