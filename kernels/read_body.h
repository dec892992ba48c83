// SPDX-License-Identifier: Apache-2.0
// Reading as fast as the ISA can, written once over a vector type of the including file: vi with VB bytes, r_zero,
// r_load, r_xor, r_fold (to 64 bits). Every byte counts into a checksum, so that no load can be left out and a test
// can tell.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// The end of a range, less than a step: words, the last one padded with zeros.
static inline uint64_t read_tail(const uint8_t *p, size_t n) {
    uint64_t x = 0, w;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&w, p, 8);
        x ^= w;
    }
    w = 0;
    memcpy(&w, p, n);
    return x ^ w;
}

// 64 * n bytes at p, folded into four vectors.
static inline __attribute__((always_inline)) void read_lines(const uint8_t *p, const size_t n, vi *x) {
    for (size_t i = 0; i < 64 * n; i += VB) x[i / VB % 4] = r_xor(x[i / VB % 4], r_load(p + i));
}

static inline uint64_t read_fold(const vi *x) {
    return r_fold(r_xor(r_xor(x[0], x[1]), r_xor(x[2], x[3])));
}

// One stream with prefetches `ahead` bytes ahead (0: none).
static inline uint64_t read_one(const uint8_t *p, size_t n, size_t ahead) {
    enum { STEP = 8 * VB };
    vi x[4] = {r_zero(), r_zero(), r_zero(), r_zero()};
    size_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        if (ahead)
            for (size_t k = 0; k < STEP; k += 64) __builtin_prefetch(p + i + ahead + k, 0, 3);
        read_lines(p + i, STEP / 64, x);
    }
    return read_fold(x) ^ read_tail(p + i, n - i);
}

// One stream that asks for one line of a page well before it comes there: the walk of the page table is begun early.
static inline uint64_t read_touch(const uint8_t *p, size_t n) {
    enum { PAGE = 4096, AHEAD = 8 * PAGE };
    vi x[4] = {r_zero(), r_zero(), r_zero(), r_zero()};
    size_t i = 0;
    for (; i + PAGE <= n; i += PAGE) {
        __builtin_prefetch(p + i + AHEAD, 0, 3);
        for (size_t k = 0; k < PAGE; k += 512) read_lines(p + i + k, 8, x);
    }
    return read_fold(x) ^ read_one(p + i, n - i, 0);
}

// Streams side by side, an equal part of the range each: hardware prefetchers stop at page ends, and several of them
// at different places wait less.
static inline __attribute__((always_inline)) uint64_t read_side(const uint8_t *p, size_t n, const size_t streams,
                                                                const size_t lines) {
    size_t step = 64 * lines, part = n / streams / step * step;
    vi x[4] = {r_zero(), r_zero(), r_zero(), r_zero()};
    for (size_t i = 0; i < part; i += step)
        for (size_t s = 0; s < streams; s++) read_lines(p + s * part + i, lines, x);
    return read_fold(x) ^ read_one(p + streams * part, n - streams * part, 0);
}

#define RL_READ_DEFINE(isa)                                                                                            \
    uint64_t rl_read_plain_##isa(const void *p, size_t n) {                                                            \
        return read_one(p, n, 0);                                                                                      \
    }                                                                                                                  \
    uint64_t rl_read_ahead1k_##isa(const void *p, size_t n) {                                                          \
        return read_one(p, n, 1024);                                                                                   \
    }                                                                                                                  \
    uint64_t rl_read_ahead2k_##isa(const void *p, size_t n) {                                                          \
        return read_one(p, n, 2048);                                                                                   \
    }                                                                                                                  \
    uint64_t rl_read_ahead4k_##isa(const void *p, size_t n) {                                                          \
        return read_one(p, n, 4096);                                                                                   \
    }                                                                                                                  \
    uint64_t rl_read_four_##isa(const void *p, size_t n) {                                                             \
        return read_side(p, n, 4, 2);                                                                                  \
    }                                                                                                                  \
    uint64_t rl_read_eight_##isa(const void *p, size_t n) {                                                            \
        return read_side(p, n, 8, 8);                                                                                  \
    }                                                                                                                  \
    uint64_t rl_read_touch_##isa(const void *p, size_t n) {                                                            \
        return read_touch(p, n);                                                                                       \
    }
