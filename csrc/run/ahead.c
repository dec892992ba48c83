// SPDX-License-Identifier: Apache-2.0
// One thread that sleeps between evaluations. It holds no lock while it evaluates, and never needs the GIL, so a caller
// whose code keeps the GIL delays neither its beginning nor its end.
#include "run/ahead.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

struct rl_ahead {
    pthread_mutex_t lock; // of what follows, down to `thread`
    pthread_cond_t changed;
    bool running; // an evaluation was given and has not ended
    bool quit;
    bool alive; // there is a thread
    pthread_t thread;
    atomic_bool cancelled;
    rl_session *session;
    rl_eval ev;
    rl_ahead_result last; // read only while nothing is running
};

static bool cancelled(void *arg) {
    // Relaxed: it orders nothing, and is asked for again.
    return atomic_load_explicit(&((rl_ahead *)arg)->cancelled, memory_order_relaxed);
}

static void evaluate(rl_ahead *a) {
    rl_ahead_result *r = &a->last;
    rl_err_clear(&r->err);
    r->start_ns = rl_clock_ns();
    r->status = rl_session_eval(a->session, &a->ev, &r->err);
    r->end_ns = rl_clock_ns();
}

static void *ahead_main(void *arg) {
    rl_ahead *a = arg;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        while (!a->running && !a->quit) pthread_cond_wait(&a->changed, &a->lock);
        if (!a->running) break;
        pthread_mutex_unlock(&a->lock);
        evaluate(a);
        pthread_mutex_lock(&a->lock);
        a->running = false;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

rl_status rl_ahead_create(rl_ahead **out, rl_err *err) {
    rl_ahead *a = calloc(1, sizeof *a);
    if (!a) return rl_fail(err, RL_ERR_NOMEM, "no memory to run steps ahead");
    pthread_mutex_init(&a->lock, NULL);
    rl_cond_init(&a->changed);
    atomic_init(&a->cancelled, false);
    *out = a;
    return RL_OK;
}

void rl_ahead_free(rl_ahead *a) {
    if (!a) return;
    rl_ahead_cancel(a);
    rl_ahead_rest(a);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

rl_status rl_ahead_start(rl_ahead *a, rl_session *s, const rl_eval *ev, rl_err *err) {
    a->session = s;
    a->ev = *ev;
    a->ev.hold = true;
    a->ev.poll = cancelled;
    a->ev.poll_arg = a;
    atomic_store_explicit(&a->cancelled, false, memory_order_relaxed);
    if (!a->alive) {
        int rc = rl_thread_start(&a->thread, ahead_main, a);
        if (rc) {
            errno = rc;
            return rl_fail(err, RL_ERR_IO, "cannot start the thread that runs steps ahead: %s", strerror(rc));
        }
        a->alive = true;
    }
    pthread_mutex_lock(&a->lock);
    a->running = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return RL_OK;
}

bool rl_ahead_running(rl_ahead *a) {
    pthread_mutex_lock(&a->lock);
    bool running = a->running;
    pthread_mutex_unlock(&a->lock);
    return running;
}

bool rl_ahead_wait(rl_ahead *a, uint64_t ns) {
    struct timespec until;
    rl_deadline_in(&until, ns);
    pthread_mutex_lock(&a->lock);
    while (a->running && pthread_cond_timedwait(&a->changed, &a->lock, &until) != ETIMEDOUT) {
    }
    bool ended = !a->running;
    pthread_mutex_unlock(&a->lock);
    return ended;
}

void rl_ahead_cancel(rl_ahead *a) {
    atomic_store_explicit(&a->cancelled, true, memory_order_relaxed);
}

const rl_ahead_result *rl_ahead_last(const rl_ahead *a) {
    return &a->last;
}

void rl_ahead_rest(rl_ahead *a) {
    if (!a->alive) return;
    pthread_mutex_lock(&a->lock);
    a->quit = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    a->alive = a->quit = false;
}
