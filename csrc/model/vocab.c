// SPDX-License-Identifier: Apache-2.0
// Tokenizing and its reverse: special tokens are found in the text first, what lies between goes to the merging of
// the model's kind. The tables are made by vocab_load.c.
#include "model/vocab.h"

#include <stdio.h>
#include <stdlib.h>

#include "model/vocab_parts.h"

const rl_vocab_info *rl_vocab_get_info(const rl_vocab *v) {
    return &v->info;
}

bool rl_ids_grow(rl_ids *ids, size_t more) {
    size_t cap = ids->cap + ids->cap / 2 + more + 32;
    if (cap > SIZE_MAX / sizeof *ids->v) return false;
    int32_t *grown = realloc(ids->v, cap * sizeof *grown);
    if (!grown) return false;
    ids->v = grown;
    ids->cap = cap;
    return true;
}

bool rl_ids_push_byte(const rl_vocab *v, rl_ids *ids, uint8_t byte) {
    uint32_t id = v->byte_ids[byte];
    if (id != RL_NO_TOKEN) return rl_ids_push(ids, (int32_t)id);
    ids->dropped++;
    return true;
}

// ---- encoding -----------------------------------------------------------------------------------------------------

typedef struct encoder {
    const rl_vocab *v;
    rl_ids *out;
} encoder;

static bool on_word(void *arg, const uint8_t *word, size_t n) {
    encoder *e = arg;
    return rl_bpe_word(e->v, word, n, e->out);
}

static bool encode_plain(encoder *e, const uint8_t *text, size_t n, bool after_special) {
    const rl_vocab *v = e->v;
    if (!n) return true;
    if (v->info.model == RL_VOCAB_BPE) return rl_pre_split(v->pre, text, n, on_word, e);
    if (!v->info.add_space_prefix || !after_special) return rl_spm_text(v, text, n, e->out);
    uint8_t small[512], *copy = n < sizeof small ? small : malloc(n + 1);
    if (!copy) return false;
    copy[0] = ' ';
    memcpy(copy + 1, text, n);
    bool ok = rl_spm_text(v, copy, n + 1, e->out);
    if (copy != small) free(copy);
    return ok;
}

static uint32_t trie_step(const rl_vocab *v, uint32_t node, uint8_t byte) {
    for (size_t i = rl_mix(node, byte) >> 16 & v->edge_mask;; i = (i + 1) & v->edge_mask) {
        const rl_edge *e = &v->edges[i];
        if (e->child == 0) return 0;
        if (e->node == node && e->byte == byte) return e->child;
    }
}

/// The longest special token at p, or -1.
static int32_t special_at(const rl_vocab *v, const uint8_t *p, const uint8_t *end, bool controls, size_t *len) {
    int32_t found = -1;
    uint32_t node = v->root[*p];
    for (size_t n = 1; node; n++) {
        int32_t id = v->node_ids[node];
        if (id >= 0 && (controls || v->types[id] == RL_TOKEN_USER)) {
            found = id;
            *len = n;
        }
        if (p + n == end) break;
        node = trie_step(v, node, p[n]);
    }
    return found;
}

