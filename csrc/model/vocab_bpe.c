// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE: bytes become tokens, then the pair with the lowest rank in the word is merged, the leftmost of
// equals first, until no pair has a rank. Pairs are looked up by ids, never by text. Short words are scanned in
// place; long ones (a word can be a megabyte of one letter) use a heap.
#include <stdio.h>
#include <stdlib.h>

#include "model/vocab_parts.h"

#define SHORT_WORD 48

// ---- the byte alphabet of token texts ---------------------------------------------------------------------------

// Printable bytes stand for themselves, the others in order from U+0100.
static int byte_of_char(uint32_t cp) {
    if ((cp >= 0x21 && cp <= 0x7E) || (cp >= 0xA1 && cp <= 0xAC) || (cp >= 0xAE && cp <= 0xFF)) return (int)cp;
    if (cp >= 0x100 && cp <= 0x120) return (int)(cp - 0x100);        // 00..20
    if (cp >= 0x121 && cp <= 0x142) return (int)(cp - 0x121 + 0x7F); // 7F..A0
    return cp == 0x143 ? 0xAD : -1;
}

bool rl_bpe_unmap(const uint8_t *p, size_t n, uint8_t *out, size_t *out_len) {
    const uint8_t *end = p + n;
    size_t k = 0;
    while (p < end) {
        uint32_t cp;
        p += rl_utf8_read(p, end, &cp);
        int b = byte_of_char(cp);
        if (b < 0) return false;
        out[k++] = (uint8_t)b;
    }
    *out_len = k;
    return true;
}

// ---- merges -------------------------------------------------------------------------------------------------------

static inline size_t pair_home(const rl_vocab *v, uint32_t left, uint32_t right) {
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    return (h ^ h >> 32) * 0xD6E8FEB86659FD93u >> 32 & v->pair_mask;
}

static inline const rl_pair *find_pair(const rl_vocab *v, uint32_t left, uint32_t right) {
    for (size_t i = pair_home(v, left, right);; i = (i + 1) & v->pair_mask) {
        const rl_pair *e = &v->pairs[i];
        if (e->left == left && e->right == right) return e;
        if (e->left == RL_NO_TOKEN) return NULL;
    }
}

static void add_pair(rl_vocab *v, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged) {
    for (size_t i = pair_home(v, left, right);; i = (i + 1) & v->pair_mask) {
        rl_pair *e = &v->pairs[i];
        if (e->left == left && e->right == right) return; // the first of two equal lines counts
        if (e->left == RL_NO_TOKEN) {
            *e = (rl_pair){left, right, rank, merged};
            return;
        }
    }
}

static uint32_t intern(rl_vocab *v, const uint8_t *p, size_t n) {
    uint32_t id = rl_vocab_match(v, p, n);
    if (id != RL_NO_TOKEN) return id;
    v->n_missing++;
    return rl_vocab_add(v, p, n, RL_TOKEN_UNDEFINED, true);
}

rl_status rl_bpe_load(rl_vocab *v, const rl_gguf *g, rl_err *err) {
    static const char key[] = "tokenizer.ggml.merges";
    const rl_meta *m = rl_gguf_find(g, key);
    if (!m) return rl_fail_format(err, key, NULL, UINT64_MAX, "%s is missing: a BPE vocabulary needs its merges", key);
    if (m->type != RL_META_ARRAY || m->elem != RL_META_STRING)
        return rl_fail_format(err, key, NULL, m->offset, "%s must be an array of strings", key);
    if (m->count > m->bytes / 8 || m->count > INT32_MAX)
        return rl_fail_format(err, key, NULL, m->offset, "%s counts more strings than it can hold", key);
    size_t slots = 16;
    while (slots < m->count * 2) slots *= 2;
    v->pairs = malloc(slots * sizeof *v->pairs);
    if (!v->pairs) return rl_fail(err, RL_ERR_NOMEM, "no memory for %zu merges", (size_t)m->count);
    memset(v->pairs, 0xFF, slots * sizeof *v->pairs);
    v->pair_mask = slots - 1;

    uint8_t *buf = NULL;
    size_t buf_cap = 0;
    const uint8_t *p = m->data, *end = m->data + m->bytes;
    rl_status rc = RL_OK;
    for (uint64_t i = 0; i < m->count && rc == RL_OK; i++) {
        uint64_t len;
        if (end - p < 8 || (memcpy(&len, p, 8), p += 8, len > (uint64_t)(end - p))) {
            rc = rl_fail_format(err, key, NULL, m->offset, "%s: string %llu ends beyond the array", key,
                                (unsigned long long)i);
            break;
        }
        const uint8_t *line = p, *gap = len > 1 ? memchr(p + 1, ' ', len - 1) : NULL;
        p += len;
        if (!gap || gap + 1 == line + len) {
            rc = rl_fail_format(err, key, NULL, m->offset, "%s: line %llu is not two strings with a space between", key,
                                (unsigned long long)i);
            break;
        }
        if (len > buf_cap) {
            free(buf);
            buf_cap = len + 64;
            buf = malloc(buf_cap);
        }
        size_t left, right, rest = (size_t)(line + len - gap - 1);
        if (!buf) {
            rc = rl_fail(err, RL_ERR_NOMEM, "no memory for a merge of %llu bytes", (unsigned long long)len);
        } else if (!rl_bpe_unmap(line, (size_t)(gap - line), buf, &left) ||
                   !rl_bpe_unmap(gap + 1, rest, buf + left, &right)) {
            rc = rl_fail_format(err, key, NULL, m->offset, "%s: line %llu has a character that stands for no byte", key,
                                (unsigned long long)i);
        } else {
            uint32_t a = intern(v, buf, left), b = intern(v, buf + left, right), ab = intern(v, buf, left + right);
            if (a == RL_NO_TOKEN || b == RL_NO_TOKEN || ab == RL_NO_TOKEN)
                rc = rl_fail(err, RL_ERR_NOMEM, "no memory for the strings of %s", key);
            else
                add_pair(v, a, b, (uint32_t)i, ab);
        }
    }
    free(buf);
    return rc;
}

