// SPDX-License-Identifier: Apache-2.0
#include "run/blas.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ref/ref.h"

#define BLOCK_FLOATS (1u << 20) // 4 MB of dequantized weights per thread: large enough for sgemm's own blocking
#define LEAST_ROWS 16           // rl_blas_fits: that many rows are within a block

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; // CBLAS

typedef void (*sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                         const float *b, int ldb, float beta, float *c, int ldc);

struct rl_blas {
    atomic_int refs;
    void *library;
    sgemm_fn sgemm;
    char path[512], config[192], core[64];
    rl_kernel kernel;
};

// ISO C has no cast from object to function pointer; POSIX promises that the bits are the same.
static void symbol(void *library, const char *prefix, const char *name, void *fn) {
    char full[96];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    void *p = dlsym(library, full);
    memcpy(fn, &p, sizeof p);
}

rl_status rl_blas_open(rl_blas **out, const char *path, rl_err *err) {
    rl_blas *b = calloc(1, sizeof *b);
    if (!b) return rl_fail(err, RL_ERR_NOMEM, "no memory for a BLAS handle");
    atomic_init(&b->refs, 1);
    b->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!b->library) {
        rl_status s = rl_fail(err, RL_ERR_UNSUPPORTED, "cannot load OpenBLAS from '%s': %s", path, dlerror());
        free(b);
        return s;
    }
    // PyPI's scipy-openblas32 prefixes its names so that it can live beside another BLAS.
    const char *prefix = "scipy_";
    symbol(b->library, prefix, "cblas_sgemm", &b->sgemm);
    if (!b->sgemm) symbol(b->library, prefix = "", "cblas_sgemm", &b->sgemm);
    if (!b->sgemm) {
        rl_status s = rl_fail(err, RL_ERR_UNSUPPORTED, "'%s' has no cblas_sgemm", path);
        rl_blas_release(b);
        return s;
    }
    char *(*text)(void) = NULL;
    symbol(b->library, prefix, "openblas_get_config", &text);
    if (text) snprintf(b->config, sizeof b->config, "%s", text());
    symbol(b->library, prefix, "openblas_get_corename", &text);
    if (text) snprintf(b->core, sizeof b->core, "%s", text());
    void (*set_threads)(int) = NULL;
    symbol(b->library, prefix, "openblas_set_num_threads", &set_threads);
    if (set_threads) set_threads(1);
    snprintf(b->path, sizeof b->path, "%s", path);
    b->kernel = (rl_kernel){.name = "openblas_sgemm",
                            .family = RL_FAM_TILE_MUL,
                            .type = RL_TYPE_NONE,
                            .act = RL_ACT_F32,
                            .isa = b->core[0] ? b->core : "openblas",
                            .layout = ""};
    *out = b;
    return RL_OK;
}

rl_blas *rl_blas_ref(rl_blas *b) {
    atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    return b;
}

void rl_blas_release(rl_blas *b) {
    if (!b || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1) return;
    // The library stays loaded: its threads and buffers do not survive being unmapped.
    free(b);
}

const char *rl_blas_path(const rl_blas *b) {
    return b->path;
}

const char *rl_blas_config(const rl_blas *b) {
    return b->config;
}

const char *rl_blas_core(const rl_blas *b) {
    return b->core;
}

const rl_kernel *rl_blas_kernel(const rl_blas *b) {
    return &b->kernel;
}

// Rows of one block: as many as fit the scratch, but few enough that every thread gets some.
static size_t block_rows(const rl_mat *w, int n_threads) {
    size_t fit = BLOCK_FLOATS / w->cols, share = (w->rows + (size_t)n_threads - 1) / (size_t)n_threads;
    size_t rows = fit < share ? fit : share;
    return rows < LEAST_ROWS ? LEAST_ROWS : rows;
}

bool rl_blas_fits(const rl_mat *w) {
    return w->cols <= BLOCK_FLOATS / LEAST_ROWS && w->rows <= INT_MAX;
}

size_t rl_blas_scratch(void) {
    return (size_t)BLOCK_FLOATS * sizeof(float);
}

static void multiply(const rl_linear_call *c, size_t r0, size_t r1, float *block) {
    const rl_mat *w = &c->lin->w;
    rl_dequant_fn dequant = (rl_dequant_fn)c->lin->unpack->fn;
    for (size_t r = r0; r < r1; r++) dequant(w->data + r * w->row_bytes, block + (r - r0) * w->cols, w->cols);
    c->lin->blas->sgemm(ROW_MAJOR, NO_TRANS, TRANS, (int)c->n_tok, (int)(r1 - r0), (int)w->cols, 1.0f, c->act->f32,
                        (int)c->act->ld_f32, block, (int)w->cols, 0.0f, c->out + r0, (int)c->ld_out);
}

void rl_blas_run(rl_team *team, int ith, const rl_linear_call *calls, size_t n_calls, void *scratch) {
    for (size_t i = 0; i < n_calls; i++) {
        const rl_linear_call *c = &calls[i];
        size_t rows = block_rows(&c->lin->w, rl_team_size(team)), i0, i1;
        rl_work work;
        rl_work_begin(&work, team, ith, (c->lin->w.rows + rows - 1) / rows, 1);
        while (rl_work_next(&work, team, ith, &i0, &i1))
            for (; i0 < i1; i0++) {
                size_t end = (i0 + 1) * rows;
                multiply(c, i0 * rows, end < c->lin->w.rows ? end : c->lin->w.rows, scratch);
            }
    }
}
