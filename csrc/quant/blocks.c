// SPDX-License-Identifier: Apache-2.0
#include "quant/blocks.h"

#include <string.h>

#include "base/blocks.h"

typedef const uint8_t (*codes_of)[RL_QUANT_LANES];

static void nibbles(codes_of c, size_t lane, uint8_t *qs) {
    for (int i = 0; i < 16; i++) qs[i] = (uint8_t)((c[i][lane] & 15) | (c[i + 16][lane] & 15) << 4);
}

static void fifth_bits(codes_of c, size_t lane, uint8_t *qh) {
    memset(qh, 0, 4);
    for (int i = 0; i < 32; i++) qh[i / 8] |= (uint8_t)((c[i][lane] >> 4) << (i % 8));
}

void rl_pack_block32(rl_type type, const rl_quant_codes c, size_t lane, uint16_t d, uint16_t m, void *block) {
    switch ((int)type) {
    case RL_Q4_0:
    case RL_IQ4_NL: { // the same layout
        rl_block_q4_0 *b = block;
        b->d = d;
        nibbles(c, lane, b->qs);
        return;
    }
    case RL_Q4_1: {
        rl_block_q4_1 *b = block;
        b->d = d, b->m = m;
        nibbles(c, lane, b->qs);
        return;
    }
    case RL_Q5_0: {
        rl_block_q5_0 *b = block;
        b->d = d;
        nibbles(c, lane, b->qs);
        fifth_bits(c, lane, b->qh);
        return;
    }
    case RL_Q5_1: {
        rl_block_q5_1 *b = block;
        b->d = d, b->m = m;
        nibbles(c, lane, b->qs);
        fifth_bits(c, lane, b->qh);
        return;
    }
    default: {
        rl_block_q8_0 *b = block;
        b->d = d;
        for (int i = 0; i < 32; i++) b->qs[i] = (int8_t)(c[i][lane] - 127);
    }
    }
}

// Value i of a superblock, groups of 16 or 32.
static uint8_t code16(codes_of c, size_t lane0, int i) {
    return c[i % 16][lane0 + (size_t)i / 16];
}
static uint8_t code32(codes_of c, size_t lane0, int i) {
    return c[i % 32][lane0 + (size_t)i / 32];
}

static void pack_q2_k(codes_of c, size_t lane0, const int *scale, const int *min, rl_block_q2_k *b) {
    for (int j = 0; j < 16; j++) b->scales[j] = (uint8_t)(scale[j] | min[j] << 4);
    memset(b->qs, 0, sizeof b->qs);
    for (int i = 0; i < 256; i++) b->qs[i / 128 * 32 + i % 32] |= (uint8_t)(code16(c, lane0, i) << (i % 128 / 32 * 2));
}

static void pack_q3_k(codes_of c, size_t lane0, const int *scale, rl_block_q3_k *b) {
    memset(b, 0, sizeof *b);
    for (int i = 0; i < 256; i++) {
        uint8_t q = code16(c, lane0, i); // 0..7, the third bit stored apart
        b->qs[i / 128 * 32 + i % 32] |= (uint8_t)((q & 3) << (i % 128 / 32 * 2));
        b->hmask[i % 32] |= (uint8_t)((q >> 2) << (i / 32));
    }
    for (int s = 0; s < 16; s++) {
        int v = scale[s] + 32;
        b->scales[s % 8] |= (uint8_t)((v & 15) << (s / 8 * 4));
        b->scales[8 + s % 4] |= (uint8_t)((v >> 4) << (s / 4 * 2));
    }
}

// Eight 6-bit scales and mins in 12 bytes.
static void pack_scale_min(const int *scale, const int *min, uint8_t *s) {
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(scale[j] | (scale[j + 4] >> 4) << 6);
        s[j + 4] = (uint8_t)(min[j] | (min[j + 4] >> 4) << 6);
        s[j + 8] = (uint8_t)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

static void pack_pairs(codes_of c, size_t lane0, uint8_t *qs) {
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 32; i++)
            qs[k * 32 + i] =
                (uint8_t)((c[i][lane0 + 2 * (size_t)k] & 15) | (c[i][lane0 + 2 * (size_t)k + 1] & 15) << 4);
}

static void pack_q5_k_high(codes_of c, size_t lane0, uint8_t *qh) {
    for (int i = 0; i < 32; i++) {
        qh[i] = 0;
        for (int j = 0; j < 8; j++) qh[i] |= (uint8_t)((c[i][lane0 + (size_t)j] >> 4) << j);
    }
}

static void pack_q6_k(codes_of c, size_t lane0, const int *scale, rl_block_q6_k *b) {
    memset(b->ql, 0, sizeof b->ql);
    memset(b->qh, 0, sizeof b->qh);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, k = i % 128;
        uint8_t q = code16(c, lane0, i);
        b->ql[half * 64 + k % 64] |= (uint8_t)((q & 15) << (k / 64 * 4));
        b->qh[half * 32 + k % 32] |= (uint8_t)((q >> 4) << (k / 32 * 2));
    }
    for (int j = 0; j < 16; j++) b->scales[j] = (int8_t)scale[j];
}

static void pack_iq4_xs(codes_of c, size_t lane0, const int *scale, rl_block_iq4_xs *b) {
    b->scales_h = 0;
    memset(b->scales_l, 0, sizeof b->scales_l);
    for (int j = 0; j < 8; j++) {
        int v = scale[j] + 32;
        b->scales_l[j / 2] |= (uint8_t)((v & 15) << (j % 2 * 4));
        b->scales_h |= (uint16_t)((v >> 4) << (2 * j));
        for (int i = 0; i < 16; i++)
            b->qs[j * 16 + i] = (uint8_t)(code32(c, lane0, j * 32 + i) | code32(c, lane0, j * 32 + i + 16) << 4);
    }
}

void rl_pack_super(rl_type type, const rl_quant_codes c, size_t lane0, uint16_t d, uint16_t dmin, const int *scale,
                   const int *min, void *block) {
    switch ((int)type) {
    case RL_Q2_K: {
        rl_block_q2_k *b = block;
        pack_q2_k(c, lane0, scale, min, b);
        b->d = d, b->dmin = dmin;
        return;
    }
    case RL_Q3_K: {
        rl_block_q3_k *b = block;
        pack_q3_k(c, lane0, scale, b);
        b->d = d;
        return;
    }
    case RL_Q4_K: {
        rl_block_q4_k *b = block;
        b->d = d, b->dmin = dmin;
        pack_scale_min(scale, min, b->scales);
        pack_pairs(c, lane0, b->qs);
        return;
    }
    case RL_Q5_K: {
        rl_block_q5_k *b = block;
        b->d = d, b->dmin = dmin;
        pack_scale_min(scale, min, b->scales);
        pack_pairs(c, lane0, b->qs);
        pack_q5_k_high(c, lane0, b->qh);
        return;
    }
    case RL_Q6_K: {
        rl_block_q6_k *b = block;
        pack_q6_k(c, lane0, scale, b);
        b->d = d;
        return;
    }
    default: {
        rl_block_iq4_xs *b = block;
        b->d = d;
        pack_iq4_xs(c, lane0, scale, b);
    }
    }
}
