// SPDX-License-Identifier: Apache-2.0
#include "probe/latency.h"

#include <string.h>

#include "base/clock.h"

static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

// Each node holds the byte offset of the next one.
static size_t *node(const rl_probe_memory *m, size_t stride, size_t i) {
    return (size_t *)(void *)((char *)m->p + i * stride);
}

static bool asked_to_stop(rl_poll_fn poll, void *arg, uint64_t *last) {
    uint64_t now = rl_clock_coarse_ns();
    if (!poll || now - *last < 50000000u) return false;
    *last = now;
    return poll(arg);
}

// Follows the cycle from *at for so many steps.
static rl_status walk(const rl_probe_memory *m, size_t *at, size_t steps, rl_poll_fn poll, void *poll_arg,
                      uint64_t *polled, double *seconds, rl_err *err) {
    const char *base = m->p;
    size_t here = *at;
    uint64_t spent = 0;
    while (steps) {
        size_t now = steps < 65536 ? steps : 65536;
        steps -= now;
        uint64_t t0 = rl_clock_ns();
        for (size_t k = 0; k < now; k++) here = *(const size_t *)(const void *)(base + here);
        __asm__ volatile("" : "+r"(here));
        spent += rl_clock_ns() - t0;
        if (asked_to_stop(poll, poll_arg, polled)) return rl_fail(err, RL_ERR_INTERRUPTED, "interrupted");
    }
    *at = here;
    *seconds = (double)spent * 1e-9;
    return RL_OK;
}

rl_status rl_probe_latency(const rl_probe_memory *m, size_t stride, size_t iters, bool random, uint64_t seed,
                           rl_poll_fn poll, void *poll_arg, rl_latency_result *out, rl_err *err) {
    memset(out, 0, sizeof *out);
    if (stride < sizeof(size_t) || stride % sizeof(size_t))
        return rl_fail(err, RL_ERR_ARG, "stride must be a multiple of %zu bytes, not %zu", sizeof(size_t), stride);
    if (iters < 1) return rl_fail(err, RL_ERR_ARG, "iters must be at least 1");
    size_t n = m->n / stride;
    if (n < 2) return rl_fail(err, RL_ERR_ARG, "size must be at least two strides of %zu bytes", stride);
    uint64_t polled = rl_clock_coarse_ns();
    for (size_t i = 0; i < n; i++) *node(m, stride, i) = random ? i * stride : (i + 1 == n ? 0 : i + 1) * stride;
    // Sattolo: exchanging each with one strictly before it leaves a single cycle through all.
    for (size_t i = n - 1; random && i > 0; i--) {
        size_t j = (size_t)(((unsigned __int128)next_random(&seed) * i) >> 64);
        size_t *a = node(m, stride, i), *b = node(m, stride, j), t = *a;
        *a = *b;
        *b = t;
        if (i % 4096 == 0 && asked_to_stop(poll, poll_arg, &polled))
            return rl_fail(err, RL_ERR_INTERRUPTED, "interrupted");
    }
    size_t at = 0;
    double warm;
    RL_TRY(walk(m, &at, n < iters ? n : iters, poll, poll_arg, &polled, &warm, err));
    out->parts = iters < RL_LATENCY_PARTS ? (int)iters : RL_LATENCY_PARTS;
    for (int i = 0; i < out->parts; i++) {
        size_t a, b;
        rl_split(iters, 1, i, out->parts, &a, &b);
        double seconds;
        RL_TRY(walk(m, &at, b - a, poll, poll_arg, &polled, &seconds, err));
        out->seconds += seconds;
        out->part_ns[i] = seconds * 1e9 / (double)(b - a);
    }
    out->nodes = n;
    out->ns = out->seconds * 1e9 / (double)iters;
    out->end = at / stride;
    return RL_OK;
}
