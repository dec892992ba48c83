// SPDX-License-Identifier: Apache-2.0
// The int8 peak of the dot product: 16 products per sdot.
#ifndef __ARM_FEATURE_DOTPROD
#error "compile this file with the flags of its tier"
#endif
#include "kernels/arm/peak.h"

static inline int32x4_t dot8(int32x4_t acc, int32x4_t a, int32x4_t b) {
    return vdotq_s32(acc, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b));
}

PEAK(rl_peak_int8_dotprod, int32x4_t, vdupq_n_s32(0), dot8, 16)
