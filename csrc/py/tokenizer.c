// SPDX-License-Identifier: Apache-2.0
// rooflm.Tokenizer and its streaming Decoder. The vocabulary is complete after loading: nothing of the file is held,
// and threads may share one Tokenizer.
#include "py/state.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

#include <stdlib.h>

#include "model/vocab.h"
#include "model/vocab_pre.h"
#include "py/gguf.h"

#define LONG_TEXT 4096 // bytes from which other threads may run meanwhile

typedef struct {
    PyObject_HEAD rl_vocab *v;
    PyObject *chat_template, *chat_templates;
} py_tokenizer;

typedef struct {
    PyObject_HEAD PyObject *owner; // the Tokenizer
    rl_detok state;
    bool continues, skip_special;
    uint8_t *held; // bytes that do not yet make a character
    size_t n_held, cap_held;
} py_decoder;

// ---- loading ------------------------------------------------------------------------------------------------------

static PyObject *text_of_key(rl_state *st, const rl_gguf *g, const char *key) {
    const char *s;
    size_t n;
    bool found;
    rl_err err;
    rl_err_clear(&err);
    if (rl_gguf_get_str(g, key, &s, &n, &found, &err) != RL_OK) return rl_raise(st, &err);
    if (!found) Py_RETURN_NONE;
    return rl_py_text(s, n);
}

/// {name: template} of every tokenizer.chat_template.NAME.
static PyObject *named_templates(rl_state *st, const rl_gguf *g) {
    static const char prefix[] = "tokenizer.chat_template.";
    PyObject *all = PyDict_New();
    for (size_t i = 0; all && i < rl_gguf_n_meta(g); i++) {
        const rl_meta *m = rl_gguf_meta(g, i);
        if (m->key_len <= sizeof prefix - 1 || memcmp(m->key, prefix, sizeof prefix - 1) != 0) continue;
        PyObject *name = rl_py_text(m->key + sizeof prefix - 1, m->key_len - (sizeof prefix - 1));
        PyObject *text = name ? text_of_key(st, g, m->key) : NULL;
        if (!text || PyDict_SetItem(all, name, text) < 0) Py_CLEAR(all);
        Py_XDECREF(name);
        Py_XDECREF(text);
    }
    return all;
}

static PyObject *tokenizer_from_gguf(PyTypeObject *type, PyObject *file) {
    rl_state *st = rl_state_of_type(type);
    if (!st) return NULL;
    rl_gguf *g = NULL;
    rl_err err;
    rl_err_clear(&err);
    if (Py_TYPE(file) == st->GGUFType) {
        g = rl_py_gguf_get(st, file);
        if (!g) return NULL;
        g = rl_gguf_ref(g);
    } else {
        PyObject *path = NULL;
        if (!PyUnicode_FSConverter(file, &path)) return NULL;
        rl_status rc;
        bool fell_back;
        Py_BEGIN_ALLOW_THREADS;
        rc = rl_gguf_open(&g, PyBytes_AS_STRING(path), RL_LOAD_AUTO, &fell_back, &err);
        Py_END_ALLOW_THREADS;
        Py_DECREF(path);
        if (rc != RL_OK) return rl_raise(st, &err);
    }
    py_tokenizer *self = (py_tokenizer *)type->tp_alloc(type, 0);
    if (self) {
        rl_status rc;
        Py_BEGIN_ALLOW_THREADS;
        rc = rl_vocab_load(&self->v, g, &err);
        Py_END_ALLOW_THREADS;
        const char *warning = rc == RL_OK ? rl_vocab_get_info(self->v)->warning : "";
        bool ok = rc == RL_OK;
        if (!ok) {
            rl_py_name_file(&err, rl_gguf_shard_path(g, 0));
            rl_raise(st, &err);
        }
        if (ok) ok = (self->chat_template = text_of_key(st, g, "tokenizer.chat_template")) != NULL;
        if (ok) ok = (self->chat_templates = named_templates(st, g)) != NULL;
        if (ok && *warning) ok = rl_warn_fallback(st, "%s", warning) == 0;
        if (!ok) Py_CLEAR(self);
    }
    rl_gguf_release(g);
    return (PyObject *)self;
}

