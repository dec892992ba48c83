// SPDX-License-Identifier: Apache-2.0
// Reads a vocabulary from GGUF metadata. Every length, count and id in the file is checked before it is used.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/vocab_parts.h"

#define KEY(name) "tokenizer.ggml." name

// ---- tables -------------------------------------------------------------------------------------------------------

static void put_slot(rl_vocab *v, rl_slot s, uint64_t h) {
    size_t i = h & v->slot_mask;
    while (v->slots[i].id != RL_NO_TOKEN) i = (i + 1) & v->slot_mask;
    v->slots[i] = s;
}

static bool resize_slots(rl_vocab *v, size_t n) {
    rl_slot *slots = malloc(n * sizeof *slots), *old = v->slots;
    size_t n_old = old ? v->slot_mask + 1 : 0;
    if (!slots) return false;
    memset(slots, 0xFF, n * sizeof *slots);
    v->slots = slots;
    v->slot_mask = n - 1;
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].id == RL_NO_TOKEN) continue;
        rl_piece piece = v->pieces[old[i].id];
        put_slot(v, old[i], rl_hash_bytes(v->text + piece.at, piece.len));
    }
    free(old);
    return true;
}

uint32_t rl_vocab_add(rl_vocab *v, const uint8_t *p, size_t n, rl_token_type type, bool mergeable) {
    if (n > UINT32_MAX - v->text_len || v->n_pieces >= UINT32_MAX / 2) return RL_NO_TOKEN;
    if (v->text_len + n > v->text_cap) {
        size_t cap = v->text_cap * 2 + n;
        uint8_t *text = realloc(v->text, cap);
        if (!text) return RL_NO_TOKEN;
        v->text = text;
        v->text_cap = cap;
    }
    if (v->n_pieces == v->cap_pieces) {
        size_t cap = v->cap_pieces * 2 + 16;
        rl_piece *pieces = realloc(v->pieces, cap * sizeof *pieces);
        if (!pieces) return RL_NO_TOKEN;
        v->pieces = pieces;
        uint8_t *types = realloc(v->types, cap);
        if (!types) return RL_NO_TOKEN;
        v->types = types;
        v->cap_pieces = cap;
    }
    uint32_t id = (uint32_t)v->n_pieces++;
    if (n) memcpy(v->text + v->text_len, p, n);
    v->pieces[id] = (rl_piece){(uint32_t)v->text_len, (uint32_t)n};
    v->types[id] = (uint8_t)type;
    v->text_len += n;
    // Of two tokens with the same bytes the first is the one that merging makes.
    if (!mergeable || !n || rl_vocab_match(v, p, n) != RL_NO_TOKEN) return id;
    if (++v->n_slots_used * 2 > v->slot_mask && !resize_slots(v, (v->slot_mask + 1) * 2)) return RL_NO_TOKEN;
    uint64_t h = rl_hash_bytes(p, n);
    put_slot(v, (rl_slot){(uint32_t)(h >> 32), id}, h);
    if (n > v->max_len) v->max_len = (uint32_t)n;
    return id;
}

size_t rl_spm_unescape(const uint8_t *p, size_t n, uint8_t *out) {
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        if (n - i >= 3 && p[i] == 0xE2 && p[i + 1] == 0x96 && p[i + 2] == 0x81) { // U+2581
            out[k++] = ' ';
            i += 3;
        } else {
            out[k++] = p[i++];
        }
    }
    return k;
}

// ---- tokens -------------------------------------------------------------------------------------------------------

static rl_status find_array(const rl_gguf *g, const char *key, const rl_meta **out, rl_err *err) {
    const rl_meta *m = *out = rl_gguf_find(g, key);
    if (m && m->type != RL_META_ARRAY) return rl_fail_format(err, key, NULL, m->offset, "%s must be an array", key);
    return RL_OK;
}

