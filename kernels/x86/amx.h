// SPDX-License-Identifier: Apache-2.0
// AMX as assembly: gcc's own _tile_loadconfig, _tile_loadd and _tile_stored do not say that they touch memory, so that
// stores to what they read may come after them or never. Registers are named by number and known to no compiler.
#ifndef RL_KERNELS_X86_AMX_H
#define RL_KERNELS_X86_AMX_H

#include <stddef.h>
#include <stdint.h>

// Palette 1: up to 16 rows of up to 64 bytes in each of 8 registers.
typedef struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_config;

static inline void amx_configure(const amx_config *c) {
    __asm__ volatile("ldtilecfg %0" ::"m"(*c));
}
// Leaves no tile state behind, which a context switch would save, and which keeps the core from sleeping deeply.
static inline void amx_release(void) {
    __asm__ volatile("tilerelease" ::: "memory");
}

#define AMX_LOAD(t, p, stride)                                                                                         \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((size_t)(stride)) : "memory")
#define AMX_STORE(t, p, stride)                                                                                        \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((size_t)(stride)) : "memory")
#define AMX_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
// Register c += a times b, both of signed bytes.
#define AMX_DOT(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

#endif
