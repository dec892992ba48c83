// SPDX-License-Identifier: Apache-2.0
// Tile unpack with NEON: the primitives of kernels/tile_unpack_body.h in 128 bits, 4 rows at a time.
#ifndef __ARM_NEON
#error "needs NEON"
#endif
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#define LANES 4
#define SIGNED_BIAS 1 // signed bytes cost nothing here, and a min would

typedef uint32_t lanes __attribute__((vector_size(16)));
typedef float lanes_f __attribute__((vector_size(16)));

#define LOAD(i) vreinterpretq_u32_u8(vld1q_u8(row[i] + at))

static inline __attribute__((always_inline)) void transpose4(const uint8_t *const *row, size_t at, lanes out[4]) {
    uint32x4_t a = LOAD(0), b = LOAD(1), c = LOAD(2), d = LOAD(3);
    uint64x2_t ab0 = vreinterpretq_u64_u32(vtrn1q_u32(a, b)), ab1 = vreinterpretq_u64_u32(vtrn2q_u32(a, b));
    uint64x2_t cd0 = vreinterpretq_u64_u32(vtrn1q_u32(c, d)), cd1 = vreinterpretq_u64_u32(vtrn2q_u32(c, d));
    out[0] = (lanes)vtrn1q_u64(ab0, cd0);
    out[1] = (lanes)vtrn1q_u64(ab1, cd1);
    out[2] = (lanes)vtrn2q_u64(ab0, cd0);
    out[3] = (lanes)vtrn2q_u64(ab1, cd1);
}

static inline __attribute__((always_inline)) lanes_f halves(lanes x) {
    return (lanes_f)vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32((uint32x4_t)x)));
}

// Copies of the four bits 7 places apart put bit i at bit 8 i.
static inline __attribute__((always_inline)) lanes spread(lanes x) {
    x &= 15;
    return ((x | x << 7 | x << 14 | x << 21) & 0x01010101u) << 4;
}

static inline __attribute__((always_inline)) lanes lookup16(lanes x) {
    static const uint8_t table[16] = {1,   24,  45,  63,  79,  93,  106, 118, // the values + 128
                                      129, 141, 153, 166, 181, 197, 217, 241};
    return (lanes)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)x);
}

#include "kernels/tile_unpack_body.h"

ALL_TILE_UNPACKS(neon)
