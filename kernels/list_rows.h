// SPDX-License-Identifier: Apache-2.0
// Weight rows times 1 to 8 activation vectors.
#define RL_ROWS(name, type, act, isa) RL_KERNEL(rl_rows_fn, RL_FAM_ROWS, name, type, act, isa, 0, 0, "")

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

#undef RL_ROWS
#undef RL_ROWS_FLOAT_REF
#undef RL_ROWS_QUANT_REF
