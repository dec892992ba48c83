// SPDX-License-Identifier: Apache-2.0
// Blocks to float32. Every tier gives the same bits as the reference.
#define RL_DEQUANT(name, type, isa) RL_KERNEL(rl_dequant_fn, RL_FAM_DEQUANT, name, type, 0, isa, 0, 0, "")

RL_DEQUANT(rl_dequant_f32_ref, RL_F32, ref)
RL_DEQUANT(rl_dequant_f16_ref, RL_F16, ref)
RL_DEQUANT(rl_dequant_bf16_ref, RL_BF16, ref)
RL_DEQUANT(rl_dequant_q4_0_ref, RL_Q4_0, ref)
RL_DEQUANT(rl_dequant_q4_1_ref, RL_Q4_1, ref)
RL_DEQUANT(rl_dequant_q5_0_ref, RL_Q5_0, ref)
RL_DEQUANT(rl_dequant_q5_1_ref, RL_Q5_1, ref)
RL_DEQUANT(rl_dequant_q8_0_ref, RL_Q8_0, ref)
RL_DEQUANT(rl_dequant_q2k_ref, RL_Q2_K, ref)
RL_DEQUANT(rl_dequant_q3k_ref, RL_Q3_K, ref)
RL_DEQUANT(rl_dequant_q4k_ref, RL_Q4_K, ref)
RL_DEQUANT(rl_dequant_q5k_ref, RL_Q5_K, ref)
RL_DEQUANT(rl_dequant_q6k_ref, RL_Q6_K, ref)
RL_DEQUANT(rl_dequant_q8k_ref, RL_Q8_K, ref)
RL_DEQUANT(rl_dequant_iq4nl_ref, RL_IQ4_NL, ref)
RL_DEQUANT(rl_dequant_iq4xs_ref, RL_IQ4_XS, ref)

// clang-format off
#define RL_DEQUANTS(isa)                                                                                               \
    RL_DEQUANT(rl_dequant_f32_##isa, RL_F32, isa)                                                                      \
    RL_DEQUANT(rl_dequant_f16_##isa, RL_F16, isa)                                                                      \
    RL_DEQUANT(rl_dequant_bf16_##isa, RL_BF16, isa)                                                                    \
    RL_DEQUANT(rl_dequant_q4_0_##isa, RL_Q4_0, isa)                                                                    \
    RL_DEQUANT(rl_dequant_q4_1_##isa, RL_Q4_1, isa)                                                                    \
    RL_DEQUANT(rl_dequant_q5_0_##isa, RL_Q5_0, isa)                                                                    \
    RL_DEQUANT(rl_dequant_q5_1_##isa, RL_Q5_1, isa)                                                                    \
    RL_DEQUANT(rl_dequant_q8_0_##isa, RL_Q8_0, isa)                                                                    \
    RL_DEQUANT(rl_dequant_q2k_##isa, RL_Q2_K, isa)                                                                     \
    RL_DEQUANT(rl_dequant_q3k_##isa, RL_Q3_K, isa)                                                                     \
    RL_DEQUANT(rl_dequant_q4k_##isa, RL_Q4_K, isa)                                                                     \
    RL_DEQUANT(rl_dequant_q5k_##isa, RL_Q5_K, isa)                                                                     \
    RL_DEQUANT(rl_dequant_q6k_##isa, RL_Q6_K, isa)                                                                     \
    RL_DEQUANT(rl_dequant_q8k_##isa, RL_Q8_K, isa)                                                                     \
    RL_DEQUANT(rl_dequant_iq4nl_##isa, RL_IQ4_NL, isa)                                                                 \
    RL_DEQUANT(rl_dequant_iq4xs_##isa, RL_IQ4_XS, isa)
// clang-format on
RL_X86(RL_DEQUANTS(avx2))
RL_ARM(RL_DEQUANTS(neon))

#undef RL_DEQUANTS
#undef RL_DEQUANT
