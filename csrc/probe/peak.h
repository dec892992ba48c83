// SPDX-License-Identifier: Apache-2.0
// Multiply-adds per second on registers, by several threads at once: the roof of arithmetic, at the clock that the
// cores hold when all of them work.
#ifndef RL_PROBE_PEAK_H
#define RL_PROBE_PEAK_H

#include "base/threads.h"
#include "kernels/peak.h"

/// Sum over the threads of what each made in its best stretch of about a tenth of `seconds`. RL_ERR_INTERRUPTED.
rl_status rl_probe_peak(rl_pool *pool, const rl_peak *peak, int n_threads, double seconds, rl_poll_fn poll,
                        void *poll_arg, double *per_second, rl_err *err);

#endif
