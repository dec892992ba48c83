// SPDX-License-Identifier: Apache-2.0
// Opening, shards, look-up and typed reads of the directory; the parsing itself is gguf_parse.c.
#include "io/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "io/gguf_dir.h"

static void destroy(rl_gguf *g) {
    if (!g) return;
    for (size_t i = 0; i < g->n_shards; i++) {
        rl_map_close(&g->shards[i].map);
        free(g->shards[i].path);
    }
    for (rl_chunk *c = g->strings; c;) {
        rl_chunk *next = c->next;
        free(c);
        c = next;
    }
    free(g->shards);
    free(g->meta);
    free(g->tensors);
    free(g->meta_index.slots);
    free(g->tensor_index.slots);
    free(g);
}

static rl_gguf *create(size_t n_shards) {
    rl_gguf *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->refs = 1;
    g->n_shards = n_shards;
    g->shards = calloc(n_shards, sizeof *g->shards);
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t seed =
        ((uint64_t)now.tv_nsec * 0x9E3779B97F4A7C15u) ^ (uint64_t)(uintptr_t)g ^ ((uint64_t)now.tv_sec << 32);
    g->meta_index.seed = g->tensor_index.seed = seed;
    if (!g->shards) {
        free(g);
        return NULL;
    }
    return g;
}

// --- split files ---------------------------------------------------------------------------------------------

static rl_status get_small(const rl_gguf *g, const char *key, uint64_t *out, bool *found, rl_err *err) {
    RL_TRY(rl_gguf_get_u64(g, key, out, found, err));
    if (*found && *out > 99999)
        return rl_fail_format(err, key, NULL, UINT64_MAX, "%s: %s is %" PRIu64 ", at most 99999 makes sense",
                              g->shards[0].path, key, *out);
    return RL_OK;
}

/// prefix-00002-of-00003.gguf -> length of "prefix", or SIZE_MAX when the name has another form.
static size_t split_prefix(const char *path, uint64_t no, uint64_t count) {
    char tail[64];
    int n = snprintf(tail, sizeof tail, "-%05" PRIu64 "-of-%05" PRIu64 ".gguf", no + 1, count);
    size_t len = strlen(path);
    if (n < 0 || len < (size_t)n || strcmp(path + len - (size_t)n, tail) != 0) return SIZE_MAX;
    return len - (size_t)n;
}

static rl_status check_shard(const rl_gguf *g, size_t i, uint64_t count, rl_err *err) {
    // The merged directory keeps the first shard's split.no, so each one's own header is read for its numbers.
    rl_gguf *own = create(1);
    if (!own) return rl_fail(err, RL_ERR_NOMEM, "no memory for the directory of %s", g->shards[i].path);
    own->shards[0] = g->shards[i]; // borrowed
    uint64_t no = 0, n = 0;
    bool has_no = false, has_n = false;
    rl_status st = rl_gguf_parse_shard(own, 0, err);
    if (st == RL_OK) st = get_small(own, "split.no", &no, &has_no, err);
    if (st == RL_OK) st = get_small(own, "split.count", &n, &has_n, err);
    if (st == RL_OK && (!has_no || no != i))
        st = rl_fail_format(err, "split.no", NULL, UINT64_MAX, "%s: split.no is %" PRIu64 ", its name says %zu",
                            g->shards[i].path, no, i);
    if (st == RL_OK && (!has_n || n != count))
        st = rl_fail_format(err, "split.count", NULL, UINT64_MAX,
                            "%s: split.count is %" PRIu64 ", another shard says %" PRIu64, g->shards[i].path, n, count);
    memset(&own->shards[0], 0, sizeof own->shards[0]);
    destroy(own);
    return st;
}

