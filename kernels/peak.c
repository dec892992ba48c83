// SPDX-License-Identifier: Apache-2.0
#include "kernels/peak.h"

#define RL_TIER(name, arch, flags, mask) enum { rl_tier_mask_##name = (mask) };
#include "kernels/tiers.h"
#undef RL_TIER

#define ROW(kind, isa)                                                                                                 \
    { #isa, #kind, rl_tier_mask_##isa, rl_peak_##kind##_##isa }
#if defined(__x86_64__)
#define PEAKS(isa)                                                                                                     \
    double rl_peak_int8_##isa(size_t, float *), rl_peak_int16_##isa(size_t, float *), rl_peak_f32_##isa(size_t, float *)
PEAKS(avx2);
PEAKS(avxvnni);
PEAKS(avx512);
double rl_peak_int8_amx(size_t, float *), rl_peak_int16_amx(size_t, float *);
#define ROWS(isa) ROW(int8, isa), ROW(int16, isa), ROW(f32, isa)
static const rl_peak table[] = {ROWS(avx2), ROWS(avxvnni), ROWS(avx512), ROW(int8, amx), ROW(int16, amx)};
#else
double rl_peak_int8_neon(size_t, float *), rl_peak_int16_neon(size_t, float *), rl_peak_f32_neon(size_t, float *);
double rl_peak_int8_dotprod(size_t, float *), rl_peak_int8_i8mm(size_t, float *);
static const rl_peak table[] = {ROW(int8, neon), ROW(int16, neon), ROW(f32, neon), ROW(int8, dotprod), ROW(int8, i8mm)};
#endif

const rl_peak *rl_peaks(size_t *n) {
    *n = sizeof table / sizeof *table;
    return table;
}
