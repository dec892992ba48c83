// SPDX-License-Identifier: Apache-2.0
// A loaded model: the file, its hyper-parameters and its weights. Immutable once open, shared by sessions.
#ifndef RL_MODEL_MODEL_H
#define RL_MODEL_MODEL_H

#include "model/weights.h"

typedef struct rl_model {
    rl_gguf *file;
    rl_hparams hp;
    rl_weights w;
    rl_notes notes;
    rl_tensor *replaced; // own copies; names and data are the caller's
    size_t n_replaced;
    int refs; // atomic
} rl_model;

/// Opens a model over a file; takes its own reference to it. `replaced` (n_replaced, or NULL) stand in for tensors of
/// the file: their names and data must outlive the model.
rl_status rl_model_open(rl_model **out, rl_gguf *file, const rl_tensor *replaced, size_t n_replaced, rl_err *err);
rl_model *rl_model_ref(rl_model *m);
void rl_model_release(rl_model *m);

/// Bytes of weights that one token reads: each matrix once, of stacked experts the chosen ones, of the embedding one
/// row.
uint64_t rl_model_bytes_per_token(const rl_model *m);

#endif
