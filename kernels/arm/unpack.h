// SPDX-License-Identifier: Apache-2.0
// Blocks to bytes in the order of their values, and their scales: what rows kernels and dequantizers share. Offsets of
// storage stay in the bytes: rows kernels subtract them from whole sums, where they cost the least.
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
    __fp16 h;
    memcpy(&h, p, 2);
    return h;
}
RL_INLINE int8x16_t iq4_lookup(bytes16 q) {
    static const int8_t table[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return vqtbl1q_s8(vld1q_s8(table), (uint8x16_t)q);
}
// 32 bytes as two loads. The compiler must not see that they are neighbours: it would join them to a pair (ldp), which
// takes a Cortex-A55 six cycles instead of two.
typedef struct {
    bytes16 a, b;
} bytes32;
RL_INLINE const uint8_t *apart(const uint8_t *p) {
    __asm__("" : "+r"(p));
    return p;
}
RL_INLINE bytes32 load2(const uint8_t *p, const size_t at) {
#if RL_DOTPROD && defined(__clang__) // one address for all `at`, where registers are not what it runs out of
    return (bytes32){load_b(p + at), load_b(apart(p) + at + 16)};
#else
    return (bytes32){load_b(p + at), load_b(apart(p + at + 16))};
#endif
}
// Bit (or bits) `mask` at position `from`, moved to position `to`.
RL_INLINE bytes16 bits_to(bytes16 v, const int from, const int to, const int mask) {
    v = from <= to ? v << (uint8_t)(from <= to ? to - from : 0) : v >> (uint8_t)(from > to ? from - to : 0);
    return v & (uint8_t)(mask << to);
}

// Nibbles below the bits of `top`, which lie from bit 4 on.
RL_INLINE int8x16_t low_below(bytes16 q, bytes16 top) {
    return (int8x16_t)vbslq_u8(vdupq_n_u8(15), (uint8x16_t)q, (uint8x16_t)top);
}
RL_INLINE int8x16_t high_below(bytes16 q, bytes16 top) {
    return (int8x16_t)vsriq_n_u8((uint8x16_t)top, (uint8x16_t)q, 4);
}

// Weights are unpacked as stored; what is then to be subtracted from each:
enum {
    OFFSET_q4_0 = 8,
    OFFSET_q4_1 = 0,
    OFFSET_q5_0 = 0,
    OFFSET_q5_1 = -16, // unpacked with its fifth bit as a sign
    OFFSET_q8_0 = 0,
    OFFSET_iq4nl = 0,
    OFFSET_q2k = 0,
    OFFSET_q3k = 4,
    OFFSET_q4k = 0,
    OFFSET_q5k = 0,
    OFFSET_q6k = 32,
    OFFSET_q8k = 0,
    OFFSET_iq4xs = 0
};

RL_INLINE void prefetch(const uint8_t *w, size_t bytes) {
    for (size_t o = 0; o + 64 <= bytes; o += 64) __builtin_prefetch(w + 1024 + o);
}

// The halves of four blocks, by way of general registers: lanes of a vector cost more.
RL_INLINE float32x4_t gather(const uint8_t *w, const size_t bytes) {
    uint64_t a = load16(w) | (uint32_t)load16(w + bytes) << 16;
    uint64_t b = load16(w + 2 * bytes) | (uint32_t)load16(w + 3 * bytes) << 16;
    return half4(vcreate_u16(a | b << 32));
}

// ---- blocks of 32 values: two vectors ----

RL_INLINE void nibbles(const uint8_t *qs, int8x16_t *out) {
    bytes16 q = load_b(qs);
    out[0] = (int8x16_t)(q & 15);
    out[1] = (int8x16_t)(q >> 4);
}
// Subtracts 16 from each value whose bit in the 4 bytes at qh is not set: four ones above a nibble.
RL_INLINE void fifth_bits(const uint8_t *qh, int8x16_t *v) {
    static const uint8_t low[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    const uint8x16_t at = vld1q_u8(low), bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ull));
    uint8x16_t h = vreinterpretq_u8_u32(vdupq_n_u32(~load32(qh)));
    v[0] = vsliq_n_s8(v[0], (int8x16_t)vtstq_u8(vqtbl1q_u8(h, at), bit), 4);
    v[1] = vsliq_n_s8(v[1], (int8x16_t)vtstq_u8(vqtbl1q_u8(h, vaddq_u8(at, vdupq_n_u8(2))), bit), 4);
}
RL_INLINE void block_q4_0(const uint8_t *w, int8x16_t *out) {
    nibbles(w + 2, out);
}
RL_INLINE void block_q4_1(const uint8_t *w, int8x16_t *out) {
    nibbles(w + 4, out);
}
RL_INLINE void block_q5_0(const uint8_t *w, int8x16_t *out) {
    nibbles(w + 6, out);
    fifth_bits(w + 2, out);
}
RL_INLINE void block_q5_1(const uint8_t *w, int8x16_t *out) {
    nibbles(w + 8, out);
    fifth_bits(w + 4, out);
}
RL_INLINE void block_q8_0(const uint8_t *w, int8x16_t *out) {
    bytes32 q = load2(w, 2);
    out[0] = (int8x16_t)q.a;
    out[1] = (int8x16_t)q.b;
}
RL_INLINE void block_iq4nl(const uint8_t *w, int8x16_t *out) {
    bytes16 q = load_b(w + 2);
    out[0] = iq4_lookup(q & 15);
    out[1] = iq4_lookup(q >> 4);
}

