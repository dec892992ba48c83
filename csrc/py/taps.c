// SPDX-License-Identifier: Apache-2.0
// Captured layer outputs: rows are copied by one thread while the others wait, into buffers that grow between chunks.
#include "py/session.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>
#include <stdlib.h>

// Rows of one tap. Attention weights get wider with the context: each row remembers its own width.
typedef struct tap {
    size_t layer;
    rl_tap_point point;
    size_t width; // 0 for attention weights
    float *data;
    size_t used, room; // floats
    size_t rows;
    size_t *row_width; // attention weights only
    size_t row_room;
} tap;

struct rl_capture {
    tap *taps;
    size_t n;
    rl_taps callbacks;
    const rl_hparams *hp;
    size_t weights_room;
};

static tap *find(struct rl_capture *c, size_t layer, rl_tap_point p) {
    for (size_t i = 0; i < c->n; i++)
        if (c->taps[i].point == p && (p >= RL_TAP_LAYER_POINTS || c->taps[i].layer == layer)) return &c->taps[i];
    return NULL;
}

static bool wants(void *arg, size_t layer, rl_tap_point p) {
    return find(arg, layer, p) != NULL;
}

static void take(void *arg, size_t layer, rl_tap_point p, const float *rows, size_t n_tok, size_t width, size_t ld) {
    tap *t = find(arg, layer, p);
    for (size_t i = 0; i < n_tok; i++) {
        memcpy(t->data + t->used, rows + i * ld, width * sizeof *rows);
        t->used += width;
        if (!t->width) t->row_width[t->rows] = width;
        t->rows++;
    }
}

static bool grow(void **p, size_t *room, size_t need, size_t item) {
    if (need <= *room) return true;
    size_t more = *room * 2 > need ? *room * 2 : need, bytes;
    void *bigger = rl_mul_size(more, item, &bytes) ? realloc(*p, bytes) : NULL;
    if (!bigger) return false;
    *p = bigger;
    *room = more;
    return true;
}

static rl_status make_room(void *arg, size_t pos0, size_t n_tok, rl_err *err) {
    struct rl_capture *c = arg;
    for (size_t i = 0; i < c->n; i++) {
        tap *t = &c->taps[i];
        size_t width = t->width, n_head = c->hp->layer[t->layer].n_head, weights;
        bool fits = true;
        if (!width) {
            fits = rl_mul_size(n_head, pos0 + n_tok, &width) && rl_mul_size(width, n_tok, &weights) &&
                   grow((void **)&c->callbacks.attn_weights, &c->weights_room, weights, sizeof(float)) &&
                   grow((void **)&t->row_width, &t->row_room, t->rows + n_tok, sizeof *t->row_width);
        }
        if (!fits || !grow((void **)&t->data, &t->room, t->used + n_tok * width, sizeof(float)))
            return rl_fail(err, RL_ERR_NOMEM, "no memory to capture %zu rows of %s", n_tok, rl_tap_name(t->point));
    }
    return RL_OK;
}

void rl_py_capture_free(struct rl_capture *c) {
    if (!c) return;
    for (size_t i = 0; i < c->n; i++) {
        free(c->taps[i].data);
        free(c->taps[i].row_width);
    }
    free(c->callbacks.attn_weights);
    free(c->taps);
    free(c);
}

void rl_py_capture_attach(py_session *s, rl_eval *ev) {
    if (!s->capture) return;
    ev->taps = &s->capture->callbacks;
    ev->before_chunk = make_room;
    ev->chunk_arg = s->capture;
}

// "blk.3.resid_post" or "final_norm".
static int parse(struct rl_capture *c, const rl_hparams *hp, PyObject *item) {
    const char *name = PyUnicode_AsUTF8(item);
    if (!name) return -1;
    size_t layer = 0;
    const char *point = name;
    bool of_layer = strncmp(name, "blk.", 4) == 0;
    if (of_layer) {
        char *end;
        layer = strtoul(name + 4, &end, 10);
        point = *end == '.' && end > name + 4 ? end + 1 : "";
    }
    int p = of_layer ? 0 : RL_TAP_LAYER_POINTS, last = of_layer ? RL_TAP_LAYER_POINTS : RL_TAP_POINTS;
    while (p < last && strcmp(rl_tap_name((rl_tap_point)p), point)) p++;
    if (p == last || layer >= hp->n_layer) {
        PyErr_Format(PyExc_ValueError, "there is no tap '%s'; Model.taps() lists them", name);
        return -1;
    }
    if (find(c, layer, (rl_tap_point)p)) return 0;
    c->taps[c->n++] =
        (tap){.layer = layer, .point = (rl_tap_point)p, .width = rl_tap_width(hp, layer, (rl_tap_point)p)};
    return 0;
}

