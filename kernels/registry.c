// SPDX-License-Identifier: Apache-2.0
// THE table: every kernel of the library, read by dispatch, tests, benchmarks and Python alike. Each family has
// its list in kernels/list_<family>.h, one line per function; a list is included twice, once to declare the
// functions with the type of their family and once to fill the table, so that names cannot drift apart.
//
//   RL_KERNEL(type of pointer, family, name, block type, activations, isa, tile rows, tile cols, layout)
//
// Lines for other architectures stand inside RL_X86(...) or RL_ARM(...). Within one (family, type, activations,
// layout) the best tier comes last.
#include "kernels/api.h"
#include "kernels/tile.h"

#define RL_TIER(name, arch, flags, mask) enum { rl_tier_mask_##name = (mask) };
#include "kernels/tiers.h"
#undef RL_TIER
enum { rl_tier_mask_ref = 0 };

#if defined(__x86_64__)
#define RL_X86(...) __VA_ARGS__
#else
#define RL_X86(...)
#endif
#if defined(__aarch64__)
#define RL_ARM(...) __VA_ARGS__
#else
#define RL_ARM(...)
#endif

#define RL_KERNEL(fntype, family, name, type, act, isa, trows, tcols, layout) extern __typeof__(*(fntype)0) name;
#include "kernels/lists.h"
#undef RL_KERNEL

#define RL_KERNEL(fntype, family, name, type, act, isa, trows, tcols, layout)                                          \
    {#name, family, type, act, #isa, rl_tier_mask_##isa, trows, tcols, layout, (void (*)(void))name},
static const rl_kernel table[] = {
#include "kernels/lists.h"
};

const rl_kernel *rl_kernels(size_t *n) {
    *n = sizeof table / sizeof *table;
    return table;
}