// ---- superblocks: half of one (128 values) as eight vectors ----

RL_INLINE void half_q2k(const uint8_t *w, const int half, int8x16_t *out) {
    bytes32 q = load2(w, 16 + 32 * half);
    for (int p = 0; p < 4; p++) {
        out[2 * p] = (int8x16_t)bits_to(q.a, 2 * p, 0, 3);
        out[2 * p + 1] = (int8x16_t)bits_to(q.b, 2 * p, 0, 3);
    }
}
RL_INLINE void half_q3k(const uint8_t *w, const int half, int8x16_t *out) {
    bytes32 q = load2(w, 32 + 32 * half), h = load2(w, 0);
    for (int p = 0; p < 4; p++) {
        out[2 * p] = (int8x16_t)(bits_to(q.a, 2 * p, 0, 3) | bits_to(h.a, 4 * half + p, 2, 1));
        out[2 * p + 1] = (int8x16_t)(bits_to(q.b, 2 * p, 0, 3) | bits_to(h.b, 4 * half + p, 2, 1));
    }
}
RL_INLINE void half_q4k(const uint8_t *w, const int half, int8x16_t *out) {
    for (int i = 0; i < 2; i++, out += 4) {
        bytes32 q = load2(w, 16 + 64 * half + 32 * i);
        out[0] = (int8x16_t)(q.a & 15);
        out[1] = (int8x16_t)(q.b & 15);
        out[2] = (int8x16_t)(q.a >> 4);
        out[3] = (int8x16_t)(q.b >> 4);
    }
}
RL_INLINE void half_q5k(const uint8_t *w, const int half, int8x16_t *out) {
    bytes32 h = load2(w, 16);
    for (int i = 0; i < 2; i++, out += 4) {
        bytes32 q = load2(w, 48 + 64 * half + 32 * i);
        int bit = 4 * half + 2 * i;
        out[0] = low_below(q.a, bits_to(h.a, bit, 4, 1));
        out[1] = low_below(q.b, bits_to(h.b, bit, 4, 1));
        out[2] = high_below(q.a, bits_to(h.a, bit + 1, 4, 1));
        out[3] = high_below(q.b, bits_to(h.b, bit + 1, 4, 1));
    }
}
RL_INLINE void half_q6k(const uint8_t *w, const int half, int8x16_t *out) {
    bytes32 lo = load2(w, 64 * half), hi = load2(w, 64 * half + 32), h = load2(w, 128 + 32 * half);
    bytes16 q[4] = {lo.a, lo.b, hi.a, hi.b}, top[2] = {h.a, h.b};
    for (int i = 0; i < 4; i++) {
        out[i] = low_below(q[i], bits_to(top[i % 2], i / 2 * 2, 4, 3));
        out[4 + i] = high_below(q[i], bits_to(top[i % 2], 4 + i / 2 * 2, 4, 3));
    }
}
RL_INLINE void half_q8k(const uint8_t *w, const int half, int8x16_t *out) {
    for (int i = 0; i < 8; i += 2) {
        bytes32 q = load2(w, 4 + 128 * half + 16 * i);
        out[i] = (int8x16_t)q.a;
        out[i + 1] = (int8x16_t)q.b;
    }
}
RL_INLINE void half_iq4xs(const uint8_t *w, const int half, int8x16_t *out) {
    for (int i = 0; i < 4; i++) {
        bytes16 q = load_b(w + 8 + 64 * half + 16 * i);
        out[2 * i] = iq4_lookup(q & 15);
        out[2 * i + 1] = iq4_lookup(q >> 4);
    }
}

