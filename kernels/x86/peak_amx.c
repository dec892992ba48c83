// SPDX-License-Identifier: Apache-2.0
// The integer peak of AMX: 16 rows by 64 bytes times 64 by 16. int16 takes two products of bytes.
#if !defined(__AMX_INT8__) && !defined(__AMXINT8__) // clang 14 has the latter name
#error "compile this file with the flags of its tier"
#endif
#include "kernels/peak.h"
#include "kernels/x86/amx.h"

static const amx_config all = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

static double products(size_t n) {
    amx_configure(&all);
    for (size_t i = 0; i < n; i++) {
        AMX_DOT(0, 4, 6);
        AMX_DOT(1, 4, 7);
        AMX_DOT(2, 5, 6);
        AMX_DOT(3, 5, 7);
    }
    amx_release();
    return (double)n * 4 * 16 * 16 * 64;
}

double rl_peak_int8_amx(size_t n, float *sink) {
    *sink = 0;
    return products(n);
}
double rl_peak_int16_amx(size_t n, float *sink) {
    *sink = 0;
    return products(n) / 2;
}
