// SPDX-License-Identifier: Apache-2.0
// Reading with 16-byte loads.
#ifndef __ARM_NEON
#error "read_neon.c needs NEON"
#endif
#include <arm_neon.h>
#include <stdint.h>

#include "kernels/api.h"

typedef uint64x2_t vi;
enum { VB = 16 };
static inline vi r_zero(void) {
    return vdupq_n_u64(0);
}
static inline vi r_load(const uint8_t *p) {
    return vreinterpretq_u64_u8(vld1q_u8(p));
}
static inline vi r_xor(vi a, vi b) {
    return veorq_u64(a, b);
}
static inline uint64_t r_fold(vi v) {
    return vgetq_lane_u64(v, 0) ^ vgetq_lane_u64(v, 1);
}

#include "kernels/read_body.h"

RL_READ_DEFINE(neon)
