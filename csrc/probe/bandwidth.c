// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "probe/bandwidth.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"

#define PIECE (64u << 10) // handed out at once; a multiple of 8, so that checksums do not depend on the split

#define TRIED_ONCE (1u << 30) // passes over more bytes than this try each kernel once

typedef struct job {
    const rl_range *ranges;
    size_t n_ranges, repeat;
    rl_read_bytes_fn read;
    rl_copy_bytes_fn copy;
    uint8_t *to;                           // copies there when not NULL (one range)
    _Atomic uint64_t checksum, begin, end; // clock of the first to begin and the last to end
    _Atomic uint64_t on_core;              // time on a core of all threads together
} job;

static double seconds_of(const job *j) {
    return (double)(j->end - j->begin) * 1e-9;
}

static uint64_t read_piece(const job *j, const rl_range *r, size_t a, size_t b) {
    const uint8_t *p = r->p;
    if (!j->to) return j->read(p + a, b - a);
    j->copy(j->to + a, p + a, b - a);
    return 0;
}

static void pass(void *arg, rl_team *team, int ith) {
    job *j = arg;
    int nth = rl_team_size(team);
    uint64_t sum = 0;
    // The clock runs from when all are there: waking is not reading. Each looks at it, because any of them may lose its
    // core just after the barrier while the others do its work.
    if (!rl_team_barrier(team, ith)) return;
    uint64_t t = rl_clock_ns(), seen = atomic_load_explicit(&j->begin, memory_order_relaxed);
    while (t < seen &&
           !atomic_compare_exchange_weak_explicit(&j->begin, &seen, t, memory_order_relaxed, memory_order_relaxed)) {
    }
    uint64_t on_core = rl_clock_thread_ns();
    for (size_t k = 0; k < j->repeat; k++) {
        uint64_t here = 0;
        for (size_t i = 0; i < j->n_ranges; i++) {
            const rl_range *r = &j->ranges[i];
            size_t a, b, pieces = (r->n + PIECE - 1) / PIECE;
            if (j->repeat > 1) {
                rl_split(r->n, 64, ith, nth, &a, &b);
                if (a < b) here ^= read_piece(j, r, a, b);
                continue;
            }
            rl_work w;
            rl_work_begin(&w, team, ith, pieces, 1);
            while (rl_work_next(&w, team, ith, &a, &b))
                here ^= read_piece(j, r, a * PIECE, b * PIECE < r->n ? b * PIECE : r->n);
            // Ranges without a barrier between them, up to the limit of the work sharing.
            if (i % 16384 == 16383 && !rl_team_barrier(team, ith)) return;
        }
        sum = here; // the same each time
        if (k % 64 == 63 && !rl_team_barrier(team, ith)) return;
    }
    // Relaxed, here and above: the caller reads them after the region.
    atomic_fetch_xor_explicit(&j->checksum, sum, memory_order_relaxed);
    atomic_fetch_add_explicit(&j->on_core, rl_clock_thread_ns() - on_core, memory_order_relaxed);
    t = rl_clock_ns(), seen = atomic_load_explicit(&j->end, memory_order_relaxed);
    while (t > seen &&
           !atomic_compare_exchange_weak_explicit(&j->end, &seen, t, memory_order_relaxed, memory_order_relaxed)) {
    }
}

