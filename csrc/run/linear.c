// SPDX-License-Identifier: Apache-2.0
// Which kernel multiplies a matrix, and sharing the rows of several matrices among the threads as one piece of
// work. Who computes a row never changes its value.
#include "run/linear.h"

#include <string.h>

#include "run/blas.h"
#include "run/linear_tile.h"

#define UNIT_ROWS 16         // rows handed out are multiples of this
#define UNIT_BYTES (8 << 10) // and about this many bytes, so that matrices of different row sizes weigh the same
// Bytes from which reading in strips pays: what the kernels ask for behind the ends of eight strips is lost.
#define STRIPS_FROM ((size_t)256 << 10)
// Strips whose beginnings are about a multiple of this apart share the few places of the first-level cache where their
// lines may be: 0.85 to 0.95 of the speed (measured on Sapphire Rapids; a way of its cache is 4 KB).
#define WAY_BYTES 4096
#define WAY_APART 256

static size_t unit_rows(const rl_mat *w) {
    size_t units = UNIT_BYTES / (UNIT_ROWS * w->row_bytes);
    return UNIT_ROWS * (units ? units : 1);
}

static size_t n_units(const rl_mat *w) {
    size_t u = unit_rows(w);
    return (w->rows + u - 1) / u;
}

// Rows of so many units in each strip.
static size_t rows_in_strip(const rl_mat *w, size_t units) {
    return units * (unit_rows(w) / RL_ROWS_STRIPS);
}

// Units that are read in strips. Each has the same rows of every strip, so that what a thread takes next lies behind
// what it has taken in each. What is left behind the strips is read in order: rows behind the last whole unit, and
// some units more where that keeps the strips out of each other's way in the cache.
static size_t strip_units(const rl_mat *w) {
    size_t per = unit_rows(w), whole = w->rows / per, step = rows_in_strip(w, 1) * w->row_bytes;
    if (whole * per * w->row_bytes < STRIPS_FROM) return 0;
    for (size_t units = whole; units > whole - whole / 32; units--) {
        size_t over = units * step % WAY_BYTES;
        if (over >= WAY_APART && over <= WAY_BYTES - WAY_APART) return units;
    }
    return whole;
}

static rl_status check_mat(const rl_mat *w, rl_err *err) {
    const rl_dtype *t = rl_dtype_of(w->type);
    if (!t || !t->computes)
        return rl_fail(err, RL_ERR_UNSUPPORTED, "a tensor of type %u cannot be multiplied", w->type);
    if (!w->rows || !w->cols || w->cols % t->block)
        return rl_fail(err, RL_ERR_UNSUPPORTED, "%s needs rows of a multiple of %zu values, not %zu x %zu", t->name,
                       t->block, w->rows, w->cols);
    if (w->row_bytes < w->cols / t->block * t->bytes)
        return rl_fail(err, RL_ERR_ARG, "rows of %zu %s values do not fit %zu bytes", w->cols, t->name, w->row_bytes);
    return RL_OK;
}

// Auto multiplies a single token in int16, which is exact for all practical purposes, unless the caller knows that it
// does not hide behind the memory here. Without a SIMD kernel it takes the cheaper int8, and so it does for several
// tokens, which wait for arithmetic.
static const rl_kernel *auto_rows(const rl_dispatch *d, rl_type type, bool int8_single) {
    const rl_kernel *k = rl_kernel_find_rows(d, type, RL_ACT_Q16, 1);
    const rl_kernel *k8 = rl_kernel_find_rows(d, type, RL_ACT_Q8, 1);
    if (!k8) return k;
    return k && !int8_single && (k->cpu || !k8->cpu) ? k : k8;
}

