// SPDX-License-Identifier: Apache-2.0
// Copying in plain C, eight bytes at a time. There is no portable way around the caches: where the compiler offers
// none, "stream" writes as "plain" does.
#include <stdint.h>
#include <string.h>

#include "kernels/api.h"

typedef uint64_t vi;
enum { VB = 8 };
static inline vi c_load(const uint8_t *p) {
    uint64_t w;
    memcpy(&w, p, 8);
    return w;
}
static inline void c_store(uint8_t *p, vi v) {
    // The compiler must not see a memcpy in the loop: that of the C library may go around the caches.
    __asm__ volatile("" : "+r"(v));
    memcpy(p, &v, 8);
}
static inline void c_stream(uint8_t *p, vi v) {
#if defined(__clang__)
    __builtin_nontemporal_store(v, (uint64_t *)(void *)p);
#else
    c_store(p, v);
#endif
}
static inline void c_fence(void) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

#include "kernels/copy_body.h"

RL_COPY_DEFINE(ref)
