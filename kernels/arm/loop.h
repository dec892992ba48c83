// SPDX-License-Identifier: Apache-2.0
// What hot loops are written with.
//
// RL_LOOP: a mark in the assembly at the top of a hot loop, by which bench/arm_mca.py finds it: tokens (or query rows)
// and bytes of weights (or of the cache) of one round. Both must be constants once inlined. Nothing at all in other
// builds.
#ifndef RL_KERNELS_ARM_LOOP_H
#define RL_KERNELS_ARM_LOOP_H

#include "kernels/unroll.h"

#ifdef RL_MARK_LOOPS
#define RL_LOOP(tokens, bytes) __asm__ volatile("// rl-loop %c0 %c1" : : "i"(tokens), "i"(bytes))
#else
#define RL_LOOP(tokens, bytes) ((void)0)
#endif

#endif
