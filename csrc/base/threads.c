// SPDX-License-Identifier: Apache-2.0
#include "base/threads.h"

rl_status rl_pool_create(rl_pool **out, rl_err *err) {
    (void)out;
    return rl_fail(err, RL_ERR_UNSUPPORTED, "threads are not built yet");
}
void rl_pool_destroy(rl_pool *pool) {
    (void)pool;
}
