// SPDX-License-Identifier: Apache-2.0
// See sampler.h. Nothing sorts the vocabulary: top_k keeps a heap of k candidates while passing over the logits once
// (stretches without one above the least of them cost a comparison each), and without top_k a heap of all candidates
// is emptied only as far as top_p and min_p reach.
#include "run/sampler.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/api.h"

typedef struct cand {
    float logit;
    int32_t id;
} cand;

struct rl_sampler {
    rl_sampler_params p;
    uint64_t state[4];
    rl_vec vec;
    float *work; // changed copy of the logits, then exponentials
    cand *cands;
    double *weights;
    size_t work_n, cands_n;
};

// xoshiro256**, seeded through splitmix64.
static uint64_t rotate(uint64_t x, int k) {
    return x << k | x >> (64 - k);
}

static double draw(rl_sampler *s) {
    uint64_t *v = s->state, r = rotate(v[1] * 5, 7) * 9, t = v[1] << 17;
    v[2] ^= v[0];
    v[3] ^= v[1];
    v[1] ^= v[2];
    v[0] ^= v[3];
    v[2] ^= t;
    v[3] = rotate(v[3], 45);
    return (double)(r >> 11) * 0x1p-53;
}

void rl_sampler_reset(rl_sampler *s) {
    uint64_t x = s->p.seed;
    for (int i = 0; i < 4; i++) {
        uint64_t z = x += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        s->state[i] = z ^ z >> 31;
    }
}

static rl_status check_params(const rl_sampler_params *p, rl_err *err) {
    if (!(p->temperature >= 0.0 && isfinite(p->temperature)))
        return rl_fail(err, RL_ERR_ARG, "temperature must be 0 or more, not %g", p->temperature);
    if (!(p->top_p > 0.0 && p->top_p <= 1.0))
        return rl_fail(err, RL_ERR_ARG, "top_p must be above 0 and at most 1, not %g", p->top_p);
    if (!(p->min_p >= 0.0 && p->min_p <= 1.0))
        return rl_fail(err, RL_ERR_ARG, "min_p must be from 0 to 1, not %g", p->min_p);
    if (!(p->repeat_penalty > 0.0 && isfinite(p->repeat_penalty)))
        return rl_fail(err, RL_ERR_ARG, "repeat_penalty must be above 0, not %g", p->repeat_penalty);
    if (p->repeat_last_n < -1)
        return rl_fail(err, RL_ERR_ARG, "repeat_last_n must be -1 (all) or more, not %lld",
                       (long long)p->repeat_last_n);
    for (size_t i = 0; i < p->n_bias; i++) {
        if (p->bias_ids[i] < 0 || (i && p->bias_ids[i] <= p->bias_ids[i - 1]))
            return rl_fail(err, RL_ERR_ARG, "logit_bias: the ids must be 0 or more, each once; got %d",
                           (int)p->bias_ids[i]);
        if (isnan(p->bias[i]) || p->bias[i] == INFINITY)
            return rl_fail(err, RL_ERR_ARG, "logit_bias of id %d must be a number or -inf", (int)p->bias_ids[i]);
    }
    return RL_OK;
}

rl_status rl_sampler_create(rl_sampler **out, const rl_sampler_params *p, rl_err *err) {
    *out = NULL;
    RL_TRY(check_params(p, err));
    rl_dispatch d;
    RL_TRY(rl_dispatch_init(&d, NULL, NULL, err));
    rl_sampler *s = calloc(1, sizeof *s);
    int32_t *ids = malloc((p->n_bias + 1) * sizeof *ids);
    float *bias = malloc((p->n_bias + 1) * sizeof *bias);
    if (!s || !ids || !bias) {
        free(s), free(ids), free(bias);
        return rl_fail(err, RL_ERR_NOMEM, "no memory for a sampler");
    }
    if (p->n_bias) {
        memcpy(ids, p->bias_ids, p->n_bias * sizeof *ids);
        memcpy(bias, p->bias, p->n_bias * sizeof *bias);
    }
    s->p = *p;
    s->p.bias_ids = ids;
    s->p.bias = bias;
    rl_vec_init(&s->vec, &d);
    rl_sampler_reset(s);
    *out = s;
    return RL_OK;
}