static rl_status open_split(rl_gguf **io, const char *path, rl_load load, uint64_t no, uint64_t count, rl_err *err) {
    rl_gguf *one = *io;
    size_t prefix = split_prefix(path, no, count);
    if (prefix == SIZE_MAX)
        return rl_fail_format(err, "split.count", NULL, UINT64_MAX,
                              "%s is shard %" PRIu64 " of %" PRIu64 ", but its name does not end in -%05" PRIu64
                              "-of-%05" PRIu64 ".gguf, so the others cannot be found",
                              path, no + 1, count, no + 1, count);
    rl_gguf *g = create((size_t)count);
    if (!g) return rl_fail(err, RL_ERR_NOMEM, "no memory for the directory of %s", path);
    rl_status st = RL_OK;
    for (size_t i = 0; i < count && st == RL_OK; i++) {
        rl_shard *sh = &g->shards[i];
        size_t room = prefix + 32;
        sh->path = malloc(room);
        if (!sh->path) {
            st = rl_fail(err, RL_ERR_NOMEM, "no memory for the directory of %s", path);
            break;
        }
        snprintf(sh->path, room, "%.*s-%05zu-of-%05" PRIu64 ".gguf", (int)prefix, path, i + 1, count);
        if (i == no) {
            sh->map = one->shards[0].map;
            memset(&one->shards[0].map, 0, sizeof one->shards[0].map);
        } else {
            st = rl_map_open(&sh->map, sh->path, load, err);
        }
        if (st == RL_OK) st = check_shard(g, i, count, err);
        if (st == RL_OK) st = rl_gguf_parse_shard(g, i, err);
    }
    uint64_t total = 0;
    bool found = false;
    if (st == RL_OK) st = rl_gguf_get_u64(g, "split.tensors.count", &total, &found, err);
    if (st == RL_OK && found && total != g->n_tensors)
        st = rl_fail_format(err, "split.tensors.count", NULL, UINT64_MAX,
                            "%s: split.tensors.count is %" PRIu64 ", the shards hold %zu tensors", path, total,
                            g->n_tensors);
    if (st != RL_OK) {
        destroy(g);
        return st;
    }
    destroy(one);
    *io = g;
    return RL_OK;
}

// --- opening -------------------------------------------------------------------------------------------------

// An id that no token has would be read out of bounds or never match: refuse it here, with the key.
static rl_status check_token_ids(const rl_gguf *g, rl_err *err) {
    static const char head[] = "tokenizer.ggml.", tail[] = "_token_id";
    const rl_meta *tokens = rl_gguf_find(g, "tokenizer.ggml.tokens");
    if (!tokens) return RL_OK;
    if (tokens->type != RL_META_ARRAY || tokens->elem != RL_META_STRING)
        return rl_fail_format(err, tokens->key, NULL, tokens->offset, "%s: %s must be an array of strings",
                              g->shards[0].path, tokens->key);
    for (size_t i = 0; i < g->n_meta; i++) {
        const rl_meta *m = &g->meta[i];
        if (m->key_len < sizeof head + sizeof tail - 2 || strncmp(m->key, head, sizeof head - 1) != 0 ||
            strcmp(m->key + m->key_len - (sizeof tail - 1), tail) != 0)
            continue;
        uint64_t id;
        bool found;
        RL_TRY(rl_gguf_get_u64(g, m->key, &id, &found, err));
        if (id >= tokens->count)
            return rl_fail_format(err, m->key, NULL, m->offset,
                                  "%s: %s is %" PRIu64 ", but the vocabulary has %" PRIu64 " tokens", g->shards[0].path,
                                  m->key, id, tokens->count);
    }
    return RL_OK;
}

rl_status rl_gguf_open(rl_gguf **out, const char *path, rl_load load, bool *fell_back, rl_err *err) {
    rl_gguf *g = create(1);
    *out = NULL;
    if (!g) return rl_fail(err, RL_ERR_NOMEM, "no memory for the directory of %s", path);
    uint64_t no = 0, count = 1;
    bool has_no = false, has_count = false;
    rl_status st = RL_OK;
    g->shards[0].path = strdup(path);
    if (!g->shards[0].path) st = rl_fail(err, RL_ERR_NOMEM, "no memory for the directory of %s", path);
    if (st == RL_OK) st = rl_map_open(&g->shards[0].map, path, load, err);
    if (st == RL_OK) st = rl_gguf_parse_shard(g, 0, err);
    if (st == RL_OK) st = get_small(g, "split.count", &count, &has_count, err);
    if (st == RL_OK) st = get_small(g, "split.no", &no, &has_no, err);
    if (st == RL_OK && has_count && count > 1) {
        if (no >= count)
            st = rl_fail_format(err, "split.no", NULL, UINT64_MAX,
                                "%s: split.no is %" PRIu64 " of split.count %" PRIu64, path, no, count);
        else
            st = open_split(&g, path, load, no, count, err);
    }
    if (st == RL_OK) st = check_token_ids(g, err);
    if (st != RL_OK) {
        destroy(g);
        return st;
    }
    if (fell_back) {
        *fell_back = false;
        for (size_t i = 0; i < g->n_shards; i++) *fell_back |= g->shards[i].map.refused != 0;
    }
    *out = g;
    return RL_OK;
}

