// SPDX-License-Identifier: Apache-2.0
// Reads one shard's header. Every length is compared with what is left of the file before it is used, and memory
// grows with what has been read, never with what the file claims.
#include "io/gguf_dir.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAME 65535 // the format's own limit for keys
#define MAX_NESTING 16 // arrays in arrays
#define MAX_ALIGNMENT 1048576
#define DEFAULT_ALIGNMENT 32

typedef struct reader {
    const uint8_t *data;
    size_t size, at;
    const char *path;
    rl_err *err;
    rl_meta alignment; // this shard's own general.alignment; key NULL when it has none
} reader;

static uint32_t load_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static uint64_t load_u64(const uint8_t *p) {
    return (uint64_t)load_u32(p) | (uint64_t)load_u32(p + 4) << 32;
}

static size_t left(const reader *r) {
    return r->size - r->at;
}

static rl_status cut_short(reader *r, const char *key, const char *tensor, const char *what) {
    return rl_fail_format(r->err, key, tensor, r->at, "%s: the file ends at byte %zu, inside %s%s%s at byte %zu",
                          r->path, r->size, what, key || tensor ? " of " : "", key ? key : (tensor ? tensor : ""),
                          r->at);
}

static rl_status take(reader *r, size_t n, const uint8_t **p, const char *key, const char *tensor, const char *what) {
    if (left(r) < n) return cut_short(r, key, tensor, what);
    *p = r->data + r->at;
    r->at += n;
    return RL_OK;
}

static rl_status take_u32(reader *r, uint32_t *v, const char *key, const char *tensor, const char *what) {
    const uint8_t *p = NULL;
    RL_TRY(take(r, 4, &p, key, tensor, what));
    *v = load_u32(p);
    return RL_OK;
}

static rl_status take_u64(reader *r, uint64_t *v, const char *key, const char *tensor, const char *what) {
    const uint8_t *p = NULL;
    RL_TRY(take(r, 8, &p, key, tensor, what));
    *v = load_u64(p);
    return RL_OK;
}

