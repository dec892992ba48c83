// SPDX-License-Identifier: Apache-2.0
// Private entry points by which tests and benchmarks call the tile kernels by name.
#include <string.h>

#include "base/clock.h"
#include "kernels/tile.h"
#include "py/state.h"
#include "run/linear_tile.h"

static void *align64(void *p) {
    return (void *)(((uintptr_t)p + 63) & ~(uintptr_t)63);
}

static const rl_kernel *named(rl_state *st, const char *name, rl_family a, rl_family b) {
    rl_dispatch d;
    const rl_kernel *k = NULL;
    rl_err err;
    rl_err_clear(&err);
    if (rl_dispatch_init(&d, NULL, NULL, &err) != RL_OK || rl_kernel_named(&d, name, &k, &err) != RL_OK) {
        rl_raise(st, &err);
        return NULL;
    }
    if (k->family == a || k->family == b) return k;
    PyErr_Format(PyExc_ValueError, "%s is no kernel of that family", name);
    return NULL;
}

// _tile_unpack(kernel, raw, columns) -> bytes of the rl_tile; raw: the blocks of 1 to 32 rows, one behind another.
static PyObject *tile_unpack(PyObject *m, PyObject *args) {
    const char *name;
    Py_buffer raw;
    Py_ssize_t cols;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "sy*n:_tile_unpack", &name, &raw, &cols)) return NULL;
    const rl_kernel *k = named(rl_state_of_module(m), name, RL_FAM_TILE_UNPACK, RL_FAM_TILE_UNPACK);
    void *mem = NULL;
    if (!k) goto done;
    const rl_dtype *t = rl_dtype_of(k->type);
    size_t row_bytes = (size_t)cols / t->block * t->bytes;
    if (cols < 1 || cols > RL_TILE_K || (size_t)cols % t->block || (size_t)raw.len < row_bytes) {
        PyErr_SetString(PyExc_ValueError, "columns must be a multiple of the block size, up to 256");
        goto done;
    }
    mem = PyMem_RawCalloc(1, sizeof(rl_tile) + 64);
    if (!mem) {
        PyErr_NoMemory();
        goto done;
    }
    const uint8_t *row[RL_TILE_ROWS];
    size_t n_rows = (size_t)raw.len / row_bytes;
    for (size_t r = 0; r < RL_TILE_ROWS; r++)
        row[r] = (const uint8_t *)raw.buf + (r < n_rows ? r : n_rows - 1) * row_bytes;
    ((rl_tile_unpack_fn)k->fn)(row, (size_t)cols, align64(mem));
    result = PyBytes_FromStringAndSize(align64(mem), sizeof(rl_tile));
done:
    PyMem_RawFree(mem);
    PyBuffer_Release(&raw);
    return result;
}

typedef struct {
    rl_linear_call call;
    int repeats;
    uint8_t *scratch;
    size_t scratch_bytes;
    uint64_t ns;
} tile_job;

static void tile_region(void *arg, rl_team *team, int ith) {
    tile_job *j = arg;
    uint64_t start = rl_clock_ns();
    for (int i = 0; i < j->repeats; i++) {
        rl_linear_tile_run(team, ith, &j->call, 1, j->scratch + (size_t)ith * j->scratch_bytes);
        if (!rl_team_barrier(team, ith)) return;
    }
    if (ith == 0) j->ns = rl_clock_ns() - start;
}

static int matrix(PyObject *o, Py_buffer *b, int writable) {
    if (PyObject_GetBuffer(o, b, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) < 0) return -1;
    if (b->ndim == 2 && b->itemsize == 4 && b->format && strcmp(b->format, "f") == 0 && b->len > 0) return 0;
    PyBuffer_Release(b);
    PyErr_SetString(PyExc_ValueError, "x and out must be C-contiguous float32 matrices, not empty");
    return -1;
}

