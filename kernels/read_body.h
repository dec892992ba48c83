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

// One stream with prefetches `ahead` bytes ahead (0: none).
static inline uint64_t read_one(const uint8_t *p, size_t n, size_t ahead) {
    enum { STEP = 8 * VB };
    vi a = r_zero(), b = a, c = a, d = a;
    size_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        if (ahead)
            for (size_t k = 0; k < STEP; k += 64) __builtin_prefetch(p + i + ahead + k, 0, 3);
        a = r_xor(a, r_load(p + i)), b = r_xor(b, r_load(p + i + VB));
        c = r_xor(c, r_load(p + i + 2 * VB)), d = r_xor(d, r_load(p + i + 3 * VB));
        a = r_xor(a, r_load(p + i + 4 * VB)), b = r_xor(b, r_load(p + i + 5 * VB));
        c = r_xor(c, r_load(p + i + 6 * VB)), d = r_xor(d, r_load(p + i + 7 * VB));
    }
    return r_fold(r_xor(r_xor(a, b), r_xor(c, d))) ^ read_tail(p + i, n - i);
}

// Four streams side by side, a quarter of the range each: hardware prefetchers stop at page ends, and four of them at
// different places wait less.
static inline uint64_t read_four(const uint8_t *p, size_t n) {
    enum { STEP = 2 * VB };
    size_t part = n / 4 / STEP * STEP;
    vi a = r_zero(), b = a, c = a, d = a;
    for (size_t i = 0; i < part; i += STEP) {
        const uint8_t *q = p + i;
        a = r_xor(a, r_xor(r_load(q), r_load(q + VB)));
        b = r_xor(b, r_xor(r_load(q + part), r_load(q + part + VB)));
        c = r_xor(c, r_xor(r_load(q + 2 * part), r_load(q + 2 * part + VB)));
        d = r_xor(d, r_xor(r_load(q + 3 * part), r_load(q + 3 * part + VB)));
    }
    return r_fold(r_xor(r_xor(a, b), r_xor(c, d))) ^ read_one(p + 4 * part, n - 4 * part, 0);
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
        return read_four(p, n);                                                                                        \
    }
