// SPDX-License-Identifier: Apache-2.0
// What the files of the tokenizer share: the vocabulary's tables and the two merging algorithms.
#ifndef RL_MODEL_VOCAB_PARTS_H
#define RL_MODEL_VOCAB_PARTS_H

#include <string.h>

#include "model/unicode.h"
#include "model/vocab.h"
#include "model/vocab_pre.h"

#define RL_NO_TOKEN UINT32_MAX
#define RL_NO_RANK UINT32_MAX

typedef struct rl_piece {
    uint32_t at, len; // in `text`
} rl_piece;

typedef struct rl_slot {
    uint32_t tag, id; // id RL_NO_TOKEN: empty
} rl_slot;

typedef struct rl_pair {
    uint32_t left, right; // left RL_NO_TOKEN: empty
    uint32_t rank, merged;
} rl_pair;

typedef struct rl_edge { // of the trie of special tokens; node 0 is the root
    uint32_t node, child;
    uint8_t byte;
} rl_edge;

struct rl_vocab {
    rl_vocab_info info;
    uint8_t *text; // bytes that the tokens stand for, one after another
    size_t text_len, text_cap;
    rl_piece *pieces; // n_pieces >= n_tokens: strings that only merges name have ids behind the tokens
    uint8_t *types;
    size_t n_pieces, cap_pieces;
    float *scores; // SPM

    rl_slot *slots; // bytes of a token that merging can make -> id
    size_t slot_mask, n_slots_used;
    uint32_t max_len; // of those
    uint32_t byte_ids[256];

    const rl_pre *pre; // BPE
    rl_pair *pairs;
    size_t pair_mask;
    size_t n_missing; // strings in merges that are no tokens

    uint8_t inner_space[32]; // SPM: bytes that stand before a space inside of a token

    rl_edge *edges;
    size_t edge_mask, n_nodes;
    int32_t *node_ids; // token that ends at the node, or -1
    uint32_t root[256];
    uint8_t *strips; // per token: white space after it is dropped; NULL when no token does
    int32_t *eog;
};

static inline uint64_t rl_mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29);
}

static inline uint64_t rl_hash_bytes(const uint8_t *p, size_t n) {
    uint64_t h = rl_mix(0x51ED270B35AE1D2Fu, n), x = 0;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&x, p, 8);
        h = rl_mix(h, x);
    }
    if (n >= 4) {
        uint32_t a, b;
        memcpy(&a, p, 4);
        memcpy(&b, p + n - 4, 4);
        h = rl_mix(h, (uint64_t)a << 32 | b);
    } else if (n) {
        h = rl_mix(h, (uint64_t)p[0] << 16 | (uint64_t)p[n / 2] << 8 | p[n - 1]);
    }
    return h ^ (h >> 32);
}

/// The token with these bytes that merging can make, or RL_NO_TOKEN.
static inline uint32_t rl_vocab_match(const rl_vocab *v, const uint8_t *p, size_t n) {
    if (n > v->max_len) return RL_NO_TOKEN;
    uint64_t h = rl_hash_bytes(p, n);
    uint32_t tag = (uint32_t)(h >> 32);
    for (size_t i = h & v->slot_mask;; i = (i + 1) & v->slot_mask) {
        const rl_slot *s = &v->slots[i];
        if (s->id == RL_NO_TOKEN) return RL_NO_TOKEN;
        if (s->tag == tag && v->pieces[s->id].len == n && memcmp(v->text + v->pieces[s->id].at, p, n) == 0)
            return s->id;
    }
}

bool rl_ids_grow(rl_ids *ids, size_t more);
static inline bool rl_ids_push(rl_ids *ids, int32_t id) {
    if (ids->n == ids->cap && !rl_ids_grow(ids, 1)) return false;
    ids->v[ids->n++] = id;
    return true;
}
/// Appends a byte by its own token, or counts it as dropped.
bool rl_ids_push_byte(const rl_vocab *v, rl_ids *ids, uint8_t byte);

/// Merges one word. False when out of memory.
bool rl_bpe_word(const rl_vocab *v, const uint8_t *word, size_t n, rl_ids *out);
bool rl_spm_text(const rl_vocab *v, const uint8_t *text, size_t n, rl_ids *out);
/// Reads tokenizer.ggml.merges; the tokens must be loaded.
rl_status rl_bpe_load(rl_vocab *v, const rl_gguf *g, rl_err *err);
/// Prepares merging once the tokens are loaded.
void rl_spm_prepare(rl_vocab *v);

/// The token text as in the file -> the bytes it stands for. False when a character stands for no byte.
bool rl_bpe_unmap(const uint8_t *p, size_t n, uint8_t *out, size_t *out_len);
/// U+2581 -> space; returns the length.
size_t rl_spm_unescape(const uint8_t *p, size_t n, uint8_t *out);
/// Adds a string; returns its id or RL_NO_TOKEN when out of memory. Merging finds it when `mergeable`.
uint32_t rl_vocab_add(rl_vocab *v, const uint8_t *p, size_t n, rl_token_type type, bool mergeable);

// ---- a binary heap of (priority << 32 | position), smallest first ----------------------------------------------

static inline void rl_heap_down(uint64_t *h, size_t n, size_t i) {
    uint64_t x = h[i];
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && h[c + 1] < h[c]) c++;
        if (h[c] >= x) break;
        h[i] = h[c];
    }
    h[i] = x;
}

static inline void rl_heap_push(uint64_t *h, size_t *n, uint64_t x) {
    size_t i = (*n)++;
    for (size_t up; i && h[up = (i - 1) / 2] > x; i = up) h[i] = h[up];
    h[i] = x;
}

static inline uint64_t rl_heap_pop(uint64_t *h, size_t *n) {
    uint64_t top = h[0];
    h[0] = h[--*n];
    if (*n) rl_heap_down(h, *n, 0);
    return top;
}

#endif