static void tokenizer_dealloc(py_tokenizer *self) {
    PyTypeObject *type = Py_TYPE(self);
    rl_vocab_free(self->v);
    Py_XDECREF(self->chat_template);
    Py_XDECREF(self->chat_templates);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

// ---- encoding -----------------------------------------------------------------------------------------------------

static int flag_of(PyObject *o, bool otherwise, bool *out) {
    if (!o || o == Py_None) {
        *out = otherwise;
        return 0;
    }
    int truth = PyObject_IsTrue(o);
    *out = truth > 0;
    return truth < 0 ? -1 : 0;
}

static PyObject *array_of_ids(rl_ids *ids) {
    npy_intp n = (npy_intp)ids->n;
    PyObject *out = PyArray_SimpleNew(1, &n, NPY_INT32);
    if (out && n) memcpy(PyArray_DATA((PyArrayObject *)out), ids->v, ids->n * sizeof *ids->v);
    return out;
}

static PyObject *encode_bytes(py_tokenizer *self, const char *text, size_t n, rl_encode_options opt) {
    rl_state *st = rl_state_of_type(Py_TYPE(self));
    rl_ids ids = {0};
    rl_err err;
    rl_err_clear(&err);
    rl_status rc;
    PyThreadState *saved = n >= LONG_TEXT ? PyEval_SaveThread() : NULL;
    rc = rl_vocab_encode(self->v, (const uint8_t *)text, n, opt, &ids, &err);
    if (saved) PyEval_RestoreThread(saved);
    PyObject *out = rc == RL_OK ? array_of_ids(&ids) : rl_raise(st, &err);
    free(ids.v);
    if (out && ids.dropped &&
        rl_warn_fallback(st, "%zu of %zu bytes of the text have no token in this vocabulary and were left out",
                         ids.dropped, n) < 0)
        Py_CLEAR(out);
    return out;
}

// The four arguments are read by hand: this call has to stay within microseconds.
static PyObject *tokenizer_encode(py_tokenizer *self, PyObject *const *args, Py_ssize_t n_args, PyObject *names) {
    static const char *const known[] = {"text", "special", "bos", "eos"};
    PyObject *given[4] = {NULL};
    if (n_args > 2)
        return PyErr_Format(PyExc_TypeError, "encode() takes text and special by position, the rest by name");
    for (Py_ssize_t i = 0; i < n_args; i++) given[i] = args[i];
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        size_t k = 0;
        while (k < 4 && PyUnicode_CompareWithASCIIString(name, known[k]) != 0) k++;
        if (k == 4)
            return PyErr_Format(PyExc_TypeError, "encode() has no argument '%U'; it takes text, special, bos, eos",
                                name);
        if (given[k]) return PyErr_Format(PyExc_TypeError, "encode() got '%s' twice", known[k]);
        given[k] = args[n_args + i];
    }
    if (!given[0]) return PyErr_Format(PyExc_TypeError, "encode() needs the text");
    const rl_vocab_info *info = rl_vocab_get_info(self->v);
    rl_encode_options opt;
    if (flag_of(given[1], false, &opt.special) < 0 || flag_of(given[2], info->add_bos, &opt.bos) < 0 ||
        flag_of(given[3], info->add_eos, &opt.eos) < 0)
        return NULL;
    if ((opt.bos && info->bos < 0) || (opt.eos && info->eos < 0))
        return PyErr_Format(PyExc_ValueError, "this vocabulary has no %s token",
                            opt.bos && info->bos < 0 ? "beginning-of-text" : "end-of-text");
    if (PyUnicode_Check(given[0])) {
        Py_ssize_t n;
        const char *text = PyUnicode_AsUTF8AndSize(given[0], &n); // UnicodeEncodeError on lone surrogates
        return text ? encode_bytes(self, text, (size_t)n, opt) : NULL;
    }
    if (!PyObject_CheckBuffer(given[0]))
        return PyErr_Format(PyExc_TypeError, "text must be str or bytes, not %.80s", Py_TYPE(given[0])->tp_name);
    Py_buffer view;
    if (PyObject_GetBuffer(given[0], &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0) return NULL;
    // Bytes of numbers are no text: an array of ids, say, is a mistake.
    const bool is_bytes = view.itemsize == 1 && (!view.format || strchr("Bbc", view.format[0]));
    PyObject *out =
        is_bytes ? encode_bytes(self, view.buf, (size_t)view.len, opt)
                 : PyErr_Format(PyExc_TypeError, "text must be str or bytes, not %.80s of numbers; decode() takes ids",
                                Py_TYPE(given[0])->tp_name);
    PyBuffer_Release(&view);
    return out;
}

// ---- decoding -----------------------------------------------------------------------------------------------------

/// A contiguous int64 array of the ids; 0-d and sequences are taken too. TypeError for anything but integers.
static PyArrayObject *ids_array(PyObject *o) {
    PyArrayObject *any = (PyArrayObject *)PyArray_FROM_O(o);
    if (!any) return NULL;
    if (PyArray_SIZE(any) && !PyArray_ISINTEGER(any)) {
        Py_DECREF(any);
        PyErr_Format(PyExc_TypeError, "token ids must be integers");
        return NULL;
    }
    PyArrayObject *ids =
        (PyArrayObject *)PyArray_FROMANY((PyObject *)any, NPY_INT64, 0, 1, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST);
    Py_DECREF(any);
    return ids;
}

typedef struct bytes_out {
    uint8_t *v;
    size_t n, cap;
} bytes_out;

static bool append(bytes_out *b, rl_span s) {
    if (s.n > b->cap - b->n) {
        size_t cap = b->cap * 2 + s.n + 64;
        uint8_t *grown = realloc(b->v, cap);
        if (!grown) return false;
        b->v = grown;
        b->cap = cap;
    }
    if (s.n) memcpy(b->v + b->n, s.p, s.n);
    b->n += s.n;
    return true;
}

static int detok(py_tokenizer *self, rl_detok *state, int64_t id, bytes_out *out) {
    rl_state *st = rl_state_of_type(Py_TYPE(self));
    rl_err err;
    rl_err_clear(&err);
    rl_span spans[2];
    if (rl_vocab_detok(self->v, state, id < 0 || id > INT32_MAX ? -1 : (int32_t)id, spans, &err) != RL_OK) {
        if (id < 0 || id > INT32_MAX)
            PyErr_Format(PyExc_ValueError, "token id %lld is not in the vocabulary of %lu tokens", (long long)id,
                         (unsigned long)rl_vocab_get_info(self->v)->n_tokens);
        else
            rl_raise(st, &err);
        return -1;
    }
    if (append(out, spans[0]) && append(out, spans[1])) return 0;
    PyErr_NoMemory();
    return -1;
}

static int decode_all(py_tokenizer *self, PyObject *args, PyObject *kwds, const char *format, bytes_out *out) {
    static char *names[] = {"ids", "skip_special", "continues", NULL};
    PyObject *o;
    int skip = 0, continues = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwds, format, names, &o, &skip, &continues)) return -1;
    PyArrayObject *ids = ids_array(o);
    if (!ids) return -1;
    rl_detok state = {.first = !continues, .after_special = !continues, .skip_special = skip};
    const npy_int64 *p = PyArray_DATA(ids);
    int rc = 0;
    for (npy_intp i = 0, n = PyArray_SIZE(ids); i < n && rc == 0; i++) rc = detok(self, &state, p[i], out);
    Py_DECREF(ids);
    return rc;
}

