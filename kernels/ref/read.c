// SPDX-License-Identifier: Apache-2.0
// Reading in plain C, eight bytes at a time.
#include <stdint.h>
#include <string.h>

#include "kernels/api.h"

typedef uint64_t vi;
enum { VB = 8 };
static inline vi r_zero(void) {
    return 0;
}
static inline vi r_load(const uint8_t *p) {
    uint64_t w;
    memcpy(&w, p, 8);
    return w;
}
static inline vi r_xor(vi a, vi b) {
    return a ^ b;
}
static inline uint64_t r_fold(vi v) {
    return v;
}

#include "kernels/read_body.h"

RL_READ_DEFINE(ref)
