// SPDX-License-Identifier: Apache-2.0
// Quantizing activations.
RL_KERNEL(rl_act_q8_fn, RL_FAM_ACT, rl_act_q8_ref, RL_TYPE_NONE, RL_ACT_Q8, ref, 0, 0, "")
RL_KERNEL(rl_act_q16_fn, RL_FAM_ACT, rl_act_q16_ref, RL_TYPE_NONE, RL_ACT_Q16, ref, 0, 0, "")
RL_X86(RL_KERNEL(rl_act_q8_fn, RL_FAM_ACT, rl_act_q8_avx2, RL_TYPE_NONE, RL_ACT_Q8, avx2, 0, 0, "")
           RL_KERNEL(rl_act_q16_fn, RL_FAM_ACT, rl_act_q16_avx2, RL_TYPE_NONE, RL_ACT_Q16, avx2, 0, 0, ""))
RL_ARM(RL_KERNEL(rl_act_q8_fn, RL_FAM_ACT, rl_act_q8_neon, RL_TYPE_NONE, RL_ACT_Q8, neon, 0, 0, "")
           RL_KERNEL(rl_act_q16_fn, RL_FAM_ACT, rl_act_q16_neon, RL_TYPE_NONE, RL_ACT_Q16, neon, 0, 0, ""))
