// SPDX-License-Identifier: Apache-2.0
// Plain floats and the types with blocks of 32. In the 4- and 5-bit types the low nibbles are the first half of the
// block, the high nibbles the second; bit i of qh is the fifth bit of value i.
#include <string.h>

#include "base/blocks.h"
#include "base/half.h"
#include "kernels/ref/ref.h"

void rl_dequant_f32_ref(const void *blocks, float *out, size_t n) {
    memcpy(out, blocks, n * sizeof *out);
}

void rl_dequant_f16_ref(const void *blocks, float *out, size_t n) {
    const uint16_t *h = blocks;
    for (size_t i = 0; i < n; i++) out[i] = rl_f16_to_f32(h[i]);
}

void rl_dequant_bf16_ref(const void *blocks, float *out, size_t n) {
    const uint16_t *h = blocks;
    for (size_t i = 0; i < n; i++) out[i] = rl_bf16_to_f32(h[i]);
}

void rl_dequant_q4_0_ref(const void *blocks, float *out, size_t n) {
    const rl_block_q4_0 *b = blocks;
    for (; n; n -= 32, out += 32, b++) {
        float d = rl_f16_to_f32(b->d);
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)((b->qs[i] & 15) - 8);
            out[i + 16] = d * (float)((b->qs[i] >> 4) - 8);
        }
    }
}

void rl_dequant_q4_1_ref(const void *blocks, float *out, size_t n) {
    const rl_block_q4_1 *b = blocks;
    for (; n; n -= 32, out += 32, b++) {
        float d = rl_f16_to_f32(b->d), m = rl_f16_to_f32(b->m);
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)(b->qs[i] & 15) + m;
            out[i + 16] = d * (float)(b->qs[i] >> 4) + m;
        }
    }
}

static int fifth_bit(const uint8_t *qh, int i) {
    return ((qh[i / 8] >> (i % 8)) & 1) << 4;
}

void rl_dequant_q5_0_ref(const void *blocks, float *out, size_t n) {
    const rl_block_q5_0 *b = blocks;
    for (; n; n -= 32, out += 32, b++) {
        float d = rl_f16_to_f32(b->d);
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)(((b->qs[i] & 15) | fifth_bit(b->qh, i)) - 16);
            out[i + 16] = d * (float)(((b->qs[i] >> 4) | fifth_bit(b->qh, i + 16)) - 16);
        }
    }
}

void rl_dequant_q5_1_ref(const void *blocks, float *out, size_t n) {
    const rl_block_q5_1 *b = blocks;
    for (; n; n -= 32, out += 32, b++) {
        float d = rl_f16_to_f32(b->d), m = rl_f16_to_f32(b->m);
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)((b->qs[i] & 15) | fifth_bit(b->qh, i)) + m;
            out[i + 16] = d * (float)((b->qs[i] >> 4) | fifth_bit(b->qh, i + 16)) + m;
        }
    }
}

void rl_dequant_q8_0_ref(const void *blocks, float *out, size_t n) {
    const rl_block_q8_0 *b = blocks;
    for (; n; n -= 32, out += 32, b++) {
        float d = rl_f16_to_f32(b->d);
        for (int i = 0; i < 32; i++) out[i] = d * (float)b->qs[i];
    }
}
