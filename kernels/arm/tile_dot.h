// SPDX-License-Identifier: Apache-2.0
// Sums of 4 rows by 4 columns with sdot, a token in each lane of the other operand. Included after NR is defined.
#define each_sum(x)                                                                                                    \
    _Pragma("GCC unroll 6") for (int t = 0; t < nt; t++) _Pragma("GCC unroll 4") for (int r = 0; r < NR; r++) x

static inline __attribute__((always_inline)) int32x4_t dot_token(int32x4_t acc, int8x16_t w, tokens x, const int t) {
    switch (t) {
    case 0:
        return vdotq_laneq_s32(acc, w, x.first, 0);
    case 1:
        return vdotq_laneq_s32(acc, w, x.first, 1);
    case 2:
        return vdotq_laneq_s32(acc, w, x.first, 2);
    case 3:
        return vdotq_laneq_s32(acc, w, x.first, 3);
    case 4:
        return vdotq_laneq_s32(acc, w, x.last, 0);
    default:
        return vdotq_laneq_s32(acc, w, x.last, 1);
    }
}

static inline __attribute__((always_inline)) void dot_steps(int32x4_t acc[][NR], const uint8_t *w, const void *x,
                                                            int steps, int nt, int bits, const int part) {
    const size_t step_x = 4 * RL_PANEL * (part == BYTES ? 1 : 2);
#pragma GCC unroll 8
    for (int i = 0; i < steps; i++, w += STEP_W) {
        tokens q = fetch((const char *)x + (size_t)i * step_x, part);
        int8x16_t v[NR];
        for (int r = 0; r < NR; r++) v[r] = weights(w + 16 * r, bits);
        each_sum(acc[t][r] = dot_token(acc[t][r], v[r], q, t));
    }
}