static bool is_ascii_space(uint8_t c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

rl_status rl_vocab_encode(const rl_vocab *v, const uint8_t *text, size_t n, rl_encode_options opt, rl_ids *out,
                          rl_err *err) {
    if (n > UINT32_MAX / 4 - 1)
        return rl_fail(err, RL_ERR_ARG, "a text of %zu bytes is too long: encode it in parts", n);
    encoder e = {v, out};
    size_t begin = out->n;
    const int32_t bos = v->info.bos, eos = v->info.eos;
    bool ok = true, after_special = true;
    if (opt.bos && bos >= 0) ok = rl_ids_push(out, bos);
    const uint8_t *p = text, *end = text + n, *plain = text;
    while (ok && p < end) {
        size_t len = 0;
        int32_t id = v->root[*p] ? special_at(v, p, end, opt.special, &len) : -1;
        if (id < 0) {
            p++;
            continue;
        }
        ok = encode_plain(&e, plain, (size_t)(p - plain), after_special);
        // A text that brings its own BOS gets no second one.
        bool again = opt.bos && id == bos && p == text;
        if (ok && !again) ok = rl_ids_push(out, id);
        after_special = true;
        p += len;
        if (v->strips && v->strips[id])
            while (p < end && is_ascii_space(*p)) p++;
        plain = p;
    }
    if (ok) ok = encode_plain(&e, plain, (size_t)(end - plain), after_special);
    if (ok && opt.eos && eos >= 0 && (out->n == begin || out->v[out->n - 1] != eos)) ok = rl_ids_push(out, eos);
    return ok ? RL_OK : rl_fail(err, RL_ERR_NOMEM, "no memory to encode a text of %zu bytes", n);
}

// ---- tokens -------------------------------------------------------------------------------------------------------

static bool is_token(const rl_vocab *v, int32_t id) {
    return id >= 0 && (uint32_t)id < v->info.n_tokens;
}

const uint8_t *rl_vocab_piece(const rl_vocab *v, int32_t id, size_t *n) {
    if (!is_token(v, id)) return NULL;
    *n = v->pieces[id].len;
    return v->text + v->pieces[id].at;
}

rl_token_type rl_vocab_type(const rl_vocab *v, int32_t id) {
    return is_token(v, id) ? (rl_token_type)v->types[id] : RL_TOKEN_UNDEFINED;
}

bool rl_vocab_is_special(const rl_vocab *v, int32_t id) {
    rl_token_type t = rl_vocab_type(v, id);
    return t == RL_TOKEN_CONTROL || t == RL_TOKEN_UNKNOWN || t == RL_TOKEN_USER;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

int32_t rl_vocab_find(const rl_vocab *v, const char *text, size_t n) {
    const uint8_t *p = (const uint8_t *)text;
    size_t len = 0;
    if (!n) return -1;
    if (v->root[*p]) {
        int32_t id = special_at(v, p, p + n, true, &len);
        if (id >= 0 && len == n) return id;
    }
    if (n == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>' && hex_digit(text[3]) >= 0 && hex_digit(text[4]) >= 0) {
        uint32_t id = v->byte_ids[hex_digit(text[3]) << 4 | hex_digit(text[4])];
        if (id != RL_NO_TOKEN && v->types[id] == RL_TOKEN_BYTE) return (int32_t)id;
    }
    uint8_t small[256], *bytes = n <= sizeof small ? small : malloc(n);
    if (!bytes) return -1;
    uint32_t id = RL_NO_TOKEN;
    if (v->info.model == RL_VOCAB_BPE) {
        if (rl_bpe_unmap(p, n, bytes, &len)) id = rl_vocab_match(v, bytes, len);
    } else {
        id = rl_vocab_match(v, bytes, rl_spm_unescape(p, n, bytes));
    }
    if (bytes != small) free(bytes);
    if (id >= v->info.n_tokens) id = rl_vocab_match(v, p, n);
    if (id < v->info.n_tokens) return (int32_t)id;
    for (uint32_t i = 0; i < v->info.n_tokens; i++) // tokens that merging cannot make
        if (v->pieces[i].len == n && v->types[i] != RL_TOKEN_BYTE && memcmp(v->text + v->pieces[i].at, text, n) == 0)
            return (int32_t)i;
    return -1;
}

rl_status rl_vocab_detok(const rl_vocab *v, rl_detok *d, int32_t id, rl_span out[2], rl_err *err) {
    out[0] = out[1] = (rl_span){NULL, 0};
    if (!is_token(v, id))
        return rl_fail(err, RL_ERR_ARG, "token id %ld is not in the vocabulary of %lu tokens", (long)id,
                       (unsigned long)v->info.n_tokens);
    size_t k = 0;
    if (d->held_eos) {
        out[k].p = rl_vocab_piece(v, v->info.eos, &out[k].n);
        k++;
        d->held_eos = false;
    }
    bool special = rl_vocab_is_special(v, id), first = d->first;
    d->first = false;
    if (first && v->info.add_bos && id == v->info.bos) return RL_OK; // what encoding put there
    if (special) {
        d->after_special = true;
        if (d->skip_special && v->types[id] != RL_TOKEN_USER) return RL_OK;
        if (v->info.add_eos && id == v->info.eos) {
            d->held_eos = true; // dropped when it is the last, as encoding puts it there
            return RL_OK;
        }
    }
    out[k].p = rl_vocab_piece(v, id, &out[k].n);
    if (!special) {
        // The space that encoding puts before text that follows nothing or a special token.
        if (d->after_special && v->info.add_space_prefix && out[k].n && out[k].p[0] == ' ') {
            out[k].p++;
            out[k].n--;
        }
        d->after_special = false;
    }
    return RL_OK;
}
