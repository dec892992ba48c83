// SPDX-License-Identifier: Apache-2.0
// IEEE half and bfloat16 to and from float by bit arithmetic: the definition of right for the SIMD
// conversions. NaN payloads are kept where they fit, rounding is to nearest even.
#ifndef RL_BASE_HALF_H
#define RL_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float rl_bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t rl_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float rl_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exp = (h >> 10) & 0x1Fu, man = h & 0x3FFu;
    if (exp == 31) return rl_bits_f32(sign | 0x7F800000u | (man << 13));
    if (exp) return rl_bits_f32(sign | ((exp + 112) << 23) | (man << 13));
    // Zero or subnormal: man * 2^-24 is exact in float.
    float f = (float)man * 0x1p-24f;
    return rl_bits_f32(sign | rl_f32_bits(f));
}

static inline uint16_t rl_f32_to_f16(float f) {
    uint32_t u = rl_f32_bits(f), sign = (u >> 16) & 0x8000u;
    u &= 0x7FFFFFFFu;
    if (u > 0x7F800000u) return (uint16_t)(sign | 0x7E00u | ((u >> 13) & 0x3FFu));
    if (u >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u); // rounds to 65536 or is infinite
    if (u < 0x38800000u) {                                   // subnormal half: let float addition round
        float r = rl_bits_f32(u) + 0.5f;
        return (uint16_t)(sign | (rl_f32_bits(r) - 0x3F000000u));
    }
    uint32_t odd = (u >> 13) & 1;
    u += 0xC8000FFFu + odd;
    return (uint16_t)(sign | (u >> 13));
}

static inline float rl_bf16_to_f32(uint16_t b) {
    return rl_bits_f32((uint32_t)b << 16);
}

static inline uint16_t rl_f32_to_bf16(float f) {
    uint32_t u = rl_f32_bits(f);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1)) >> 16);
}

#endif