static PyObject *tokenizer_decode(py_tokenizer *self, PyObject *args, PyObject *kwds) {
    bytes_out b = {0};
    PyObject *out = NULL;
    if (decode_all(self, args, kwds, "O|$pp:decode", &b) == 0)
        out = PyUnicode_DecodeUTF8((const char *)b.v, (Py_ssize_t)b.n, "replace");
    free(b.v);
    return out;
}

static PyObject *tokenizer_decode_bytes(py_tokenizer *self, PyObject *args, PyObject *kwds) {
    bytes_out b = {0};
    PyObject *out = NULL;
    if (decode_all(self, args, kwds, "O|$pp:decode_bytes", &b) == 0)
        out = PyBytes_FromStringAndSize((const char *)b.v, (Py_ssize_t)b.n);
    free(b.v);
    return out;
}

static PyObject *tokenizer_decoder(py_tokenizer *self, PyObject *args, PyObject *kwds) {
    static char *names[] = {"skip_special", "continues", NULL};
    int skip = 0, continues = 0;
    if (rl_py_check_keywords(kwds, "decoder", names) < 0) return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "|$pp:decoder", names, &skip, &continues)) return NULL;
    rl_state *st = rl_state_of_type(Py_TYPE(self));
    py_decoder *d = (py_decoder *)st->DecoderType->tp_alloc(st->DecoderType, 0);
    if (!d) return NULL;
    d->owner = Py_NewRef((PyObject *)self);
    d->continues = continues;
    d->skip_special = skip;
    d->state = (rl_detok){.first = !continues, .after_special = !continues, .skip_special = skip};
    return (PyObject *)d;
}

