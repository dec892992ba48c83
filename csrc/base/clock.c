// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "base/clock.h"

#include <time.h>

static uint64_t read_clock(clockid_t id) {
    struct timespec t;
    if (clock_gettime(id, &t) != 0) clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t rl_clock_ns(void) {
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t rl_clock_coarse_ns(void) {
#ifdef CLOCK_MONOTONIC_COARSE
    return read_clock(CLOCK_MONOTONIC_COARSE);
#else
    return read_clock(CLOCK_MONOTONIC);
#endif
}

uint64_t rl_clock_boot_ns(void) {
#ifdef CLOCK_BOOTTIME
    return read_clock(CLOCK_BOOTTIME);
#else
    return read_clock(CLOCK_MONOTONIC);
#endif
}

uint64_t rl_clock_thread_ns(void) {
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

// The empty asm ties each addition to the last one and keeps the sum in a register, so that a chain of them takes
// one cycle per addition; the loop's own counter runs beside the chain.
static uint64_t dependent_adds(uint64_t rounds) {
    uint64_t x = 0, y = 1;
    __asm__ volatile("" : "+r"(y));
    for (uint64_t i = 0; i < rounds; i++) {
        x += y;
        __asm__ volatile("" : "+r"(x));
        x += y;
        __asm__ volatile("" : "+r"(x));
        x += y;
        __asm__ volatile("" : "+r"(x));
        x += y;
        __asm__ volatile("" : "+r"(x));
        x += y;
        __asm__ volatile("" : "+r"(x));
        x += y;
        __asm__ volatile("" : "+r"(x));
        x += y;
        __asm__ volatile("" : "+r"(x));
        x += y;
        __asm__ volatile("" : "+r"(x));
    }
    return x;
}

double rl_clock_core_ghz(double ms) {
    // Best of short stretches: an interruption only ever makes one look slower.
    double best = 0.0;
    uint64_t rounds = 4096, end = rl_clock_ns() + (uint64_t)(ms * 1e6);
    do {
        uint64_t t0 = rl_clock_ns();
        dependent_adds(rounds);
        uint64_t dt = rl_clock_ns() - t0;
        double ghz = dt ? 8.0 * (double)rounds / (double)dt : 0.0;
        if (ghz > best) best = ghz;
    } while (rl_clock_ns() < end);
    return best;
}
