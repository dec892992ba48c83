// SPDX-License-Identifier: Apache-2.0
// Copies for measuring bandwidth: how they write in the place of the layout. plain: through the caches, which read the
// target before they write it. stream: around them (in plain C a request that the compiler may decline).
#define RL_COPY_KERNELS(isa)                                                                                           \
    RL_KERNEL(rl_copy_bytes_fn, RL_FAM_COPY, rl_copy_plain_##isa, RL_TYPE_NONE, 0, isa, 0, 0, "plain")                 \
    RL_KERNEL(rl_copy_bytes_fn, RL_FAM_COPY, rl_copy_stream_##isa, RL_TYPE_NONE, 0, isa, 0, 0, "stream")
RL_COPY_KERNELS(ref)
#if defined(__x86_64__)
RL_COPY_KERNELS(avx2)
RL_COPY_KERNELS(avx512)
#elif defined(__aarch64__)
RL_COPY_KERNELS(neon)
#endif
#undef RL_COPY_KERNELS