static bool parse_byte_token(const uint8_t *p, size_t n, uint8_t *byte) {
    static const char digits[] = "0123456789ABCDEF";
    if (n != 6 || memcmp(p, "<0x", 3) != 0 || p[5] != '>') return false;
    const char *hi = memchr(digits, p[3], 16), *lo = memchr(digits, p[4], 16);
    if (!hi || !lo) return false;
    *byte = (uint8_t)((hi - digits) << 4 | (lo - digits));
    return true;
}

// Texts by which a token is known to end a turn or a text; `turn` ones can be the end-of-turn token.
static const struct {
    const char *text;
    bool turn;
} ends[] = {
    {"<|eot_id|>", true},
    {"<|im_end|>", true},
    {"<|end|>", true},
    {"<end_of_turn>", true},
    {"<|endoftext|>", true},
    {"<|end_of_text|>", true},
    {"<EOT>", true},
    {"_<EOT>", true},
    {"[EOT]", true},
    {"<end_of_utterance>", true},
    {"</s>", false},
    {"<|eom_id|>", false},
    {"<|return|>", false},
    {"<|call|>", false},
    {"<|calls|>", false},
    {"<|flush|>", false},
    {"[EOS]", false},
    {"<eos>", false},
    {"<turn|>", false},
    {"[e~[", false},
    {"<\xEF\xBD\x9C"
     "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
     true},
};
#define N_ENDS (sizeof ends / sizeof *ends)

static int end_index(const uint8_t *p, size_t n) {
    if (n < 4 || (*p != '<' && *p != '[' && *p != '_')) return -1;
    for (size_t i = 0; i < N_ENDS; i++)
        if (strlen(ends[i].text) == n && memcmp(ends[i].text, p, n) == 0) return (int)i;
    return -1;
}

/// Some files have their end markers as text that users may write. An ordinary token like </s> of a vocabulary that
/// knows HTML stays what it is.
static bool is_marked_wrong(const uint8_t *p, size_t n, int64_t type) {
    if (type == RL_TOKEN_CONTROL || end_index(p, n) < 0) return false;
    return type == RL_TOKEN_USER || (n > 4 && p[1] == '|' && p[n - 2] == '|');
}

static rl_status add_token(rl_vocab *v, const uint8_t *p, size_t n, rl_token_type type, uint8_t *buf, rl_err *err) {
    bool plain = type == RL_TOKEN_NORMAL || type == RL_TOKEN_UNUSED || type == RL_TOKEN_UNDEFINED;
    uint32_t id = (uint32_t)v->n_pieces;
    if (type == RL_TOKEN_BYTE) {
        uint8_t byte;
        if (!parse_byte_token(p, n, &byte))
            return rl_fail_format(err, KEY("tokens"), NULL, UINT64_MAX,
                                  "%s: token %lu is of type byte, but its text is not <0x00> to <0xFF>", KEY("tokens"),
                                  (unsigned long)id);
        if (v->byte_ids[byte] == RL_NO_TOKEN) v->byte_ids[byte] = id;
        buf[0] = byte;
        p = buf;
        n = 1;
    } else if (v->info.model == RL_VOCAB_SPM) {
        // A text with plain spaces in it is not one that escaped text could match.
        bool reachable = plain && !(n && memchr(p, ' ', n));
        if (plain || type == RL_TOKEN_USER) {
            n = rl_spm_unescape(p, n, buf);
            p = buf;
        }
        plain = reachable;
    } else if (plain) {
        size_t len;
        plain = rl_bpe_unmap(p, n, buf, &len);
        if (plain) {
            p = buf;
            n = len;
        }
    } else {
        plain = type == RL_TOKEN_USER; // merges may lead to it
    }
    if (rl_vocab_add(v, p, n, type, plain) == RL_NO_TOKEN)
        return rl_fail(err, RL_ERR_NOMEM, "no memory for the vocabulary");
    return RL_OK;
}

