// SPDX-License-Identifier: Apache-2.0
// Weight rows times 1 to 8 activation vectors.
#define RL_ROWS_AS(name, type, act, isa, layout) RL_KERNEL(rl_rows_fn, RL_FAM_ROWS, name, type, act, isa, 0, 0, layout)
#define RL_ROWS(name, type, act, isa) RL_ROWS_AS(name, type, act, isa, "")

#define RL_ROWS_FLOAT_REF(type, t) RL_ROWS(rl_rows_##t##_f32_ref, type, RL_ACT_F32, ref)
#define RL_ROWS_QUANT_REF(type, t)                                                                                     \
    RL_ROWS(rl_rows_##t##_f32_ref, type, RL_ACT_F32, ref)                                                              \
    RL_ROWS(rl_rows_##t##_q8_ref, type, RL_ACT_Q8, ref)                                                                \
    RL_ROWS(rl_rows_##t##_q16_ref, type, RL_ACT_Q16, ref)
RL_ROWS_FLOAT_REF(RL_F32, f32)
RL_ROWS_FLOAT_REF(RL_F16, f16)
RL_ROWS_FLOAT_REF(RL_BF16, bf16)
RL_ROWS_QUANT_REF(RL_Q4_0, q4_0)
RL_ROWS_QUANT_REF(RL_Q4_1, q4_1)
RL_ROWS_QUANT_REF(RL_Q5_0, q5_0)
RL_ROWS_QUANT_REF(RL_Q5_1, q5_1)
RL_ROWS_QUANT_REF(RL_Q8_0, q8_0)
RL_ROWS_QUANT_REF(RL_Q2_K, q2k)
RL_ROWS_QUANT_REF(RL_Q3_K, q3k)
RL_ROWS_QUANT_REF(RL_Q4_K, q4k)
RL_ROWS_QUANT_REF(RL_Q5_K, q5k)
RL_ROWS_QUANT_REF(RL_Q6_K, q6k)
RL_ROWS_QUANT_REF(RL_Q8_K, q8k)
RL_ROWS_QUANT_REF(RL_IQ4_NL, iq4nl)
RL_ROWS_QUANT_REF(RL_IQ4_XS, iq4xs)

// Three orders of activations: nibble blocks (NIB), the order of values (NAT), pairs of groups (PAIR).
// clang-format off
#define RL_ROWS_NIB(type, t, isa)                                                                                      \
    RL_ROWS(rl_rows_##t##_q8_##isa, type, RL_ACT_Q8 | RL_ACT_Q8N, isa)                                                 \
    RL_ROWS(rl_rows_##t##_q16_##isa, type, RL_ACT_Q16 | RL_ACT_Q16N, isa)
#define RL_ROWS_NAT(type, t, isa)                                                                                      \
    RL_ROWS(rl_rows_##t##_q8_##isa, type, RL_ACT_Q8, isa)                                                              \
    RL_ROWS(rl_rows_##t##_q16_##isa, type, RL_ACT_Q16 | RL_ACT_Q16E, isa)
#define RL_ROWS_PAIR(type, t, isa)                                                                                     \
    RL_ROWS(rl_rows_##t##_q8_##isa, type, RL_ACT_Q8 | RL_ACT_Q8P, isa)                                                 \
    RL_ROWS(rl_rows_##t##_q16_##isa, type, RL_ACT_Q16 | RL_ACT_Q16P, isa)

#define RL_ROWS_F32(isa)                                                                                               \
    RL_ROWS(rl_rows_f32_f32_##isa, RL_F32, RL_ACT_F32, isa)                                                            \
    RL_ROWS(rl_rows_f16_f32_##isa, RL_F16, RL_ACT_F32, isa)                                                            \
    RL_ROWS(rl_rows_bf16_f32_##isa, RL_BF16, RL_ACT_F32, isa)                                                          \
    RL_ROWS(rl_rows_q4_0_f32_##isa, RL_Q4_0, RL_ACT_F32, isa)                                                          \
    RL_ROWS(rl_rows_q4_1_f32_##isa, RL_Q4_1, RL_ACT_F32, isa)                                                          \
    RL_ROWS(rl_rows_q5_0_f32_##isa, RL_Q5_0, RL_ACT_F32, isa)                                                          \
    RL_ROWS(rl_rows_q5_1_f32_##isa, RL_Q5_1, RL_ACT_F32, isa)                                                          \
    RL_ROWS(rl_rows_q8_0_f32_##isa, RL_Q8_0, RL_ACT_F32, isa)                                                          \
    RL_ROWS(rl_rows_iq4nl_f32_##isa, RL_IQ4_NL, RL_ACT_F32, isa)                                                       \
    RL_ROWS(rl_rows_q2k_f32_##isa, RL_Q2_K, RL_ACT_F32, isa)                                                           \
    RL_ROWS(rl_rows_q3k_f32_##isa, RL_Q3_K, RL_ACT_F32, isa)                                                           \
    RL_ROWS(rl_rows_q4k_f32_##isa, RL_Q4_K, RL_ACT_F32, isa)                                                           \
    RL_ROWS(rl_rows_q5k_f32_##isa, RL_Q5_K, RL_ACT_F32, isa)                                                           \
    RL_ROWS(rl_rows_q6k_f32_##isa, RL_Q6_K, RL_ACT_F32, isa)                                                           \
    RL_ROWS(rl_rows_q8k_f32_##isa, RL_Q8_K, RL_ACT_F32, isa)                                                           \
    RL_ROWS(rl_rows_iq4xs_f32_##isa, RL_IQ4_XS, RL_ACT_F32, isa)
#define RL_ROWS_COMMON(isa)                                                                                            \
    RL_ROWS_NIB(RL_Q4_0, q4_0, isa)                                                                                    \
    RL_ROWS_NIB(RL_Q4_1, q4_1, isa)                                                                                    \
    RL_ROWS_NIB(RL_Q5_0, q5_0, isa)                                                                                    \
    RL_ROWS_NIB(RL_Q5_1, q5_1, isa)                                                                                    \
    RL_ROWS_NIB(RL_IQ4_NL, iq4nl, isa)                                                                                 \
    RL_ROWS_NIB(RL_IQ4_XS, iq4xs, isa)                                                                                 \
    RL_ROWS_NAT(RL_Q8_0, q8_0, isa)                                                                                    \
    RL_ROWS_NAT(RL_Q2_K, q2k, isa)                                                                                     \
    RL_ROWS_NAT(RL_Q3_K, q3k, isa)                                                                                     \
    RL_ROWS_NAT(RL_Q6_K, q6k, isa)                                                                                     \
    RL_ROWS_NAT(RL_Q8_K, q8k, isa)
RL_X86(
    RL_ROWS_F32(avx2)
    RL_ROWS_COMMON(avx2)
    RL_ROWS_NAT(RL_Q4_K, q4k, avx2)
    RL_ROWS_NAT(RL_Q5_K, q5k, avx2)
    RL_ROWS_COMMON(avxvnni)
    RL_ROWS_NAT(RL_Q4_K, q4k, avxvnni)
    RL_ROWS_NAT(RL_Q5_K, q5k, avxvnni)
    RL_ROWS_COMMON(avx512)
    RL_ROWS_PAIR(RL_Q4_K, q4k, avx512)
    RL_ROWS_PAIR(RL_Q5_K, q5k, avx512)
)
// AArch64: activations in their natural order, or tokens in pairs for kernels that want two or more.
#define RL_ROWS_ARM(act, fmt, isa, layout)                                                                             \
    RL_ROWS_AS(rl_rows_q4_0_##act##_##isa, RL_Q4_0, fmt, isa, layout)                                                  \
    RL_ROWS_AS(rl_rows_q4_1_##act##_##isa, RL_Q4_1, fmt, isa, layout)                                                  \
    RL_ROWS_AS(rl_rows_q5_0_##act##_##isa, RL_Q5_0, fmt, isa, layout)                                                  \
    RL_ROWS_AS(rl_rows_q5_1_##act##_##isa, RL_Q5_1, fmt, isa, layout)                                                  \
    RL_ROWS_AS(rl_rows_q8_0_##act##_##isa, RL_Q8_0, fmt, isa, layout)                                                  \
    RL_ROWS_AS(rl_rows_iq4nl_##act##_##isa, RL_IQ4_NL, fmt, isa, layout)                                               \
    RL_ROWS_AS(rl_rows_q2k_##act##_##isa, RL_Q2_K, fmt, isa, layout)                                                   \
    RL_ROWS_AS(rl_rows_q3k_##act##_##isa, RL_Q3_K, fmt, isa, layout)                                                   \
    RL_ROWS_AS(rl_rows_q4k_##act##_##isa, RL_Q4_K, fmt, isa, layout)                                                   \
    RL_ROWS_AS(rl_rows_q5k_##act##_##isa, RL_Q5_K, fmt, isa, layout)                                                   \
    RL_ROWS_AS(rl_rows_q6k_##act##_##isa, RL_Q6_K, fmt, isa, layout)                                                   \
    RL_ROWS_AS(rl_rows_q8k_##act##_##isa, RL_Q8_K, fmt, isa, layout)                                                   \
    RL_ROWS_AS(rl_rows_iq4xs_##act##_##isa, RL_IQ4_XS, fmt, isa, layout)
RL_ARM(
    RL_ROWS_F32(neon)
    RL_ROWS_ARM(q8, RL_ACT_Q8, neon, "")
    RL_ROWS_ARM(q16, RL_ACT_Q16, neon, "")
    RL_ROWS_ARM(q8, RL_ACT_Q8, dotprod, "")
    RL_ROWS_ARM(q16, RL_ACT_Q16 | RL_ACT_Q16S, dotprod, "")
    RL_ROWS_ARM(q8, RL_ACT_Q8 | RL_ACT_Q8M, i8mm, "pairs")
    RL_ROWS_ARM(q16, RL_ACT_Q16 | RL_ACT_Q16M, i8mm, "pairs")
)
// clang-format on

#undef RL_ROWS
#undef RL_ROWS_AS
#undef RL_ROWS_FLOAT_REF
#undef RL_ROWS_QUANT_REF
#undef RL_ROWS_NIB
#undef RL_ROWS_NAT
#undef RL_ROWS_PAIR
#undef RL_ROWS_ARM
#undef RL_ROWS_F32
#undef RL_ROWS_COMMON
