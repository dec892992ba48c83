// SPDX-License-Identifier: Apache-2.0
// Hardware and software counters of one thread, by perf_event_open. One file descriptor per counter and thread.
#ifndef RL_PROBE_COUNTERS_H
#define RL_PROBE_COUNTERS_H

#include <stdbool.h>
#include <stdint.h>

// The processor has fewer counters than there are events: they take turns, and value * enabled / running estimates what
// a counter would have shown that ran all the time.
typedef struct rl_counter_value {
    uint64_t value, enabled_ns, running_ns;
} rl_counter_value;

/// A counter, stopped, of the thread tid and the threads it will start. type and config as in perf_event_open(2).
/// kernel: counts what happens inside the kernel, too, which needs more rights, and without which events that only
/// happen there, such as context switches, stay 0. Returns a file descriptor that close() frees, or -errno.
int rl_counter_open(uint32_t type, uint64_t config, int tid, bool kernel);
/// Starts or stops counting; 0 or -errno.
int rl_counter_run(int fd, bool on);
/// 0 or -errno.
int rl_counter_read(int fd, rl_counter_value *out);

#endif
