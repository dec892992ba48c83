// SPDX-License-Identifier: Apache-2.0
// SentencePiece BPE: characters are joined to the neighbouring pair whose joint text is the token with the highest
// score, the leftmost of equals first; what stays no token becomes byte tokens. The text is cut before spaces
// first, wherever no token could reach across, which changes nothing in the result and keeps the parts short.
#include <stdlib.h>

#include "model/vocab_parts.h"

#define SHORT_PART 32

void rl_spm_prepare(rl_vocab *v) {
    for (size_t id = 0; id < v->info.n_tokens; id++) {
        if (v->types[id] != RL_TOKEN_NORMAL && v->types[id] != RL_TOKEN_UNUSED) continue;
        const uint8_t *p = v->text + v->pieces[id].at;
        for (uint32_t i = 1; i < v->pieces[id].len; i++)
            if (p[i] == ' ' && p[i - 1] != ' ') v->inner_space[p[i - 1] >> 3] |= (uint8_t)(1 << (p[i - 1] & 7));
    }
}

/// Higher scores first: a key that sorts ascending as unsigned integers.
static inline uint32_t key_of_score(float score) {
    uint32_t u;
    score += 0.0f; // -0 and 0 are equal
    memcpy(&u, &score, 4);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return ~u == RL_NO_RANK ? RL_NO_RANK - 1 : ~u;
}

/// The key of the pair that begins at a and ends at b; RL_NO_RANK when the two make no token.
static inline uint32_t pair_key(const rl_vocab *v, const uint8_t *a, const uint8_t *b) {
    uint32_t id = rl_vocab_match(v, a, (size_t)(b - a));
    return id == RL_NO_TOKEN ? RL_NO_RANK : key_of_score(v->scores[id]);
}

static bool emit(const rl_vocab *v, const uint8_t *p, size_t n, rl_ids *out) {
    uint32_t id = rl_vocab_match(v, p, n);
    if (id != RL_NO_TOKEN) return rl_ids_push(out, (int32_t)id);
    if (v->byte_ids[*p] == RL_NO_TOKEN && v->info.unk >= 0) return rl_ids_push(out, v->info.unk);
    for (size_t i = 0; i < n; i++)
        if (!rl_ids_push_byte(v, out, p[i])) return false;
    return true;
}

static bool short_part(const rl_vocab *v, const uint8_t *p, size_t n, rl_ids *out) {
    uint8_t at[SHORT_PART + 1]; // symbol i is at[i]..at[i + 1]
    uint32_t keys[SHORT_PART];
    size_t k = 0;
    uint32_t cp;
    for (size_t i = 0; i < n; i += rl_utf8_read(p + i, p + n, &cp)) at[k++] = (uint8_t)i;
    at[k] = (uint8_t)n;
    for (size_t i = 0; i + 1 < k; i++) keys[i] = pair_key(v, p + at[i], p + at[i + 2]);
    while (k > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < k; i++)
            if (keys[i] < keys[best]) best = i;
        if (keys[best] == RL_NO_RANK) break;
        k--;
        for (size_t i = best + 1; i <= k; i++) at[i] = at[i + 1];
        for (size_t i = best + 1; i + 1 < k; i++) keys[i] = keys[i + 1];
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < k; i++)
            keys[i] = pair_key(v, p + at[i], p + at[i + 2]);
    }
    for (size_t i = 0; i < k; i++)
        if (!emit(v, p + at[i], (size_t)(at[i + 1] - at[i]), out)) return false;
    return true;
}

typedef struct link {
    uint32_t at, end, key; // key of the pair that begins here
    uint32_t prev, next;
} link;

static bool long_part(const rl_vocab *v, const uint8_t *p, size_t n, rl_ids *out) {
    if (n >= UINT32_MAX / 4) return false;
    link *s = malloc(n * sizeof *s);
    uint64_t *heap = malloc(3 * n * sizeof *heap);
    bool ok = s && heap;
    uint32_t k = 0, cp;
    size_t n_heap = 0;
    for (size_t i = 0; ok && i < n;) {
        size_t len = rl_utf8_read(p + i, p + n, &cp);
        s[k] = (link){(uint32_t)i, (uint32_t)(i + len), RL_NO_RANK, k ? k - 1 : UINT32_MAX, k + 1};
        k++;
        i += len;
    }
    if (ok && k) s[k - 1].next = UINT32_MAX;
    for (uint32_t i = 0; i + 1 < k; i++) {
        s[i].key = pair_key(v, p + s[i].at, p + s[i + 1].end);
        if (s[i].key != RL_NO_RANK) heap[n_heap++] = (uint64_t)s[i].key << 32 | i;
    }
    for (size_t i = n_heap / 2; i-- > 0;) rl_heap_down(heap, n_heap, i);
    while (n_heap) {
        uint64_t top = rl_heap_pop(heap, &n_heap);
        uint32_t at = (uint32_t)top, gone;
        if (s[at].key != (uint32_t)(top >> 32)) continue;
        gone = s[at].next;
        s[at].end = s[gone].end;
        s[at].next = s[gone].next;
        s[gone].key = RL_NO_RANK;
        if (s[at].next != UINT32_MAX) s[s[at].next].prev = at;
        uint32_t first = s[at].prev != UINT32_MAX ? s[at].prev : at;
        for (uint32_t i = first;; i = at) {
            s[i].key = s[i].next != UINT32_MAX ? pair_key(v, p + s[i].at, p + s[s[i].next].end) : RL_NO_RANK;
            if (s[i].key != RL_NO_RANK) rl_heap_push(heap, &n_heap, (uint64_t)s[i].key << 32 | i);
            if (i == at) break;
        }
    }
    for (uint32_t i = 0; ok && k && i != UINT32_MAX; i = s[i].next) ok = emit(v, p + s[i].at, s[i].end - s[i].at, out);
    free(s);
    free(heap);
    return ok;
}

bool rl_spm_text(const rl_vocab *v, const uint8_t *text, size_t n, rl_ids *out) {
    size_t start = 0;
    for (size_t i = 1; i <= n; i++) {
        if (i < n) {
            uint8_t before = text[i - 1];
            if (text[i] != ' ' || before == ' ' || v->inner_space[before >> 3] >> (before & 7) & 1) continue;
        }
        size_t len = i - start;
        if (!(len <= SHORT_PART ? short_part(v, text + start, len, out) : long_part(v, text + start, len, out)))
            return false;
        start = i;
    }
    return true;
}
