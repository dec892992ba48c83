// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.h"

#include <strings.h>

#include "base/blocks.h"

static const rl_dtype table[RL_TYPE_LIMIT] = {
    [RL_F32] = {"F32", 1, 4, 1},
    [RL_F16] = {"F16", 1, 2, 1},
    [RL_BF16] = {"BF16", 1, 2, 1},
    [RL_Q4_0] = {"Q4_0", 32, sizeof(rl_block_q4_0), 1},
    [RL_Q4_1] = {"Q4_1", 32, sizeof(rl_block_q4_1), 1},
    [RL_Q5_0] = {"Q5_0", 32, sizeof(rl_block_q5_0), 1},
    [RL_Q5_1] = {"Q5_1", 32, sizeof(rl_block_q5_1), 1},
    [RL_Q8_0] = {"Q8_0", 32, sizeof(rl_block_q8_0), 1},
    [RL_Q2_K] = {"Q2_K", 256, sizeof(rl_block_q2_k), 1},
    [RL_Q3_K] = {"Q3_K", 256, sizeof(rl_block_q3_k), 1},
    [RL_Q4_K] = {"Q4_K", 256, sizeof(rl_block_q4_k), 1},
    [RL_Q5_K] = {"Q5_K", 256, sizeof(rl_block_q5_k), 1},
    [RL_Q6_K] = {"Q6_K", 256, sizeof(rl_block_q6_k), 1},
    [RL_Q8_K] = {"Q8_K", 256, sizeof(rl_block_q8_k), 1},
    [RL_IQ4_NL] = {"IQ4_NL", 32, sizeof(rl_block_iq4_nl), 1},
    [RL_IQ4_XS] = {"IQ4_XS", 256, sizeof(rl_block_iq4_xs), 1},
    // Known by name and size, so that files can be inspected; nothing here computes with them.
    [RL_Q8_1] = {"Q8_1", 32, 36, 0},
    [16] = {"IQ2_XXS", 256, 66, 0},
    [17] = {"IQ2_XS", 256, 74, 0},
    [18] = {"IQ3_XXS", 256, 98, 0},
    [19] = {"IQ1_S", 256, 50, 0},
    [21] = {"IQ3_S", 256, 110, 0},
    [22] = {"IQ2_S", 256, 82, 0},
    [29] = {"IQ1_M", 256, 56, 0},
    [34] = {"TQ1_0", 256, 54, 0},
    [35] = {"TQ2_0", 256, 66, 0},
    [39] = {"MXFP4", 32, 17, 0},
    [40] = {"NVFP4", 64, 36, 0},
    [41] = {"Q1_0", 128, 18, 0},
    [RL_I8] = {"I8", 1, 1, 0},
    [RL_I16] = {"I16", 1, 2, 0},
    [RL_I32] = {"I32", 1, 4, 0},
    [RL_I64] = {"I64", 1, 8, 0},
    [RL_F64] = {"F64", 1, 8, 0},
};

const rl_dtype *rl_dtype_of(uint32_t id) {
    return id < RL_TYPE_LIMIT && table[id].name ? &table[id] : NULL;
}

rl_type rl_dtype_parse(const char *name) {
    for (uint32_t id = 0; id < RL_TYPE_LIMIT; id++)
        if (table[id].name && strcasecmp(table[id].name, name) == 0) return (rl_type)id;
    return RL_TYPE_NONE;
}
