// SPDX-License-Identifier: Apache-2.0
// Tile unpack, the definition of right: each block is decoded to integers with float scales and mins, then
// written in the layout that tile.h gives for its type.
#include <string.h>

#include "base/blocks.h"
#include "base/half.h"
#include "kernels/tile.h"

// What all types decode to: w = d[group] * q + m[group], groups of 16 or 32 columns.
typedef struct {
    int16_t q[256];
    float d[16], m[16];
} plain;

typedef void (*decode_fn)(const void *block, plain *p);

static void nibbles32(const uint8_t *qs, int16_t *q) {
    for (int i = 0; i < 16; i++) q[i] = qs[i] & 15, q[i + 16] = qs[i] >> 4;
}

static void fifth_bits(const uint8_t *qh, int16_t *q) {
    for (int i = 0; i < 32; i++) q[i] = (int16_t)(q[i] | (qh[i / 8] >> (i % 8) & 1) << 4);
}

static void decode_q4_0(const void *block, plain *p) {
    const rl_block_q4_0 *b = block;
    nibbles32(b->qs, p->q);
    for (int i = 0; i < 32; i++) p->q[i] -= 8;
    p->d[0] = rl_f16_to_f32(b->d);
}
static void decode_q4_1(const void *block, plain *p) {
    const rl_block_q4_1 *b = block;
    nibbles32(b->qs, p->q);
    p->d[0] = rl_f16_to_f32(b->d), p->m[0] = rl_f16_to_f32(b->m);
}
static void decode_q5_0(const void *block, plain *p) {
    const rl_block_q5_0 *b = block;
    nibbles32(b->qs, p->q);
    fifth_bits(b->qh, p->q);
    for (int i = 0; i < 32; i++) p->q[i] -= 16;
    p->d[0] = rl_f16_to_f32(b->d);
}
static void decode_q5_1(const void *block, plain *p) {
    const rl_block_q5_1 *b = block;
    nibbles32(b->qs, p->q);
    fifth_bits(b->qh, p->q);
    p->d[0] = rl_f16_to_f32(b->d), p->m[0] = rl_f16_to_f32(b->m);
}
static void decode_q8_0(const void *block, plain *p) {
    const rl_block_q8_0 *b = block;
    for (int i = 0; i < 32; i++) p->q[i] = b->qs[i];
    p->d[0] = rl_f16_to_f32(b->d);
}
static void decode_q8k(const void *block, plain *p) {
    const rl_block_q8_k *b = block;
    for (int i = 0; i < 256; i++) p->q[i] = b->qs[i];
    for (int g = 0; g < 8; g++) p->d[g] = b->d;
}
static void decode_q2k(const void *block, plain *p) {
    const rl_block_q2_k *b = block;
    for (int i = 0; i < 256; i++) p->q[i] = b->qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
    float d = rl_f16_to_f32(b->d), dmin = rl_f16_to_f32(b->dmin);
    for (int g = 0; g < 16; g++)
        p->d[g] = d * (float)(b->scales[g] & 15), p->m[g] = -(dmin * (float)(b->scales[g] >> 4));
}
static void decode_q3k(const void *block, plain *p) {
    const rl_block_q3_k *b = block;
    for (int i = 0; i < 256; i++) {
        int low = b->qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        p->q[i] = (int16_t)(low - (b->hmask[i % 32] >> (i / 32) & 1 ? 0 : 4));
    }
    float d = rl_f16_to_f32(b->d);
    for (int g = 0; g < 16; g++) {
        int low = b->scales[g % 8] >> (g / 8 * 4) & 15, high = b->scales[8 + g % 4] >> (g / 4 * 2) & 3;
        p->d[g] = d * (float)((low | high << 4) - 32);
    }
}
// Eight scales and eight mins of 6 bits in 12 bytes.
static void scales_k(const uint8_t *s, float d, float dmin, plain *p) {
    for (int g = 0; g < 8; g++) {
        int sc = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
        int m = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | (s[g] >> 6) << 4;
        p->d[g] = d * (float)sc, p->m[g] = -(dmin * (float)m);
    }
}
static void decode_q4k(const void *block, plain *p) {
    const rl_block_q4_k *b = block;
    for (int i = 0; i < 256; i++) p->q[i] = b->qs[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
    scales_k(b->scales, rl_f16_to_f32(b->d), rl_f16_to_f32(b->dmin), p);
}
static void decode_q5k(const void *block, plain *p) {
    const rl_block_q5_k *b = block;
    for (int i = 0; i < 256; i++) {
        int low = b->qs[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
        p->q[i] = (int16_t)(low | (b->qh[i % 32] >> (i / 32) & 1) << 4);
    }
    scales_k(b->scales, rl_f16_to_f32(b->d), rl_f16_to_f32(b->dmin), p);
}
static void decode_q6k(const void *block, plain *p) {
    const rl_block_q6_k *b = block;
    for (int i = 0; i < 256; i++) {
        int half = i / 128, quarter = i / 32 % 4, l = i % 32;
        int low = b->ql[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
        int high = b->qh[half * 32 + l] >> (quarter * 2) & 3;
        p->q[i] = (int16_t)((low | high << 4) - 32);
    }
    float d = rl_f16_to_f32(b->d);
    for (int g = 0; g < 16; g++) p->d[g] = d * (float)b->scales[g];
}
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static void decode_iq4nl(const void *block, plain *p) {
    const rl_block_iq4_nl *b = block;
    nibbles32(b->qs, p->q);
    for (int i = 0; i < 32; i++) p->q[i] = iq4_values[p->q[i]];
    p->d[0] = rl_f16_to_f32(b->d);
}
static void decode_iq4xs(const void *block, plain *p) {
    const rl_block_iq4_xs *b = block;
    float d = rl_f16_to_f32(b->d);
    for (int g = 0; g < 8; g++) {
        nibbles32(b->qs + 16 * g, p->q + 32 * g);
        int s = (b->scales_l[g / 2] >> (g % 2 * 4) & 15) | (b->scales_h >> (2 * g) & 3) << 4;
        p->d[g] = d * (float)(s - 32);
    }
    for (int i = 0; i < 256; i++) p->q[i] = iq4_values[p->q[i]];
}

static void unpack(const uint8_t *const row[RL_TILE_ROWS], size_t klen, rl_tile *tile, decode_fn decode, size_t block,
                   size_t bytes, size_t group, int bias, int mins) {
    for (size_t r = 0; r < RL_TILE_ROWS; r++) {
        const uint8_t *src = row[r];
        for (size_t k = 0; k < klen; k += block, src += bytes) {
            plain p;
            decode(src, &p);
            for (size_t i = 0; i < block; i++) tile->q[(k + i) / 4][r][(k + i) % 4] = (uint8_t)(p.q[i] + bias);
            for (size_t g = 0; g < block / group; g++) {
                tile->d[k / group + g][r] = p.d[g];
                if (mins) tile->m[k / group + g][r] = p.m[g];
            }
        }
    }
}

#define UNPACK(t, block, group, bias, mins)                                                                            \
    void rl_tile_unpack_##t##_ref(const uint8_t *const row[RL_TILE_ROWS], size_t klen, rl_tile *tile) {                \
        unpack(row, klen, tile, decode_##t, block, sizeof(block_##t), group, bias, mins);                              \
    }

typedef rl_block_q4_0 block_q4_0;
typedef rl_block_q4_1 block_q4_1;
typedef rl_block_q5_0 block_q5_0;
typedef rl_block_q5_1 block_q5_1;
typedef rl_block_q8_0 block_q8_0;
typedef rl_block_q2_k block_q2k;
typedef rl_block_q3_k block_q3k;
typedef rl_block_q4_k block_q4k;
typedef rl_block_q5_k block_q5k;
typedef rl_block_q6_k block_q6k;
typedef rl_block_q8_k block_q8k;
typedef rl_block_iq4_nl block_iq4nl;
typedef rl_block_iq4_xs block_iq4xs;

UNPACK(q4_0, 32, 32, 128, 0)
UNPACK(q4_1, 32, 32, 0, 1)
UNPACK(q5_0, 32, 32, 128, 0)
UNPACK(q5_1, 32, 32, 0, 1)
UNPACK(q8_0, 32, 32, 128, 0)
UNPACK(q2k, 256, 16, 0, 1)
UNPACK(q3k, 256, 16, 32, 0)
UNPACK(q4k, 256, 32, 0, 1)
UNPACK(q5k, 256, 32, 0, 1)
UNPACK(q6k, 256, 16, 32, 0)
UNPACK(q8k, 256, 32, 128, 0)
UNPACK(iq4nl, 32, 32, 128, 0)
UNPACK(iq4xs, 256, 32, 128, 0)