// _tile(unpack, mul, raw, type, x, out, repeats=1, threads=1) -> seconds of all repeats together. out (tokens, rows)
// = x (tokens, columns) times the raw rows, by the two kernels named; packing x is not timed. unpack may be a
// dequantizer where mul works on float tiles.
static PyObject *tile(PyObject *m, PyObject *args) {
    rl_state *st = rl_state_of_module(m);
    const char *unpack, *mul, *type_name;
    Py_buffer raw, x = {0}, out = {0};
    PyObject *xo, *outo, *result = NULL;
    int repeats = 1, threads = 1;
    if (!PyArg_ParseTuple(args, "ssy*sOO|ii:_tile", &unpack, &mul, &raw, &type_name, &xo, &outo, &repeats, &threads))
        return NULL;
    void *act_mem = NULL, *scratch = NULL;
    rl_err err;
    rl_err_clear(&err);
    if (matrix(xo, &x, 0) < 0 || matrix(outo, &out, 1) < 0) goto done;
    rl_linear lin = {.unpack = named(st, unpack, RL_FAM_TILE_UNPACK, RL_FAM_DEQUANT),
                     .mul = named(st, mul, RL_FAM_TILE_MUL, RL_FAM_TILE_MUL)};
    if (!lin.unpack || !lin.mul) goto done;
    rl_type type = rl_dtype_parse(type_name);
    const rl_dtype *t = type == RL_TYPE_NONE ? NULL : rl_dtype_of(type);
    size_t n_tok = (size_t)x.shape[0], cols = (size_t)x.shape[1], rows = (size_t)out.shape[1];
    bool fit = lin.unpack->family == RL_FAM_DEQUANT ? (lin.mul->act & RL_ACT_F32) != 0
                                                    : strcmp(lin.unpack->layout, lin.mul->layout) == 0;
    if (!t || lin.unpack->type != type || !fit || cols % t->block || out.shape[0] != x.shape[0] || repeats < 1 ||
        threads < 1 || threads > RL_MAX_THREADS || (size_t)raw.len < rows * (cols / t->block * t->bytes)) {
        PyErr_SetString(PyExc_ValueError, "the kernels, the type and the sizes do not fit");
        goto done;
    }
    lin.w =
        (rl_mat){.type = type, .rows = rows, .cols = cols, .row_bytes = cols / t->block * t->bytes, .data = raw.buf};
    unsigned formats = lin.mul->act;
    tile_job j = {.repeats = repeats, .scratch_bytes = rl_linear_tile_scratch(n_tok)};
    act_mem = PyMem_RawMalloc(rl_act_bytes(formats, cols, n_tok) + 64);
    scratch = PyMem_RawMalloc(j.scratch_bytes * (size_t)threads + 64);
    if (!act_mem || !scratch) {
        PyErr_NoMemory();
        goto done;
    }
    memset(scratch, 0, j.scratch_bytes * (size_t)threads + 64); // its pages are there before the clock starts
    rl_act act;
    rl_dispatch d;
    if (rl_dispatch_init(&d, NULL, NULL, &err) != RL_OK) {
        rl_raise(st, &err);
        goto done;
    }
    rl_act_bind(&act, formats, cols, n_tok, align64(act_mem));
    rl_act_fill(&act, &d, x.buf, cols, 0, n_tok);
    j.call = (rl_linear_call){.lin = &lin, .act = &act, .n_tok = n_tok, .out = out.buf, .ld_out = rows};
    j.scratch = align64(scratch);
    rl_region region = {.fn = tile_region, .arg = &j, .n_threads = threads};
    rl_pool *pool = rl_state_pool(st);
    if (!pool) goto done;
    rl_status status;
    Py_BEGIN_ALLOW_THREADS status = rl_pool_run(pool, &region, &err);
    Py_END_ALLOW_THREADS if (status != RL_OK) {
        rl_raise(st, &err);
        goto done;
    }
    result = PyFloat_FromDouble((double)j.ns * 1e-9);
done:
    PyMem_RawFree(act_mem);
    PyMem_RawFree(scratch);
    if (x.obj) PyBuffer_Release(&x);
    if (out.obj) PyBuffer_Release(&out);
    PyBuffer_Release(&raw);
    return result;
}

static PyMethodDef methods[] = {
    {"_tile_unpack", tile_unpack, METH_VARARGS,
     "_tile_unpack(kernel, raw, columns, /)\n--\n\nUnpacks up to 32 rows by the kernel named; returns the tile."},
    {"_tile", tile, METH_VARARGS,
     "_tile(unpack, mul, raw, type, x, out, repeats=1, threads=1, /)\n--\n\n"
     "out (tokens, rows) = x (tokens, columns) times raw rows by two kernels; returns the seconds of all repeats."},
    {NULL, NULL, 0, NULL},
};

int rl_py_add_tiles(PyObject *m, rl_state *st) {
    (void)st;
    return PyModule_AddFunctions(m, methods);
}