rl_status rl_linear_plan(rl_linear *lin, const rl_dispatch *d, const rl_mat *w, const rl_linear_opts *opts,
                         rl_err *err) {
    RL_TRY(check_mat(w, err));
    memset(lin, 0, sizeof *lin);
    lin->w = *w;
    lin->compute = opts->compute;
    lin->tile_from = SIZE_MAX;
    lin->strip_units = d->strips ? strip_units(w) : 0;
    if (opts->kernel) {
        const rl_kernel *k;
        RL_TRY(rl_kernel_named(d, opts->kernel, &k, err));
        if (k->family != RL_FAM_ROWS || k->type != w->type)
            return rl_fail(err, RL_ERR_KERNEL, "kernel %s does not multiply rows of %s", k->name,
                           rl_dtype_of(w->type)->name);
        // A kernel asked for by name runs for every number of tokens.
        lin->rows = lin->rows_many = k;
        if (k->act & RL_ACT_F32)
            lin->compute = RL_COMPUTE_F32;
        else
            lin->compute = k->act & RL_ACT_Q16 ? RL_COMPUTE_INT16 : RL_COMPUTE_INT8;
        return RL_OK;
    }
    bool floats = w->type == RL_F32 || w->type == RL_F16 || w->type == RL_BF16;
    if (floats || opts->compute == RL_COMPUTE_F32)
        lin->rows = rl_kernel_find_rows(d, w->type, RL_ACT_F32, 1);
    else if (opts->compute == RL_COMPUTE_INT16)
        lin->rows = rl_kernel_find_rows(d, w->type, RL_ACT_Q16, 1);
    else if (opts->compute == RL_COMPUTE_INT8)
        lin->rows = rl_kernel_find_rows(d, w->type, RL_ACT_Q8, 1);
    else
        lin->rows = auto_rows(d, w->type, opts->int8_single);
    if (!lin->rows) return rl_fail(err, RL_ERR_KERNEL, "no kernel multiplies rows of %s", rl_dtype_of(w->type)->name);
    unsigned many = lin->rows->act & (RL_ACT_F32 | RL_ACT_Q8 | RL_ACT_Q16);
    if (!floats && opts->compute == RL_COMPUTE_AUTO && !opts->wide) many = RL_ACT_Q8;
    lin->rows_many = rl_kernel_find_rows(d, w->type, many, 2);
    if (!lin->rows_many) lin->rows_many = lin->rows;
    rl_linear_tile_plan(lin, d, opts->wide);
    if (!opts->blas) return RL_OK;
    if (opts->compute != RL_COMPUTE_F32)
        return rl_fail(err, RL_ERR_ARG, "OpenBLAS multiplies float32: it goes with compute 'f32'");
    lin->unpack = rl_kernel_find(d, RL_FAM_DEQUANT, w->type, 0, NULL);
    if (!rl_blas_fits(w) || !lin->unpack)
        return rl_fail(err, RL_ERR_UNSUPPORTED, "OpenBLAS cannot take %zu x %zu values of %s", w->rows, w->cols,
                       rl_dtype_of(w->type)->name);
    lin->blas = opts->blas;
    return RL_OK;
}

static bool takes_blas(const rl_linear *lin, size_t n_tok) {
    return lin->blas && n_tok >= RL_BLAS_FROM;
}

static bool takes_tile(const rl_linear *lin, size_t n_tok) {
    return !takes_blas(lin, n_tok) && lin->mul && n_tok >= lin->tile_from;
}

static const rl_kernel *rows_of(const rl_linear *lin, size_t n_tok) {
    return n_tok > 1 ? lin->rows_many : lin->rows;
}

unsigned rl_linear_formats(const rl_linear *lin, size_t n_tok) {
    if (takes_blas(lin, n_tok)) return RL_ACT_F32;
    return takes_tile(lin, n_tok) ? rl_linear_tile_mul(lin, n_tok)->act : rows_of(lin, n_tok)->act;
}

const rl_kernel *rl_linear_kernel(const rl_linear *lin, size_t n_tok) {
    if (takes_blas(lin, n_tok)) return rl_blas_kernel(lin->blas);
    return takes_tile(lin, n_tok) ? rl_linear_tile_mul(lin, n_tok) : rows_of(lin, n_tok);
}

size_t rl_linear_scratch(const rl_linear *const *lins, size_t n, size_t max_tok) {
    for (size_t i = 0; i < n; i++)
        if (takes_blas(lins[i], max_tok)) return rl_blas_scratch();
    for (size_t i = 0; i < n; i++)
        if (takes_tile(lins[i], max_tok)) return rl_linear_tile_scratch(max_tok);
    return 0;
}

// n rows from row r0 on; of one token, from row r0 of each strip where they are `apart`.
static void multiply_rows(const rl_linear_call *c, size_t r0, size_t n, size_t apart) {
    const rl_mat *w = &c->lin->w;
    rl_rows_fn fn = (rl_rows_fn)rows_of(c->lin, c->n_tok)->fn;
    size_t step = c->n_tok > RL_ROWS_MAX_TOK ? UNIT_ROWS : n; // many tokens: keep these rows in the cache
    for (size_t i = 0; i < n; i += step)
        for (size_t t = 0; t < c->n_tok; t += RL_ROWS_MAX_TOK) {
            size_t r = r0 + i;
            rl_rows_args a = {
                .w = w->data + r * w->row_bytes,
                .row_bytes = w->row_bytes,
                .cols = w->cols,
                .n_rows = n - i < step ? n - i : step,
                .apart = apart,
                .act = c->act,
                .tok0 = t,
                .n_tok = c->n_tok - t < RL_ROWS_MAX_TOK ? c->n_tok - t : RL_ROWS_MAX_TOK,
                .out = c->out + t * c->ld_out + r,
                .ld_out = c->ld_out,
            };
            fn(&a);
        }
}

// Units u0..u1 of one matrix.
static void multiply_some(const rl_linear_call *c, size_t u0, size_t u1) {
    const rl_mat *w = &c->lin->w;
    size_t per = unit_rows(w);
    size_t strips = c->n_tok == 1 ? c->lin->strip_units : 0; // several tokens wait for arithmetic
    if (u0 < strips) {
        size_t end = u1 < strips ? u1 : strips;
        multiply_rows(c, rows_in_strip(w, u0), (end - u0) * per, rows_in_strip(w, strips));
        u0 = end;
    }
    if (u0 < u1) multiply_rows(c, u0 * per, (u1 * per < w->rows ? u1 * per : w->rows) - u0 * per, 0);
}