rl_gguf *rl_gguf_ref(rl_gguf *g) {
    __atomic_add_fetch(&g->refs, 1, __ATOMIC_RELAXED);
    return g;
}

void rl_gguf_release(rl_gguf *g) {
    if (g && __atomic_sub_fetch(&g->refs, 1, __ATOMIC_ACQ_REL) == 0) destroy(g);
}

uint32_t rl_gguf_version(const rl_gguf *g) {
    return g->shards[0].version;
}
uint64_t rl_gguf_alignment(const rl_gguf *g) {
    return g->shards[0].alignment;
}
size_t rl_gguf_n_meta(const rl_gguf *g) {
    return g->n_meta;
}
const rl_meta *rl_gguf_meta(const rl_gguf *g, size_t i) {
    return i < g->n_meta ? &g->meta[i] : NULL;
}
const rl_meta *rl_gguf_find(const rl_gguf *g, const char *key) {
    size_t i = rl_index_find(g, false, key, strlen(key));
    return i == SIZE_MAX ? NULL : &g->meta[i];
}
size_t rl_gguf_n_tensors(const rl_gguf *g) {
    return g->n_tensors;
}
const rl_tensor *rl_gguf_tensor_at(const rl_gguf *g, size_t i) {
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}
const rl_tensor *rl_gguf_tensor(const rl_gguf *g, const char *name) {
    size_t i = rl_index_find(g, true, name, strlen(name));
    return i == SIZE_MAX ? NULL : &g->tensors[i];
}
size_t rl_gguf_n_shards(const rl_gguf *g) {
    return g->n_shards;
}
uint64_t rl_gguf_file_bytes(const rl_gguf *g) {
    uint64_t n = 0;
    for (size_t i = 0; i < g->n_shards; i++) n += g->shards[i].map.size;
    return n;
}
bool rl_gguf_is_mapped(const rl_gguf *g) {
    for (size_t i = 0; i < g->n_shards; i++)
        if (!g->shards[i].map.mapped) return false;
    return true;
}
const char *rl_gguf_shard_path(const rl_gguf *g, size_t shard) {
    return shard < g->n_shards ? g->shards[shard].path : NULL;
}
rl_status rl_gguf_intact(const rl_gguf *g, rl_err *err) {
    for (size_t i = 0; i < g->n_shards; i++) RL_TRY(rl_map_intact(&g->shards[i].map, g->shards[i].path, err));
    return RL_OK;
}

const rl_map *rl_gguf_shard_map(const rl_gguf *g, size_t shard) {
    return shard < g->n_shards ? &g->shards[shard].map : NULL;
}
uint64_t rl_gguf_data_offset(const rl_gguf *g, size_t shard) {
    return shard < g->n_shards ? g->shards[shard].data_offset : 0;
}

// --- typed reads ---------------------------------------------------------------------------------------------

typedef enum kind { KIND_SIGNED, KIND_UNSIGNED, KIND_FLOAT, KIND_NONE } kind;

typedef struct number {
    kind kind;
    int64_t i;
    uint64_t u;
    double f;
} number;

#define LOAD(type, p, i)                                                                                               \
    (__extension__({                                                                                                   \
        type v_;                                                                                                       \
        memcpy(&v_, (p) + (i) * sizeof(type), sizeof(type));                                                           \
        v_;                                                                                                            \
    }))

static number load_number(rl_meta_type type, const uint8_t *p, size_t i) {
    switch (type) {
    case RL_META_U8:
    case RL_META_BOOL:
        return (number){KIND_UNSIGNED, 0, p[i], 0};
    case RL_META_U16:
        return (number){KIND_UNSIGNED, 0, LOAD(uint16_t, p, i), 0};
    case RL_META_U32:
        return (number){KIND_UNSIGNED, 0, LOAD(uint32_t, p, i), 0};
    case RL_META_U64:
        return (number){KIND_UNSIGNED, 0, LOAD(uint64_t, p, i), 0};
    case RL_META_I8:
        return (number){KIND_SIGNED, LOAD(int8_t, p, i), 0, 0};
    case RL_META_I16:
        return (number){KIND_SIGNED, LOAD(int16_t, p, i), 0, 0};
    case RL_META_I32:
        return (number){KIND_SIGNED, LOAD(int32_t, p, i), 0, 0};
    case RL_META_I64:
        return (number){KIND_SIGNED, LOAD(int64_t, p, i), 0, 0};
    case RL_META_F32:
        return (number){KIND_FLOAT, 0, 0, (double)LOAD(float, p, i)};
    case RL_META_F64:
        return (number){KIND_FLOAT, 0, 0, LOAD(double, p, i)};
    default:
        return (number){KIND_NONE, 0, 0, 0};
    }
}