// ---- words --------------------------------------------------------------------------------------------------------

static bool emit(const rl_vocab *v, uint32_t id, rl_ids *out) {
    if (id < v->info.n_tokens) return rl_ids_push(out, (int32_t)id);
    rl_piece piece = v->pieces[id]; // a string that merges name but the vocabulary lacks
    for (uint32_t i = 0; i < piece.len; i++)
        if (!rl_ids_push_byte(v, out, v->text[piece.at + i])) return false;
    return true;
}

static bool short_word(const rl_vocab *v, const uint8_t *word, size_t n, rl_ids *out) {
    uint32_t ids[SHORT_WORD], ranks[SHORT_WORD], merged[SHORT_WORD];
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        ids[k] = v->byte_ids[word[i]];
        if (ids[k] == RL_NO_TOKEN)
            out->dropped++; // as if it were not there
        else
            k++;
    }
    if (!k) return true;
    for (size_t i = 0; i + 1 < k; i++) {
        const rl_pair *e = find_pair(v, ids[i], ids[i + 1]);
        ranks[i] = e ? e->rank : RL_NO_RANK;
        merged[i] = e ? e->merged : 0;
    }
    while (k > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < k; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == RL_NO_RANK) break;
        ids[best] = merged[best];
        k--;
        for (size_t i = best + 1; i < k; i++) ids[i] = ids[i + 1];
        for (size_t i = best + 1; i + 1 < k; i++) {
            ranks[i] = ranks[i + 1];
            merged[i] = merged[i + 1];
        }
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < k; i++) {
            const rl_pair *e = find_pair(v, ids[i], ids[i + 1]);
            ranks[i] = e ? e->rank : RL_NO_RANK;
            merged[i] = e ? e->merged : 0;
        }
    }
    for (size_t i = 0; i < k; i++)
        if (!emit(v, ids[i], out)) return false;
    return true;
}

typedef struct link {
    uint32_t id, rank; // of the pair that begins here
    uint32_t prev, next, merged;
} link;

static bool long_word(const rl_vocab *v, const uint8_t *word, size_t n, rl_ids *out) {
    if (n >= UINT32_MAX / 4) return false;
    link *s = malloc(n * sizeof *s);
    uint64_t *heap = malloc(3 * n * sizeof *heap); // each merge removes one pair and adds at most two
    bool ok = s && heap;
    uint32_t k = 0;
    size_t n_heap = 0;
    for (size_t i = 0; ok && i < n; i++) {
        uint32_t id = v->byte_ids[word[i]];
        if (id == RL_NO_TOKEN)
            out->dropped++;
        else
            s[k++].id = id;
    }
    for (uint32_t i = 0; i < k; i++) {
        const rl_pair *e = i + 1 < k ? find_pair(v, s[i].id, s[i + 1].id) : NULL;
        s[i].rank = e ? e->rank : RL_NO_RANK;
        s[i].merged = e ? e->merged : 0;
        s[i].prev = i ? i - 1 : UINT32_MAX;
        s[i].next = i + 1 < k ? i + 1 : UINT32_MAX;
        if (e) heap[n_heap++] = (uint64_t)e->rank << 32 | i;
    }
    for (size_t i = n_heap / 2; i-- > 0;) rl_heap_down(heap, n_heap, i);
    while (n_heap) {
        uint64_t top = rl_heap_pop(heap, &n_heap);
        uint32_t at = (uint32_t)top, gone;
        if (s[at].rank != (uint32_t)(top >> 32)) continue; // an older pair
        gone = s[at].next;
        s[at].id = s[at].merged;
        s[at].next = s[gone].next;
        s[gone].rank = RL_NO_RANK;
        if (s[at].next != UINT32_MAX) s[s[at].next].prev = at;
        uint32_t first = s[at].prev != UINT32_MAX ? s[at].prev : at;
        for (uint32_t i = first;; i = at) {
            const rl_pair *e = s[i].next != UINT32_MAX ? find_pair(v, s[i].id, s[s[i].next].id) : NULL;
            s[i].rank = e ? e->rank : RL_NO_RANK;
            s[i].merged = e ? e->merged : 0;
            if (e) rl_heap_push(heap, &n_heap, (uint64_t)e->rank << 32 | i);
            if (i == at) break;
        }
    }
    for (uint32_t i = 0; ok && k && i != UINT32_MAX; i = s[i].next) ok = emit(v, s[i].id, out);
    free(s);
    free(heap);
    return ok;
}

bool rl_bpe_word(const rl_vocab *v, const uint8_t *word, size_t n, rl_ids *out) {
    if (rl_pre_ignores_merges(v->pre) || n == 1) {
        uint32_t id = rl_vocab_match(v, word, n);
        if (id < v->info.n_tokens) return rl_ids_push(out, (int32_t)id);
    }
    return n <= SHORT_WORD ? short_word(v, word, n, out) : long_word(v, word, n, out);
}
