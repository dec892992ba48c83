// SPDX-License-Identifier: Apache-2.0
// The K types: superblocks of 256 with quantized scales per 16 or 32 values.
#include "base/blocks.h"
#include "base/half.h"
#include "kernels/ref/ref.h"

// 16 groups of 16. A byte of qs holds values 32 apart: bits 0-1 of bytes 0..31 are values 0..31, bits 2-3 values
// 32..63, and so on; bytes 32..63 are the second half of the superblock.
void rl_dequant_q2k_ref(const void *blocks, float *out, size_t n) {
    const rl_block_q2_k *b = blocks;
    for (; n; n -= 256, out += 256, b++) {
        float d = rl_f16_to_f32(b->d), dmin = rl_f16_to_f32(b->dmin);
        for (int i = 0; i < 256; i++) {
            uint8_t sc = b->scales[i / 16];
            int q = (b->qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
            float dl = d * (float)(sc & 15), ml = dmin * (float)(sc >> 4);
            out[i] = dl * (float)q - ml;
        }
    }
}

// Scale s of 16: low four bits from byte s % 8 (low nibble for s < 8, else high), high two bits from byte 8 + s % 4.
static int scale_q3_k(const uint8_t *scales, int s) {
    int low = (scales[s % 8] >> (s / 8 * 4)) & 15, high = (scales[8 + s % 4] >> (s / 4 * 2)) & 3;
    return (low | high << 4) - 32;
}

// The third bit of value i is bit i / 32 of hmask[i % 32]; where it is clear, 4 is subtracted.
void rl_dequant_q3k_ref(const void *blocks, float *out, size_t n) {
    const rl_block_q3_k *b = blocks;
    for (; n; n -= 256, out += 256, b++) {
        float d = rl_f16_to_f32(b->d);
        for (int i = 0; i < 256; i++) {
            float dl = d * (float)scale_q3_k(b->scales, i / 16);
            int q = (b->qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
            int high = (b->hmask[i % 32] >> (i / 32)) & 1;
            out[i] = dl * (float)(q - (high ? 0 : 4));
        }
    }
}

// Eight 6-bit scales and mins in 12 bytes: the first four of each are the low bits of bytes 0..3 and 4..7; the last
// four are nibbles of bytes 8..11 with their two high bits on top of bytes 0..3 and 4..7.
static void scale_min(const uint8_t *s, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6 << 4);
        *min = (s[j + 4] >> 4) | (s[j] >> 6 << 4);
    }
}

// Pairs of groups share 32 bytes: low nibbles group 2k, high nibbles group 2k + 1.
void rl_dequant_q4k_ref(const void *blocks, float *out, size_t n) {
    const rl_block_q4_k *b = blocks;
    for (; n; n -= 256, out += 256, b++) {
        float d = rl_f16_to_f32(b->d), dmin = rl_f16_to_f32(b->dmin);
        for (int j = 0; j < 8; j++) {
            int sc, mn;
            scale_min(b->scales, j, &sc, &mn);
            float dl = d * (float)sc, ml = dmin * (float)mn;
            for (int i = 0; i < 32; i++) {
                int q = (b->qs[j / 2 * 32 + i] >> (j % 2 * 4)) & 15;
                out[j * 32 + i] = dl * (float)q - ml;
            }
        }
    }
}

void rl_dequant_q5k_ref(const void *blocks, float *out, size_t n) {
    const rl_block_q5_k *b = blocks;
    for (; n; n -= 256, out += 256, b++) {
        float d = rl_f16_to_f32(b->d), dmin = rl_f16_to_f32(b->dmin);
        for (int j = 0; j < 8; j++) {
            int sc, mn;
            scale_min(b->scales, j, &sc, &mn);
            float dl = d * (float)sc, ml = dmin * (float)mn;
            for (int i = 0; i < 32; i++) {
                int q = ((b->qs[j / 2 * 32 + i] >> (j % 2 * 4)) & 15) | ((b->qh[i] >> j) & 1) << 4;
                out[j * 32 + i] = dl * (float)q - ml;
            }
        }
    }
}

// Two halves of 128: 64 bytes of ql (low nibbles values 0..63, high nibbles 64..127) and 32 bytes of qh with two bits
// for each of four groups of 32.
void rl_dequant_q6k_ref(const void *blocks, float *out, size_t n) {
    const rl_block_q6_k *b = blocks;
    for (; n; n -= 256, out += 256, b++) {
        float d = rl_f16_to_f32(b->d);
        for (int i = 0; i < 256; i++) {
            int half = i / 128, k = i % 128;
            int low = (b->ql[half * 64 + k % 64] >> (k / 64 * 4)) & 15;
            int high = (b->qh[half * 32 + k % 32] >> (k / 32 * 2)) & 3;
            float dl = d * (float)b->scales[i / 16];
            out[i] = dl * (float)((low | high << 4) - 32);
        }
    }
}

void rl_dequant_q8k_ref(const void *blocks, float *out, size_t n) {
    const rl_block_q8_k *b = blocks;
    for (; n; n -= 256, out += 256, b++)
        for (int i = 0; i < 256; i++) out[i] = b->d * (float)b->qs[i];
}
