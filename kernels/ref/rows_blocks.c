// SPDX-License-Identifier: Apache-2.0
// Reference rows kernels for the types with blocks of 32 values.
#include <string.h>

#include "kernels/ref/rows_ref.h"

// One scale and at most one minimum per block: w = d * q - dmin * mn.
static void one_group(rl_ref_block *u, float d, float dmin, int mn) {
    u->group = 32;
    u->d = d;
    u->dmin = dmin;
    u->sc[0] = 1;
    u->mn[0] = mn;
}

// 16 bytes hold values 0..15 in their low halves and 16..31 in their high halves.
static void nibbles(const uint8_t *qs, int *q) {
    for (int i = 0; i < 16; i++) {
        q[i] = qs[i] & 15;
        q[16 + i] = qs[i] >> 4;
    }
}

static void fifth_bits(const uint8_t *qh, int *q) {
    for (int i = 0; i < 32; i++) q[i] |= (qh[i / 8] >> (i % 8) & 1) << 4;
}

static void unpack_q4_0(const void *block, rl_ref_block *u) {
    rl_block_q4_0 b;
    memcpy(&b, block, sizeof b);
    one_group(u, rl_f16_to_f32(b.d), 0, 0);
    nibbles(b.qs, u->q);
    for (int i = 0; i < 32; i++) u->q[i] -= 8;
}

static void unpack_q4_1(const void *block, rl_ref_block *u) {
    rl_block_q4_1 b;
    memcpy(&b, block, sizeof b);
    one_group(u, rl_f16_to_f32(b.d), -rl_f16_to_f32(b.m), 1);
    nibbles(b.qs, u->q);
}

static void unpack_q5_0(const void *block, rl_ref_block *u) {
    rl_block_q5_0 b;
    memcpy(&b, block, sizeof b);
    one_group(u, rl_f16_to_f32(b.d), 0, 0);
    nibbles(b.qs, u->q);
    fifth_bits(b.qh, u->q);
    for (int i = 0; i < 32; i++) u->q[i] -= 16;
}

static void unpack_q5_1(const void *block, rl_ref_block *u) {
    rl_block_q5_1 b;
    memcpy(&b, block, sizeof b);
    one_group(u, rl_f16_to_f32(b.d), -rl_f16_to_f32(b.m), 1);
    nibbles(b.qs, u->q);
    fifth_bits(b.qh, u->q);
}

static void unpack_q8_0(const void *block, rl_ref_block *u) {
    rl_block_q8_0 b;
    memcpy(&b, block, sizeof b);
    one_group(u, rl_f16_to_f32(b.d), 0, 0);
    for (int i = 0; i < 32; i++) u->q[i] = b.qs[i];
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void unpack_iq4nl(const void *block, rl_ref_block *u) {
    rl_block_iq4_nl b;
    memcpy(&b, block, sizeof b);
    one_group(u, rl_f16_to_f32(b.d), 0, 0);
    nibbles(b.qs, u->q);
    for (int i = 0; i < 32; i++) u->q[i] = iq4_values[u->q[i]];
}

RL_REF_ROWS(q4_0, 32, sizeof(rl_block_q4_0))
RL_REF_ROWS(q4_1, 32, sizeof(rl_block_q4_1))
RL_REF_ROWS(q5_0, 32, sizeof(rl_block_q5_0))
RL_REF_ROWS(q5_1, 32, sizeof(rl_block_q5_1))
RL_REF_ROWS(q8_0, 32, sizeof(rl_block_q8_0))
RL_REF_ROWS(iq4nl, 32, sizeof(rl_block_iq4_nl))
