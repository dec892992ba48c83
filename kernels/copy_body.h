// SPDX-License-Identifier: Apache-2.0
// Copying for measuring, written once over the vector type of the including file: vi with VB bytes, c_load, c_store,
// c_stream (around the caches), c_fence.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RL_COPY_LOOP(store)                                                                                            \
    enum { STEP = 4 * VB };                                                                                            \
    uint8_t *q = to;                                                                                                   \
    const uint8_t *p = from;                                                                                           \
    size_t i = 0;                                                                                                      \
    for (; i + STEP <= n; i += STEP) {                                                                                 \
        vi a = c_load(p + i), b = c_load(p + i + VB), c = c_load(p + i + 2 * VB), d = c_load(p + i + 3 * VB);          \
        store(q + i, a), store(q + i + VB, b), store(q + i + 2 * VB, c), store(q + i + 3 * VB, d);                     \
    }                                                                                                                  \
    memcpy(q + i, p + i, n - i);

#define RL_COPY_DEFINE(isa)                                                                                            \
    void rl_copy_plain_##isa(void *to, const void *from, size_t n) {                                                   \
        RL_COPY_LOOP(c_store)                                                                                          \
    }                                                                                                                  \
    void rl_copy_stream_##isa(void *to, const void *from, size_t n) {                                                  \
        RL_COPY_LOOP(c_stream)                                                                                         \
        c_fence();                                                                                                     \
    }
