// SPDX-License-Identifier: Apache-2.0
// Tiles: one unpack per weight type, one multiply per layout and activation format (kernels/tile.h).
#define RL_UNPACK(type, t, layout, isa)                                                                                \
    RL_KERNEL(rl_tile_unpack_fn, RL_FAM_TILE_UNPACK, rl_tile_unpack_##t##_##isa, type, 0, isa, 32, 256, layout)
// act with the bit of its panels, which have that many tokens.
#define RL_MUL(name, act, tokens, layout, isa)                                                                         \
    RL_KERNEL(rl_tile_mul_fn, RL_FAM_TILE_MUL, rl_tile_mul_##name##_##isa, RL_TYPE_NONE, act, isa, 32, tokens, layout)

// offset32: the layout of the two types whose small constant bias can also be a min.
#define RL_UNPACKS(isa, offset32)                                                                                      \
    RL_UNPACK(RL_Q4_0, q4_0, offset32, isa)                                                                            \
    RL_UNPACK(RL_Q4_1, q4_1, "u5.g32.min", isa)                                                                        \
    RL_UNPACK(RL_Q5_0, q5_0, offset32, isa)                                                                            \
    RL_UNPACK(RL_Q5_1, q5_1, "u5.g32.min", isa)                                                                        \
    RL_UNPACK(RL_Q8_0, q8_0, "u8b128.g32", isa)                                                                        \
    RL_UNPACK(RL_Q2_K, q2k, "u5.g16.min", isa)                                                                         \
    RL_UNPACK(RL_Q3_K, q3k, "u6b32.g16", isa)                                                                          \
    RL_UNPACK(RL_Q4_K, q4k, "u5.g32.min", isa)                                                                         \
    RL_UNPACK(RL_Q5_K, q5k, "u5.g32.min", isa)                                                                         \
    RL_UNPACK(RL_Q6_K, q6k, "u6b32.g16", isa)                                                                          \
    RL_UNPACK(RL_Q8_K, q8k, "u8b128.g32", isa)                                                                         \
    RL_UNPACK(RL_IQ4_NL, iq4nl, "u8b128.g32", isa)                                                                     \
    RL_UNPACK(RL_IQ4_XS, iq4xs, "u8b128.g32", isa)

#define RL_MULS_OF(isa, q8, q16, tokens)                                                                               \
    RL_MUL(u8b128_g32_q8, q8, tokens, "u8b128.g32", isa)                                                               \
    RL_MUL(u5_g32_min_q8, q8, tokens, "u5.g32.min", isa)                                                               \
    RL_MUL(u6b32_g16_q8, q8, tokens, "u6b32.g16", isa)                                                                 \
    RL_MUL(u5_g16_min_q8, q8, tokens, "u5.g16.min", isa)                                                               \
    RL_MUL(u8b128_g32_q16, q16, tokens, "u8b128.g32", isa)                                                             \
    RL_MUL(u5_g32_min_q16, q16, tokens, "u5.g32.min", isa)                                                             \
    RL_MUL(u6b32_g16_q16, q16, tokens, "u6b32.g16", isa)                                                               \
    RL_MUL(u5_g16_min_q16, q16, tokens, "u5.g16.min", isa)
#define RL_MULS(isa) RL_MULS_OF(isa, RL_ACT_Q8 | RL_ACT_Q8T, RL_ACT_Q16 | RL_ACT_Q16T, 6)
#define RL_FMUL(isa) RL_MUL(f32, RL_ACT_F32 | RL_ACT_F32T, 6, "f32", isa)

RL_UNPACKS(ref, "u8b128.g32")
RL_MULS(ref)
RL_FMUL(ref)
RL_X86(RL_UNPACKS(avx2, "u5.g32.min"))
RL_X86(RL_MULS(avx2))
RL_X86(RL_FMUL(avx2))
RL_X86(RL_UNPACK(RL_Q4_0, q4_0, "u8b128.g32", avxvnni))
RL_X86(RL_UNPACK(RL_Q5_0, q5_0, "u8b128.g32", avxvnni))
RL_X86(RL_MULS(avxvnni))
RL_X86(RL_UNPACKS(avx512, "u8b128.g32"))
RL_X86(RL_MULS(avx512))
RL_X86(RL_FMUL(avx512))
RL_X86(RL_MULS_OF(amx, RL_ACT_Q8 | RL_ACT_Q8A, RL_ACT_Q16 | RL_ACT_Q16A, 16))
RL_ARM(RL_UNPACKS(neon, "u8b128.g32"))
RL_ARM(RL_MULS(neon))
RL_ARM(RL_FMUL(neon))
RL_ARM(RL_MULS(dotprod))
RL_ARM(RL_MULS(i8mm))

#undef RL_UNPACK
#undef RL_MUL
#undef RL_UNPACKS
#undef RL_MULS
#undef RL_MULS_OF
#undef RL_FMUL
