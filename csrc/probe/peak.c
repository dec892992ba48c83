// SPDX-License-Identifier: Apache-2.0
#include "probe/peak.h"

#include "base/clock.h"

#define ROUNDS 2000 // of the loop between two looks at the clock: tens of microseconds

typedef struct peak_job {
    const rl_peak *peak;
    uint64_t ns;
    double best[RL_MAX_THREADS];
} peak_job;

static void run_peak(void *arg, rl_team *team, int ith) {
    peak_job *j = arg;
    float sink;
    // In stretches with barriers between them: each is run by all threads together, and a stop is noticed.
    for (int stretch = 0; stretch < 10; stretch++) {
        if (!rl_team_barrier(team, ith)) return;
        double made = 0;
        uint64_t t0 = rl_clock_ns(), t = t0;
        while (t - t0 < j->ns / 10) {
            made += j->peak->fn(ROUNDS, &sink);
            t = rl_clock_ns();
        }
        double speed = made / ((double)(t - t0) * 1e-9);
        if (speed > j->best[ith]) j->best[ith] = speed;
    }
}

rl_status rl_probe_peak(rl_pool *pool, const rl_peak *peak, int n_threads, double seconds, rl_poll_fn poll,
                        void *poll_arg, double *per_second, rl_err *err) {
    if (!(seconds > 0 && seconds <= 60)) return rl_fail(err, RL_ERR_ARG, "seconds must be above 0 and at most 60");
    peak_job j = {.peak = peak, .ns = (uint64_t)(seconds * 1e9)};
    rl_region region = {.fn = run_peak, .arg = &j, .n_threads = n_threads, .poll = poll, .poll_arg = poll_arg};
    RL_TRY(rl_pool_run(pool, &region, err));
    *per_second = 0;
    for (int i = 0; i < n_threads; i++) *per_second += j.best[i];
    return RL_OK;
}