static rl_status load_tokens(rl_vocab *v, const rl_gguf *g, rl_err *err) {
    static const char key[] = KEY("tokens");
    const rl_meta *m, *types, *scores;
    RL_TRY(find_array(g, key, &m, err));
    RL_TRY(find_array(g, KEY("token_type"), &types, err));
    RL_TRY(find_array(g, KEY("scores"), &scores, err));
    if (!m) return rl_fail_format(err, key, NULL, UINT64_MAX, "%s is missing: the file has no vocabulary", key);
    if (m->elem != RL_META_STRING)
        return rl_fail_format(err, key, NULL, m->offset, "%s must be an array of strings", key);
    if (m->count == 0 || m->count > INT32_MAX || m->count > m->bytes / 8)
        return rl_fail_format(err, key, NULL, m->offset, "%s counts %llu tokens, which cannot be", key,
                              (unsigned long long)m->count);
    if (types && types->count < m->count)
        return rl_fail_format(err, KEY("token_type"), NULL, types->offset, "%s has %llu entries for %llu tokens",
                              KEY("token_type"), (unsigned long long)types->count, (unsigned long long)m->count);
    if (v->info.model == RL_VOCAB_SPM) {
        if (!scores)
            return rl_fail_format(err, KEY("scores"), NULL, UINT64_MAX,
                                  "%s is missing: this vocabulary needs its scores", KEY("scores"));
        if (scores->count < m->count)
            return rl_fail_format(err, KEY("scores"), NULL, scores->offset, "%s has %llu entries for %llu tokens",
                                  KEY("scores"), (unsigned long long)scores->count, (unsigned long long)m->count);
    }
    size_t n = m->count, slots = 64;
    while (slots < n * 2) slots *= 2;
    v->text_cap = m->bytes;
    v->cap_pieces = n;
    v->text = malloc(v->text_cap);
    v->pieces = malloc(n * sizeof *v->pieces);
    v->types = malloc(n);
    if (v->info.model == RL_VOCAB_SPM) v->scores = malloc(n * sizeof *v->scores);
    if (!v->text || !v->pieces || !v->types || !resize_slots(v, slots) || (v->info.model == RL_VOCAB_SPM && !v->scores))
        return rl_fail(err, RL_ERR_NOMEM, "no memory for a vocabulary of %zu tokens", n);

    uint8_t *buf = malloc(m->bytes); // no token is longer
    if (!buf) return rl_fail(err, RL_ERR_NOMEM, "no memory for a vocabulary of %zu tokens", n);
    const uint8_t *p = m->data, *end = m->data + m->bytes;
    rl_status rc = RL_OK;
    for (size_t i = 0; i < n && rc == RL_OK; i++) {
        uint64_t len;
        if (end - p < 8 || (memcpy(&len, p, 8), p += 8, len > (uint64_t)(end - p))) {
            rc = rl_fail_format(err, key, NULL, m->offset, "%s: token %zu ends beyond the array", key, i);
            break;
        }
        int64_t type = RL_TOKEN_NORMAL;
        double score = 0;
        if (types) rc = rl_meta_get_i64(types, i, &type, err);
        if (rc == RL_OK && v->scores) rc = rl_meta_get_f64(scores, i, &score, err);
        if (rc != RL_OK) break;
        if (type < RL_TOKEN_UNDEFINED || type > RL_TOKEN_BYTE) {
            rc = rl_fail_format(err, KEY("token_type"), NULL, types->offset, "%s: token %zu has the unknown type %lld",
                                KEY("token_type"), i, (long long)type);
            break;
        }
        if (isnan(score)) {
            rc = rl_fail_format(err, KEY("scores"), NULL, scores->offset, "%s: the score of token %zu is not a number",
                                KEY("scores"), i);
            break;
        }
        if (v->scores) v->scores[i] = (float)score;
        if (is_marked_wrong(p, len, type)) type = RL_TOKEN_CONTROL;
        rc = add_token(v, p, len, (rl_token_type)type, buf, err);
        p += len;
    }
    free(buf);
    v->info.n_tokens = (uint32_t)n;
    return rc;
}

// ---- special tokens -----------------------------------------------------------------------------------------------

static bool is_known_to_trie(uint8_t type) {
    return type == RL_TOKEN_CONTROL || type == RL_TOKEN_UNKNOWN || type == RL_TOKEN_USER;
}