void rl_sampler_free(rl_sampler *s) {
    if (!s) return;
    free((void *)s->p.bias_ids);
    free((void *)s->p.bias);
    free(s->work), free(s->cands), free(s->weights);
    free(s);
}

const rl_sampler_params *rl_sampler_params_of(const rl_sampler *s) {
    return &s->p;
}

static bool room_for(rl_sampler *s, size_t n_work, size_t n_cands) {
    if (n_work > s->work_n) {
        float *p = realloc(s->work, n_work * sizeof *p);
        if (!p) return false;
        s->work = p, s->work_n = n_work;
    }
    if (n_cands > s->cands_n) {
        cand *c = realloc(s->cands, n_cands * sizeof *c);
        if (c) s->cands = c;
        double *w = realloc(s->weights, n_cands * sizeof *w);
        if (w) s->weights = w;
        if (!c || !w) return false;
        s->cands_n = n_cands;
    }
    return true;
}

// Whether all are numbers or -inf. The loop has no branch, so that any compiler makes vectors of it.
static rl_status check_logits(const float *x, size_t n, rl_err *err) {
    for (size_t i = 0; i < n; i += 256) {
        size_t end = n - i < 256 ? n : i + 256;
        int bad = 0;
        for (size_t j = i; j < end; j++) bad |= !(x[j] < INFINITY);
        if (!bad) continue;
        for (size_t j = i; j < end; j++)
            if (!(x[j] < INFINITY))
                return rl_fail(err, RL_ERR_ARG, "logits[%zu] is %s: the model or its input is broken", j,
                               isnan(x[j]) ? "NaN" : "+inf");
    }
    return RL_OK;
}

// A logit that was finite stays so: two that overflowed to infinity would leave no difference to take.
static float bounded(double x) {
    return (float)fmax(-FLT_MAX, fmin(FLT_MAX, x));
}

static float biased(float logit, float bias) {
    return isinf(logit) || isinf(bias) ? -INFINITY : bounded((double)logit + (double)bias);
}

static float penalized(double logit, double penalty) {
    return isinf(logit) ? -INFINITY : bounded(logit > 0 ? logit / penalty : logit * penalty);
}

// Bias and penalty on a copy; the logits as they are when there is nothing to change.
static rl_status adjust(rl_sampler *s, const float **logits, size_t n, const int32_t *history, size_t n_history,
                        rl_err *err) {
    const rl_sampler_params *p = &s->p;
    if (n == 0 || n > INT32_MAX) return rl_fail(err, RL_ERR_ARG, "logits must have at least one value");
    RL_TRY(check_logits(*logits, n, err));
    size_t recent = p->repeat_penalty == 1.0                                         ? 0
                    : p->repeat_last_n < 0 || (uint64_t)p->repeat_last_n > n_history ? n_history
                                                                                     : (size_t)p->repeat_last_n;
    for (size_t i = 0; i < n_history; i++)
        if (history[i] < 0 || (size_t)history[i] >= n)
            return rl_fail(err, RL_ERR_ARG, "history[%zu] is %d, but there are %zu logits", i, (int)history[i], n);
    if (p->n_bias && (size_t)p->bias_ids[p->n_bias - 1] >= n)
        return rl_fail(err, RL_ERR_ARG, "logit_bias names id %d, but there are %zu logits",
                       (int)p->bias_ids[p->n_bias - 1], n);
    if (!recent && !p->n_bias) return RL_OK;
    // Behind the copy, one bit per token: penalized already.
    size_t words = (n + 31) / 32;
    if (!room_for(s, n + words, 0)) return rl_fail(err, RL_ERR_NOMEM, "no memory to sample from %zu logits", n);
    memcpy(s->work, *logits, n * sizeof *s->work);
    for (size_t i = 0; i < p->n_bias; i++) s->work[p->bias_ids[i]] = biased(s->work[p->bias_ids[i]], p->bias[i]);
    if (recent) {
        uint32_t *done = (uint32_t *)(void *)(s->work + n);
        memset(done, 0, words * sizeof *done);
        for (size_t i = n_history - recent; i < n_history; i++) {
            uint32_t id = (uint32_t)history[i], bit = 1u << id % 32;
            if (done[id / 32] & bit) continue;
            done[id / 32] |= bit;
            s->work[id] = penalized(s->work[id], p->repeat_penalty);
        }
    }
    *logits = s->work;
    return RL_OK;
}

