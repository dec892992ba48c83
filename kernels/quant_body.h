// SPDX-License-Identifier: Apache-2.0
// The bodies of the quantizer's searches, written once over a vector type that the including file defines for its ISA:
//
//   vf, W                    a vector of W floats, W a divisor of 16
//   v_load v_store v_set v_add v_sub v_mul v_div v_min v_max v_abs
//   v_select(a, b, x, y)     a > b ? x : y
//   v_store_u8(p, v)         W whole numbers 0..255 as bytes
//   QUANT(op)                the name of the function
//
// No operation is fused and no sum crosses lanes: all tiers give the same bits.
#include "kernels/quant.h"

#define TINY 1e-30f   // scales below this are zero: their inverse would overflow
#define REFINEMENTS 3 // rounds of: round to the best scale, fit the scale to the rounding

// To the nearest whole number, halves to even, for magnitudes below 2^22.
static inline vf body_nearest(vf t) {
    const vf magic = v_set(12582912.0f);
    return v_sub(v_add(t, magic), magic);
}

static inline vf body_inverse(vf s) {
    const vf zero = v_set(0.0f);
    vf usable = v_select(v_abs(s), v_set(TINY), s, v_set(1.0f));
    return v_select(v_abs(s), v_set(TINY), v_div(v_set(1.0f), usable), zero);
}

// The value farthest from zero, with its sign.
static inline vf body_extreme(const rl_quant_panel *p, size_t lane) {
    vf best = v_load(&p->x[0][lane]);
    for (size_t i = 1; i < p->n; i++) {
        vf x = v_load(&p->x[i][lane]);
        best = v_select(v_abs(x), v_abs(best), x, best);
    }
    return best;
}

// What a scale fitted to the sums takes off the error: (sum w q x)^2 / sum w q q.
static inline vf body_keep_scale(vf qx, vf qq, vf *gain, vf best) {
    const vf zero = v_set(0.0f);
    vf safe = v_select(qq, zero, qq, v_set(1.0f));
    vf s = v_div(qx, safe), g = v_mul(s, qx);
    best = v_select(g, *gain, s, best);
    *gain = v_max(*gain, g);
    return best;
}

static inline vf body_try_scale(const rl_quant_panel *p, size_t lane, vf inv, vf lo, vf hi, vf *gain, vf best) {
    vf qx = v_set(0.0f), qq = qx;
    for (size_t i = 0; i < p->n; i++) {
        vf x = v_load(&p->x[i][lane]), w = v_load(&p->w[i][lane]);
        vf q = body_nearest(v_min(v_max(v_mul(x, inv), lo), hi)), wq = v_mul(w, q);
        qx = v_add(qx, v_mul(wq, x));
        qq = v_add(qq, v_mul(wq, q));
    }
    return body_keep_scale(qx, qq, gain, best);
}

void QUANT(fit_scale)(const rl_quant_panel *p, float lo, float hi, const float *tries, size_t n_tries, float *scale) {
    for (size_t lane = 0; lane < RL_QUANT_LANES; lane += W) {
        vf inv = body_inverse(body_extreme(p, lane)), gain = v_set(0.0f), best = gain;
        for (size_t k = 0; k < n_tries; k++)
            best = body_try_scale(p, lane, v_mul(inv, v_set(tries[k])), v_set(lo), v_set(hi), &gain, best);
        for (int k = 0; k < REFINEMENTS; k++)
            best = body_try_scale(p, lane, body_inverse(best), v_set(lo), v_set(hi), &gain, best);
        v_store(scale + lane, best);
    }
}

static inline vf body_level(const rl_quant_levels *t, vf y) {
    vf v = v_set(t->level[0]);
    for (int k = 0; k < 15; k++) v = v_select(y, v_set(t->half[k]), v_set(t->level[k + 1]), v);
    return v;
}

static inline vf body_try_levels(const rl_quant_panel *p, const rl_quant_levels *t, size_t lane, vf inv, vf *gain,
                                 vf best) {
    vf qx = v_set(0.0f), qq = qx;
    for (size_t i = 0; i < p->n; i++) {
        vf x = v_load(&p->x[i][lane]), w = v_load(&p->w[i][lane]);
        vf q = body_level(t, v_mul(x, inv)), wq = v_mul(w, q);
        qx = v_add(qx, v_mul(wq, x));
        qq = v_add(qq, v_mul(wq, q));
    }
    return body_keep_scale(qx, qq, gain, best);
}

