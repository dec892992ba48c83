// SPDX-License-Identifier: Apache-2.0
// Blocks to signed bytes in the order of their values, and their scales: what rows kernels and dequantizers share.
// ARM multiplies signed bytes as fast as any, so offsets of storage are subtracted here and nothing is left to take
// back later.
#ifndef RL_KERNELS_ARM_UNPACK_H
#define RL_KERNELS_ARM_UNPACK_H

#ifndef __ARM_NEON
#error "needs NEON"
#endif
#ifdef __FAST_MATH__
#error "fast-math breaks NaN and the documented order of sums"
#endif

#include <arm_neon.h>
#include <string.h>

#include "base/blocks.h"
#include "kernels/api.h"

#define RL_INLINE static inline __attribute__((always_inline))

typedef uint8_t bytes16 __attribute__((vector_size(16)));

RL_INLINE bytes16 load_b(const void *p) {
    return (bytes16)vld1q_u8(p);
}
RL_INLINE uint16_t load16(const void *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}
RL_INLINE uint32_t load32(const void *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
// Halves are storage only: they become float32 before anything is done with them.
RL_INLINE float32x4_t half4(uint16x4_t h) {
    return vcvt_f32_f16(vreinterpret_f16_u16(h));
}
RL_INLINE float half1(const void *p) {
    return vgetq_lane_f32(half4(vdup_n_u16(load16(p))), 0);
}
RL_INLINE int8x16_t iq4_lookup(bytes16 q) {
    static const int8_t table[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return vqtbl1q_s8(vld1q_s8(table), (uint8x16_t)q);
}
// Bit (or bits) `mask` at position `from`, moved to position `to`.
RL_INLINE bytes16 bits_to(bytes16 v, const int from, const int to, const int mask) {
    v = from <= to ? v << (uint8_t)(from <= to ? to - from : 0) : v >> (uint8_t)(from > to ? from - to : 0);
    return v & (uint8_t)(mask << to);
}
RL_INLINE int8x16_t less(bytes16 v, const int offset) {
    return (int8x16_t)(v - (uint8_t)offset);
}

// ---- blocks of 32 values: two vectors ----

RL_INLINE void nibbles(const uint8_t *qs, bytes16 *v) {
    bytes16 q = load_b(qs);
    v[0] = q & 15;
    v[1] = q >> 4;
}
// Adds 16 to each value whose bit in the 4 bytes at qh is set.
RL_INLINE void fifth_bits(const uint8_t *qh, bytes16 *v) {
    static const uint8_t low[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    const uint8x16_t at = vld1q_u8(low), bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ull));
    uint8x16_t h = vreinterpretq_u8_u32(vdupq_n_u32(load32(qh)));
    v[0] |= (bytes16)vtstq_u8(vqtbl1q_u8(h, at), bit) & 16;
    v[1] |= (bytes16)vtstq_u8(vqtbl1q_u8(h, vaddq_u8(at, vdupq_n_u8(2))), bit) & 16;
}
RL_INLINE void block_q4_0(const uint8_t *w, int8x16_t *out) {
    bytes16 v[2];
    nibbles(w + 2, v);
    out[0] = less(v[0], 8);
    out[1] = less(v[1], 8);
}
RL_INLINE void block_q4_1(const uint8_t *w, int8x16_t *out) {
    bytes16 v[2];
    nibbles(w + 4, v);
    out[0] = less(v[0], 0);
    out[1] = less(v[1], 0);
}
RL_INLINE void block_q5_0(const uint8_t *w, int8x16_t *out) {
    bytes16 v[2];
    nibbles(w + 6, v);
    fifth_bits(w + 2, v);
    out[0] = less(v[0], 16);
    out[1] = less(v[1], 16);
}
RL_INLINE void block_q5_1(const uint8_t *w, int8x16_t *out) {
    bytes16 v[2];
    nibbles(w + 8, v);
    fifth_bits(w + 4, v);
    out[0] = less(v[0], 0);
    out[1] = less(v[1], 0);
}
RL_INLINE void block_q8_0(const uint8_t *w, int8x16_t *out) {
    out[0] = less(load_b(w + 2), 0);
    out[1] = less(load_b(w + 18), 0);
}
RL_INLINE void block_iq4nl(const uint8_t *w, int8x16_t *out) {
    bytes16 v[2];
    nibbles(w + 2, v);
    out[0] = iq4_lookup(v[0]);
    out[1] = iq4_lookup(v[1]);
}

// ---- superblocks: half of one (128 values) as eight vectors ----

RL_INLINE void half_q2k(const uint8_t *w, const int half, int8x16_t *out) {
    for (int i = 0; i < 2; i++) {
        bytes16 q = load_b(w + 16 + 32 * half + 16 * i);
        for (int p = 0; p < 4; p++) out[2 * p + i] = less(bits_to(q, 2 * p, 0, 3), 0);
    }
}
RL_INLINE void half_q3k(const uint8_t *w, const int half, int8x16_t *out) {
    for (int i = 0; i < 2; i++) {
        bytes16 q = load_b(w + 32 + 32 * half + 16 * i), h = load_b(w + 16 * i);
        for (int p = 0; p < 4; p++) out[2 * p + i] = less(bits_to(q, 2 * p, 0, 3) | bits_to(h, 4 * half + p, 2, 1), 4);
    }
}
RL_INLINE void half_q4k(const uint8_t *w, const int half, int8x16_t *out) {
    for (int i = 0; i < 4; i++) {
        bytes16 q = load_b(w + 16 + 64 * half + 16 * i);
        int at = i / 2 * 4 + i % 2;
        out[at] = less(q & 15, 0);
        out[at + 2] = less(q >> 4, 0);
    }
}
RL_INLINE void half_q5k(const uint8_t *w, const int half, int8x16_t *out) {
    for (int i = 0; i < 4; i++) {
        bytes16 q = load_b(w + 48 + 64 * half + 16 * i), h = load_b(w + 16 + i % 2 * 16);
        int at = i / 2 * 4 + i % 2, bit = 4 * half + i / 2 * 2;
        out[at] = less((q & 15) | bits_to(h, bit, 4, 1), 0);
        out[at + 2] = less(q >> 4 | bits_to(h, bit + 1, 4, 1), 0);
    }
}
RL_INLINE void half_q6k(const uint8_t *w, const int half, int8x16_t *out) {
    for (int i = 0; i < 2; i++) {
        bytes16 a = load_b(w + 64 * half + 16 * i), b = load_b(w + 64 * half + 32 + 16 * i);
        bytes16 h = load_b(w + 128 + 32 * half + 16 * i);
        out[i] = less((a & 15) | bits_to(h, 0, 4, 3), 32);
        out[2 + i] = less((b & 15) | bits_to(h, 2, 4, 3), 32);
        out[4 + i] = less(a >> 4 | bits_to(h, 4, 4, 3), 32);
        out[6 + i] = less(b >> 4 | bits_to(h, 6, 4, 3), 32);
    }
}
RL_INLINE void half_q8k(const uint8_t *w, const int half, int8x16_t *out) {
    for (int i = 0; i < 8; i++) out[i] = less(load_b(w + 4 + 128 * half + 16 * i), 0);
}
RL_INLINE void half_iq4xs(const uint8_t *w, const int half, int8x16_t *out) {
    for (int i = 0; i < 4; i++) {
        bytes16 q = load_b(w + 8 + 64 * half + 16 * i);
        out[2 * i] = iq4_lookup(q & 15);
        out[2 * i + 1] = iq4_lookup(q >> 4);
    }
}

// Scales of one superblock: s[0..1] (per 32 values) or s[0..3] (per 16). Minimums are subtracted: m per 32 values
// times sums of 32 activations; or mn, integers per 16 values, times dm and sums of 16.
typedef struct {
    float32x4_t s[4], m[2];
    int16x8_t mn[2];
    float dm;
} scales;

RL_INLINE float32x4_t float_low(uint16x8_t v) {
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(v)));
}
RL_INLINE float32x4_t float_high(uint16x8_t v) {
    return vcvtq_f32_u32(vmovl_high_u16(v));
}
// 16 signed bytes times d.
RL_INLINE scales scales_16(int8x16_t sc, float d) {
    scales s = {0};
    int16x8_t a = vmovl_s8(vget_low_s8(sc)), b = vmovl_high_s8(sc);
    s.s[0] = vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(a))), d);
    s.s[1] = vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(a)), d);
    s.s[2] = vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(b))), d);
    s.s[3] = vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(b)), d);
    return s;
}
RL_INLINE scales scales_q2k(const uint8_t *w) {
    bytes16 v = load_b(w);
    scales s = scales_16((int8x16_t)(v & 15), half1(w + 80));
    uint8x16_t mn = (uint8x16_t)(v >> 4);
    s.mn[0] = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(mn)));
    s.mn[1] = vreinterpretq_s16_u16(vmovl_high_u8(mn));
    s.dm = half1(w + 82);
    return s;
}
RL_INLINE scales scales_q3k(const uint8_t *w) {
    uint32_t a = load32(w + 96), b = load32(w + 100), h = load32(w + 104);
    const uint32_t low = 0x0F0F0F0Fu, high = 0x30303030u;
    uint64_t x = (a & low) | (h << 4 & high) | (uint64_t)((b & low) | (h << 2 & high)) << 32;
    uint64_t y = (a >> 4 & low) | (h & high) | (uint64_t)((b >> 4 & low) | (h >> 2 & high)) << 32;
    return scales_16(vsubq_s8(vcombine_s8(vcreate_s8(x), vcreate_s8(y)), vdupq_n_s8(32)), half1(w + 108));
}
RL_INLINE scales scales_q6k(const uint8_t *w) {
    return scales_16(vld1q_s8((const int8_t *)w + 192), half1(w + 208));
}
// 8 scales and 8 minimums of 6 bits each in the 12 bytes a, b, c behind two halves: a and b hold the low 4 groups
// and the top bits of the others, c the low bits of those.
RL_INLINE scales scales_q4k(const uint8_t *w) {
    uint32_t a = load32(w + 4), b = load32(w + 8), c = load32(w + 12);
    const uint32_t six = 0x3F3F3F3Fu, low = 0x0F0F0F0Fu, high = 0x30303030u;
    uint64_t x = (a & six) | (uint64_t)((c & low) | (a >> 2 & high)) << 32;
    uint64_t y = (b & six) | (uint64_t)((c >> 4 & low) | (b >> 2 & high)) << 32;
    uint16x8_t sc = vmovl_u8(vcreate_u8(x)), mn = vmovl_u8(vcreate_u8(y));
    float32x4_t d = half4(vreinterpret_u16_u32(vdup_n_u32(load32(w))));
    scales s = {0};
    s.s[0] = vmulq_laneq_f32(float_low(sc), d, 0);
    s.s[1] = vmulq_laneq_f32(float_high(sc), d, 0);
    s.m[0] = vmulq_laneq_f32(float_low(mn), d, 1);
    s.m[1] = vmulq_laneq_f32(float_high(mn), d, 1);
    return s;
}
RL_INLINE scales scales_q5k(const uint8_t *w) {
    return scales_q4k(w);
}
RL_INLINE scales scales_q8k(const uint8_t *w) {
    scales s = {0};
    float d;
    memcpy(&d, w, 4);
    s.s[0] = s.s[1] = vdupq_n_f32(d);
    return s;
}
RL_INLINE scales scales_iq4xs(const uint8_t *w) {
    static const int32_t by4[8] = {0, -4, -8, -12, -16, -20, -24, -28};
    const int32x4_t low0 = vld1q_s32(by4), low1 = vld1q_s32(by4 + 4);
    uint32x4_t l = vdupq_n_u32(load32(w + 4)), h = vdupq_n_u32(load16(w + 2));
    float d = half1(w);
    scales s = {0};
    for (int i = 0; i < 2; i++) {
        int32x4_t by = i ? low1 : low0;
        uint32x4_t a = vandq_u32(vshlq_u32(l, by), vdupq_n_u32(15));
        uint32x4_t b = vandq_u32(vshlq_u32(h, vshrq_n_s32(by, 1)), vdupq_n_u32(3));
        int32x4_t sc = vsubq_s32(vreinterpretq_s32_u32(vorrq_u32(a, vshlq_n_u32(b, 4))), vdupq_n_s32(32));
        s.s[i] = vmulq_n_f32(vcvtq_f32_s32(sc), d);
    }
    return s;
}

#endif