static PyObject *decoder_feed(py_decoder *self, PyObject *arg) {
    PyObject *index = PyNumber_Index(arg);
    if (!index) return NULL;
    int overflow;
    long long id = PyLong_AsLongLongAndOverflow(index, &overflow);
    Py_DECREF(index);
    bytes_out b = {self->held, self->n_held, self->cap_held};
    int rc = detok((py_tokenizer *)self->owner, &self->state, overflow ? -1 : id, &b);
    self->held = b.v;
    self->cap_held = b.cap;
    if (rc < 0) return NULL;
    Py_ssize_t used = 0;
    PyObject *out = PyUnicode_DecodeUTF8Stateful((const char *)b.v, (Py_ssize_t)b.n, "replace", &used);
    if (!out) return NULL;
    self->n_held = b.n - (size_t)used;
    if (self->n_held) memmove(self->held, self->held + used, self->n_held);
    return out;
}

static PyObject *decoder_flush(py_decoder *self, PyObject *unused) {
    (void)unused;
    PyObject *out = PyUnicode_DecodeUTF8((const char *)self->held, (Py_ssize_t)self->n_held, "replace");
    if (!out) return NULL;
    self->n_held = 0;
    self->state =
        (rl_detok){.first = !self->continues, .after_special = !self->continues, .skip_special = self->skip_special};
    return out;
}

