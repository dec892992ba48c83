// SPDX-License-Identifier: Apache-2.0
// The types whose 4-bit codes index a table of 16 unevenly spaced values, and the look-up of all references.
#include "base/blocks.h"
#include "base/half.h"
#include "kernels/ref/ref.h"

static const int8_t levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

void rl_dequant_iq4nl_ref(const void *blocks, float *out, size_t n) {
    const rl_block_iq4_nl *b = blocks;
    for (; n; n -= 32, out += 32, b++) {
        float d = rl_f16_to_f32(b->d);
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)levels[b->qs[i] & 15];
            out[i + 16] = d * (float)levels[b->qs[i] >> 4];
        }
    }
}

// Eight groups of 32, each stored as an IQ4_NL block without its scale; scales of 6 bits, minus 32.
void rl_dequant_iq4xs_ref(const void *blocks, float *out, size_t n) {
    const rl_block_iq4_xs *b = blocks;
    for (; n; n -= 256, out += 256, b++) {
        float d = rl_f16_to_f32(b->d);
        for (int j = 0; j < 8; j++) {
            int low = (b->scales_l[j / 2] >> (j % 2 * 4)) & 15, high = (b->scales_h >> (2 * j)) & 3;
            float dl = d * (float)((low | high << 4) - 32);
            for (int i = 0; i < 16; i++) {
                uint8_t q = b->qs[j * 16 + i];
                out[j * 32 + i] = dl * (float)levels[q & 15];
                out[j * 32 + i + 16] = dl * (float)levels[q >> 4];
            }
        }
    }
}

rl_dequant_fn rl_dequant_ref(rl_type type) {
    static const rl_dequant_fn table[RL_TYPE_LIMIT] = {
        [RL_F32] = rl_dequant_f32_ref,      [RL_F16] = rl_dequant_f16_ref,   [RL_BF16] = rl_dequant_bf16_ref,
        [RL_Q4_0] = rl_dequant_q4_0_ref,    [RL_Q4_1] = rl_dequant_q4_1_ref, [RL_Q5_0] = rl_dequant_q5_0_ref,
        [RL_Q5_1] = rl_dequant_q5_1_ref,    [RL_Q8_0] = rl_dequant_q8_0_ref, [RL_Q2_K] = rl_dequant_q2k_ref,
        [RL_Q3_K] = rl_dequant_q3k_ref,     [RL_Q4_K] = rl_dequant_q4k_ref,  [RL_Q5_K] = rl_dequant_q5k_ref,
        [RL_Q6_K] = rl_dequant_q6k_ref,     [RL_Q8_K] = rl_dequant_q8k_ref,  [RL_IQ4_NL] = rl_dequant_iq4nl_ref,
        [RL_IQ4_XS] = rl_dequant_iq4xs_ref,
    };
    return (unsigned)type < RL_TYPE_LIMIT ? table[type] : NULL;
}