static size_t scalar_bytes(uint32_t type) {
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

static char *keep_string(rl_gguf *g, const uint8_t *s, size_t n) {
    rl_chunk *c = g->strings;
    if (!c || c->size - c->used < n + 1) {
        size_t size = n + 1 > 65536 ? n + 1 : 65536;
        c = malloc(sizeof *c + size);
        if (!c) return NULL;
        *c = (rl_chunk){.next = g->strings, .size = size};
        g->strings = c;
    }
    char *out = c->bytes + c->used;
    memcpy(out, s, n);
    out[n] = 0;
    c->used += n + 1;
    return out;
}

// --- index ---------------------------------------------------------------------------------------------------

static uint64_t fold(uint64_t a, uint64_t b) {
    unsigned __int128 m = (unsigned __int128)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static uint64_t hash(uint64_t seed, const char *s, size_t n) {
    uint64_t h = fold(seed ^ n, 0x9E3779B97F4A7C15u);
    for (size_t i = 0; i < n; i += 8) {
        uint64_t w = 0;
        memcpy(&w, s + i, n - i < 8 ? n - i : 8);
        h = fold(h ^ w ^ 0xA0761D6478BD642Fu, seed | 1) + h * 0xE7037ED1A0B428DBu;
    }
    return fold(h, 0x8EBC6AF09C88C6E3u);
}

static bool same_name(const rl_gguf *g, bool tensor, size_t i, const char *name, size_t len) {
    const char *have = tensor ? g->tensors[i].name : g->meta[i].key;
    return strncmp(have, name, len) == 0 && have[len] == 0; // names hold no NUL
}

size_t rl_index_find(const rl_gguf *g, bool tensor, const char *name, size_t len) {
    const rl_index *ix = tensor ? &g->tensor_index : &g->meta_index;
    if (!ix->n_slots) return SIZE_MAX;
    for (size_t s = hash(ix->seed, name, len) & (ix->n_slots - 1); ix->slots[s]; s = (s + 1) & (ix->n_slots - 1))
        if (same_name(g, tensor, ix->slots[s] - 1, name, len)) return ix->slots[s] - 1;
    return SIZE_MAX;
}

static void index_put(rl_index *ix, const char *name, size_t i) {
    size_t s = hash(ix->seed, name, strlen(name)) & (ix->n_slots - 1);
    while (ix->slots[s]) s = (s + 1) & (ix->n_slots - 1);
    ix->slots[s] = (uint32_t)i + 1;
    ix->used++;
}

static bool index_add(rl_gguf *g, bool tensor, size_t i) {
    rl_index *ix = tensor ? &g->tensor_index : &g->meta_index;
    if (2 * (ix->used + 1) > ix->n_slots) {
        size_t n = ix->n_slots ? 2 * ix->n_slots : 64, used = ix->used;
        uint32_t *slots = calloc(n, sizeof *slots);
        if (!slots) return false;
        free(ix->slots);
        *ix = (rl_index){.slots = slots, .n_slots = n, .seed = ix->seed};
        for (size_t k = 0; k < used; k++) index_put(ix, tensor ? g->tensors[k].name : g->meta[k].key, k);
    }
    index_put(ix, tensor ? g->tensors[i].name : g->meta[i].key, i);
    return true;
}

static bool grow(void **items, size_t *cap, size_t n, size_t size) {
    if (n < *cap) return true;
    size_t want = *cap ? 2 * *cap : 64;
    void *p = realloc(*items, want * size);
    if (!p) return false;
    *items = p;
    *cap = want;
    return true;
}

// --- metadata ------------------------------------------------------------------------------------------------

// A key or name as its own NUL-terminated copy.
static rl_status take_name(reader *r, rl_gguf *g, const char **out, size_t *out_len, const char *what, size_t number) {
    uint64_t n;
    size_t start = r->at;
    RL_TRY(take_u64(r, &n, NULL, NULL, what));
    if (n == 0)
        return rl_fail_format(r->err, NULL, NULL, start, "%s: %s %zu is empty (byte %zu)", r->path, what, number,
                              start);
    if (n > MAX_NAME || n > left(r))
        return rl_fail_format(r->err, NULL, NULL, start,
                              "%s: %s %zu claims a length of %" PRIu64
                              " bytes at byte %zu; %zu bytes are left, at most "
                              "%d are allowed",
                              r->path, what, number, n, start, left(r), MAX_NAME);
    const uint8_t *s = r->data + r->at;
    if (memchr(s, 0, (size_t)n))
        return rl_fail_format(r->err, NULL, NULL, start, "%s: %s %zu contains a zero byte (byte %zu)", r->path, what,
                              number, start);
    r->at += (size_t)n;
    char *copy = keep_string(g, s, (size_t)n);
    if (!copy) return rl_fail(r->err, RL_ERR_NOMEM, "no memory for the directory of %s", r->path);
    *out = copy;
    *out_len = (size_t)n;
    return RL_OK;
}

// Steps over a value of the type; for arrays and strings `r` stands at the length.
static rl_status skip_value(reader *r, uint32_t type, const char *key, unsigned depth);

static rl_status skip_elements(reader *r, uint32_t elem, uint64_t count, const char *key, unsigned depth) {
    size_t each = scalar_bytes(elem), least = each ? each : (elem == RL_META_STRING ? 8 : 12);
    if (count > left(r) / least)
        return rl_fail_format(r->err, key, NULL, r->at,
                              "%s: key %s claims an array of %" PRIu64 " elements at byte %zu, but %zu bytes are left",
                              r->path, key, count, r->at, left(r));
    if (each) {
        r->at += (size_t)count * each;
        return RL_OK;
    }
    for (uint64_t i = 0; i < count; i++) RL_TRY(skip_value(r, elem, key, depth));
    return RL_OK;
}

static rl_status skip_value(reader *r, uint32_t type, const char *key, unsigned depth) {
    if (type == RL_META_STRING) {
        uint64_t n;
        RL_TRY(take_u64(r, &n, key, NULL, "a string"));
        if (n > left(r))
            return rl_fail_format(r->err, key, NULL, r->at,
                                  "%s: key %s claims a string of %" PRIu64 " bytes at byte %zu, but %zu bytes are left",
                                  r->path, key, n, r->at, left(r));
        r->at += (size_t)n;
        return RL_OK;
    }
    if (type == RL_META_ARRAY) {
        uint32_t elem;
        uint64_t count;
        if (depth >= MAX_NESTING)
            return rl_fail_format(r->err, key, NULL, r->at, "%s: key %s nests arrays more than %d deep", r->path, key,
                                  MAX_NESTING);
        RL_TRY(take_u32(r, &elem, key, NULL, "an array"));
        RL_TRY(take_u64(r, &count, key, NULL, "an array"));
        if (elem > RL_META_F64)
            return rl_fail_format(r->err, key, NULL, r->at, "%s: key %s is an array of unknown type %u", r->path, key,
                                  elem);
        return skip_elements(r, elem, count, key, depth + 1);
    }
    const uint8_t *p;
    return take(r, scalar_bytes(type), &p, key, NULL, "the value");
}

static bool same_value(const rl_meta *a, const rl_meta *b) {
    return a->type == b->type && a->elem == b->elem && a->count == b->count && a->bytes == b->bytes &&
           memcmp(a->data, b->data, a->bytes) == 0;
}

static rl_status parse_meta(reader *r, rl_gguf *g, size_t number, size_t first) {
    rl_meta m = {.offset = r->at, .count = 1};
    uint32_t type;
    RL_TRY(take_name(r, g, &m.key, &m.key_len, "key", number));
    RL_TRY(take_u32(r, &type, m.key, NULL, "the type"));
    if (type > RL_META_F64)
        return rl_fail_format(r->err, m.key, NULL, r->at - 4, "%s: key %s has the unknown type %u", r->path, m.key,
                              type);
    m.type = (rl_meta_type)type;
    m.elem = m.type;
    size_t start = r->at, head = type == RL_META_ARRAY ? 12 : (type == RL_META_STRING ? 8 : 0);
    RL_TRY(skip_value(r, type, m.key, 0));
    m.data = r->data + start + head;
    m.bytes = r->at - start - head;
    if (type == RL_META_ARRAY) {
        m.elem = (rl_meta_type)load_u32(r->data + start);
        m.count = load_u64(r->data + start + 4);
    } else if (type == RL_META_STRING) {
        m.count = m.bytes;
    } else if (type == RL_META_BOOL && m.data[0] > 1) {
        return rl_fail_format(r->err, m.key, NULL, start, "%s: key %s is a bool with the value %u", r->path, m.key,
                              m.data[0]);
    }
    if (strcmp(m.key, "general.alignment") == 0) r->alignment = m;
    size_t had = rl_index_find(g, false, m.key, m.key_len);
    if (had != SIZE_MAX) {
        if (had >= first)
            return rl_fail_format(r->err, m.key, NULL, m.offset,
                                  "%s: key %s appears twice (bytes %" PRIu64 " and %" PRIu64 ")", r->path, m.key,
                                  g->meta[had].offset, m.offset);
        bool own = strncmp(m.key, "split.", 6) == 0 || strcmp(m.key, "general.alignment") == 0;
        if (own || same_value(&g->meta[had], &m)) return RL_OK;
        return rl_fail_format(r->err, m.key, NULL, m.offset, "%s: key %s has another value than in %s", r->path, m.key,
                              g->shards[0].path);
    }
    if (!grow((void **)&g->meta, &g->cap_meta, g->n_meta, sizeof m) || g->n_meta >= UINT32_MAX / 2)
        return rl_fail(r->err, RL_ERR_NOMEM, "no memory for the directory of %s", r->path);
    g->meta[g->n_meta] = m;
    if (!index_add(g, false, g->n_meta))
        return rl_fail(r->err, RL_ERR_NOMEM, "no memory for the directory of %s", r->path);
    g->n_meta++;
    return RL_OK;
}

// --- tensors -------------------------------------------------------------------------------------------------

static rl_status parse_tensor(reader *r, rl_gguf *g, size_t number, unsigned shard) {
    rl_tensor t = {.shard = shard, .dims = {1, 1, 1, 1}};
    size_t start = r->at, len = 0;
    uint32_t n_dims;
    RL_TRY(take_name(r, g, &t.name, &len, "tensor name", number));
    if (rl_index_find(g, true, t.name, len) != SIZE_MAX)
        return rl_fail_format(r->err, NULL, t.name, start, "%s: tensor %s appears twice", r->path, t.name);
    RL_TRY(take_u32(r, &n_dims, NULL, t.name, "the number of dimensions"));
    if (n_dims > RL_MAX_DIMS)
        return rl_fail_format(r->err, NULL, t.name, r->at - 4,
                              "%s: tensor %s has %u dimensions, at most %d are allowed", r->path, t.name, n_dims,
                              RL_MAX_DIMS);
    t.n_dims = n_dims;
    size_t elements = 1;
    for (unsigned d = 0; d < n_dims; d++) {
        RL_TRY(take_u64(r, &t.dims[d], NULL, t.name, "the dimensions"));
        if (t.dims[d] == 0)
            return rl_fail_format(r->err, NULL, t.name, r->at - 8, "%s: tensor %s has a dimension of zero", r->path,
                                  t.name);
        if (t.dims[d] > INT64_MAX || !rl_mul_size(elements, (size_t)t.dims[d], &elements) || elements > INT64_MAX)
            return rl_fail_format(r->err, NULL, t.name, r->at - 8, "%s: tensor %s has more elements than 63 bits count",
                                  r->path, t.name);
    }
    RL_TRY(take_u32(r, &t.type_id, NULL, t.name, "the type"));
    RL_TRY(take_u64(r, &t.offset, NULL, t.name, "the offset"));
    t.dtype = rl_dtype_of(t.type_id);
    if (t.dtype) {
        if (t.dims[0] % t.dtype->block)
            return rl_fail_format(r->err, NULL, t.name, start,
                                  "%s: tensor %s has rows of %" PRIu64 " elements, no multiple of %s's block of %zu",
                                  r->path, t.name, t.dims[0], t.dtype->name, t.dtype->block);
        if (!rl_mul_size((size_t)t.dims[0] / t.dtype->block, t.dtype->bytes, &t.row_bytes) ||
            !rl_mul_size(t.row_bytes, elements / (size_t)t.dims[0], &t.nbytes) || t.nbytes > INT64_MAX)
            return rl_fail_format(r->err, NULL, t.name, start, "%s: tensor %s has more bytes than 63 bits count",
                                  r->path, t.name);
    }
    if (!grow((void **)&g->tensors, &g->cap_tensors, g->n_tensors, sizeof t) || g->n_tensors >= UINT32_MAX / 2)
        return rl_fail(r->err, RL_ERR_NOMEM, "no memory for the directory of %s", r->path);
    g->tensors[g->n_tensors] = t;
    if (!index_add(g, true, g->n_tensors))
        return rl_fail(r->err, RL_ERR_NOMEM, "no memory for the directory of %s", r->path);
    g->n_tensors++;
    return RL_OK;
}

// Offsets in the file count from the data section: makes them absolute, once its place is known.
static rl_status place_tensors(reader *r, rl_gguf *g, size_t first, const rl_shard *sh) {
    for (size_t i = first; i < g->n_tensors; i++) {
        rl_tensor *t = &g->tensors[i];
        uint64_t relative = t->offset;
        if (relative % sh->alignment)
            return rl_fail_format(r->err, NULL, t->name, relative,
                                  "%s: tensor %s lies at offset %" PRIu64 ", no multiple of the alignment %" PRIu64,
                                  r->path, t->name, relative, sh->alignment);
        uint64_t room = sh->data_offset <= r->size ? r->size - sh->data_offset : 0;
        if (relative > room || t->nbytes > room - relative)
            return rl_fail_format(r->err, NULL, t->name, relative,
                                  "%s: tensor %s needs %zu bytes at offset %" PRIu64
                                  " of the data section, which has %" PRIu64 " bytes: the file is cut short or damaged",
                                  r->path, t->name, t->nbytes, relative, room);
        t->offset = sh->data_offset + relative;
        t->data = t->dtype ? r->data + t->offset : NULL;
    }
    return RL_OK;
}

// --- the shard -----------------------------------------------------------------------------------------------

static rl_status check_magic(reader *r) {
    static const char lfs[] = "version https://git-lfs";
    if (r->size >= sizeof lfs - 1 && memcmp(r->data, lfs, sizeof lfs - 1) == 0)
        return rl_fail_format(r->err, NULL, NULL, 0, "%s is a Git LFS pointer, not the model itself", r->path);
    if (r->size < 4 || memcmp(r->data, "GGUF", 4) != 0)
        return rl_fail_format(r->err, NULL, NULL, 0, "%s is not a GGUF file: it does not begin with the letters GGUF",
                              r->path);
    r->at = 4;
    return RL_OK;
}

static rl_status parse_alignment(reader *r, uint64_t *alignment) {
    *alignment = DEFAULT_ALIGNMENT;
    const rl_meta *m = &r->alignment;
    if (!m->key) return RL_OK;
    if (m->type != RL_META_U32)
        return rl_fail_format(r->err, m->key, NULL, m->offset, "%s: general.alignment must be a uint32", r->path);
    *alignment = load_u32(m->data);
    if (*alignment == 0 || *alignment % 8 || *alignment > MAX_ALIGNMENT)
        return rl_fail_format(r->err, m->key, NULL, m->offset,
                              "%s: general.alignment is %" PRIu64 "; it must be a multiple of 8, at most %d", r->path,
                              *alignment, MAX_ALIGNMENT);
    return RL_OK;
}

rl_status rl_gguf_parse_shard(rl_gguf *g, size_t i, rl_err *err) {
    rl_shard *sh = &g->shards[i];
    reader r = {.data = sh->map.data, .size = sh->map.size, .path = sh->path, .err = err};
    uint64_t n_tensors, n_meta;
    RL_TRY(check_magic(&r));
    RL_TRY(take_u32(&r, &sh->version, NULL, NULL, "the version"));
    if (sh->version && (sh->version & 0xFFFF) == 0)
        return rl_fail_format(err, NULL, NULL, 4, "%s is a big-endian GGUF file; only little-endian ones can be read",
                              r.path);
    if (sh->version == 1)
        return rl_fail_format(err, NULL, NULL, 4,
                              "%s is a GGUF file of version 1, which is obsolete; convert it to version 3", r.path);
    if (sh->version < 2 || sh->version > 3)
        return rl_fail_format(err, NULL, NULL, 4, "%s has GGUF version %u; versions 2 and 3 can be read", r.path,
                              sh->version);
    RL_TRY(take_u64(&r, &n_tensors, NULL, NULL, "the header"));
    RL_TRY(take_u64(&r, &n_meta, NULL, NULL, "the header"));
    // The shortest key with its value takes 14 bytes, the shortest tensor entry 25.
    if (n_meta > left(&r) / 14)
        return rl_fail_format(err, NULL, NULL, 16,
                              "%s claims %" PRIu64 " metadata keys, more than its %zu bytes can hold", r.path, n_meta,
                              r.size);
    if (n_tensors > left(&r) / 25)
        return rl_fail_format(err, NULL, NULL, 8, "%s claims %" PRIu64 " tensors, more than its %zu bytes can hold",
                              r.path, n_tensors, r.size);
    size_t first_meta = g->n_meta, first_tensor = g->n_tensors;
    for (uint64_t k = 0; k < n_meta; k++) RL_TRY(parse_meta(&r, g, (size_t)k, first_meta));
    RL_TRY(parse_alignment(&r, &sh->alignment));
    for (uint64_t k = 0; k < n_tensors; k++) RL_TRY(parse_tensor(&r, g, (size_t)k, (unsigned)i));
    sh->data_offset = (r.at + sh->alignment - 1) / sh->alignment * sh->alignment;
    return place_tensors(&r, g, first_tensor, sh);
}