// Units u0..u1 counted through the matrices one after the other.
static void multiply_units(const rl_linear_call *calls, size_t n_calls, size_t u0, size_t u1) {
    for (size_t i = 0; i < n_calls && u0 < u1; i++) {
        size_t n = n_units(&calls[i].lin->w);
        if (u0 < n) {
            size_t end = u1 < n ? u1 : n;
            multiply_some(&calls[i], u0, end);
            u0 = end;
        }
        u0 -= n < u0 ? n : u0;
        u1 -= n < u1 ? n : u1;
    }
}

// Lines at the beginning of a thread's share that are asked for, and pages behind them of which one line is: that
// begins the walks of the page table, as the kernels do for what is farther on (kernels/x86/prefetch.h).
#define BEGIN_BYTES (4 << 10)
#define BEGIN_PAGES 12
#define PAGE_BYTES 4096

static void prefetch_beginnings(const rl_mat *w, size_t row, size_t apart) {
    for (size_t o = 0; o < RL_STRIPS_AHEAD; o += 64)
        for (size_t s = 0; s < RL_ROWS_STRIPS; s++) __builtin_prefetch(w->data + (row + s * apart) * w->row_bytes + o);
}

static void prefetch_share(const rl_linear *lin, size_t unit) {
    const rl_mat *w = &lin->w;
    if (unit < lin->strip_units) {
        prefetch_beginnings(w, rows_in_strip(w, unit), rows_in_strip(w, lin->strip_units));
        return;
    }
    const uint8_t *p = w->data + unit * unit_rows(w) * w->row_bytes, *end = w->data + w->rows * w->row_bytes;
    const uint8_t *lines = end - p < BEGIN_BYTES ? end : p + BEGIN_BYTES;
    for (; p < lines; p += 64) __builtin_prefetch(p);
    for (int i = 0; i < BEGIN_PAGES && end - p > 0; i++, p += PAGE_BYTES) __builtin_prefetch(p);
}

void rl_linear_prefetch(const rl_team *team, int ith, const rl_linear *const *lins, size_t n, size_t n_tok) {
    size_t total = 0;
    if (n_tok != 1) return;
    for (size_t i = 0; i < n; i++) total += lins[i]->w.data ? n_units(&lins[i]->w) : 0;
    size_t unit = total * (size_t)ith / (size_t)rl_team_size(team);
    for (size_t i = 0; i < n; i++) {
        const rl_mat *w = &lins[i]->w;
        size_t units = w->data ? n_units(w) : 0;
        if (unit < units) {
            prefetch_share(lins[i], unit);
            return;
        }
        unit -= units;
    }
}

static void run_rows(rl_team *team, int ith, const rl_linear_call *calls, size_t n_calls) {
    size_t total = 0, i0, i1;
    for (size_t i = 0; i < n_calls; i++) total += n_units(&calls[i].lin->w);
    rl_work work;
    rl_work_begin(&work, team, ith, total, 1);
    while (rl_work_next(&work, team, ith, &i0, &i1)) multiply_units(calls, n_calls, i0, i1);
}

typedef enum way { WAY_ROWS, WAY_TILE, WAY_BLAS } way;

static way way_of(const rl_linear_call *c) {
    if (takes_blas(c->lin, c->n_tok)) return WAY_BLAS;
    return takes_tile(c->lin, c->n_tok) ? WAY_TILE : WAY_ROWS;
}

void rl_linear_run(rl_team *team, int ith, const rl_linear_call *calls, size_t n_calls, void *scratch) {
    // Neighbours that go the same way are one piece of work.
    for (size_t i = 0, end; i < n_calls; i = end) {
        way w = way_of(&calls[i]);
        for (end = i + 1; end < n_calls && way_of(&calls[end]) == w;) end++;
        switch (w) {
        case WAY_ROWS:
            run_rows(team, ith, calls + i, end - i);
            break;
        case WAY_TILE:
            rl_linear_tile_run(team, ith, calls + i, end - i, scratch);
            break;
        case WAY_BLAS:
            rl_blas_run(team, ith, calls + i, end - i, scratch);
            break;
        }
    }
}

bool rl_linear_gated_fits(const rl_linear *gate, const rl_linear *up, const rl_linear *down, size_t n_tok) {
    return takes_tile(gate, n_tok) && takes_tile(up, n_tok) && takes_tile(down, n_tok) &&
           rl_linear_tile_panels(down, n_tok) & (RL_ACT_Q8T | RL_ACT_Q8A) && rl_linear_tile_gated_fits(gate, n_tok) &&
           rl_linear_tile_gated_fits(up, n_tok);
}

unsigned rl_linear_gated_format(const rl_linear *down, size_t n_tok) {
    return rl_linear_tile_panels(down, n_tok);
}