static void decoder_dealloc(py_decoder *self) {
    PyTypeObject *type = Py_TYPE(self);
    free(self->held);
    Py_XDECREF(self->owner);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

// ---- tokens -------------------------------------------------------------------------------------------------------

static int id_arg(py_tokenizer *self, PyObject *arg, int32_t *out) {
    PyObject *index = PyNumber_Index(arg);
    if (!index) return -1;
    int overflow;
    long long id = PyLong_AsLongLongAndOverflow(index, &overflow);
    Py_DECREF(index);
    uint32_t n = rl_vocab_get_info(self->v)->n_tokens;
    if (overflow || id < 0 || id >= (long long)n) {
        PyErr_Format(PyExc_ValueError, "token id %S is not in the vocabulary of %lu tokens", arg, (unsigned long)n);
        return -1;
    }
    *out = (int32_t)id;
    return 0;
}

static PyObject *tokenizer_piece(py_tokenizer *self, PyObject *arg) {
    int32_t id;
    size_t n;
    if (id_arg(self, arg, &id) < 0) return NULL;
    const uint8_t *p = rl_vocab_piece(self->v, id, &n);
    return PyBytes_FromStringAndSize((const char *)p, (Py_ssize_t)n);
}

static PyObject *tokenizer_type(py_tokenizer *self, PyObject *arg) {
    static const char *const names[] = {"undefined", "normal", "unknown", "control", "user_defined", "unused", "byte"};
    int32_t id;
    if (id_arg(self, arg, &id) < 0) return NULL;
    return PyUnicode_FromString(names[rl_vocab_type(self->v, id)]);
}

static PyObject *tokenizer_is_special(py_tokenizer *self, PyObject *arg) {
    int32_t id;
    if (id_arg(self, arg, &id) < 0) return NULL;
    return PyBool_FromLong(rl_vocab_is_special(self->v, id));
}

static PyObject *tokenizer_token_to_id(py_tokenizer *self, PyObject *arg) {
    Py_ssize_t n;
    const char *s = PyUnicode_AsUTF8AndSize(arg, &n);
    if (!s) return NULL;
    int32_t id = rl_vocab_find(self->v, s, (size_t)n);
    if (id < 0) Py_RETURN_NONE;
    return PyLong_FromLong(id);
}

enum { BOS, EOS, EOT, UNK, PAD };
static PyObject *get_id(py_tokenizer *self, void *which) {
    const rl_vocab_info *info = rl_vocab_get_info(self->v);
    const int32_t ids[] = {
        [BOS] = info->bos, [EOS] = info->eos, [EOT] = info->eot, [UNK] = info->unk, [PAD] = info->pad};
    int32_t id = ids[(intptr_t)which];
    if (id < 0) Py_RETURN_NONE;
    return PyLong_FromLong(id);
}

enum { ADD_BOS, ADD_EOS, ADD_SPACE };
static PyObject *get_flag(py_tokenizer *self, void *which) {
    const rl_vocab_info *info = rl_vocab_get_info(self->v);
    const bool flags[] = {[ADD_BOS] = info->add_bos, [ADD_EOS] = info->add_eos, [ADD_SPACE] = info->add_space_prefix};
    return PyBool_FromLong(flags[(intptr_t)which]);
}

static PyObject *get_eog_ids(py_tokenizer *self, void *unused) {
    (void)unused;
    const rl_vocab_info *info = rl_vocab_get_info(self->v);
    PyObject *out = PyTuple_New((Py_ssize_t)info->n_eog);
    for (size_t i = 0; out && i < info->n_eog; i++) {
        PyObject *id = PyLong_FromLong(info->eog[i]);
        if (!id) {
            Py_CLEAR(out);
            break;
        }
        PyTuple_SET_ITEM(out, (Py_ssize_t)i, id);
    }
    return out;
}

static PyObject *get_pre(py_tokenizer *self, void *unused) {
    (void)unused;
    const char *pre = rl_vocab_get_info(self->v)->pre;
    if (!*pre) Py_RETURN_NONE;
    return rl_py_text(pre, strlen(pre));
}

static const char *model_name(const py_tokenizer *self) {
    return rl_vocab_get_info(self->v)->model == RL_VOCAB_BPE ? "gpt2" : "llama";
}

static PyObject *get_model(py_tokenizer *self, void *unused) {
    (void)unused;
    return PyUnicode_FromString(model_name(self));
}

static PyObject *get_n_vocab(py_tokenizer *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLong(rl_vocab_get_info(self->v)->n_tokens);
}

static PyObject *get_template(py_tokenizer *self, void *unused) {
    (void)unused;
    return Py_NewRef(self->chat_template);
}

static PyObject *get_templates(py_tokenizer *self, void *unused) {
    (void)unused;
    return PyDict_Copy(self->chat_templates);
}

static Py_ssize_t tokenizer_len(py_tokenizer *self) {
    return (Py_ssize_t)rl_vocab_get_info(self->v)->n_tokens;
}

static PyObject *tokenizer_repr(py_tokenizer *self) {
    const rl_vocab_info *info = rl_vocab_get_info(self->v);
    if (info->model == RL_VOCAB_SPM || !info->pre[0])
        return PyUnicode_FromFormat("<rooflm.Tokenizer %s, %lu tokens>", model_name(self),
                                    (unsigned long)info->n_tokens);
    return PyUnicode_FromFormat("<rooflm.Tokenizer %s, pre %.63s, %lu tokens>", model_name(self), info->pre,
                                (unsigned long)info->n_tokens);
}

// ---- for tests: pre-tokenizers without a vocabulary ---------------------------------------------------------------

static bool append_word(void *arg, const uint8_t *word, size_t n) {
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)word, (Py_ssize_t)n);
    int rc = bytes ? PyList_Append(arg, bytes) : -1;
    Py_XDECREF(bytes);
    return rc == 0;
}

static PyObject *pre_tokenize(PyObject *m, PyObject *args) {
    (void)m;
    const char *name, *text;
    Py_ssize_t name_len, n;
    if (!PyArg_ParseTuple(args, "s#y#:_pre_tokenize", &name, &name_len, &text, &n)) return NULL;
    const rl_pre *pre = rl_pre_find(name, (size_t)name_len);
    if (!pre) return PyErr_Format(PyExc_ValueError, "no pre-tokenizer '%s'", name);
    PyObject *words = PyList_New(0);
    if (words && !rl_pre_split(pre, (const uint8_t *)text, (size_t)n, append_word, words)) Py_CLEAR(words);
    return words;
}

