// SPDX-License-Identifier: Apache-2.0
// The quantizer's searches in plain C, one lane at a time. Also rl_quant_init, which asks the table for the best of
// each operation.
#include <math.h>

#include "kernels/quant.h"

typedef float vf;
#define W 1
#define QUANT(op) rl_quant_##op##_ref

static inline vf v_load(const float *p) {
    return *p;
}
static inline void v_store(float *p, vf v) {
    *p = v;
}
static inline vf v_set(float s) {
    return s;
}
static inline vf v_add(vf a, vf b) {
    return a + b;
}
static inline vf v_sub(vf a, vf b) {
    return a - b;
}
static inline vf v_mul(vf a, vf b) {
    return a * b;
}
static inline vf v_div(vf a, vf b) {
    return a / b;
}
static inline vf v_min(vf a, vf b) {
    return a < b ? a : b;
}
static inline vf v_max(vf a, vf b) {
    return a > b ? a : b;
}
static inline vf v_abs(vf a) {
    return fabsf(a);
}
static inline vf v_select(vf a, vf b, vf x, vf y) {
    return a > b ? x : y;
}
static inline void v_store_u8(uint8_t *p, vf v) {
    *p = (uint8_t)v;
}

#include "kernels/quant_body.h"

void rl_quant_init(rl_quant *q, const rl_dispatch *d) {
    // The reference is always in the table, so find never comes back empty.
#define X(op) q->op = (__typeof__(q->op))rl_kernel_find(d, RL_FAM_QUANT, RL_TYPE_NONE, 0, #op)->fn;
    RL_QUANT_OPS(X)
#undef X
}