enum { PER_32, PER_32_MIN, PER_16, PER_16_MIN }; // kinds of sub-scale

// What multiplies the sums of one superblock: integers per 32 values (n32) or per 16 (n16), times d; and what is
// subtracted: integers mn or mn16 times sums of activations, times dm. They are widened where they are used.
typedef struct {
    int16x8_t n32, mn;
    int16x8_t n16[2], mn16[2];
    float d, dm;
} scales;

RL_INLINE int16x4_t quarter(const int16x8_t *v, const int i) {
    return i % 2 ? vget_high_s16(v[i / 2]) : vget_low_s16(v[i / 2]);
}
RL_INLINE float32x4_t float_half(int16x8_t v, const int half) {
    return vcvtq_f32_s32(half ? vmovl_high_s16(v) : vmovl_s16(vget_low_s16(v)));
}
RL_INLINE void widen_s8(int8x16_t v, int16x8_t *out) {
    out[0] = vmovl_s8(vget_low_s8(v));
    out[1] = vmovl_high_s8(v);
}

RL_INLINE scales scales_q2k(const uint8_t *w) {
    bytes16 v = load_b(w);
    scales s = {.d = half1(w + 80), .dm = half1(w + 82)};
    widen_s8((int8x16_t)(v & 15), s.n16);
    widen_s8((int8x16_t)(v >> 4), s.mn16);
    return s;
}
RL_INLINE scales scales_q3k(const uint8_t *w) {
    uint32_t a = load32(w + 96), b = load32(w + 100), h = load32(w + 104);
    const uint32_t low = 0x0F0F0F0Fu, high = 0x30303030u;
    uint64_t x = (a & low) | (h << 4 & high) | (uint64_t)((b & low) | (h << 2 & high)) << 32;
    uint64_t y = (a >> 4 & low) | (h & high) | (uint64_t)((b >> 4 & low) | (h >> 2 & high)) << 32;
    scales s = {.d = half1(w + 108)};
    widen_s8(vsubq_s8(vcombine_s8(vcreate_s8(x), vcreate_s8(y)), vdupq_n_s8(32)), s.n16);
    return s;
}
RL_INLINE scales scales_q6k(const uint8_t *w) {
    scales s = {.d = half1(w + 208)};
    widen_s8(vld1q_s8((const int8_t *)w + 192), s.n16);
    return s;
}
// 8 scales and 8 minimums of 6 bits each in the 12 bytes a, b, c behind two halves: a and b hold the low 4 groups
// and the top bits of the others, c the low bits of those.
RL_INLINE scales scales_q4k(const uint8_t *w) {
    uint32_t a = load32(w + 4), b = load32(w + 8), c = load32(w + 12);
    const uint32_t six = 0x3F3F3F3Fu, low = 0x0F0F0F0Fu, high = 0x30303030u;
    uint64_t x = (a & six) | (uint64_t)((c & low) | (a >> 2 & high)) << 32;
    uint64_t y = (b & six) | (uint64_t)((c >> 4 & low) | (b >> 2 & high)) << 32;
    scales s = {.d = half1(w), .dm = half1(w + 2)};
    s.n32 = vmovl_s8(vcreate_s8(x));
    s.mn = vmovl_s8(vcreate_s8(y));
    return s;
}
RL_INLINE scales scales_q5k(const uint8_t *w) {
    return scales_q4k(w);
}
RL_INLINE scales scales_q8k(const uint8_t *w) {
    scales s = {.n32 = vdupq_n_s16(1)};
    memcpy(&s.d, w, 4);
    return s;
}
RL_INLINE scales scales_iq4xs(const uint8_t *w) {
    static const int16_t low_by[8] = {0, -4, -8, -12, 0, -4, -8, -12}, high_by[8] = {0, -2, -4, -6, -8, -10, -12, -14};
    uint16x8_t l = vcombine_u16(vdup_n_u16(load16(w + 4)), vdup_n_u16(load16(w + 6))), h = vdupq_n_u16(load16(w + 2));
    l = vandq_u16(vshlq_u16(l, vld1q_s16(low_by)), vdupq_n_u16(15));
    h = vandq_u16(vshlq_u16(h, vld1q_s16(high_by)), vdupq_n_u16(3));
    scales s = {.d = half1(w)};
    s.n32 = vsubq_s16(vreinterpretq_s16_u16(vorrq_u16(l, vshlq_n_u16(h, 4))), vdupq_n_s16(32));
    return s;
}

#endif