void QUANT(fit_levels)(const rl_quant_panel *p, const rl_quant_levels *t, const float *tries, size_t n_tries,
                       float *scale) {
    for (size_t lane = 0; lane < RL_QUANT_LANES; lane += W) {
        vf inv = body_inverse(body_extreme(p, lane)), gain = v_set(0.0f), best = gain;
        for (size_t k = 0; k < n_tries; k++)
            best = body_try_levels(p, t, lane, v_mul(inv, v_set(tries[k])), &gain, best);
        for (int k = 0; k < REFINEMENTS; k++) best = body_try_levels(p, t, lane, body_inverse(best), &gain, best);
        v_store(scale + lane, best);
    }
}

typedef struct body_affine {
    vf sw, sx;     // sums of w and w x
    vf scale, off; // best so far
    vf err;        // its error without the constant sum w x x
} body_affine;

// Rounds with an inverse scale and an offset, fits both by least squares to the rounding, keeps the better.
static inline void body_try_affine(const rl_quant_panel *p, size_t lane, vf inv, vf shift, vf hi, int negative,
                                   body_affine *b) {
    const vf zero = v_set(0.0f), one = v_set(1.0f);
    vf qx = zero, qq = zero, sq = zero;
    for (size_t i = 0; i < p->n; i++) {
        vf x = v_load(&p->x[i][lane]), w = v_load(&p->w[i][lane]);
        vf q = body_nearest(v_min(v_max(v_add(v_mul(x, inv), shift), zero), hi)), wq = v_mul(w, q);
        sq = v_add(sq, wq);
        qx = v_add(qx, v_mul(wq, x));
        qq = v_add(qq, v_mul(wq, q));
    }
    vf det = v_sub(v_mul(b->sw, qq), v_mul(sq, sq)), floor = v_mul(v_mul(b->sw, qq), v_set(1e-6f));
    vf safe = v_select(det, floor, v_max(det, v_set(TINY)), one);
    vf s = v_div(v_sub(v_mul(b->sw, qx), v_mul(b->sx, sq)), safe);
    vf o = v_div(v_sub(v_mul(qq, b->sx), v_mul(sq, qx)), safe);
    if (negative) {
        vf alone = v_div(qx, v_select(qq, zero, qq, one));
        s = v_select(o, zero, alone, s);
        o = v_min(o, zero);
    }
    // s^2 qq + 2 s o sq + o^2 sw - 2 s qx - 2 o sx
    vf quad = v_add(v_mul(s, v_add(v_mul(s, qq), v_mul(v_add(o, o), sq))), v_mul(v_mul(o, o), b->sw));
    vf lin = v_add(v_mul(s, qx), v_mul(o, b->sx));
    vf err = v_sub(quad, v_add(lin, lin));
    err = v_select(det, floor, err, v_set(1e30f));
    err = v_select(s, zero, err, v_set(1e30f));
    b->scale = v_select(b->err, err, s, b->scale);
    b->off = v_select(b->err, err, o, b->off);
    b->err = v_min(b->err, err);
}

void QUANT(fit_affine)(const rl_quant_panel *p, float hi, const float *tries, size_t n_tries, int negative,
                       float *scale, float *offset) {
    const vf zero = v_set(0.0f), top = v_set(hi);
    for (size_t lane = 0; lane < RL_QUANT_LANES; lane += W) {
        vf least = v_load(&p->x[0][lane]), most = least;
        body_affine b = {.sw = zero, .sx = zero, .err = v_set(1e29f)};
        for (size_t i = 0; i < p->n; i++) {
            vf x = v_load(&p->x[i][lane]), w = v_load(&p->w[i][lane]);
            least = v_min(least, x);
            most = v_max(most, x);
            b.sw = v_add(b.sw, w);
            b.sx = v_add(b.sx, v_mul(w, x));
        }
        if (negative) least = v_min(least, zero);
        vf range = v_sub(most, least), inv = body_inverse(range);
        b.scale = v_mul(range, v_set(1.0f / hi));
        b.off = least;
        for (size_t k = 0; k < n_tries; k++) {
            vf is = v_mul(inv, v_set(tries[k]));
            // The smallest value need not lie on a code: every third try moves it a third of a step up, or down.
            vf shift = v_add(v_sub(zero, v_mul(is, least)), v_set(k % 3 == 1 ? 0.33f : k % 3 == 2 ? -0.33f : 0.0f));
            body_try_affine(p, lane, is, shift, top, negative, &b);
        }
        for (int k = 0; k < REFINEMENTS; k++) {
            vf is = body_inverse(b.scale);
            body_try_affine(p, lane, is, v_sub(zero, v_mul(is, b.off)), top, negative, &b);
        }
        v_store(scale + lane, b.scale);
        v_store(offset + lane, b.off);
    }
}

