// SPDX-License-Identifier: Apache-2.0
// Block layouts of the GGUF tensor types, little-endian, as they lie in files. Halves are kept as uint16_t
// bit patterns. The asserts are the format: a wrong size here would misread every file.
#ifndef RL_BASE_BLOCKS_H
#define RL_BASE_BLOCKS_H

#include <stdint.h>

typedef struct {
    uint16_t d;
    uint8_t qs[16];
} rl_block_q4_0; // w = d * (q - 8)
typedef struct {
    uint16_t d, m;
    uint8_t qs[16];
} rl_block_q4_1; // w = d * q + m
typedef struct {
    uint16_t d;
    uint8_t qh[4];
    uint8_t qs[16];
} rl_block_q5_0; // w = d * (q - 16)
typedef struct {
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t qs[16];
} rl_block_q5_1; // w = d * q + m
typedef struct {
    uint16_t d;
    int8_t qs[32];
} rl_block_q8_0; // w = d * q
typedef struct {
    uint8_t scales[16];
    uint8_t qs[64];
    uint16_t d, dmin;
} rl_block_q2_k;
typedef struct {
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];
    uint16_t d;
} rl_block_q3_k;
typedef struct {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qs[128];
} rl_block_q4_k;
typedef struct {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
} rl_block_q5_k;
typedef struct {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint16_t d;
} rl_block_q6_k;
typedef struct {
    float d;
    int8_t qs[256];
    int16_t bsums[16];
} rl_block_q8_k;
typedef struct {
    uint16_t d;
    uint8_t qs[16];
} rl_block_iq4_nl; // w = d * table[q]
typedef struct {
    uint16_t d;
    uint16_t scales_h;
    uint8_t scales_l[4];
    uint8_t qs[128];
} rl_block_iq4_xs;

_Static_assert(sizeof(rl_block_q4_0) == 18, "Q4_0");
_Static_assert(sizeof(rl_block_q4_1) == 20, "Q4_1");
_Static_assert(sizeof(rl_block_q5_0) == 22, "Q5_0");
_Static_assert(sizeof(rl_block_q5_1) == 24, "Q5_1");
_Static_assert(sizeof(rl_block_q8_0) == 34, "Q8_0");
_Static_assert(sizeof(rl_block_q2_k) == 84, "Q2_K");
_Static_assert(sizeof(rl_block_q3_k) == 110, "Q3_K");
_Static_assert(sizeof(rl_block_q4_k) == 144, "Q4_K");
_Static_assert(sizeof(rl_block_q5_k) == 176, "Q5_K");
_Static_assert(sizeof(rl_block_q6_k) == 210, "Q6_K");
_Static_assert(sizeof(rl_block_q8_k) == 292, "Q8_K");
_Static_assert(sizeof(rl_block_iq4_nl) == 18, "IQ4_NL");
_Static_assert(sizeof(rl_block_iq4_xs) == 136, "IQ4_XS");

#endif
