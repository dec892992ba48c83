// SPDX-License-Identifier: Apache-2.0
// Copying with 32 bytes at a time; stnp tells the core that the lines will not be read again soon.
#ifndef __ARM_NEON
#error "compile this file with the flags of its tier"
#endif
#include <arm_neon.h>
#include <stdint.h>

#include "kernels/api.h"

typedef uint8x16x2_t vi;
enum { VB = 32 };
static inline vi c_load(const uint8_t *p) {
    return (vi){{vld1q_u8(p), vld1q_u8(p + 16)}};
}
static inline void c_store(uint8_t *p, vi v) {
    vst1q_u8(p, v.val[0]);
    vst1q_u8(p + 16, v.val[1]);
}
static inline void c_stream(uint8_t *p, vi v) {
    __asm__ volatile("stnp %q1, %q2, [%0]" : : "r"(p), "w"(v.val[0]), "w"(v.val[1]) : "memory");
}
static inline void c_fence(void) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

#include "kernels/copy_body.h"

RL_COPY_DEFINE(neon)
