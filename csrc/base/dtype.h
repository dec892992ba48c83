// SPDX-License-Identifier: Apache-2.0
// The tensor types of GGUF as facts: ids, names, block sizes. Computes nothing (that is kernels/).
#ifndef RL_BASE_DTYPE_H
#define RL_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>

// Values are the type ids in GGUF files.
typedef enum rl_type {
    RL_F32 = 0,
    RL_F16 = 1,
    RL_Q4_0 = 2,
    RL_Q4_1 = 3,
    RL_Q5_0 = 6,
    RL_Q5_1 = 7,
    RL_Q8_0 = 8,
    RL_Q8_1 = 9,
    RL_Q2_K = 10,
    RL_Q3_K = 11,
    RL_Q4_K = 12,
    RL_Q5_K = 13,
    RL_Q6_K = 14,
    RL_Q8_K = 15,
    RL_IQ4_NL = 20,
    RL_IQ4_XS = 23,
    RL_I8 = 24,
    RL_I16 = 25,
    RL_I32 = 26,
    RL_I64 = 27,
    RL_F64 = 28,
    RL_BF16 = 30,
    RL_TYPE_LIMIT = 64, // ids at or above this are not types
    RL_TYPE_NONE = 255
} rl_type;

typedef struct rl_dtype {
    const char *name; // "Q4_K", as the field writes it; NULL for an id this library does not know
    size_t block;     // elements per block
    size_t bytes;     // bytes per block
    int computes;     // 1: can be a weight of a matmul and be dequantized
} rl_dtype;

/// The traits of a type id, or NULL when unknown.
const rl_dtype *rl_dtype_of(uint32_t id);

/// The id for a name such as "Q4_K" (case does not matter), or RL_TYPE_NONE.
rl_type rl_dtype_parse(const char *name);

#endif
