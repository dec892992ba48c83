// SPDX-License-Identifier: Apache-2.0
// One pool of workers for the process. A region is one function run by every thread of a team, which meets at
// barriers and shares work by ranges: each thread owns a contiguous part and steals from the tail of
// another's when its own is done, so unequal cores finish together. Who computes an item never changes its
// value.
#ifndef RL_BASE_THREADS_H
#define RL_BASE_THREADS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/status.h"

#define RL_MAX_THREADS 256

typedef struct rl_pool rl_pool;
typedef struct rl_team rl_team;
typedef void (*rl_region_fn)(void *arg, rl_team *team, int ith);

// Called by the calling thread (ith 0) by the clock, about every 50 ms, wherever it is; true asks to stop.
typedef bool (*rl_poll_fn)(void *arg);

typedef struct rl_region {
    rl_region_fn fn;
    void *arg;
    int n_threads;
    rl_poll_fn poll; // NULL: not interruptible
    void *poll_arg;
    const int *cpus; // NULL, or one CPU number per thread to pin it to; the caller (ith 0) until the region ends
} rl_region;

rl_status rl_pool_create(rl_pool **out, rl_err *err);
void rl_pool_destroy(rl_pool *pool); // also right in a forked child, where the workers do not exist

/// Runs the region on n_threads threads, the caller being ith 0. Regions of different callers queue up.
/// RL_ERR_INTERRUPTED when the poll asked to stop. After a fork the workers are started anew. One thread runs
/// inline, without the pool's workers or its queue. RL_ERR_BUSY when the calling thread is inside a region already.
rl_status rl_pool_run(rl_pool *pool, const rl_region *region, rl_err *err);

// Where the threads of the last region ran. Some kernels accept a mask and ignore it, so
// the CPU is sampled at the end of the region instead of being taken from the request.
typedef struct rl_pool_report {
    int n_threads;
    int cpu[RL_MAX_THREADS];       // -1: the system would not say
    int pin_errno[RL_MAX_THREADS]; // 0: pinned as asked, or nothing asked; else why not
} rl_pool_report;
void rl_pool_last_report(rl_pool *pool, rl_pool_report *out);

/// A thread with the stack that a region needs and all signals blocked: those are for the program's own threads. 0 or
/// an error number.
int rl_thread_start(pthread_t *out, void *(*fn)(void *), void *arg);
/// A condition whose timed waits take what rl_deadline_in gives: the monotonic clock.
void rl_cond_init(pthread_cond_t *cond);
void rl_deadline_in(struct timespec *t, uint64_t ns);

int rl_team_size(const rl_team *team);

/// Meets the others. False for all threads at the same barrier when the region was asked to stop: return
/// then.
bool rl_team_barrier(rl_team *team, int ith);

/// Splits items 0..n among the team. Every thread of the team must call begin with the same n and grain, in
/// the same order of calls, and call next until it is false; there is no barrier in it. `grain` is the least number
/// of items handed out at once (more above 2^24 grains). At most 32767 pieces of work between two barriers.
typedef struct rl_work {
    size_t n, grain;
    uint32_t epoch;
    int victim;
} rl_work;
void rl_work_begin(rl_work *w, rl_team *team, int ith, size_t n, size_t grain);
/// Takes the next piece [*i0, *i1): own part first, then stolen. False when nothing is left or asked to stop.
bool rl_work_next(rl_work *w, rl_team *team, int ith, size_t *i0, size_t *i1);

/// The contiguous part of 0..n that belongs to ith, in multiples of `grain` (no stealing).
static inline void rl_split(size_t n, size_t grain, int ith, int nth, size_t *i0, size_t *i1) {
    size_t units = (n + grain - 1) / grain;
    size_t a = units * (size_t)ith / (size_t)nth * grain, b = units * (size_t)(ith + 1) / (size_t)nth * grain;
    *i0 = a < n ? a : n;
    *i1 = b < n ? b : n;
}

#endif
