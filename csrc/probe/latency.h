// SPDX-License-Identifier: Apache-2.0
// Time of one access that depends on the last one.
#ifndef RL_PROBE_LATENCY_H
#define RL_PROBE_LATENCY_H

#include <stdbool.h>

#include "base/status.h"
#include "base/threads.h"
#include "probe/bandwidth.h"

#define RL_LATENCY_PARTS 5
typedef struct rl_latency_result {
    size_t nodes; // of the cycle: size / stride
    double seconds, ns;
    int parts; // the walk is timed in so many stretches, for the spread
    double part_ns[RL_LATENCY_PARTS];
    size_t end; // node where the walk ended: proof that it was made
} rl_latency_result;

/// Lays one cycle through every node of m (one per `stride` bytes, a multiple of 8) and walks it for `iters` steps on
/// the calling thread, after one round (at most) to warm up. random: the cycle is a random one (Sattolo's), drawn from
/// `seed`; else each node leads to the next. All nodes have the same offset within `stride`: at 4096 they compete for
/// the same few sets of a cache, which is part of what is measured.
rl_status rl_probe_latency(const rl_probe_memory *m, size_t stride, size_t iters, bool random, uint64_t seed,
                           rl_poll_fn poll, void *poll_arg, rl_latency_result *out, rl_err *err);

#endif
