// SPDX-License-Identifier: Apache-2.0
#include "run/score.h"

#include <math.h>
#include <string.h>

void rl_score_top(const float *x, size_t n, size_t top, int32_t *ids, float *values) {
    size_t have = 0;
    for (size_t i = 0; top && i < n; i++) {
        if (have == top && !(x[i] > values[top - 1])) continue;
        size_t j = have < top ? have++ : top - 1;
        for (; j > 0 && x[i] > values[j - 1]; j--) {
            values[j] = values[j - 1];
            ids[j] = ids[j - 1];
        }
        values[j] = x[i];
        ids[j] = (int32_t)i;
    }
}

// exp(x) for -700 <= x <= 0 to about 1e-15 of its value. Without branches or calls, so that compilers make vectors of
// the loop around it: the C library's exp is most of the time of a comparison over a large vocabulary.
static inline double exp_below(double x) {
    const double log2e = 0x1.71547652b82fep+0, ln2_hi = 0x1.62e42fefa0000p-1, ln2_lo = 0x1.cf79abc9e3b3ap-40;
    const double shift = 0x1.8p52; // adding it rounds to an integer, left in the low bits
    double t = x * log2e + shift, k = t - shift;
    double r = (x - k * ln2_hi) - k * ln2_lo;
    // Taylor to r^13 / 13!; |r| <= ln 2 / 2, so what follows is below 5e-18.
    double y = 1.0 / 6227020800.0;
    y = y * r + 1.0 / 479001600.0;
    y = y * r + 1.0 / 39916800.0;
    y = y * r + 1.0 / 3628800.0;
    y = y * r + 1.0 / 362880.0;
    y = y * r + 1.0 / 40320.0;
    y = y * r + 1.0 / 5040.0;
    y = y * r + 1.0 / 720.0;
    y = y * r + 1.0 / 120.0;
    y = y * r + 1.0 / 24.0;
    y = y * r + 1.0 / 6.0;
    y = y * r + 0.5;
    y = y * r + 1.0;
    y = y * r + 1.0;
    uint64_t n, bits;
    memcpy(&n, &t, sizeof n);
    memcpy(&bits, &y, sizeof bits);
    bits += n << 52; // times 2^k
    memcpy(&y, &bits, sizeof y);
    return y;
}

#define LANES 4
#define PIECE 256

typedef struct sums {
    double z_p, z_q, moved; // of exp(p - max), of exp(q - max), of exp(p - max) (p - q)
} sums;

// e = exp(x - max), filled up with zeros to a multiple of LANES. Below -700 nothing of a sum is left: 1e-304 stands
// there.
static void exp_piece(const float *x, size_t n, double max, double *e) {
    for (size_t i = 0; i < n; i++) {
        double d = x[i] - max;
        e[i] = d < -700.0 ? -700.0 : d;
    }
    for (size_t i = 0; i < n; i++) e[i] = exp_below(e[i]);
    for (size_t i = n; i % LANES; i++) e[i] = 0;
}

static double total(const double *x, size_t n) {
    double lanes[LANES] = {0};
    for (size_t i = 0; i < n; i += LANES)
        for (size_t j = 0; j < LANES; j++) lanes[j] += x[i + j];
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

static void add_piece(const float *p, const float *q, size_t n, double max_p, double max_q, sums *s) {
    double e_p[PIECE], e_q[PIECE];
    exp_piece(p, n, max_p, e_p);
    exp_piece(q, n, max_q, e_q);
    s->z_p += total(e_p, n);
    s->z_q += total(e_q, n);
    for (size_t i = 0; i < n; i++) e_p[i] *= (double)p[i] - q[i];
    s->moved += total(e_p, n);
}

void rl_contrast_rows(const float *p, const float *q, size_t n, int32_t next, rl_contrast *out) {
    int32_t ids_p[RL_CONTRAST_TOP] = {0}, ids_q[RL_CONTRAST_TOP] = {0};
    float top_p[RL_CONTRAST_TOP], top_q[RL_CONTRAST_TOP];
    size_t top = n < RL_CONTRAST_TOP ? n : RL_CONTRAST_TOP;
    rl_score_top(p, n, top, ids_p, top_p);
    rl_score_top(q, n, top, ids_q, top_q);
    double max_p = top_p[0], max_q = top_q[0];
    sums s = {0};
    for (size_t i = 0; i < n; i += PIECE) add_piece(p + i, q + i, n - i < PIECE ? n - i : PIECE, max_p, max_q, &s);
    // KL = E_p[p - q] - (log sum exp p - log sum exp q). Equal rows give exactly 0: every difference is 0 and both
    // logarithms are of the same sum.
    double lse_p = max_p + log(s.z_p), lse_q = max_q + log(s.z_q);
    double kl = s.moved / s.z_p - (lse_p - lse_q);
    out->kl = kl < 0 ? 0 : kl; // rounding may take a KL of nearly nothing below 0, which none can be
    out->logp = p[next] - lse_p;
    out->logq = q[next] - lse_q;
    out->top_p = ids_p[0];
    out->top_q = ids_q[0];
    out->shared = 0;
    for (size_t i = 0; i < top; i++)
        for (size_t j = 0; j < top; j++) out->shared += ids_p[i] == ids_q[j];
}
