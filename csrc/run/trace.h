// SPDX-License-Identifier: Apache-2.0
// Times of a step by layer and operation, taken by the calling thread: one clock read at each boundary, nothing when
// off.
#ifndef RL_RUN_TRACE_H
#define RL_RUN_TRACE_H

#include <stddef.h>
#include <stdint.h>

typedef enum rl_op {
    RL_OP_EMBED,
    RL_OP_ATTN_NORM, // norm and quantization of the input
    RL_OP_QKV,
    RL_OP_ROPE, // bias, qk-norm, RoPE, write to the cache
    RL_OP_ATTENTION,
    RL_OP_ATTN_OUT,
    RL_OP_FFN_NORM,
    RL_OP_ROUTER,
    RL_OP_GATE_UP,    // in prompts that go in one piece (rl_ffn_in_one_piece) the activation as well
    RL_OP_ACTIVATION, // and quantization of its result
    RL_OP_DOWN,
    RL_OP_HEAD_NORM,
    RL_OP_HEAD,
    RL_OP_COUNT
} rl_op;

typedef struct rl_trace_event {
    uint64_t t0_ns, t1_ns;
    uint32_t wait_ns; // of it, spent by the calling thread at the closing barrier
    uint16_t layer;   // UINT16_MAX outside layers
    uint16_t op;
    uint32_t n_tok;     // tokens of the step; of the head the rows that want logits
    uint32_t pos0;      // position of the step's first token
    uint16_t n_experts; // whose matrices were read, of the stacked ones; 0 elsewhere
} rl_trace_event;

typedef struct rl_trace {
    rl_trace_event *events; // the caller's; full: later events are counted, not kept
    size_t n, cap, dropped;
} rl_trace;

const char *rl_op_name(rl_op op);

#endif
