// SPDX-License-Identifier: Apache-2.0
// Superblocks: real scales of the groups first, then the step d (and dmin) that their small integers count in, then
// each group's integers beside their neighbours by the true error, then d once more by least squares.
#include "quant/super.h"

#include <math.h>
#include <string.h>

#include "base/half.h"
#include "quant/blocks.h"

#define LANES RL_QUANT_LANES

uint16_t rl_stored_half(double value, int expo, float *back) {
    uint16_t h = rl_f32_to_f16((float)ldexp(value, expo));
    *back = (float)ldexp((double)rl_f16_to_f32(h), -expo);
    return h;
}

static int nearest(double v, int lo, int hi) {
    if (!(v > lo)) return lo;
    return v < hi ? (int)(v < 0 ? v - 0.5 : v + 0.5) : hi;
}

// One superblock's lanes and what is being chosen for them.
typedef struct choice {
    size_t lane0, n; // lanes
    int expo;
    float d, dmin; // as stored, in the panel's units
    uint16_t d_half, dmin_half;
    int scale[LANES], min[LANES];
} choice;

#define STEP_TRIES 10 // for each end of the range

// Lane k of `steps`: the step in which whole numbers within the scales' range come nearest to the values of lane k.
static void best_steps(const rl_quantize *q, const rl_quant_format *f, const rl_quant_panel *p, float *steps) {
    float tries[2 * STEP_TRIES];
    size_t n = 0;
    for (int t = 0; t < STEP_TRIES; t++) {
        float share = 1.02f - 0.02f * (float)t; // the farthest may be cut off a little, or come to lie further in
        tries[n++] = (float)f->scale_hi * share;
        if (f->scale_lo) tries[n++] = (float)f->scale_lo * share;
    }
    q->ops.fit_scale(p, (float)f->scale_lo, (float)f->scale_hi, tries, n, steps);
}

// Scales (and offsets) of all lanes as they come out of the integers, with the integers moved by ds and dm.
static void unfold(const rl_quant_format *f, const choice *c, size_t n_super, int ds, int dm, float *scale,
                   float *offset) {
    memset(scale, 0, LANES * sizeof *scale);
    memset(offset, 0, LANES * sizeof *offset);
    for (size_t s = 0; s < n_super; s++)
        for (size_t j = 0; j < c[s].n; j++) {
            int l = c[s].scale[j] + ds, m = c[s].min[j] + dm;
            l = l < f->scale_lo ? f->scale_lo : l > f->scale_hi ? f->scale_hi : l;
            m = m < 0 ? 0 : m > f->scale_hi ? f->scale_hi : m;
            scale[c[s].lane0 + j] = c[s].d * (float)l;
            offset[c[s].lane0 + j] = -(c[s].dmin * (float)m);
        }
}

void rl_quant_fit(const rl_quantize *q, const rl_quant_format *f, const rl_quant_panel *p, int negative, float *scale,
                  float *offset) {
    if (f->fit == FIT_SCALE)
        q->ops.fit_scale(p, f->lo, f->hi, f->tries, f->n_tries, scale);
    else if (f->fit == FIT_LEVELS)
        q->ops.fit_levels(p, &rl_iq4_levels, f->tries, f->n_tries, scale);
    else
        q->ops.fit_affine(p, f->hi, f->tries, f->n_tries, negative, scale, offset);
}

void rl_quant_round(const rl_quantize *q, const rl_quant_format *f, const rl_quant_panel *p, const float *scale,
                    const float *offset, rl_quant_sums *s, uint8_t (*codes)[LANES]) {
    if (f->fit == FIT_SCALE)
        q->ops.round_scale(p, f->lo, f->hi, scale, s, codes);
    else if (f->fit == FIT_LEVELS)
        q->ops.round_levels(p, &rl_iq4_levels, scale, s, codes);
    else
        q->ops.round_affine(p, f->hi, scale, offset, s, codes);
}

static double total(const rl_quant_sums *s, const choice *c) {
    double sum = 0;
    for (size_t j = 0; j < c->n; j++) sum += (double)s->err[c->lane0 + j];
    return sum;
}

// Moves each lane's integers to the best of their neighbours.
static void search_neighbours(const rl_quantize *q, const rl_quant_format *f, const rl_quant_panel *p, choice *c,
                              size_t n_super) {
    _Alignas(64) float scale[LANES], offset[LANES];
    float best[LANES];
    int move_s[LANES] = {0}, move_m[LANES] = {0};
    bool affine = f->fit == FIT_AFFINE;
    rl_quant_sums s;
    for (size_t l = 0; l < LANES; l++) best[l] = INFINITY;
    for (int k = 0; k < (affine ? 9 : 3); k++) {
        // No move first: it wins ties.
        static const int order[3] = {0, -1, 1};
        int ds = order[k % 3], dm = order[k / 3];
        unfold(f, c, n_super, ds, dm, scale, offset);
        rl_quant_round(q, f, p, scale, offset, &s, NULL);
        for (size_t l = 0; l < LANES; l++)
            if (s.err[l] < best[l]) best[l] = s.err[l], move_s[l] = ds, move_m[l] = dm;
    }
    for (size_t i = 0; i < n_super; i++)
        for (size_t j = 0; j < c[i].n; j++) {
            size_t l = c[i].lane0 + j;
            c[i].scale[j] = nearest(c[i].scale[j] + move_s[l], f->scale_lo, f->scale_hi);
            c[i].min[j] = nearest(c[i].min[j] + move_m[l], 0, f->scale_hi);
        }
}

