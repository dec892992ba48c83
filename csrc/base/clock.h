// SPDX-License-Identifier: Apache-2.0
// Clocks. The precise one times work; the coarse one (a few milliseconds, no counter read) paces polling.
#ifndef RL_BASE_CLOCK_H
#define RL_BASE_CLOCK_H

#include <stdint.h>

/// Nanoseconds of the monotonic clock.
uint64_t rl_clock_ns(void);
/// The same clock as of the last timer tick: cheap enough to ask for in every piece of work.
uint64_t rl_clock_coarse_ns(void);
/// The clock that goes on during suspend; its difference to rl_clock_ns grows by the time suspended.
uint64_t rl_clock_boot_ns(void);
/// Time that the calling thread has spent on a core: what is missing beside the monotonic clock, others had.
uint64_t rl_clock_thread_ns(void);
/// Clock of the core under us, in GHz: times a chain of dependent integer adds for about `ms` milliseconds.
double rl_clock_core_ghz(double ms);

#endif
