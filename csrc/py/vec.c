// SPDX-License-Identifier: Apache-2.0
// The vector operations of the table, callable by name on buffers of float32: how tests and benchmarks reach each
// entry. Not a NumPy replacement: nothing is allocated, the caller brings the output.
#include "py/state.h"

#include <string.h>

#include "base/clock.h"
#include "kernels/api.h"

typedef struct floats {
    Py_buffer view;
    float *p;
    size_t n;
} floats;

static int get_floats(PyObject *o, floats *f, int writable, const char *what) {
    memset(f, 0, sizeof *f);
    if (!o || o == Py_None) return 0;
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(o, &f->view, flags) < 0) return -1;
    if (f->view.itemsize != 4 || !f->view.format || strcmp(f->view.format, "f") != 0) {
        PyErr_Format(PyExc_ValueError, "%s must be a contiguous float32 buffer", what);
        PyBuffer_Release(&f->view);
        memset(f, 0, sizeof *f);
        return -1;
    }
    f->p = f->view.buf;
    f->n = (size_t)f->view.len / 4;
    return 0;
}

static void drop(floats *f) {
    if (f->view.obj) PyBuffer_Release(&f->view);
}

PyDoc_STRVAR(vec_doc,
             "_vec(name, out, x, a=None, b=None, *, s=0.0, heads=1, repeat=1)\n--\n\n"
             "Runs one vector entry of the kernel table, such as 'rl_vec_rmsnorm_avx2', on float32 buffers.\n\n"
             "x (n,), out (n,); a and b are what the operation takes besides: the weight and bias of a norm, the\n"
             "other operand of add, up of silu_mul and gelu_mul, and for rope the pairs (cos, sin) in a, while x\n"
             "holds `heads` rows and is rotated into out. s is eps, the factor, the cap or the maximum. Returns the\n"
             "value of a reduction or index, else None; with repeat > 1 the seconds per call.");

typedef struct call {
    const rl_vec *v;
    const char *op;
    floats out, x, a, b;
    float s;
    size_t heads;
    double value;
    int reduces;
} call;

#define IS(name) (strcmp(c->op, name) == 0)

// NULL when the buffers fit the operation, else what is wrong.
static const char *check_call(const call *c) {
    size_t n = c->x.n;
    if (IS("max") || IS("logsumexp") || IS("argmax")) return n ? NULL : "x must not be empty";
    if (c->out.n != n) return "out must be as long as x";
    if (IS("add") || IS("silu_mul") || IS("gelu_mul")) return c->a.n == n ? NULL : "a must be as long as x";
    if (IS("rmsnorm") || IS("layernorm")) {
        if (c->a.p && c->a.n != n) return "a must be as long as x";
        if (c->b.p && c->b.n != n) return "b must be as long as x";
        return n ? NULL : "x must not be empty";
    }
    if (IS("rope_norm") || IS("rope_neox")) {
        if (c->heads == 0 || n % c->heads) return "x must hold `heads` rows";
        return c->a.n % 2 == 0 && c->a.n <= n / c->heads ? NULL : "a must hold pairs, no more than a row of x";
    }
    return NULL;
}

static void run_call(call *c) {
    const rl_vec *v = c->v;
    size_t n = c->x.n, at = 0;
    float *out = c->out.p;
    const float *x = c->x.p, *a = c->a.p;
    if (IS("rmsnorm")) v->rmsnorm(x, a, out, n, c->s);
    if (IS("layernorm")) v->layernorm(x, a, c->b.p, out, n, c->s);
    if (IS("add")) v->add(x, a, out, n);
    if (IS("scale")) v->scale(x, c->s, out, n);
    if (IS("silu_mul")) v->silu_mul(x, a, out, n);
    if (IS("gelu_mul")) v->gelu_mul(x, a, out, n);
    if (IS("gelu")) v->gelu(x, out, n);
    if (IS("silu")) v->silu(x, out, n);
    if (IS("softcap")) v->softcap(x, c->s, out, n);
    if (IS("rope_norm")) v->rope_norm(out, c->heads, n / c->heads, a, c->a.n);
    if (IS("rope_neox")) v->rope_neox(out, c->heads, n / c->heads, a, c->a.n);
    if (IS("max")) c->value = (double)v->max(x, n);
    if (IS("exp_sum")) c->value = (double)v->exp_sum(out, n, c->s);
    if (IS("logsumexp")) c->value = v->logsumexp(x, n);
    if (IS("argmax")) {
        v->argmax(x, n, &at);
        c->value = (double)at;
    }
}

static PyObject *vec(PyObject *m, PyObject *args, PyObject *kw) {
    static char *names[] = {"name", "out", "x", "a", "b", "s", "heads", "repeat", NULL};
    rl_state *st = rl_state_of_module(m);
    const char *name;
    PyObject *out_o, *x_o, *a_o = NULL, *b_o = NULL;
    Py_ssize_t heads = 1, repeat = 1;
    call call_here = {0}, *c = &call_here;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "sOO|OO$fnn:_vec", names, &name, &out_o, &x_o, &a_o, &b_o, &c->s, &heads,
                                     &repeat))
        return NULL;
    rl_dispatch d;
    rl_err err;
    const rl_kernel *k;
    // The whole table of operations is made with this one preferred, so that the entry is reached the way a session
    // reaches it.
    if (rl_dispatch_init(&d, NULL, name, &err) != RL_OK || rl_kernel_named(&d, name, &k, &err) != RL_OK)
        return rl_raise(st, &err);
    if (k->family != RL_FAM_VEC) return PyErr_Format(PyExc_ValueError, "%s is not a vector operation", name);
    rl_vec v;
    rl_vec_init(&v, &d);
    c->v = &v;
    c->op = k->layout;
    c->heads = heads > 0 ? (size_t)heads : 0;
    c->reduces = IS("max") || IS("exp_sum") || IS("logsumexp") || IS("argmax");
    PyObject *result = NULL;
    if (get_floats(out_o, &c->out, 1, "out") < 0 || get_floats(x_o, &c->x, 0, "x") < 0 ||
        get_floats(a_o, &c->a, 0, "a") < 0 || get_floats(b_o, &c->b, 0, "b") < 0)
        goto done;
    const char *wrong = check_call(c);
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
        goto done;
    }
    int in_place = IS("rope_norm") || IS("rope_neox") || IS("exp_sum");
    if (in_place && c->out.p != c->x.p) memcpy(c->out.p, c->x.p, c->x.n * sizeof(float));
    uint64_t t0 = rl_clock_ns();
    Py_BEGIN_ALLOW_THREADS for (Py_ssize_t i = 0; i < repeat; i++) run_call(c);
    Py_END_ALLOW_THREADS if (repeat > 1) result =
        PyFloat_FromDouble((double)(rl_clock_ns() - t0) * 1e-9 / (double)repeat);
    else if (IS("argmax")) result = PyLong_FromDouble(c->value);
    else if (c->reduces) result = PyFloat_FromDouble(c->value);
    else result = Py_NewRef(Py_None);
done:
    drop(&c->out), drop(&c->x), drop(&c->a), drop(&c->b);
    return result;
}

static PyMethodDef methods[] = {{"_vec", (PyCFunction)(void (*)(void))vec, METH_VARARGS | METH_KEYWORDS, vec_doc},
                                {NULL, NULL, 0, NULL}};

int rl_py_add_vec(PyObject *m, rl_state *st) {
    (void)st;
    return PyModule_AddFunctions(m, methods);
}
