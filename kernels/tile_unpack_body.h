// SPDX-License-Identifier: Apache-2.0
// Tile unpack, written once in vectors of 32-bit lanes, one row per lane. Four neighbouring dwords of
// LANES rows are transposed at a time; from there on a block is decoded as if by scalar code, all rows at
// once. Not a general header: included once per ISA file, after these are defined:
//
//   LANES             rows at a time
//   transpose4        dwords 0..3 at a byte offset of LANES rows, as four vectors
//   halves            low 16 bits of each lane, from half to float
//   spread            bits 0..3 of each lane to bit 4 of its four bytes
//   lookup16          each byte (0..15) to an entry of a table of 16
//   SIGNED_BIAS       1: Q4_0 and Q5_0 as u8b128.g32, 0: as u5.g32.min
#include "base/blocks.h"
#include "kernels/tile.h"

#define INLINE static inline __attribute__((always_inline))

typedef uint32_t V __attribute__((vector_size(4 * LANES)));
typedef int32_t VS __attribute__((vector_size(4 * LANES)));
typedef float F __attribute__((vector_size(4 * LANES)));

INLINE V ones(uint32_t x) {
    return x - (V){0};
}
INLINE F floats(V x) { // of lanes below 2^31
    return __builtin_convertvector((VS)x, F);
}
INLINE F signed_byte(V x, int i) { // byte i of each lane
    return __builtin_convertvector((VS)(x << (24 - 8 * i)) >> 24, F);
}
INLINE void put_q(rl_tile *t, size_t k, size_t r, V q) {
    *(V *)t->q[k / 4][r] = q;
}
INLINE void put_d(rl_tile *t, size_t g, size_t r, F d) {
    *(F *)&t->d[g][r] = d;
}
INLINE void put_m(rl_tile *t, size_t g, size_t r, F m) {
    *(F *)&t->m[g][r] = m;
}

#define NIBBLES 0x0F0F0F0Fu
#define EACH_ROW_GROUP for (size_t r = 0; r < RL_TILE_ROWS; r += LANES)
#define EACH_BLOCK(bytes) for (size_t k = 0, at = 0; k < klen; k += 32, at += (bytes))

// 16 bytes hold columns 0..15 in the low nibbles, 16..31 in the high ones. bias: 120 turns a nibble into
// q - 8 + 128, byte by byte without carry.
INLINE void legacy4(const uint8_t *const *row, size_t at, rl_tile *t, size_t k, size_t r, uint32_t bias) {
    V w[4];
    transpose4(row + r, at, w);
    for (size_t i = 0; i < 4; i++) {
        put_q(t, k + 4 * i, r, (w[i] & NIBBLES) + bias);
        put_q(t, k + 16 + 4 * i, r, (w[i] >> 4 & NIBBLES) + bias);
    }
}
INLINE void legacy5(const uint8_t *const *row, size_t at, V qh, rl_tile *t, size_t k, size_t r, uint32_t bias) {
    V w[4];
    transpose4(row + r, at, w);
    for (uint32_t i = 0; i < 4; i++) {
        put_q(t, k + 4 * i, r, ((w[i] & NIBBLES) | spread(qh >> (4 * i))) + bias);
        put_q(t, k + 16 + 4 * i, r, ((w[i] >> 4 & NIBBLES) | spread(qh >> (16 + 4 * i))) + bias);
    }
}