// Order of candidates: the greater logit, among equals the lower id.
static bool before(cand a, cand b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static int compare(const void *a, const void *b) {
    cand x = *(const cand *)a, y = *(const cand *)b;
    return before(x, y) ? -1 : before(y, x) ? 1 : 0;
}

// Heap with the best (first) or the worst candidate on top.
static void sift_down(cand *h, size_t n, size_t i, bool best_on_top) {
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= n) return;
        if (c + 1 < n && before(h[c + 1], h[c]) == best_on_top) c++;
        if (before(h[c], h[i]) != best_on_top) return;
        cand t = h[c];
        h[c] = h[i];
        h[i] = t;
        i = c;
    }
}

// The k best, in order. Returns how many there are (fewer when the rest is -inf).
static size_t select_top(cand *h, size_t k, const float *x, size_t n) {
    size_t m = 0, i = 0;
    for (; i < n && m < k; i++)
        if (x[i] > -INFINITY) h[m++] = (cand){x[i], (int32_t)i};
    for (size_t j = m / 2; j-- > 0;) sift_down(h, m, j, false);
    while (i < n) {
        // A later candidate must be greater than the least kept: among equals the lower id stays.
        float least = h[0].logit;
        size_t end = n - i < 64 ? n : i + 64;
        int any = 0;
        for (size_t j = i; j < end; j++) any |= x[j] > least;
        if (any)
            for (size_t j = i; j < end; j++)
                if (x[j] > h[0].logit) {
                    h[0] = (cand){x[j], (int32_t)j};
                    sift_down(h, m, 0, false);
                }
        i = end;
    }
    qsort(h, m, sizeof *h, compare);
    return m;
}

// How many of the m candidates top_p and min_p leave, those in order at the front of c; `total` is the sum of
// exp(logit - best) over all that top_k left. The candidates are ordered already, or a heap with the best on top.
static size_t cut(const rl_sampler *s, cand *c, size_t m, double total, bool heaped) {
    double best = 0.0, sum = 0.0, least = s->p.min_p > 0 ? log(s->p.min_p) : -INFINITY;
    size_t left = m, kept = 0;
    while (kept < m) {
        cand top;
        if (heaped) {
            top = c[0];
            c[0] = c[--left];
            sift_down(c, left, 0, true);
            c[left] = top; // the best gather behind the heap, in reverse
        } else {
            top = c[kept];
        }
        if (kept == 0) best = (double)top.logit;
        if (kept > 0 && (double)top.logit - best < least) break;
        kept++;
        sum += exp((double)top.logit - best);
        if (s->p.top_p < 1.0 && sum >= s->p.top_p * total) break;
    }
    // Turn them round to the front. Past the middle the exchange has been made from the other side.
    for (size_t i = 0; heaped && i < kept && i < m - 1 - i; i++) {
        cand t = c[m - 1 - i];
        c[m - 1 - i] = c[i];
        c[i] = t;
    }
    return kept;
}