static rl_status run_pass(rl_pool *pool, job *j, const rl_read_opts *o, rl_err *err) {
    atomic_store_explicit(&j->checksum, 0, memory_order_relaxed);
    atomic_store_explicit(&j->begin, UINT64_MAX, memory_order_relaxed);
    atomic_store_explicit(&j->end, 0, memory_order_relaxed);
    atomic_store_explicit(&j->on_core, 0, memory_order_relaxed);
    rl_region region = {
        .fn = pass, .arg = j, .n_threads = o->n_threads, .poll = o->poll, .poll_arg = o->poll_arg, .cpus = o->cpus};
    return rl_pool_run(pool, &region, err);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void summarize(rl_read_result *out) {
    double s[RL_READ_MAX_PASSES];
    int n = out->passes;
    memcpy(s, out->seconds, (size_t)n * sizeof *s);
    qsort(s, (size_t)n, sizeof *s, by_value);
    out->median_s = n % 2 ? s[n / 2] : 0.5 * (s[n / 2 - 1] + s[n / 2]);
    out->gbs = out->median_s > 0 ? (double)out->bytes / out->median_s * 1e-9 : 0.0;
}

static rl_status check_opts(const rl_read_opts *o, uint64_t bytes, rl_err *err) {
    if (o->passes < 1 || o->passes > RL_READ_MAX_PASSES)
        return rl_fail(err, RL_ERR_ARG, "passes must be from 1 to %d, not %d", RL_READ_MAX_PASSES, o->passes);
    if (o->repeat < 1) return rl_fail(err, RL_ERR_ARG, "repeat must be at least 1");
    if (!bytes) return rl_fail(err, RL_ERR_ARG, "there are no bytes to read");
    return RL_OK;
}

static void use_kernel(job *j, const rl_kernel *k) {
    if (k->family == RL_FAM_COPY)
        j->copy = (rl_copy_bytes_fn)k->fn;
    else
        j->read = (rl_read_bytes_fn)k->fn;
}

// Puts the kernel asked for, or the fastest of the family and layout, into the job and the result.
static rl_status choose_kernel(rl_pool *pool, const rl_dispatch *d, rl_family family, const char *layout, job *j,
                               const rl_read_opts *opts, rl_read_result *out, rl_err *err) {
    if (opts->kernel) {
        RL_TRY(rl_kernel_named(d, opts->kernel, &out->kernel, err));
        if (out->kernel->family != family)
            return rl_fail(err, RL_ERR_KERNEL, "%s is not a %s kernel", opts->kernel,
                           family == RL_FAM_READ ? "read" : "copy");
        use_kernel(j, out->kernel);
        return run_pass(pool, j, opts, err); // brings the pages in
    }
    size_t n;
    const rl_kernel *k = rl_kernels(&n);
    double best = 0;
    bool first = true;
    // Plain C joins only where there is nothing else: compilers may make anything of it.
    bool simd = strcmp(d->isa, "ref") != 0;
    // By turns, the best pass of each counts: one disturbed pass must not decide. Long passes disturb less.
    int rounds = out->bytes < TRIED_ONCE ? 3 : 1;
    for (int round = 0; round < rounds; round++)
        for (size_t i = 0; i < n; i++) {
            if (k[i].family != family || (k[i].cpu & d->features) != k[i].cpu) continue;
            if ((simd && !k[i].cpu) || (layout && strcmp(k[i].layout, layout))) continue;
            use_kernel(j, &k[i]);
            if (first) RL_TRY(run_pass(pool, j, opts, err)); // brings the pages in
            first = false;
            RL_TRY(run_pass(pool, j, opts, err));
            if (!out->kernel || seconds_of(j) < best) {
                best = seconds_of(j);
                out->kernel = &k[i];
            }
        }
    if (!out->kernel) return rl_fail(err, RL_ERR_KERNEL, "no such kernel runs here");
    use_kernel(j, out->kernel);
    return RL_OK;
}

static rl_status timed_passes(rl_pool *pool, job *j, const rl_read_opts *opts, rl_read_result *out, rl_err *err) {
    for (int i = 0; i < opts->passes; i++) {
        RL_TRY(run_pass(pool, j, opts, err));
        out->seconds[i] = seconds_of(j);
        double whole = out->seconds[i] * opts->n_threads;
        out->busy[i] = whole > 0 ? 1e-9 * (double)j->on_core / whole : 1.0;
    }
    out->passes = opts->passes;
    summarize(out);
    return RL_OK;
}

rl_status rl_probe_read(rl_pool *pool, const rl_dispatch *d, const rl_range *ranges, size_t n_ranges,
                        const rl_read_opts *opts, rl_read_result *out, rl_err *err) {
    memset(out, 0, sizeof *out);
    uint64_t bytes = 0;
    for (size_t i = 0; i < n_ranges; i++) bytes += ranges[i].n;
    RL_TRY(check_opts(opts, bytes, err));
    job j = {.ranges = ranges, .n_ranges = n_ranges, .repeat = opts->repeat};
    atomic_init(&j.checksum, 0);
    out->bytes = bytes * opts->repeat;
    RL_TRY(choose_kernel(pool, d, RL_FAM_READ, NULL, &j, opts, out, err));
    RL_TRY(timed_passes(pool, &j, opts, out, err));
    out->checksum = atomic_load_explicit(&j.checksum, memory_order_relaxed);
    return RL_OK;
}

typedef struct fill {
    uint64_t *p;
    size_t n;
} fill;

// Every thread writes the part it will read, so that pages lie where they would for a session (first touch).
static void fill_region(void *arg, rl_team *team, int ith) {
    fill *f = arg;
    size_t a, b;
    rl_split(f->n, PIECE / 8, ith, rl_team_size(team), &a, &b);
    uint64_t x = 0x9E3779B97F4A7C15u * (a + 1);
    for (size_t i = a; i < b; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        f->p[i] = x;
    }
}

// What /proc says is in huge pages of the mapping at `at`; 0 when it says nothing.
static size_t huge_bytes_at(const void *at) {
    FILE *f = fopen("/proc/self/smaps", "r");
    if (!f) return 0;
    char line[512];
    bool inside = false;
    size_t kb = 0;
    while (fgets(line, sizeof line, f)) {
        uintptr_t a, b;
        unsigned long v;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &a, &b) == 2) {
            if (inside) break;
            inside = (uintptr_t)at >= a && (uintptr_t)at < b;
        } else if (inside && sscanf(line, "AnonHugePages: %lu kB", &v) == 1) {
            kb = v;
            break;
        }
    }
    fclose(f);
    return kb << 10;
}