static bool build_trie(rl_vocab *v) {
    size_t bytes = 0, slots = 64;
    for (size_t i = 0; i < v->info.n_tokens; i++)
        if (is_known_to_trie(v->types[i])) bytes += v->pieces[i].len;
    if (bytes >= UINT32_MAX / 2) return false;
    while (slots < bytes * 2) slots *= 2;
    v->edges = calloc(slots, sizeof *v->edges);
    v->node_ids = malloc((bytes + 1) * sizeof *v->node_ids);
    if (!v->edges || !v->node_ids) return false;
    memset(v->node_ids, 0xFF, (bytes + 1) * sizeof *v->node_ids);
    v->edge_mask = slots - 1;
    v->n_nodes = 1;
    for (size_t i = 0; i < v->info.n_tokens; i++) {
        if (!is_known_to_trie(v->types[i]) || !v->pieces[i].len) continue;
        const uint8_t *p = v->text + v->pieces[i].at;
        uint32_t node = 0;
        for (uint32_t k = 0; k < v->pieces[i].len; k++) {
            size_t s = rl_mix(node, p[k]) >> 16 & v->edge_mask;
            while (v->edges[s].child && (v->edges[s].node != node || v->edges[s].byte != p[k]))
                s = (s + 1) & v->edge_mask;
            if (!v->edges[s].child) v->edges[s] = (rl_edge){node, (uint32_t)v->n_nodes++, p[k]};
            if (!k) v->root[p[k]] = v->edges[s].child;
            node = v->edges[s].child;
        }
        if (v->node_ids[node] < 0) v->node_ids[node] = (int32_t)i;
    }
    return true;
}

static rl_status get_id(const rl_vocab *v, const rl_gguf *g, const char *key, int32_t *out, rl_err *err) {
    uint64_t id;
    bool found;
    *out = -1;
    RL_TRY(rl_gguf_get_u64(g, key, &id, &found, err));
    if (!found) return RL_OK;
    if (id >= v->info.n_tokens)
        return rl_fail_format(err, key, NULL, rl_gguf_find(g, key)->offset,
                              "%s is %llu, but the vocabulary has %lu tokens", key, (unsigned long long)id,
                              (unsigned long)v->info.n_tokens);
    *out = (int32_t)id;
    return RL_OK;
}