// d and dmin with the least error for the integers and codes chosen.
static void refit(const rl_quant_format *f, const rl_quant_sums *s, const float *sw, const float *sx, choice *c) {
    double a11 = 0, a12 = 0, a22 = 0, b1 = 0, b2 = 0;
    for (size_t j = 0; j < c->n; j++) {
        size_t l = c->lane0 + j;
        double ls = c->scale[j], lm = c->min[j];
        a11 += ls * ls * (double)s->qq[l];
        b1 += ls * (double)s->qx[l];
        a12 -= ls * lm * (double)s->q[l];
        a22 += lm * lm * (double)sw[l];
        b2 -= lm * (double)sx[l];
    }
    double d = a11 > 0 ? b1 / a11 : 0, dmin = (double)c->dmin;
    if (f->fit == FIT_AFFINE) {
        double det = a11 * a22 - a12 * a12;
        if (det > 1e-9 * a11 * a22) {
            double both = (b1 * a22 - b2 * a12) / det, m = (a11 * b2 - a12 * b1) / det;
            if (m >= 0) d = both, dmin = m;
        } else {
            d = a11 > 0 ? (b1 - a12 * dmin) / a11 : 0;
        }
        if (d < 0) return;
        c->dmin_half = rl_stored_half(dmin, c->expo, &c->dmin);
    }
    c->d_half = rl_stored_half(d, c->expo, &c->d);
}

// The lanes of one superblock as column `lane` of a panel.
static void as_column(const choice *c, const float *value, const float *weight, rl_quant_panel *p, size_t lane) {
    for (size_t j = 0; j < 16; j++) {
        p->x[j][lane] = j < c->n ? value[c->lane0 + j] : 0;
        p->w[j][lane] = j < c->n ? weight[c->lane0 + j] : 0;
    }
}

static void first_choice(const rl_quantize *q, const rl_quant_format *f, const rl_quant_sums *s, const float *sw,
                         const float *scale, const float *offset, choice *c, size_t n_super) {
    rl_quant_panel p;
    _Alignas(64) float step[LANES], low[LANES];
    p.n = 16;
    memset(p.x, 0, 16 * sizeof p.x[0]);
    memset(p.w, 0, 16 * sizeof p.w[0]);
    for (size_t l = 0; l < LANES; l++) low[l] = -offset[l];
    for (size_t i = 0; i < n_super; i++) { // scales in lanes 0 and 1, mins in lanes 2 and 3
        as_column(&c[i], scale, s->qq, &p, i);
        if (f->fit == FIT_AFFINE) as_column(&c[i], low, sw, &p, 2 + i);
    }
    best_steps(q, f, &p, step);
    for (size_t i = 0; i < n_super; i++, c++) {
        c->d_half = rl_stored_half((double)step[i], c->expo, &c->d);
        if (f->fit == FIT_AFFINE) c->dmin_half = rl_stored_half((double)step[2 + i], c->expo, &c->dmin);
        for (size_t j = 0; j < c->n; j++) {
            size_t l = c->lane0 + j;
            c->scale[j] = c->d != 0 ? nearest((double)scale[l] / (double)c->d, f->scale_lo, f->scale_hi) : 0;
            c->min[j] = c->dmin != 0 ? nearest((double)low[l] / (double)c->dmin, 0, f->scale_hi) : 0;
        }
    }
}

bool rl_quant_super(const rl_quantize *q, const rl_quant_format *f, const rl_quant_panel *p, const int *expo,
                    size_t n_super, uint8_t *out) {
    _Alignas(64) float scale[LANES], offset[LANES] = {0};
    float sw[LANES] = {0}, sx[LANES] = {0};
    rl_quant_sums s;
    rl_quant_codes codes;
    choice c[2] = {{0}}, before[2];
    rl_quant_fit(q, f, p, 1, scale, offset);
    for (size_t i = 0; f->fit == FIT_AFFINE && i < p->n; i++)
        for (size_t l = 0; l < LANES; l++) sw[l] += p->w[i][l], sx[l] += p->w[i][l] * p->x[i][l];
    rl_quant_round(q, f, p, scale, offset, &s, NULL);
    size_t groups = 256 / f->group, block = rl_dtype_of(q->type)->bytes;
    for (size_t i = 0; i < n_super; i++) c[i].lane0 = i * groups, c[i].n = groups, c[i].expo = expo[i];
    first_choice(q, f, &s, sw, scale, offset, c, n_super);
    for (size_t i = 0; i < n_super; i++)
        if (rl_half_overflows(c[i].d_half) || rl_half_overflows(c[i].dmin_half)) return false;
    search_neighbours(q, f, p, c, n_super);
    unfold(f, c, n_super, 0, 0, scale, offset);
    rl_quant_round(q, f, p, scale, offset, &s, NULL);
    double err[2];
    for (size_t i = 0; i < n_super; i++) {
        err[i] = total(&s, &c[i]);
        before[i] = c[i];
        refit(f, &s, sw, sx, &c[i]);
    }
    unfold(f, c, n_super, 0, 0, scale, offset);
    rl_quant_round(q, f, p, scale, offset, &s, NULL);
    for (size_t i = 0; i < n_super; i++)
        if (total(&s, &c[i]) > err[i] || rl_half_overflows(c[i].d_half) || rl_half_overflows(c[i].dmin_half))
            c[i] = before[i];
    unfold(f, c, n_super, 0, 0, scale, offset);
    rl_quant_round(q, f, p, scale, offset, &s, codes);
    for (size_t i = 0; i < n_super; i++)
        rl_pack_super(q->type, (const uint8_t(*)[LANES])codes, c[i].lane0, c[i].d_half, c[i].dmin_half, c[i].scale,
                      c[i].min, out + i * block);
    return true;
}