// Memory that can be had without swapping, UINT64_MAX when the system does not say.
static uint64_t memory_available(void) {
    FILE *f = fopen("/proc/meminfo", "r");
    if (!f) return UINT64_MAX;
    char line[256];
    unsigned long long kb = UINT64_MAX >> 10;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1) break;
    fclose(f);
    return (uint64_t)kb << 10;
}

rl_status rl_probe_memory_make(rl_probe_memory *m, rl_pool *pool, size_t bytes, bool huge, int n_threads,
                               const int *cpus, rl_err *err) {
    memset(m, 0, sizeof *m);
    const size_t align = 2u << 20;
    size_t n = bytes & ~(size_t)7, map_n;
    if (n < 64) return rl_fail(err, RL_ERR_ARG, "size must be at least 64 bytes");
    uint64_t available = memory_available();
    // Beyond it a phone kills the process instead of refusing.
    if (n > available - available / 8)
        return rl_fail(err, RL_ERR_NOMEM,
                       "a measurement over %zu bytes needs more than the %llu bytes of memory available", bytes,
                       (unsigned long long)available);
    if (!rl_add_size(n, 2 * align, &map_n)) return rl_fail(err, RL_ERR_NOMEM, "no memory for %zu bytes", bytes);
    void *map = mmap(NULL, map_n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return rl_fail(err, RL_ERR_NOMEM, "no memory for %zu bytes", bytes);
    m->map = map;
    m->map_n = map_n;
    m->p = (void *)(((uintptr_t)map + align - 1) & ~(uintptr_t)(align - 1));
    m->n = n;
    // A refusal shows in huge_bytes.
    (void)madvise(m->p, n, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    fill f = {m->p, n / 8};
    rl_region region = {.fn = fill_region, .arg = &f, .n_threads = n_threads, .cpus = cpus};
    rl_status rc = rl_pool_run(pool, &region, err);
    if (rc != RL_OK) {
        rl_probe_memory_free(m);
        return rc;
    }
    m->huge_bytes = huge_bytes_at(m->p);
    return RL_OK;
}

void rl_probe_memory_free(rl_probe_memory *m) {
    if (m->map) munmap(m->map, m->map_n);
    memset(m, 0, sizeof *m);
}

rl_status rl_probe_copy(rl_pool *pool, const rl_dispatch *d, const rl_probe_memory *m, const char *kind,
                        const rl_read_opts *opts, rl_read_result *out, rl_err *err) {
    memset(out, 0, sizeof *out);
    size_t half = m->n / 2 / 64 * 64;
    RL_TRY(check_opts(opts, half, err));
    rl_range from = {m->p, half};
    job j = {.ranges = &from, .n_ranges = 1, .repeat = opts->repeat, .to = (uint8_t *)m->p + half};
    atomic_init(&j.checksum, 0);
    out->bytes = 2 * (uint64_t)half * opts->repeat;
    RL_TRY(choose_kernel(pool, d, RL_FAM_COPY, kind, &j, opts, out, err));
    return timed_passes(pool, &j, opts, out, err);
}