typedef struct body_sums {
    vf err, qx, qq, q;
} body_sums;

static inline void body_add(body_sums *s, vf x, vf w, vf q, vf approx) {
    vf d = v_sub(x, approx), wq = v_mul(w, q);
    s->err = v_add(s->err, v_mul(v_mul(w, d), d));
    s->qx = v_add(s->qx, v_mul(wq, x));
    s->qq = v_add(s->qq, v_mul(wq, q));
    s->q = v_add(s->q, wq);
}

static inline void body_store(rl_quant_sums *out, size_t lane, const body_sums *s) {
    v_store(out->err + lane, s->err);
    v_store(out->qx + lane, s->qx);
    v_store(out->qq + lane, s->qq);
    v_store(out->q + lane, s->q);
}

void QUANT(round_scale)(const rl_quant_panel *p, float lo, float hi, const float *scale, rl_quant_sums *out,
                        uint8_t (*codes)[RL_QUANT_LANES]) {
    const vf zero = v_set(0.0f), least = v_set(lo), most = v_set(hi);
    for (size_t lane = 0; lane < RL_QUANT_LANES; lane += W) {
        vf d = v_load(scale + lane), inv = body_inverse(d);
        body_sums s = {zero, zero, zero, zero};
        for (size_t i = 0; i < p->n; i++) {
            vf x = v_load(&p->x[i][lane]);
            vf q = body_nearest(v_min(v_max(v_mul(x, inv), least), most));
            body_add(&s, x, v_load(&p->w[i][lane]), q, v_mul(d, q));
            if (codes) v_store_u8(&codes[i][lane], v_sub(q, least));
        }
        body_store(out, lane, &s);
    }
}

void QUANT(round_affine)(const rl_quant_panel *p, float hi, const float *scale, const float *offset, rl_quant_sums *out,
                         uint8_t (*codes)[RL_QUANT_LANES]) {
    const vf zero = v_set(0.0f), most = v_set(hi);
    for (size_t lane = 0; lane < RL_QUANT_LANES; lane += W) {
        vf d = v_load(scale + lane), o = v_load(offset + lane), inv = body_inverse(d);
        body_sums s = {zero, zero, zero, zero};
        for (size_t i = 0; i < p->n; i++) {
            vf x = v_load(&p->x[i][lane]);
            vf q = body_nearest(v_min(v_max(v_mul(v_sub(x, o), inv), zero), most));
            body_add(&s, x, v_load(&p->w[i][lane]), q, v_add(v_mul(d, q), o));
            if (codes) v_store_u8(&codes[i][lane], q);
        }
        body_store(out, lane, &s);
    }
}

void QUANT(round_levels)(const rl_quant_panel *p, const rl_quant_levels *t, const float *scale, rl_quant_sums *out,
                         uint8_t (*codes)[RL_QUANT_LANES]) {
    const vf zero = v_set(0.0f), one = v_set(1.0f);
    for (size_t lane = 0; lane < RL_QUANT_LANES; lane += W) {
        vf d = v_load(scale + lane), inv = body_inverse(d);
        body_sums s = {zero, zero, zero, zero};
        for (size_t i = 0; i < p->n; i++) {
            vf x = v_load(&p->x[i][lane]), y = v_mul(x, inv);
            vf q = body_level(t, y);
            body_add(&s, x, v_load(&p->w[i][lane]), q, v_mul(d, q));
            if (!codes) continue;
            vf index = zero;
            for (int k = 0; k < 15; k++) index = v_add(index, v_select(y, v_set(t->half[k]), one, zero));
            v_store_u8(&codes[i][lane], index);
        }
        body_store(out, lane, &s);
    }
}
