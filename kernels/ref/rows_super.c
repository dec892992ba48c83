// SPDX-License-Identifier: Apache-2.0
// Reference rows kernels for the types with superblocks of 256 values.
#include <string.h>

#include "kernels/ref/rows_ref.h"

static void unpack_q2k(const void *block, rl_ref_block *u) {
    rl_block_q2_k b;
    memcpy(&b, block, sizeof b);
    u->group = 16;
    u->d = rl_f16_to_f32(b.d);
    u->dmin = rl_f16_to_f32(b.dmin);
    for (int g = 0; g < 16; g++) {
        u->sc[g] = b.scales[g] & 15;
        u->mn[g] = b.scales[g] >> 4;
    }
    for (int i = 0; i < 256; i++) u->q[i] = b.qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

static void unpack_q3k(const void *block, rl_ref_block *u) {
    rl_block_q3_k b;
    memcpy(&b, block, sizeof b);
    u->group = 16;
    u->d = rl_f16_to_f32(b.d);
    u->dmin = 0;
    for (int g = 0; g < 16; g++) {
        int low = g < 8 ? b.scales[g] & 15 : b.scales[g - 8] >> 4;
        int high = b.scales[8 + g % 4] >> (g / 4 * 2) & 3;
        u->sc[g] = (low | high << 4) - 32;
        u->mn[g] = 0;
    }
    for (int i = 0; i < 256; i++) {
        int q = b.qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        u->q[i] = q - (b.hmask[i % 32] >> (i / 32) & 1 ? 0 : 4);
    }
}

// 8 scales and 8 minimums of 6 bits each in 12 bytes.
static void scales_k4(const uint8_t *s, rl_ref_block *u) {
    u->group = 32;
    for (int j = 0; j < 4; j++) {
        u->sc[j] = s[j] & 63;
        u->mn[j] = s[j + 4] & 63;
        u->sc[j + 4] = (s[j + 8] & 15) | (s[j] >> 6) << 4;
        u->mn[j + 4] = s[j + 8] >> 4 | (s[j + 4] >> 6) << 4;
    }
}

static void unpack_q4k(const void *block, rl_ref_block *u) {
    rl_block_q4_k b;
    memcpy(&b, block, sizeof b);
    u->d = rl_f16_to_f32(b.d);
    u->dmin = rl_f16_to_f32(b.dmin);
    scales_k4(b.scales, u);
    for (int i = 0; i < 256; i++) u->q[i] = b.qs[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
}

static void unpack_q5k(const void *block, rl_ref_block *u) {
    rl_block_q5_k b;
    memcpy(&b, block, sizeof b);
    u->d = rl_f16_to_f32(b.d);
    u->dmin = rl_f16_to_f32(b.dmin);
    scales_k4(b.scales, u);
    for (int i = 0; i < 256; i++)
        u->q[i] = (b.qs[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15) | (b.qh[i % 32] >> (i / 32) & 1) << 4;
}

static void unpack_q6k(const void *block, rl_ref_block *u) {
    rl_block_q6_k b;
    memcpy(&b, block, sizeof b);
    u->group = 16;
    u->d = rl_f16_to_f32(b.d);
    u->dmin = 0;
    for (int g = 0; g < 16; g++) {
        u->sc[g] = b.scales[g];
        u->mn[g] = 0;
    }
    for (int i = 0; i < 256; i++) {
        int half = i / 128, part = i % 128 / 32, l = i % 32;
        int low = b.ql[half * 64 + part % 2 * 32 + l] >> (part / 2 * 4) & 15;
        int high = b.qh[half * 32 + l] >> (part * 2) & 3;
        u->q[i] = (low | high << 4) - 32;
    }
}

static void unpack_q8k(const void *block, rl_ref_block *u) {
    rl_block_q8_k b;
    memcpy(&b, block, sizeof b);
    u->group = 32;
    u->d = b.d;
    u->dmin = 0;
    for (int g = 0; g < 8; g++) {
        u->sc[g] = 1;
        u->mn[g] = 0;
    }
    for (int i = 0; i < 256; i++) u->q[i] = b.qs[i];
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void unpack_iq4xs(const void *block, rl_ref_block *u) {
    rl_block_iq4_xs b;
    memcpy(&b, block, sizeof b);
    u->group = 32;
    u->d = rl_f16_to_f32(b.d);
    u->dmin = 0;
    for (int g = 0; g < 8; g++) {
        int low = b.scales_l[g / 2] >> (g % 2 * 4) & 15, high = b.scales_h >> (2 * g) & 3;
        u->sc[g] = (low | high << 4) - 32;
        u->mn[g] = 0;
    }
    for (int i = 0; i < 256; i++) u->q[i] = iq4_values[b.qs[i / 32 * 16 + i % 16] >> (i % 32 / 16 * 4) & 15];
}

RL_REF_ROWS(q2k, 256, sizeof(rl_block_q2_k))
RL_REF_ROWS(q3k, 256, sizeof(rl_block_q3_k))
RL_REF_ROWS(q4k, 256, sizeof(rl_block_q4_k))
RL_REF_ROWS(q5k, 256, sizeof(rl_block_q5_k))
RL_REF_ROWS(q6k, 256, sizeof(rl_block_q6_k))
RL_REF_ROWS(q8k, 256, sizeof(rl_block_q8_k))
RL_REF_ROWS(iq4xs, 256, sizeof(rl_block_iq4_xs))
