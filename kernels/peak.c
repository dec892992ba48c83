// SPDX-License-Identifier: Apache-2.0
#include "kernels/peak.h"

#define RL_TIER(name, arch, flags, mask) enum { rl_tier_mask_##name = (mask) };
#include "kernels/tiers.h"
#undef RL_TIER

#if defined(__x86_64__)
#define PEAKS(isa)                                                                                                     \
    double rl_peak_int8_##isa(size_t, float *), rl_peak_int16_##isa(size_t, float *), rl_peak_f32_##isa(size_t, float *)
PEAKS(avx2);
PEAKS(avxvnni);
PEAKS(avx512);
#define ROWS(isa)                                                                                                      \
    {#isa, "int8", rl_tier_mask_##isa, rl_peak_int8_##isa}, {#isa, "int16", rl_tier_mask_##isa, rl_peak_int16_##isa},  \
    {                                                                                                                  \
#isa, "f32", rl_tier_mask_##isa, rl_peak_f32_##isa                                                             \
    }
static const rl_peak table[] = {ROWS(avx2), ROWS(avxvnni), ROWS(avx512)};

const rl_peak *rl_peaks(size_t *n) {
    *n = sizeof table / sizeof *table;
    return table;
}
#else
const rl_peak *rl_peaks(size_t *n) {
    *n = 0;
    return 0;
}
#endif