// Fills s->cands and s->weights (not normalized); returns the number of candidates, 0 with `err` set.
static size_t candidates(rl_sampler *s, const float *x, size_t n, double *weight_sum, rl_err *err) {
    const rl_sampler_params *p = &s->p;
    size_t k = p->top_k && p->top_k < n ? p->top_k : 0, m;
    float best = s->vec.max(x, n);
    if (!(best > -INFINITY)) {
        rl_fail(err, RL_ERR_ARG, "every logit is -inf: nothing can be sampled");
        return 0;
    }
    if (!room_for(s, 0, k ? k : n)) {
        rl_fail(err, RL_ERR_NOMEM, "no memory to sample from %zu logits", n);
        return 0;
    }
    cand *c = s->cands;
    if (k) {
        m = select_top(c, k, x, n);
        double total = 0.0;
        if (p->top_p < 1.0)
            for (size_t i = 0; i < m; i++) total += exp((double)c[i].logit - (double)best);
        m = cut(s, c, m, total, false);
    } else {
        double total = 0.0;
        if (p->top_p < 1.0) total = exp(s->vec.logsumexp(x, n) - (double)best);
        // What min_p will cut anyway never enters the heap; a little slack, the exact test is in cut().
        double least = p->min_p > 0 ? (double)best + log(p->min_p) - 1e-3 : -INFINITY;
        m = 0;
        for (size_t i = 0; i < n; i++)
            if (x[i] > -INFINITY && (double)x[i] >= least) c[m++] = (cand){x[i], (int32_t)i};
        if (p->top_p < 1.0 || p->min_p > 0) {
            for (size_t j = m / 2; j-- > 0;) sift_down(c, m, j, true);
            m = cut(s, c, m, total, true);
        }
    }
    double sum = 0.0;
    for (size_t i = 0; i < m; i++) sum += s->weights[i] = exp(((double)c[i].logit - (double)best) / p->temperature);
    *weight_sum = sum;
    return m;
}

static rl_status greedy(const rl_sampler *s, const float *x, size_t n, int32_t *id, rl_err *err) {
    size_t at;
    s->vec.argmax(x, n, &at);
    if (!(x[at] > -INFINITY)) return rl_fail(err, RL_ERR_ARG, "every logit is -inf: nothing can be sampled");
    *id = (int32_t)at;
    return RL_OK;
}

rl_status rl_sampler_sample(rl_sampler *s, const float *logits, size_t n, const int32_t *history, size_t n_history,
                            int32_t *id, rl_err *err) {
    RL_TRY(adjust(s, &logits, n, history, n_history, err));
    if (s->p.temperature == 0.0) return greedy(s, logits, n, id, err);
    double sum, at = 0.0;
    size_t m = candidates(s, logits, n, &sum, err);
    if (!m) return err ? err->code : RL_ERR_ARG;
    double goal = draw(s) * sum;
    size_t i = 0, last = 0;
    for (; i < m; i++) {
        if (s->weights[i] > 0) last = i;
        at += s->weights[i];
        if (at > goal) break;
    }
    *id = s->cands[i < m ? i : last].id; // rounding can leave the sum at the goal: the last one with any weight
    return RL_OK;
}

rl_status rl_sampler_probs(rl_sampler *s, const float *logits, size_t n, const int32_t *history, size_t n_history,
                           double *probs, rl_err *err) {
    RL_TRY(adjust(s, &logits, n, history, n_history, err));
    memset(probs, 0, n * sizeof *probs);
    if (s->p.temperature == 0.0) {
        int32_t id = 0;
        RL_TRY(greedy(s, logits, n, &id, err));
        probs[id] = 1.0;
        return RL_OK;
    }
    double sum;
    size_t m = candidates(s, logits, n, &sum, err);
    if (!m) return err ? err->code : RL_ERR_ARG;
    for (size_t i = 0; i < m; i++) probs[s->cands[i].id] = s->weights[i] / sum;
    return RL_OK;
}