INLINE void unpack_q4_0(const uint8_t *const *row, size_t klen, rl_tile *t) {
    EACH_ROW_GROUP EACH_BLOCK(18) {
        V h[4];
        transpose4(row + r, at, h);
        F d = halves(h[0]);
        put_d(t, k / 32, r, d);
        if (!SIGNED_BIAS) put_m(t, k / 32, r, d * -8.0f);
        legacy4(row, at + 2, t, k, r, SIGNED_BIAS ? 0x78787878u : 0);
    }
}
INLINE void unpack_q4_1(const uint8_t *const *row, size_t klen, rl_tile *t) {
    EACH_ROW_GROUP EACH_BLOCK(20) {
        V h[4];
        transpose4(row + r, at, h);
        put_d(t, k / 32, r, halves(h[0]));
        put_m(t, k / 32, r, halves(h[0] >> 16));
        legacy4(row, at + 4, t, k, r, 0);
    }
}
INLINE void unpack_q5_0(const uint8_t *const *row, size_t klen, rl_tile *t) {
    EACH_ROW_GROUP EACH_BLOCK(22) {
        V h[4];
        transpose4(row + r, at, h);
        F d = halves(h[0]);
        put_d(t, k / 32, r, d);
        if (!SIGNED_BIAS) put_m(t, k / 32, r, d * -16.0f);
        legacy5(row, at + 6, h[0] >> 16 | h[1] << 16, t, k, r, SIGNED_BIAS ? 0x70707070u : 0);
    }
}
INLINE void unpack_q5_1(const uint8_t *const *row, size_t klen, rl_tile *t) {
    EACH_ROW_GROUP EACH_BLOCK(24) {
        V h[4];
        transpose4(row + r, at, h);
        put_d(t, k / 32, r, halves(h[0]));
        put_m(t, k / 32, r, halves(h[0] >> 16));
        legacy5(row, at + 8, h[1], t, k, r, 0);
    }
}
INLINE void signed_bytes(const uint8_t *const *row, size_t at, rl_tile *t, size_t k, size_t r) { // 16 columns
    V w[4];
    transpose4(row + r, at, w);
    for (size_t i = 0; i < 4; i++) put_q(t, k + 4 * i, r, w[i] ^ 0x80808080u);
}
INLINE void unpack_q8_0(const uint8_t *const *row, size_t klen, rl_tile *t) {
    EACH_ROW_GROUP EACH_BLOCK(34) {
        V h[4];
        transpose4(row + r, at, h);
        put_d(t, k / 32, r, halves(h[0]));
        signed_bytes(row, at + 2, t, k, r);
        signed_bytes(row, at + 18, t, k + 16, r);
    }
}
INLINE void unpack_q8k(const uint8_t *const *row, size_t klen, rl_tile *t) {
    (void)klen;
    EACH_ROW_GROUP {
        V h[4];
        transpose4(row + r, 0, h);
        for (size_t g = 0; g < 8; g++) put_d(t, g, r, (F)h[0]);
        for (size_t i = 0; i < 16; i++) signed_bytes(row, 4 + 16 * i, t, 16 * i, r);
    }
}
INLINE void iq4_codes(const uint8_t *const *row, size_t at, rl_tile *t, size_t k, size_t r) { // 32 columns
    V w[4];
    transpose4(row + r, at, w);
    for (size_t i = 0; i < 4; i++) {
        put_q(t, k + 4 * i, r, lookup16(w[i] & NIBBLES));
        put_q(t, k + 16 + 4 * i, r, lookup16(w[i] >> 4 & NIBBLES));
    }
}
INLINE void unpack_iq4nl(const uint8_t *const *row, size_t klen, rl_tile *t) {
    EACH_ROW_GROUP EACH_BLOCK(18) {
        V h[4];
        transpose4(row + r, at, h);
        put_d(t, k / 32, r, halves(h[0]));
        iq4_codes(row, at + 2, t, k, r);
    }
}
INLINE void unpack_iq4xs(const uint8_t *const *row, size_t klen, rl_tile *t) {
    (void)klen;
    EACH_ROW_GROUP {
        V h[4];
        transpose4(row + r, 0, h); // d and high bits, low bits, codes
        F d = halves(h[0]);
        for (uint32_t g = 0; g < 8; g++) {
            V s = (h[1] >> (4 * g) & 15) | (h[0] >> (16 + 2 * g) & 3) << 4;
            put_d(t, g, r, d * __builtin_convertvector((VS)s - 32, F));
            iq4_codes(row, 8 + 16 * g, t, 32 * g, r);
        }
    }
}

