// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

// The number of logits is what the embedding has rows for; a vocabulary may be shorter (padded embeddings), not longer.
static rl_status read_vocabulary_size(rl_model *m, rl_err *err) {
    const rl_tensor *t = rl_gguf_tensor(m->file, "token_embd.weight");
    if (!t)
        return rl_fail_format(err, NULL, "token_embd.weight", UINT64_MAX,
                              "tensor 'token_embd.weight' is missing: a vocabulary alone cannot run");
    if (t->dims[1] < 1 || t->dims[1] > (1u << 24))
        return rl_fail_format(err, NULL, t->name, t->offset, "tensor '%s' has %llu rows", t->name,
                              (unsigned long long)t->dims[1]);
    m->hp.n_vocab = (uint32_t)t->dims[1];
    const rl_meta *tokens = rl_gguf_find(m->file, "tokenizer.ggml.tokens");
    if (tokens && tokens->type == RL_META_ARRAY && tokens->count > m->hp.n_vocab)
        return rl_fail_format(err, tokens->key, NULL, tokens->offset,
                              "the vocabulary has %llu tokens but the embedding only %u rows",
                              (unsigned long long)tokens->count, m->hp.n_vocab);
    return RL_OK;
}

static rl_status open_parts(rl_model *m, rl_err *err) {
    RL_TRY(rl_hparams_read(&m->hp, m->file, &m->notes, err));
    RL_TRY(read_vocabulary_size(m, err));
    return rl_weights_bind(&m->w, &m->hp, m->file, m->replaced, m->n_replaced, err);
}

static rl_status keep_replaced(rl_model *m, const rl_tensor *replaced, size_t n, rl_err *err) {
    if (!n) return RL_OK;
    m->replaced = calloc(n, sizeof *replaced);
    if (!m->replaced) return rl_fail(err, RL_ERR_NOMEM, "no memory for %zu replaced tensors", n);
    memcpy(m->replaced, replaced, n * sizeof *replaced);
    m->n_replaced = n;
    return RL_OK;
}

rl_status rl_model_open(rl_model **out, rl_gguf *file, const rl_tensor *replaced, size_t n_replaced, rl_err *err) {
    rl_model *m = calloc(1, sizeof *m);
    if (!m) return rl_fail(err, RL_ERR_NOMEM, "no memory for a model");
    m->refs = 1;
    m->file = rl_gguf_ref(file);
    rl_status s = keep_replaced(m, replaced, n_replaced, err);
    if (s == RL_OK) s = open_parts(m, err);
    if (s != RL_OK) {
        rl_model_release(m);
        return s;
    }
    *out = m;
    return RL_OK;
}

rl_model *rl_model_ref(rl_model *m) {
    __atomic_add_fetch(&m->refs, 1, __ATOMIC_RELAXED);
    return m;
}

void rl_model_release(rl_model *m) {
    // Release orders our reads before the free, acquire makes the last owner see everybody's.
    if (!m || __atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL)) return;
    rl_weights_free(&m->w);
    rl_gguf_release(m->file);
    free(m->replaced);
    free(m);
}

static uint64_t bytes_of(const rl_weight *w, uint64_t experts) {
    return w->t ? (uint64_t)w->rows * w->t->row_bytes * experts : 0;
}

uint64_t rl_model_bytes_per_token(const rl_model *m) {
    uint64_t used = m->hp.n_expert_used;
    uint64_t sum = m->w.embed.t->row_bytes + bytes_of(&m->w.output, 1) + m->w.owned_bytes;
    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        const rl_layer *l = &m->w.layers[i];
        const rl_weight *always[] = {&l->q,    &l->k,      &l->v,       &l->o,     &l->gate,   &l->up,
                                     &l->down, &l->router, &l->gate_sh, &l->up_sh, &l->down_sh};
        for (size_t j = 0; j < sizeof always / sizeof *always; j++) sum += bytes_of(always[j], 1);
        sum += bytes_of(&l->gate_exps, used) + bytes_of(&l->up_exps, used) + bytes_of(&l->down_exps, used);
    }
    return sum;
}
