// SPDX-License-Identifier: Apache-2.0
// Attention over one page; signatures and layouts: kernels/attn.h.
#include "kernels/attn.h"

#define RL_ATTN(fntype, name, type, act, isa, layout) RL_KERNEL(fntype, RL_FAM_ATTN, name, type, act, isa, 0, 0, layout)
#define RL_ATTN_TYPE_REF(type, t, tile_act)                                                                            \
    RL_ATTN(rl_attn_k_fn, rl_attn_k_##t##_tile_ref, type, tile_act, ref, "k.tile")                                     \
    RL_ATTN(rl_attn_v_fn, rl_attn_v_##t##_tile_ref, type, 0, ref, "v.tile")                                            \
    RL_ATTN(rl_attn_k_fn, rl_attn_k_##t##_row_ref, type, RL_ACT_F32, ref, "k.row")                                     \
    RL_ATTN(rl_attn_v_fn, rl_attn_v_##t##_row_ref, type, 0, ref, "v.row")                                              \
    RL_ATTN(rl_attn_load_fn, rl_attn_kload_##t##_tile_ref, type, 0, ref, "k.load.tile")                                \
    RL_ATTN(rl_attn_load_fn, rl_attn_vload_##t##_tile_ref, type, 0, ref, "v.load.tile")                                \
    RL_ATTN(rl_attn_load_fn, rl_attn_kload_##t##_row_ref, type, 0, ref, "k.load.row")                                  \
    RL_ATTN(rl_attn_load_fn, rl_attn_vload_##t##_row_ref, type, 0, ref, "v.load.row")
RL_ATTN_TYPE_REF(RL_F32, f32, RL_ACT_F32)
RL_ATTN_TYPE_REF(RL_F16, f16, RL_ACT_F32)
RL_ATTN_TYPE_REF(RL_Q8_0, q8_0, RL_ACT_Q16)
RL_ATTN(rl_attn_mul_k_fn, rl_attn_mulk_ref, RL_TYPE_NONE, 0, ref, "mul.k")
RL_ATTN(rl_attn_mul_v_fn, rl_attn_mulv_ref, RL_TYPE_NONE, 0, ref, "mul.v")
RL_ATTN(rl_attn_softmax_fn, rl_attn_softmax_ref, RL_TYPE_NONE, 0, ref, "softmax")
#define RL_ATTN_TYPE_TILE(type, t, tile_act, isa)                                                                      \
    RL_ATTN(rl_attn_k_fn, rl_attn_k_##t##_tile_##isa, type, tile_act, isa, "k.tile")                                   \
    RL_ATTN(rl_attn_v_fn, rl_attn_v_##t##_tile_##isa, type, 0, isa, "v.tile")                                          \
    RL_ATTN(rl_attn_load_fn, rl_attn_kload_##t##_tile_##isa, type, 0, isa, "k.load.tile")                              \
    RL_ATTN(rl_attn_load_fn, rl_attn_vload_##t##_tile_##isa, type, 0, isa, "v.load.tile")
#define RL_ATTN_ISA(isa)                                                                                               \
    RL_ATTN_TYPE_TILE(RL_F32, f32, RL_ACT_F32, isa)                                                                    \
    RL_ATTN_TYPE_TILE(RL_F16, f16, RL_ACT_F32, isa)                                                                    \
    RL_ATTN_TYPE_TILE(RL_Q8_0, q8_0, RL_ACT_Q16, isa)                                                                  \
    RL_ATTN(rl_attn_mul_k_fn, rl_attn_mulk_##isa, RL_TYPE_NONE, 0, isa, "mul.k")                                       \
    RL_ATTN(rl_attn_mul_v_fn, rl_attn_mulv_##isa, RL_TYPE_NONE, 0, isa, "mul.v")                                       \
    RL_ATTN(rl_attn_softmax_fn, rl_attn_softmax_##isa, RL_TYPE_NONE, 0, isa, "softmax")
#define RL_ATTN_TYPE_ROW(type, t, isa)                                                                                 \
    RL_ATTN(rl_attn_k_fn, rl_attn_k_##t##_row_##isa, type, RL_ACT_F32, isa, "k.row")                                   \
    RL_ATTN(rl_attn_v_fn, rl_attn_v_##t##_row_##isa, type, 0, isa, "v.row")                                            \
    RL_ATTN(rl_attn_load_fn, rl_attn_kload_##t##_row_##isa, type, 0, isa, "k.load.row")                                \
    RL_ATTN(rl_attn_load_fn, rl_attn_vload_##t##_row_##isa, type, 0, isa, "v.load.row")
#define RL_ATTN_ROWS(isa)                                                                                              \
    RL_ATTN_TYPE_ROW(RL_F32, f32, isa)                                                                                 \
    RL_ATTN_TYPE_ROW(RL_F16, f16, isa)                                                                                 \
    RL_ATTN_TYPE_ROW(RL_Q8_0, q8_0, isa)
RL_X86(RL_ATTN_ISA(avx2))
RL_X86(RL_ATTN_ROWS(avx2))
RL_X86(RL_ATTN(rl_attn_k_fn, rl_attn_k_q8_0_tile_avxvnni, RL_Q8_0, RL_ACT_Q16, avxvnni, "k.tile")
           RL_ATTN(rl_attn_v_fn, rl_attn_v_q8_0_tile_avxvnni, RL_Q8_0, 0, avxvnni, "v.tile"))
RL_X86(RL_ATTN_ISA(avx512))
RL_X86(RL_ATTN_ROWS(avx512))
RL_ARM(RL_ATTN_ISA(neon))
RL_ARM(RL_ATTN_ROWS(neon))
RL_ARM(RL_ATTN(rl_attn_k_fn, rl_attn_k_q8_0_tile_dotprod, RL_Q8_0, RL_ACT_Q16, dotprod, "k.tile")
           RL_ATTN(rl_attn_v_fn, rl_attn_v_q8_0_tile_dotprod, RL_Q8_0, 0, dotprod, "v.tile"))
#undef RL_ATTN_ROWS
#undef RL_ATTN_TYPE_ROW
#undef RL_ATTN_ISA
#undef RL_ATTN_TYPE_TILE
#undef RL_ATTN_TYPE_REF
#undef RL_ATTN
