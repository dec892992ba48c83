// SPDX-License-Identifier: Apache-2.0
// RL_UNROLL stands before a short loop (at most 16 rounds, a constant once inlined) over what should lie in registers.
// clang takes a count, or the words of gcc, as a wish for later, when arrays can no longer become registers.
#ifndef RL_KERNELS_UNROLL_H
#define RL_KERNELS_UNROLL_H

#ifdef __clang__
#define RL_UNROLL _Pragma("clang loop unroll(full)")
#else
#define RL_UNROLL _Pragma("GCC unroll 16")
#endif

#endif
