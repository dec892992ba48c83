// SPDX-License-Identifier: Apache-2.0
// Reads for measuring bandwidth: the variant in the place of the layout. All are tried, the fastest is the ceiling.
#define RL_READ_KERNELS(isa)                                                                                           \
    RL_KERNEL(rl_read_bytes_fn, RL_FAM_READ, rl_read_plain_##isa, RL_TYPE_NONE, 0, isa, 0, 0, "plain")                 \
    RL_KERNEL(rl_read_bytes_fn, RL_FAM_READ, rl_read_ahead1k_##isa, RL_TYPE_NONE, 0, isa, 0, 0, "ahead1k")             \
    RL_KERNEL(rl_read_bytes_fn, RL_FAM_READ, rl_read_ahead2k_##isa, RL_TYPE_NONE, 0, isa, 0, 0, "ahead2k")             \
    RL_KERNEL(rl_read_bytes_fn, RL_FAM_READ, rl_read_ahead4k_##isa, RL_TYPE_NONE, 0, isa, 0, 0, "ahead4k")             \
    RL_KERNEL(rl_read_bytes_fn, RL_FAM_READ, rl_read_four_##isa, RL_TYPE_NONE, 0, isa, 0, 0, "four")                   \
    RL_KERNEL(rl_read_bytes_fn, RL_FAM_READ, rl_read_eight_##isa, RL_TYPE_NONE, 0, isa, 0, 0, "eight")                 \
    RL_KERNEL(rl_read_bytes_fn, RL_FAM_READ, rl_read_touch_##isa, RL_TYPE_NONE, 0, isa, 0, 0, "touch")
RL_READ_KERNELS(ref)
#if defined(__x86_64__)
RL_READ_KERNELS(avx2)
RL_READ_KERNELS(avx512)
#elif defined(__aarch64__)
RL_READ_KERNELS(neon)
#endif
#undef RL_READ_KERNELS
