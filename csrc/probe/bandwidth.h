// SPDX-License-Identifier: Apache-2.0
// How fast memory can be read: over given bytes (the weights of a model where they are mapped), or over memory of its
// own. Every read kernel of the table is tried, the fastest measures. The ceiling of a model is this read of its very
// bytes with the threads and the split of a session.
#ifndef RL_PROBE_BANDWIDTH_H
#define RL_PROBE_BANDWIDTH_H

#include <stdbool.h>

#include "base/threads.h"
#include "kernels/api.h"

typedef struct rl_range {
    const void *p;
    size_t n;
} rl_range;

typedef struct rl_read_opts {
    int n_threads;
    const int *cpus;    // as in rl_region
    int passes;         // timed passes, at least 1
    size_t repeat;      // times that one pass goes over the ranges: more than 1 for what fits a cache, and then each
                        // thread keeps to its own part instead of stealing
    const char *kernel; // NULL: try all; else the name of the one to use
    rl_poll_fn poll;
    void *poll_arg;
} rl_read_opts;

#define RL_READ_MAX_PASSES 64
typedef struct rl_read_result {
    const rl_kernel *kernel;
    uint64_t bytes; // of one pass
    int passes;
    double seconds[RL_READ_MAX_PASSES];
    double busy[RL_READ_MAX_PASSES]; // share of each pass that the threads, together, were on a core
    double median_s, gbs;            // gbs = bytes / median_s / 1e9
    uint64_t checksum;               // XOR of the 64-bit words of each range
} rl_read_result;

/// RL_ERR_ARG for no bytes or passes out of 1..RL_READ_MAX_PASSES, RL_ERR_KERNEL, RL_ERR_INTERRUPTED.
rl_status rl_probe_read(rl_pool *pool, const rl_dispatch *d, const rl_range *ranges, size_t n_ranges,
                        const rl_read_opts *opts, rl_read_result *out, rl_err *err);

/// Anonymous memory to measure on, written once by all threads. huge: asks for transparent huge pages, or against
/// them. *huge_bytes: how much of it the system says is in huge pages.
typedef struct rl_probe_memory {
    void *p;
    size_t n, map_n;
    void *map;
    size_t huge_bytes;
} rl_probe_memory;
rl_status rl_probe_memory_make(rl_probe_memory *m, rl_pool *pool, size_t bytes, bool huge, int n_threads,
                               const int *cpus, rl_err *err);
void rl_probe_memory_free(rl_probe_memory *m);

/// Copies the first half of m onto the second with the kernels of this kind ("plain" through the caches, "stream"
/// around them), the best of the tiers that run here. out->bytes counts what is read and what is written, as STREAM
/// does; plain stores also make the caches read the target first, which is not counted.
rl_status rl_probe_copy(rl_pool *pool, const rl_dispatch *d, const rl_probe_memory *m, const char *kind,
                        const rl_read_opts *opts, rl_read_result *out, rl_err *err);

#endif
