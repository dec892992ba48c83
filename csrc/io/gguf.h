// SPDX-License-Identifier: Apache-2.0
// The directory of a GGUF file (or of all shards of a split one): metadata and tensors, every length and offset
// checked before use. Opening reads the header only; no page of a weight is touched.
#ifndef RL_IO_GGUF_H
#define RL_IO_GGUF_H

#include <stdbool.h>

#include "base/dtype.h"
#include "base/status.h"
#include "io/mapfile.h"

#define RL_MAX_DIMS 4

typedef enum rl_meta_type { // ids in the file
    RL_META_U8,
    RL_META_I8,
    RL_META_U16,
    RL_META_I16,
    RL_META_U32,
    RL_META_I32,
    RL_META_F32,
    RL_META_BOOL,
    RL_META_STRING,
    RL_META_ARRAY,
    RL_META_U64,
    RL_META_I64,
    RL_META_F64
} rl_meta_type;

typedef struct rl_meta {
    const char *key; // NUL-terminated copy; key_len bytes without it
    size_t key_len;
    rl_meta_type type;
    rl_meta_type elem;   // arrays: element type
    uint64_t count;      // arrays: elements; strings: bytes; scalars: 1
    const uint8_t *data; // payload in the file, unaligned, little-endian; strings in arrays: u64 length, bytes, ...
    size_t bytes;        // of the payload
    uint64_t offset;     // of the entry, for messages
} rl_meta;

typedef struct rl_tensor {
    const char *name;      // NUL-terminated, no NUL inside
    uint32_t type_id;      // as in the file; may be unknown to this library
    const rl_dtype *dtype; // NULL when the type is unknown: metadata can still be inspected
    unsigned n_dims;
    uint64_t dims[RL_MAX_DIMS]; // as in the file: dims[0] is the row length; unused ones are 1
    uint64_t offset;            // absolute, in its shard
    size_t nbytes, row_bytes;   // 0 when the type is unknown
    unsigned shard;
    const uint8_t *data; // NULL for vocabulary-only or unknown
} rl_tensor;

typedef struct rl_gguf rl_gguf;

/// Opens a file; any shard of a split file opens the whole. *fell_back tells that mmap was refused.
rl_status rl_gguf_open(rl_gguf **out, const char *path, rl_load load, bool *fell_back, rl_err *err);
rl_gguf *rl_gguf_ref(rl_gguf *g); // reference counted: tensors stay valid until the last release
void rl_gguf_release(rl_gguf *g);

uint32_t rl_gguf_version(const rl_gguf *g);
uint64_t rl_gguf_alignment(const rl_gguf *g);
size_t rl_gguf_n_meta(const rl_gguf *g);
const rl_meta *rl_gguf_meta(const rl_gguf *g, size_t i);
const rl_meta *rl_gguf_find(const rl_gguf *g, const char *key); // NULL when absent
size_t rl_gguf_n_tensors(const rl_gguf *g);
const rl_tensor *rl_gguf_tensor_at(const rl_gguf *g, size_t i);
const rl_tensor *rl_gguf_tensor(const rl_gguf *g, const char *name); // NULL when absent
size_t rl_gguf_n_shards(const rl_gguf *g);
uint64_t rl_gguf_file_bytes(const rl_gguf *g);
/// RL_ERR_IO when a mapped shard was shortened since (see rl_map_intact).
rl_status rl_gguf_intact(const rl_gguf *g, rl_err *err);
bool rl_gguf_is_mapped(const rl_gguf *g);
const char *rl_gguf_shard_path(const rl_gguf *g, size_t shard);
const rl_map *rl_gguf_shard_map(const rl_gguf *g, size_t shard);
uint64_t rl_gguf_data_offset(const rl_gguf *g, size_t shard); // where the weights begin in that shard

// Typed reads. Any integer width is accepted where the value fits; a wrong type or a value out of range is
// RL_ERR_FORMAT with the key. `found` false (and *out untouched) when the key is absent.
rl_status rl_gguf_get_u64(const rl_gguf *g, const char *key, uint64_t *out, bool *found, rl_err *err);
rl_status rl_gguf_get_f64(const rl_gguf *g, const char *key, double *out, bool *found, rl_err *err); // integers too
rl_status rl_gguf_get_bool(const rl_gguf *g, const char *key, bool *out, bool *found, rl_err *err);
/// Points into the file: not NUL-terminated.
rl_status rl_gguf_get_str(const rl_gguf *g, const char *key, const char **s, size_t *len, bool *found, rl_err *err);
/// Scalar elements of an array by index (integers, bools and floats), converted; RL_ERR_FORMAT when i is out of range.
rl_status rl_meta_get_u64(const rl_meta *m, size_t i, uint64_t *out, rl_err *err);
rl_status rl_meta_get_i64(const rl_meta *m, size_t i, int64_t *out, rl_err *err);
rl_status rl_meta_get_f64(const rl_meta *m, size_t i, double *out, rl_err *err);

#endif
