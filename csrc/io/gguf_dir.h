// SPDX-License-Identifier: Apache-2.0
// What gguf.c (files, shards, look-up) and gguf_parse.c (one shard's header) share; not for other rooms.
#ifndef RL_IO_GGUF_DIR_H
#define RL_IO_GGUF_DIR_H

#include "io/gguf.h"

// Strings live in chunks that never move, so that pointers to them stay right while the directory grows.
typedef struct rl_chunk {
    struct rl_chunk *next;
    size_t used, size;
    char bytes[];
} rl_chunk;

// Names to indices, open addressing. Seeded: a file cannot be written to make every look-up collide.
typedef struct rl_index {
    uint32_t *slots; // index + 1, 0: free
    size_t n_slots, used;
    uint64_t seed;
} rl_index;

typedef struct rl_shard {
    char *path;
    rl_map map;
    uint32_t version;
    uint64_t alignment, data_offset;
} rl_shard;

struct rl_gguf {
    int refs;
    rl_shard *shards;
    size_t n_shards;
    rl_meta *meta;
    size_t n_meta, cap_meta;
    rl_tensor *tensors;
    size_t n_tensors, cap_tensors;
    rl_index meta_index, tensor_index;
    rl_chunk *strings;
};

/// Adds what shard `i` (already mapped) holds to the directory. A key that an earlier shard had must have the same
/// value, except split.*.
rl_status rl_gguf_parse_shard(rl_gguf *g, size_t i, rl_err *err);

/// Index of a name, or SIZE_MAX.
size_t rl_index_find(const rl_gguf *g, bool tensor, const char *name, size_t len);

#endif