static PyObject *pre_tokenizers(PyObject *m, PyObject *unused) {
    (void)m;
    (void)unused;
    PyObject *names = PyList_New(0);
    const char *name;
    for (size_t i = 0; names && (name = rl_pre_name(i)); i++) {
        PyObject *text = PyUnicode_FromString(name);
        if (!text || PyList_Append(names, text) < 0) Py_CLEAR(names);
        Py_XDECREF(text);
    }
    return names;
}

static PyMethodDef functions[] = {
    {"_pre_tokenize", pre_tokenize, METH_VARARGS, "_pre_tokenize(name, text, /)\n--\n\nThe words of a text (bytes)."},
    {"_pre_tokenizers", pre_tokenizers, METH_NOARGS,
     "_pre_tokenizers()\n--\n\nThe names that tokenizer.ggml.pre may have."},
    {0}};

// ---- types --------------------------------------------------------------------------------------------------------

static PyMethodDef tokenizer_methods[] = {
    {"from_gguf", (PyCFunction)tokenizer_from_gguf, METH_O | METH_CLASS,
     "from_gguf($type, file, /)\n--\n\nThe tokenizer of a GGUF file: a path or an open rooflm.GGUF.\n\nEverything "
     "comes "
     "from the file's metadata. FormatError names the key that is wrong or missing; Error a kind of\ntokenizer that "
     "this "
     "library does not have. A vocabulary that does not say how its text was split into words gives\na "
     "FallbackWarning."},
    {"encode", (PyCFunction)(void (*)(void))tokenizer_encode, METH_FASTCALL | METH_KEYWORDS,
     "encode($self, text, special=False, *, bos=None, eos=None)\n--\n\nToken ids of a text (str or bytes), as an int32 "
     "array.\n\nspecial: take control tokens such as <|im_start|> from the text; otherwise they are ordinary text. "
     "bos, "
     "eos: add\nthem (None: as the file asks); a text that has them already gets no second one. Bytes that are not "
     "UTF-8 are kept\nas they are; a lone surrogate in a str is a UnicodeEncodeError. Bytes for which the vocabulary "
     "has no "
     "token are\nleft out with a FallbackWarning."},
    {"decode", (PyCFunction)(void (*)(void))tokenizer_decode, METH_VARARGS | METH_KEYWORDS,
     "decode($self, ids, *, skip_special=False, continues=False)\n--\n\nThe text of token ids: decode(encode(s)) == "
     "s.\n\n"
     "A BOS at the start and an EOS at the end are left out where encode() adds them; other control tokens are shown\n"
     "unless skip_special. continues: the ids go on from earlier ones, so a space at their start is kept. Bytes that "
     "make\nno UTF-8 become U+FFFD."},
    {"decode_bytes", (PyCFunction)(void (*)(void))tokenizer_decode_bytes, METH_VARARGS | METH_KEYWORDS,
     "decode_bytes($self, ids, *, skip_special=False, continues=False)\n--\n\nAs decode(), but the bytes, whether they "
     "are "
     "UTF-8 or not."},
    {"decoder", (PyCFunction)(void (*)(void))tokenizer_decoder, METH_VARARGS | METH_KEYWORDS,
     "decoder($self, *, skip_special=False, continues=False)\n--\n\nA Decoder for ids that come one by one; arguments "
     "as "
     "for decode()."},
    {"piece", (PyCFunction)tokenizer_piece, METH_O,
     "piece($self, id, /)\n--\n\nThe bytes that a token stands for; control tokens by their name."},
    {"token_to_id", (PyCFunction)tokenizer_token_to_id, METH_O,
     "token_to_id($self, token, /)\n--\n\nThe id of a token by its text in the file, or None."},
    {"is_special", (PyCFunction)tokenizer_is_special, METH_O,
     "is_special($self, id, /)\n--\n\nWhether the token is a control, unknown or user-defined one."},
    {"type", (PyCFunction)tokenizer_type, METH_O,
     "type($self, id, /)\n--\n\n'normal', 'control', 'user_defined', 'unknown', 'unused', 'byte' or 'undefined'."},
    {0}};