PyObject *rl_py_set_taps(py_session *s, PyObject *wanted) {
    PyObject *seq = PySequence_Fast(wanted, "taps must be a sequence of names");
    if (!seq) return NULL;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(seq);
    const rl_hparams *hp = &rl_engine_model(s->s->engine)->hp;
    struct rl_capture *c = calloc(1, sizeof *c);
    if (c) c->taps = calloc(n ? (size_t)n : 1, sizeof *c->taps);
    if (!c || !c->taps) {
        free(c);
        Py_DECREF(seq);
        return PyErr_NoMemory();
    }
    c->hp = hp;
    c->callbacks = (rl_taps){.wants = wants, .take = take, .arg = c};
    for (Py_ssize_t i = 0; i < n; i++)
        if (parse(c, hp, PySequence_Fast_GET_ITEM(seq, i)) < 0) {
            rl_py_capture_free(c);
            Py_DECREF(seq);
            return NULL;
        }
    Py_DECREF(seq);
    rl_py_capture_free(s->capture);
    s->capture = n ? c : NULL;
    if (!n) rl_py_capture_free(c);
    Py_RETURN_NONE;
}

// Rows of equal width become (tokens, width); attention weights (tokens, heads, positions), zero beyond each row's own.
static PyObject *array_of(const struct rl_capture *c, const tap *t) {
    size_t n_head = c->hp->layer[t->layer].n_head, widest = 0;
    if (t->width) {
        npy_intp dims[2] = {(npy_intp)t->rows, (npy_intp)t->width};
        PyObject *a = PyArray_SimpleNew(2, dims, NPY_FLOAT32);
        if (a && t->used) memcpy(PyArray_DATA((PyArrayObject *)a), t->data, t->used * sizeof(float));
        return a;
    }
    for (size_t r = 0; r < t->rows; r++) widest = t->row_width[r] > widest ? t->row_width[r] : widest;
    npy_intp dims[3] = {(npy_intp)t->rows, (npy_intp)n_head, (npy_intp)(widest / n_head)};
    PyObject *a = PyArray_ZEROS(3, dims, NPY_FLOAT32, 0);
    if (!a) return NULL;
    float *out = PyArray_DATA((PyArrayObject *)a);
    const float *in = t->data;
    for (size_t r = 0; r < t->rows; r++) {
        size_t positions = t->row_width[r] / n_head;
        for (size_t h = 0; h < n_head; h++, in += positions)
            memcpy(out + r * widest + h * (widest / n_head), in, positions * sizeof *in);
    }
    return a;
}

PyObject *rl_py_tap_full_name(size_t layer, rl_tap_point p) {
    return p >= RL_TAP_LAYER_POINTS ? PyUnicode_FromString(rl_tap_name(p))
                                    : PyUnicode_FromFormat("blk.%zu.%s", layer, rl_tap_name(p));
}

PyObject *rl_py_take_taps(py_session *s) {
    PyObject *d = PyDict_New();
    struct rl_capture *c = s->capture;
    for (size_t i = 0; d && c && i < c->n; i++) {
        tap *t = &c->taps[i];
        if (!t->rows) continue;
        PyObject *key = rl_py_tap_full_name(t->layer, t->point), *a = array_of(c, t);
        if (!key || !a || PyDict_SetItem(d, key, a) < 0) Py_CLEAR(d);
        Py_XDECREF(key);
        Py_XDECREF(a);
        t->rows = t->used = 0;
    }
    return d;
}

int rl_py_taps_init(void) {
    import_array1(-1);
    return 0;
}