static int compare_ids(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static rl_status find_ends(rl_vocab *v, const rl_gguf *g, rl_err *err) {
    int32_t ids[N_ENDS], eom, eot;
    for (size_t i = 0; i < N_ENDS; i++) ids[i] = -1;
    for (size_t i = 0; i < v->info.n_tokens; i++) {
        if (v->types[i] != RL_TOKEN_CONTROL) continue;
        int k = end_index(v->text + v->pieces[i].at, v->pieces[i].len);
        if (k >= 0 && ids[k] < 0) ids[k] = (int32_t)i;
    }
    RL_TRY(get_id(v, g, KEY("eot_token_id"), &eot, err));
    RL_TRY(get_id(v, g, KEY("eom_token_id"), &eom, err));
    // In the order of `ends`: turn markers before end-of-text markers.
    for (size_t i = 0; i < N_ENDS && eot < 0; i++)
        if (ends[i].turn && ids[i] >= 0) eot = ids[i];
    v->info.eot = eot;
    // In harmony-like formats <|end|> closes a message, not the answer.
    int32_t answer = -1, end_mark = -1;
    for (size_t i = 0; i < N_ENDS; i++) {
        if (ids[i] >= 0 && (strcmp(ends[i].text, "<|call|>") == 0 || strcmp(ends[i].text, "<|calls|>") == 0))
            answer = 1;
        if (ids[i] >= 0 && strcmp(ends[i].text, "<|end|>") == 0) end_mark = (int32_t)i;
    }
    if (answer > 0 && end_mark >= 0) {
        if (v->info.eot == ids[end_mark]) v->info.eot = -1;
        ids[end_mark] = -1;
    }
    v->eog = malloc((N_ENDS + 3) * sizeof *v->eog);
    if (!v->eog) return rl_fail(err, RL_ERR_NOMEM, "no memory for the vocabulary");
    size_t n = 0, kept = 0;
    for (size_t i = 0; i < N_ENDS; i++)
        if (ids[i] >= 0) v->eog[n++] = ids[i];
    if (v->info.eos >= 0) v->eog[n++] = v->info.eos;
    if (v->info.eot >= 0) v->eog[n++] = v->info.eot;
    if (eom >= 0) v->eog[n++] = eom;
    qsort(v->eog, n, sizeof *v->eog, compare_ids);
    for (size_t i = 0; i < n; i++)
        if (!kept || v->eog[kept - 1] != v->eog[i]) v->eog[kept++] = v->eog[i];
    v->info.eog = v->eog;
    v->info.n_eog = kept;
    return RL_OK;
}

/// Phi-3 was trained without the white space after its special tokens; its files say so only by their name.
static rl_status find_strips(rl_vocab *v, const rl_gguf *g, rl_err *err) {
    const char *name;
    size_t n;
    bool found, phi3 = false;
    RL_TRY(rl_gguf_get_str(g, "general.name", &name, &n, &found, err));
    if (!found || v->info.model != RL_VOCAB_SPM) return RL_OK;
    for (size_t i = 0; i + 4 <= n && !phi3; i++) {
        size_t k = i + 3 + (i + 4 < n && (name[i + 3] == '-' || name[i + 3] == ' '));
        phi3 = (name[i] | 0x20) == 'p' && (name[i + 1] | 0x20) == 'h' && (name[i + 2] | 0x20) == 'i' && name[k] == '3';
    }
    if (!phi3) return RL_OK;
    v->strips = calloc(v->info.n_tokens, 1);
    if (!v->strips) return rl_fail(err, RL_ERR_NOMEM, "no memory for the vocabulary");
    for (size_t i = 0; i < v->info.n_tokens; i++)
        v->strips[i] = rl_vocab_is_special(v, (int32_t)i) && (int32_t)i != v->info.unk && (int32_t)i != v->info.bos;
    int32_t end_of_text = rl_vocab_find(v, "<|endoftext|>", 13);
    if (end_of_text >= 0) v->strips[end_of_text] = 0;
    return RL_OK;
}

// ---- the whole ----------------------------------------------------------------------------------------------------

static rl_status choose_model(rl_vocab *v, const rl_gguf *g, rl_err *err) {
    static const char key[] = KEY("model"), pre_key[] = KEY("pre");
    const char *s;
    size_t n;
    bool found;
    RL_TRY(rl_gguf_get_str(g, key, &s, &n, &found, err));
    if (!found) return rl_fail_format(err, key, NULL, UINT64_MAX, "%s is missing: the file has no tokenizer", key);
    if (n == 4 && memcmp(s, "gpt2", 4) == 0)
        v->info.model = RL_VOCAB_BPE;
    else if (n == 5 && memcmp(s, "llama", 5) == 0)
        v->info.model = RL_VOCAB_SPM;
    else
        return rl_fail(err, RL_ERR_UNSUPPORTED,
                       "%s is '%.*s'; this library has gpt2 (byte-level BPE) and llama (SentencePiece)", key,
                       (int)(n < 64 ? n : 64), s);
    RL_TRY(rl_gguf_get_str(g, pre_key, &s, &n, &found, err));
    if (found && n < sizeof v->info.pre) memcpy(v->info.pre, s, n);
    if (v->info.model == RL_VOCAB_SPM) return RL_OK;
    bool is_default = !found || n == 0 || (n == 7 && memcmp(s, "default", 7) == 0);
    v->pre = is_default ? rl_pre_find("default", 7) : rl_pre_find(s, n);
    if (!v->pre)
        return rl_fail_format(
            err, pre_key, NULL, rl_gguf_find(g, pre_key)->offset,
            "%s is '%.*s', a pre-tokenizer that this library does not know; guessing one would change "
            "the tokens",
            pre_key, (int)(n < 64 ? n : 64), s);
    if (is_default)
        snprintf(v->info.warning, sizeof v->info.warning,
                 "%s is %s, so how the model's text was split into words is not known: the default rules are used, and "
                 "tokens may differ from those of the training",
                 pre_key, found && n ? "'default'" : "missing");
    return RL_OK;
}

static rl_status load(rl_vocab *v, const rl_gguf *g, rl_err *err) {
    bool found, flag;
    memset(v->byte_ids, 0xFF, sizeof v->byte_ids);
    RL_TRY(choose_model(v, g, err));
    RL_TRY(load_tokens(v, g, err));
    RL_TRY(get_id(v, g, KEY("bos_token_id"), &v->info.bos, err));
    RL_TRY(get_id(v, g, KEY("eos_token_id"), &v->info.eos, err));
    RL_TRY(get_id(v, g, KEY("unknown_token_id"), &v->info.unk, err));
    RL_TRY(get_id(v, g, KEY("padding_token_id"), &v->info.pad, err));
    bool spm = v->info.model == RL_VOCAB_SPM;
    v->info.add_bos = spm && v->info.bos >= 0;
    RL_TRY(rl_gguf_get_bool(g, KEY("add_bos_token"), &flag, &found, err));
    if (found && flag && v->info.bos < 0)
        return rl_fail_format(err, KEY("add_bos_token"), NULL, rl_gguf_find(g, KEY("add_bos_token"))->offset,
                              "%s is true, but there is no %s", KEY("add_bos_token"), KEY("bos_token_id"));
    if (found) v->info.add_bos = flag;
    RL_TRY(rl_gguf_get_bool(g, KEY("add_eos_token"), &flag, &found, err));
    if (found && flag && v->info.eos < 0)
        return rl_fail_format(err, KEY("add_eos_token"), NULL, rl_gguf_find(g, KEY("add_eos_token"))->offset,
                              "%s is true, but there is no %s", KEY("add_eos_token"), KEY("eos_token_id"));
    if (found) v->info.add_eos = flag;
    v->info.add_space_prefix = spm;
    RL_TRY(rl_gguf_get_bool(g, KEY("add_space_prefix"), &flag, &found, err));
    if (found && spm) v->info.add_space_prefix = flag;
    if (spm) {
        rl_spm_prepare(v);
    } else {
        for (int b = 0; b < 256; b++) {
            uint8_t byte = (uint8_t)b;
            uint32_t id = rl_vocab_match(v, &byte, 1);
            if (id != RL_NO_TOKEN) v->byte_ids[b] = id;
        }
        RL_TRY(rl_bpe_load(v, g, err));
        if (v->n_missing && !v->info.warning[0])
            snprintf(
                v->info.warning, sizeof v->info.warning,
                "tokenizer.ggml.merges names %zu strings that are no tokens; text merged to them is given as bytes",
                v->n_missing);
        if (found && flag && !v->info.warning[0])
            snprintf(v->info.warning, sizeof v->info.warning,
                     "tokenizer.ggml.add_space_prefix is true, which has no meaning for a byte-level vocabulary");
    }
    RL_TRY(find_ends(v, g, err));
    if (!build_trie(v)) return rl_fail(err, RL_ERR_NOMEM, "no memory for the special tokens");
    return find_strips(v, g, err);
}

rl_status rl_vocab_load(rl_vocab **out, const rl_gguf *g, rl_err *err) {
    *out = NULL;
    rl_vocab *v = calloc(1, sizeof *v);
    if (!v) return rl_fail(err, RL_ERR_NOMEM, "no memory for the vocabulary");
    rl_status rc = load(v, g, err);
    if (rc != RL_OK) {
        rl_vocab_free(v);
        return rc;
    }
    *out = v;
    return RL_OK;
}

void rl_vocab_free(rl_vocab *v) {
    if (!v) return;
    free(v->text);
    free(v->pieces);
    free(v->types);
    free(v->scores);
    free(v->slots);
    free(v->pairs);
    free(v->edges);
    free(v->node_ids);
    free(v->strips);
    free(v->eog);
    free(v);
}