// d, dmin, and the 12 bytes of eight 6-bit scales and mins, as three dwords.
INLINE void scales_k(const V h[4], rl_tile *t, size_t r) {
    F d = halves(h[0]), dmin = -halves(h[0] >> 16);
    V sc[2] = {h[1] & 0x3F3F3F3Fu, (h[3] & NIBBLES) | (h[1] >> 2 & 0x30303030u)};
    V mn[2] = {h[2] & 0x3F3F3F3Fu, (h[3] >> 4 & NIBBLES) | (h[2] >> 2 & 0x30303030u)};
    for (uint32_t g = 0; g < 8; g++) {
        put_d(t, g, r, d * floats(sc[g / 4] >> (g % 4 * 8) & 0xFF));
        put_m(t, g, r, dmin * floats(mn[g / 4] >> (g % 4 * 8) & 0xFF));
    }
}
INLINE void unpack_q4k(const uint8_t *const *row, size_t klen, rl_tile *t) {
    (void)klen;
    EACH_ROW_GROUP {
        V h[4], w[4];
        transpose4(row + r, 0, h);
        scales_k(h, t, r);
        for (size_t c = 0; c < 8; c++) { // 16 of the 32 bytes of a pair of sub-blocks
            transpose4(row + r, 16 + 16 * c, w);
            size_t k = c / 2 * 64 + c % 2 * 16;
            for (size_t i = 0; i < 4; i++) {
                put_q(t, k + 4 * i, r, w[i] & NIBBLES);
                put_q(t, k + 32 + 4 * i, r, w[i] >> 4 & NIBBLES);
            }
        }
    }
}
INLINE void unpack_q5k(const uint8_t *const *row, size_t klen, rl_tile *t) {
    (void)klen;
    EACH_ROW_GROUP {
        V h[4], w[4];
        transpose4(row + r, 0, h);
        scales_k(h, t, r);
        for (size_t half = 0; half < 2; half++) { // columns 0..15, 16..31 of each sub-block
            transpose4(row + r, 16 + 16 * half, h);
            for (uint32_t j = 0; j < 4; j++) {
                transpose4(row + r, 48 + 32 * j + 16 * half, w);
                size_t k = j * 64 + half * 16;
                for (size_t i = 0; i < 4; i++) {
                    V bits = h[i] >> (2 * j);
                    put_q(t, k + 4 * i, r, (w[i] & NIBBLES) | (bits & 0x01010101u) << 4);
                    put_q(t, k + 32 + 4 * i, r, (w[i] >> 4 & NIBBLES) | (bits & 0x02020202u) << 3);
                }
            }
        }
    }
}
INLINE void unpack_q6k(const uint8_t *const *row, size_t klen, rl_tile *t) {
    (void)klen;
    EACH_ROW_GROUP {
        V h[4], a[4], b[4];
        transpose4(row + r, 194, h); // ends with d, at the end of the block
        F d = halves(h[3] >> 16);
        transpose4(row + r, 192, h);
        for (int g = 0; g < 16; g++) put_d(t, (size_t)g, r, d * signed_byte(h[g / 4], g % 4));
        for (size_t c = 0; c < 4; c++) { // half of the block, half of each 32 columns
            size_t half = c / 2, at = c % 2 * 16;
            transpose4(row + r, 64 * half + at, a);
            transpose4(row + r, 64 * half + 32 + at, b);
            transpose4(row + r, 128 + 32 * half + at, h);
            for (size_t i = 0; i < 4; i++) {
                size_t k = 128 * half + at + 4 * i;
                put_q(t, k, r, (a[i] & NIBBLES) | (h[i] & 0x03030303u) << 4);
                put_q(t, k + 32, r, (b[i] & NIBBLES) | (h[i] & 0x0C0C0C0Cu) << 2);
                put_q(t, k + 64, r, (a[i] >> 4 & NIBBLES) | (h[i] & 0x30303030u));
                put_q(t, k + 96, r, (b[i] >> 4 & NIBBLES) | (h[i] >> 2 & 0x30303030u));
            }
        }
    }
}
INLINE void unpack_q3k(const uint8_t *const *row, size_t klen, rl_tile *t) {
    (void)klen;
    EACH_ROW_GROUP {
        V h[4], w[4];
        transpose4(row + r, 94, h); // 2 bytes of codes, 12 of scales, d: the end of the block
        F d = halves(h[3] >> 16);
        V s0 = h[0] >> 16 | h[1] << 16, s1 = h[1] >> 16 | h[2] << 16, s2 = h[2] >> 16 | h[3] << 16;
        V sc[4] = {(s0 & NIBBLES) | (s2 & 0x03030303u) << 4, (s1 & NIBBLES) | (s2 & 0x0C0C0C0Cu) << 2,
                   (s0 >> 4 & NIBBLES) | (s2 & 0x30303030u), (s1 >> 4 & NIBBLES) | (s2 >> 2 & 0x30303030u)};
        for (uint32_t g = 0; g < 16; g++)
            put_d(t, g, r, d * __builtin_convertvector((VS)(sc[g / 4] >> (g % 4 * 8) & 0xFF) - 32, F));
        for (size_t at = 0; at < 32; at += 16) {
            transpose4(row + r, at, h);
            for (uint32_t half = 0; half < 2; half++) {
                transpose4(row + r, 32 + 32 * half + at, w);
                for (uint32_t j = 0; j < 4; j++)
                    for (size_t i = 0; i < 4; i++) {
                        // low - 4 + 32 where the high bit is 0, low + 32 where it is 1
                        V high = (h[i] >> (4 * half + j) & 0x01010101u) << 2;
                        put_q(t, 128 * half + 32 * j + at + 4 * i, r,
                              (w[i] >> (2 * j) & 0x03030303u) + high + 0x1C1C1C1Cu);
                    }
            }
        }
    }
}
INLINE void unpack_q2k(const uint8_t *const *row, size_t klen, rl_tile *t) {
    (void)klen;
    EACH_ROW_GROUP {
        V h[4], w[4];
        transpose4(row + r, 68, h);
        F d = halves(h[3]), dmin = -halves(h[3] >> 16);
        transpose4(row + r, 0, h);
        for (uint32_t g = 0; g < 16; g++) {
            put_d(t, g, r, d * floats(h[g / 4] >> (g % 4 * 8) & 15));
            put_m(t, g, r, dmin * floats(h[g / 4] >> (g % 4 * 8 + 4) & 15));
        }
        for (size_t at = 0; at < 32; at += 16)
            for (size_t half = 0; half < 2; half++) {
                transpose4(row + r, 16 + 32 * half + at, w);
                for (uint32_t j = 0; j < 4; j++)
                    for (size_t i = 0; i < 4; i++)
                        put_q(t, 128 * half + 32 * j + at + 4 * i, r, w[i] >> (2 * j) & 0x03030303u);
            }
    }
}

#define UNPACK_AS(t, ISA)                                                                                              \
    void rl_tile_unpack_##t##_##ISA(const uint8_t *const row[RL_TILE_ROWS], size_t klen, rl_tile *tile) {              \
        unpack_##t(row, klen, tile);                                                                                   \
    }
#define ALL_TILE_UNPACKS(ISA)                                                                                          \
    UNPACK_AS(q4_0, ISA)                                                                                               \
    UNPACK_AS(q4_1, ISA)                                                                                               \
    UNPACK_AS(q5_0, ISA)                                                                                               \
    UNPACK_AS(q5_1, ISA)                                                                                               \
    UNPACK_AS(q8_0, ISA)                                                                                               \
    UNPACK_AS(q2k, ISA)                                                                                                \
    UNPACK_AS(q3k, ISA)                                                                                                \
    UNPACK_AS(q4k, ISA)                                                                                                \
    UNPACK_AS(q5k, ISA)                                                                                                \
    UNPACK_AS(q6k, ISA)                                                                                                \
    UNPACK_AS(q8k, ISA)                                                                                                \
    UNPACK_AS(iq4nl, ISA)                                                                                              \
    UNPACK_AS(iq4xs, ISA)