static rl_status number_at(const rl_meta *m, size_t i, number *out, rl_err *err) {
    if (i >= (m->type == RL_META_ARRAY ? m->count : 1))
        return rl_fail_format(err, m->key, NULL, m->offset,
                              "key %s has %" PRIu64 " elements, element %zu was asked for", m->key,
                              m->type == RL_META_ARRAY ? m->count : 1, i);
    *out = load_number(m->elem, m->data, i);
    if (out->kind == KIND_NONE)
        return rl_fail_format(err, m->key, NULL, m->offset, "key %s does not hold numbers", m->key);
    return RL_OK;
}

static rl_status not_that(const rl_meta *m, const char *what, rl_err *err) {
    return rl_fail_format(err, m->key, NULL, m->offset, "key %s is not %s", m->key, what);
}

rl_status rl_meta_get_u64(const rl_meta *m, size_t i, uint64_t *out, rl_err *err) {
    number n;
    RL_TRY(number_at(m, i, &n, err));
    if (n.kind == KIND_FLOAT || (n.kind == KIND_SIGNED && n.i < 0)) return not_that(m, "a non-negative integer", err);
    *out = n.kind == KIND_SIGNED ? (uint64_t)n.i : n.u;
    return RL_OK;
}

rl_status rl_meta_get_i64(const rl_meta *m, size_t i, int64_t *out, rl_err *err) {
    number n;
    RL_TRY(number_at(m, i, &n, err));
    if (n.kind == KIND_FLOAT || (n.kind == KIND_UNSIGNED && n.u > INT64_MAX))
        return not_that(m, "a 64-bit signed integer", err);
    *out = n.kind == KIND_SIGNED ? n.i : (int64_t)n.u;
    return RL_OK;
}

rl_status rl_meta_get_f64(const rl_meta *m, size_t i, double *out, rl_err *err) {
    number n;
    RL_TRY(number_at(m, i, &n, err));
    *out = n.kind == KIND_FLOAT ? n.f : (n.kind == KIND_SIGNED ? (double)n.i : (double)n.u);
    return RL_OK;
}

// Finds a scalar. RL_OK with *m NULL when absent.
static rl_status find_scalar(const rl_gguf *g, const char *key, const rl_meta **m, bool *found, rl_err *err) {
    *m = rl_gguf_find(g, key);
    *found = *m != NULL;
    if (*m && (*m)->type == RL_META_ARRAY)
        return rl_fail_format(err, key, NULL, (*m)->offset, "key %s is an array, one value is needed", key);
    return RL_OK;
}

rl_status rl_gguf_get_u64(const rl_gguf *g, const char *key, uint64_t *out, bool *found, rl_err *err) {
    const rl_meta *m;
    RL_TRY(find_scalar(g, key, &m, found, err));
    if (m && m->type == RL_META_BOOL) return not_that(m, "an integer", err);
    return m ? rl_meta_get_u64(m, 0, out, err) : RL_OK;
}

rl_status rl_gguf_get_f64(const rl_gguf *g, const char *key, double *out, bool *found, rl_err *err) {
    const rl_meta *m;
    RL_TRY(find_scalar(g, key, &m, found, err));
    if (m && m->type == RL_META_BOOL) return not_that(m, "a number", err);
    return m ? rl_meta_get_f64(m, 0, out, err) : RL_OK;
}

rl_status rl_gguf_get_bool(const rl_gguf *g, const char *key, bool *out, bool *found, rl_err *err) {
    const rl_meta *m;
    RL_TRY(find_scalar(g, key, &m, found, err));
    if (m && m->type != RL_META_BOOL) return not_that(m, "a bool", err);
    if (m) *out = m->data[0] != 0;
    return RL_OK;
}

rl_status rl_gguf_get_str(const rl_gguf *g, const char *key, const char **s, size_t *len, bool *found, rl_err *err) {
    const rl_meta *m;
    RL_TRY(find_scalar(g, key, &m, found, err));
    if (m && m->type != RL_META_STRING) return not_that(m, "a string", err);
    if (m) {
        *s = (const char *)m->data;
        *len = m->bytes;
    }
    return RL_OK;
}
