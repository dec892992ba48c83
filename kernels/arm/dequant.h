// SPDX-License-Identifier: Apache-2.0
// Blocks to float32 in NEON, to the bit as the references: (d * scale) * q, then minus (dmin * min), each rounded.
#ifndef RL_KERNELS_ARM_DEQUANT_H
#define RL_KERNELS_ARM_DEQUANT_H

#include "kernels/arm/unpack.h"

// 16 bytes, less an offset, as floats times d, plus m where `add`.
RL_INLINE void put16(int8x16_t q, const int offset, float d, const int add, float m, float *out) {
    q = vsubq_s8(q, vdupq_n_s8((int8_t)offset));
    int16x8_t a = vmovl_s8(vget_low_s8(q)), b = vmovl_high_s8(q);
    float32x4_t v[4] = {vcvtq_f32_s32(vmovl_s16(vget_low_s16(a))), vcvtq_f32_s32(vmovl_high_s16(a)),
                        vcvtq_f32_s32(vmovl_s16(vget_low_s16(b))), vcvtq_f32_s32(vmovl_high_s16(b))};
    for (int i = 0; i < 4; i++) {
        v[i] = vmulq_n_f32(v[i], d);
        vst1q_f32(out + 4 * i, add ? vaddq_f32(v[i], vdupq_n_f32(m)) : v[i]);
    }
}

#define DEQUANT_BLOCKS(T, BYTES, ADD)                                                                                  \
    RL_INLINE void deq_##T(const uint8_t *w, float *out, size_t n) {                                                   \
        for (; n; n -= 32, w += BYTES, out += 32) {                                                                    \
            int8x16_t v[2];                                                                                            \
            block_##T(w, v);                                                                                           \
            float d = half1(w), m = ADD ? half1(w + 2) : 0;                                                            \
            put16(v[0], OFFSET_##T, d, ADD, m, out);                                                                   \
            put16(v[1], OFFSET_##T, d, ADD, m, out + 16);                                                              \
        }                                                                                                              \
    }
DEQUANT_BLOCKS(q4_0, 18, 0)
DEQUANT_BLOCKS(q4_1, 20, 1)
DEQUANT_BLOCKS(q5_0, 22, 0)
DEQUANT_BLOCKS(q5_1, 24, 1)
DEQUANT_BLOCKS(q8_0, 34, 0)
DEQUANT_BLOCKS(iq4nl, 18, 0)

RL_INLINE void deq_super(const uint8_t *w, const size_t bytes, scales (*scales_of)(const uint8_t *),
                         void (*half_of)(const uint8_t *, const int, int8x16_t *), const int offset, const int per_16,
                         const int add, float *out, size_t n) {
    for (; n; n -= 256, w += bytes) {
        scales sc = scales_of(w);
        float d[16], m[16] = {0};
        for (int i = 0; i < (per_16 ? 4 : 2); i++) {
            float32x4_t n = per_16 ? vcvtq_f32_s32(vmovl_s16(quarter(sc.n16, i))) : float_half(sc.n32, i);
            vst1q_f32(d + 4 * i, vmulq_n_f32(n, sc.d));
            float32x4_t mn = per_16 ? vcvtq_f32_s32(vmovl_s16(quarter(sc.mn16, i))) : float_half(sc.mn, i);
            if (add) vst1q_f32(m + 4 * i, vnegq_f32(vmulq_n_f32(mn, sc.dm))); // keeps the sign of zero
        }
        for (int half = 0; half < 2; half++) {
            int8x16_t v[8];
            if (half)
                half_of(w, 1, v);
            else
                half_of(w, 0, v);
            for (int j = 0; j < 8; j++, out += 16) {
                int g = per_16 ? 8 * half + j : 4 * half + j / 2;
                put16(v[j], offset, d[g], add, m[g], out);
            }
        }
    }
}
#define DEQUANT_SUPER(T, BLOCK, PER_16, ADD)                                                                           \
    RL_INLINE void deq_##T(const uint8_t *w, float *out, size_t n) {                                                   \
        deq_super(w, sizeof(BLOCK), scales_##T, half_##T, OFFSET_##T, PER_16, ADD, out, n);                            \
    }
DEQUANT_SUPER(q2k, rl_block_q2_k, 1, 1)
DEQUANT_SUPER(q3k, rl_block_q3_k, 1, 0)
DEQUANT_SUPER(q4k, rl_block_q4_k, 0, 1)
DEQUANT_SUPER(q5k, rl_block_q5_k, 0, 1)
DEQUANT_SUPER(q6k, rl_block_q6_k, 1, 0)
DEQUANT_SUPER(q8k, rl_block_q8_k, 0, 0)
DEQUANT_SUPER(iq4xs, rl_block_iq4_xs, 0, 0)

// Float weights: any n.
RL_INLINE void deq_f32(const uint8_t *w, float *out, size_t n) {
    memcpy(out, w, 4 * n);
}
RL_INLINE void deq_f16(const uint8_t *w, float *out, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(w + 2 * i));
        vst1q_f32(out + i, half4(vget_low_u16(h)));
        vst1q_f32(out + i + 4, half4(vget_high_u16(h)));
    }
    for (; i < n; i++) out[i] = half1(w + 2 * i);
}
RL_INLINE void deq_bf16(const uint8_t *w, float *out, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(w + 2 * i));
        vst1q_f32(out + i, vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)));
        vst1q_f32(out + i + 4, vreinterpretq_f32_u32(vshll_high_n_u16(h, 16)));
    }
    for (; i < n; i++) {
        uint32_t v = (uint32_t)load16(w + 2 * i) << 16;
        memcpy(out + i, &v, 4);
    }
}

#define RL_FOR_EACH_TYPE(M)                                                                                            \
    M(f32)                                                                                                             \
    M(f16) M(bf16) M(q4_0) M(q4_1) M(q5_0) M(q5_1) M(q8_0) M(iq4nl) M(q2k) M(q3k) M(q4k) M(q5k) M(q6k) M(q8k) M(iq4xs)

#endif