#define GETTER(name, function, doc, closure)                                                                           \
    { name, (getter)(function), NULL, doc, (void *)(intptr_t)(closure) }
static PyGetSetDef tokenizer_getset[] = {
    GETTER("n_vocab", get_n_vocab, "Number of tokens.", 0),
    GETTER("bos_id", get_id, "Beginning-of-text token, or None.", BOS),
    GETTER("eos_id", get_id, "End-of-text token, or None.", EOS),
    GETTER("eot_id", get_id, "End-of-turn token, or None.", EOT),
    GETTER("unk_id", get_id, "Unknown token, or None.", UNK),
    GETTER("pad_id", get_id, "Padding token, or None.", PAD),
    GETTER("eog_ids", get_eog_ids, "Ids at which generation ends, ascending: eos, eot and known end markers.", 0),
    GETTER("add_bos", get_flag, "Whether the file asks for BOS before a text.", ADD_BOS),
    GETTER("add_eos", get_flag, "Whether the file asks for EOS after a text.", ADD_EOS),
    GETTER("add_space_prefix", get_flag, "Whether a space is put before a text.", ADD_SPACE),
    GETTER("pre", get_pre, "tokenizer.ggml.pre of the file, or None.", 0),
    GETTER("model", get_model, "tokenizer.ggml.model: 'gpt2' (byte-level BPE) or 'llama' (SentencePiece).", 0),
    GETTER("chat_template", get_template, "The file's chat template, or None.", 0),
    GETTER("chat_templates", get_templates, "Further chat templates of the file by name.", 0),
    {0}};

static PyType_Slot tokenizer_slots[] = {
    {Py_tp_doc, "A vocabulary and its tokenizer, made by Tokenizer.from_gguf(file)."},
    {Py_tp_dealloc, tokenizer_dealloc},
    {Py_tp_methods, tokenizer_methods},
    {Py_tp_getset, tokenizer_getset},
    {Py_tp_repr, tokenizer_repr},
    {Py_sq_length, tokenizer_len},
    {0, NULL}};

static PyMethodDef decoder_methods[] = {
    {"feed", (PyCFunction)decoder_feed, METH_O,
     "feed($self, id, /)\n--\n\nThe text that this token completes; never part of a character."},
    {"flush", (PyCFunction)decoder_flush, METH_NOARGS,
     "flush($self)\n--\n\nWhat is still held back, as U+FFFD when it is no character; the decoder starts anew."},
    {0}};

static PyType_Slot decoder_slots[] = {
    {Py_tp_doc, "Decodes ids one by one, made by Tokenizer.decoder(); the pieces join to decode() of all ids."},
    {Py_tp_dealloc, decoder_dealloc},
    {Py_tp_methods, decoder_methods},
    {0, NULL}};

#ifndef Py_TPFLAGS_DISALLOW_INSTANTIATION // 3.9
#define Py_TPFLAGS_DISALLOW_INSTANTIATION 0
#endif
static PyType_Spec tokenizer_spec = {"rooflm._core.Tokenizer", sizeof(py_tokenizer), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, tokenizer_slots};
static PyType_Spec decoder_spec = {"rooflm._core.Decoder", sizeof(py_decoder), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, decoder_slots};

int rl_py_add_tokenizer(PyObject *m, rl_state *st) {
    import_array1(-1);
    st->TokenizerType = (PyTypeObject *)PyType_FromModuleAndSpec(m, &tokenizer_spec, NULL);
    st->DecoderType = (PyTypeObject *)PyType_FromModuleAndSpec(m, &decoder_spec, NULL);
    if (!st->TokenizerType || !st->DecoderType) return -1;
#if PY_VERSION_HEX < 0x030A0000
    st->TokenizerType->tp_new = st->DecoderType->tp_new = NULL;
#endif
    if (PyModule_AddFunctions(m, functions) < 0) return -1;
    if (PyModule_AddObjectRef(m, "Tokenizer", (PyObject *)st->TokenizerType) < 0) return -1;
    return PyModule_AddObjectRef(m, "Decoder", (PyObject *)st->DecoderType);
}
