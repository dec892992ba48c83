// SPDX-License-Identifier: Apache-2.0
// Drives the thread pool from C, so that it can be run under ThreadSanitizer and timed without Python.
//   threads_driver check [rounds]     every property that threads.h promises; exit status 0 when all hold
//   threads_driver bench THREADS SECONDS     passes per second of a walk that is shaped like a small model
//   threads_driver yields THREADS BARRIERS   how often threads gave their CPU away while they waited
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/threads.h"

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #cond);                                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static uint32_t mix(uint32_t x) {
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ x >> 16;
}

// Plain (not atomic) counters: handing an item out twice is a data race for ThreadSanitizer and a wrong count here.
enum { MAX_ITEMS = 5000, OPS = 40 };
typedef struct {
    int nth;
    unsigned seed;
    int *hits[OPS];
    size_t n[OPS], grain[OPS];
    int barrier_every; // ops between barriers
    int sum_seen[RL_MAX_THREADS];
    int value;
} share_case;

static void share_region(void *arg, rl_team *team, int ith) {
    share_case *c = arg;
    CHECK(rl_team_size(team) == c->nth);
    for (int op = 0; op < OPS; op++) {
        rl_work w;
        size_t i0, i1;
        rl_work_begin(&w, team, ith, c->n[op], c->grain[op]);
        while (rl_work_next(&w, team, ith, &i0, &i1)) {
            CHECK(i0 < i1 && i1 <= c->n[op]);
            CHECK(i0 % w.grain == 0 && (i1 % w.grain == 0 || i1 == c->n[op]));
            for (size_t i = i0; i < i1; i++) c->hits[op][i]++;
            if (mix(c->seed + (unsigned)(op * 977 + ith)) % 7 == 0) usleep(10);
        }
        CHECK(!rl_work_next(&w, team, ith, &i0, &i1));
        if (op % c->barrier_every == c->barrier_every - 1) {
            CHECK(rl_team_barrier(team, ith));
            // What another thread wrote before the barrier is seen after it.
            for (size_t i = 0; i < c->n[op]; i += 17) CHECK(c->hits[op][i] == 1);
            if (ith == op % c->nth) c->value = op;
            CHECK(rl_team_barrier(team, ith));
            CHECK(c->value == op);
            CHECK(rl_team_barrier(team, ith));
        }
    }
}

static void check_sharing(rl_pool *pool, int nth, unsigned seed, int barrier_every) {
    share_case c = {.nth = nth, .seed = seed, .barrier_every = barrier_every};
    for (int op = 0; op < OPS; op++) {
        uint32_t r = mix(seed * 1000 + (unsigned)op);
        c.n[op] = r % 5 == 0 ? r % 4 : r % MAX_ITEMS;
        c.grain[op] = 1 + mix(r) % (r % 3 ? 8 : 200);
        c.hits[op] = calloc(MAX_ITEMS, sizeof(int));
    }
    rl_region region = {.fn = share_region, .arg = &c, .n_threads = nth};
    rl_err err;
    CHECK(rl_pool_run(pool, &region, &err) == RL_OK);
    for (int op = 0; op < OPS; op++) {
        for (size_t i = 0; i < c.n[op]; i++) CHECK(c.hits[op][i] == 1);
        free(c.hits[op]);
    }
}

// More items than 24 bits of units: the grain grows instead of the range being cut.
static void huge_region(void *arg, rl_team *team, int ith) {
    _Atomic uint64_t *total = arg;
    rl_work w;
    size_t i0, i1, n = (size_t)5 << 32;
    rl_work_begin(&w, team, ith, n, 3);
    while (rl_work_next(&w, team, ith, &i0, &i1)) atomic_fetch_add(total, i1 - i0);
}

typedef struct {
    int nth, stop_after_polls;
    _Atomic int polls;
    int last_barrier[RL_MAX_THREADS];
    _Atomic int stop_seen;
} stop_case;

static bool stop_poll(void *arg) {
    stop_case *c = arg;
    return atomic_fetch_add(&c->polls, 1) + 1 >= c->stop_after_polls;
}

static void stop_region(void *arg, rl_team *team, int ith) {
    stop_case *c = arg;
    for (int b = 0;; b++) {
        rl_work w;
        size_t i0, i1;
        rl_work_begin(&w, team, ith, 64, 1);
        while (rl_work_next(&w, team, ith, &i0, &i1)) usleep(20 + mix((unsigned)(i0 * 31 + (size_t)b)) % 50);
        if (!rl_team_barrier(team, ith)) {
            c->last_barrier[ith] = b;
            rl_work_begin(&w, team, ith, 10, 1);
            CHECK(!rl_work_next(&w, team, ith, &i0, &i1));
            CHECK(!rl_team_barrier(team, ith));
            return;
        }
    }
}

// ith 0 only waits: the poll has to reach it in the barrier. The others finish their item and come.
static void wait_region(void *arg, rl_team *team, int ith) {
    stop_case *c = arg;
    if (ith == 0) {
        CHECK(!rl_team_barrier(team, ith));
        return;
    }
    while (!atomic_load(&c->stop_seen)) {
        if (atomic_load(&c->polls) >= c->stop_after_polls) atomic_store(&c->stop_seen, 1);
        usleep(500);
    }
    CHECK(!rl_team_barrier(team, ith));
}

static void check_stop(rl_pool *pool, int nth) {
    stop_case c = {.nth = nth, .stop_after_polls = 2};
    rl_region region = {.fn = stop_region, .arg = &c, .n_threads = nth, .poll = stop_poll, .poll_arg = &c};
    rl_err err;
    CHECK(rl_pool_run(pool, &region, &err) == RL_ERR_INTERRUPTED); // else it would never come back
    for (int i = 1; i < nth; i++) CHECK(c.last_barrier[i] == c.last_barrier[0]);
    // The pool works on after it.
    check_sharing(pool, nth, 99, 1);
    if (nth > 1) {
        stop_case d = {.nth = nth, .stop_after_polls = 1};
        rl_region waiting = {.fn = wait_region, .arg = &d, .n_threads = nth, .poll = stop_poll, .poll_arg = &d};
        CHECK(rl_pool_run(pool, &waiting, &err) == RL_ERR_INTERRUPTED);
    }
}

// Callers queue up, and one that waits can be called off.
typedef struct {
    rl_pool *pool;
    int nth, rounds;
    unsigned seed;
} caller;
static void *caller_main(void *arg) {
    caller *c = arg;
    for (int i = 0; i < c->rounds; i++) check_sharing(c->pool, c->nth, c->seed + (unsigned)i, 1 + i % 3);
    return NULL;
}

typedef struct {
    _Atomic int inside, release;
} hold_case;
static void hold_region(void *arg, rl_team *team, int ith) {
    hold_case *h = arg;
    (void)team;
    if (ith == 0) {
        atomic_store(&h->inside, 1);
        while (!atomic_load(&h->release)) usleep(200);
    }
}
typedef struct {
    rl_pool *pool;
    hold_case *h;
} holder;
static void *holder_main(void *arg) {
    holder *h = arg;
    rl_region region = {.fn = hold_region, .arg = h->h, .n_threads = 2};
    CHECK(rl_pool_run(h->pool, &region, NULL) == RL_OK);
    return NULL;
}
static void never_region(void *arg, rl_team *team, int ith) {
    (void)arg, (void)team, (void)ith;
    CHECK(!"this region must not run");
}

// A poll (in Python: a signal handler) that starts parallel work itself must be told, not wait for itself.
static bool nested_poll(void *arg) {
    rl_region region = {.fn = never_region, .n_threads = 2};
    CHECK(rl_pool_run(arg, &region, NULL) == RL_ERR_BUSY);
    return true;
}
static void spin_region(void *arg, rl_team *team, int ith) {
    (void)arg;
    while (rl_team_barrier(team, ith)) usleep(1000);
}

static void check_queue(rl_pool *pool) {
    rl_region outer = {.fn = spin_region, .n_threads = 2, .poll = nested_poll, .poll_arg = pool};
    CHECK(rl_pool_run(pool, &outer, NULL) == RL_ERR_INTERRUPTED);

    caller callers[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        callers[i] = (caller){pool, 1 + i % 3, 6, (unsigned)(i * 100)};
        CHECK(pthread_create(&threads[i], NULL, caller_main, &callers[i]) == 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);

    hold_case h = {0};
    holder arg = {pool, &h};
    CHECK(pthread_create(&threads[0], NULL, holder_main, &arg) == 0);
    while (!atomic_load(&h.inside)) usleep(100);
    stop_case c = {.stop_after_polls = 1};
    rl_region region = {.fn = never_region, .n_threads = 2, .poll = stop_poll, .poll_arg = &c};
    CHECK(rl_pool_run(pool, &region, NULL) == RL_ERR_INTERRUPTED);
    atomic_store(&h.release, 1);
    pthread_join(threads[0], NULL);
    check_sharing(pool, 2, 5, 1);
}

static void check_fork(rl_pool *pool) {
    hold_case h = {0};
    holder arg = {pool, &h};
    pthread_t t;
    CHECK(pthread_create(&t, NULL, holder_main, &arg) == 0);
    while (!atomic_load(&h.inside)) usleep(100);
    // The pool is in use by a thread that the child does not have.
    pid_t pid = fork();
    if (pid == 0) {
        check_sharing(pool, 3, 7, 1);
        rl_pool_destroy(pool);
        _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    atomic_store(&h.release, 1);
    pthread_join(t, NULL);
    check_sharing(pool, 3, 8, 1);
    pid = fork(); // a child that only lets go of it
    if (pid == 0) {
        rl_pool_destroy(pool);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void check_pinning(rl_pool *pool) {
    rl_pool_report report;
    int cpus[] = {0, 0}, bad[] = {0, 1000000};
    hold_case h = {.release = 1};
    rl_region region = {.fn = hold_region, .arg = &h, .n_threads = 2, .cpus = cpus};
    CHECK(rl_pool_run(pool, &region, NULL) == RL_OK);
    rl_pool_last_report(pool, &report);
    CHECK(report.n_threads == 2);
    if (report.pin_errno[1] == 0) CHECK(report.cpu[1] == 0);
    region.cpus = bad; // refused: it runs all the same, and says so
    CHECK(rl_pool_run(pool, &region, NULL) == RL_OK);
    rl_pool_last_report(pool, &report);
    CHECK(report.pin_errno[1] != 0);
    region.cpus = NULL;
    CHECK(rl_pool_run(pool, &region, NULL) == RL_OK);
    rl_pool_last_report(pool, &report);
    CHECK(report.pin_errno[1] == 0);
}

static int check(int rounds, int may_fork) {
    rl_err err;
    rl_pool *pool;
    CHECK(rl_pool_create(&pool, &err) == RL_OK);
    for (int r = 0; r < rounds; r++)
        for (int nth = 1; nth <= 5; nth++) check_sharing(pool, nth, (unsigned)(r * 10 + nth), 1 + r % 7);
    check_sharing(pool, 33, 1, 40);
    for (int nth = 1; nth <= 4; nth++) {
        _Atomic uint64_t total = 0;
        rl_region region = {.fn = huge_region, .arg = (void *)&total, .n_threads = nth};
        CHECK(rl_pool_run(pool, &region, &err) == RL_OK && total == (uint64_t)5 << 32);
        check_stop(pool, nth);
    }
    rl_region bad = {.fn = never_region, .n_threads = 0};
    CHECK(rl_pool_run(pool, &bad, &err) == RL_ERR_ARG);
    bad.n_threads = RL_MAX_THREADS + 1;
    CHECK(rl_pool_run(pool, &bad, &err) == RL_ERR_ARG);
    check_queue(pool);
    check_pinning(pool);
    if (may_fork) check_fork(pool);
    rl_pool_destroy(pool);
    puts("ok");
    return 0;
}

// A walk shaped like SmolLM2's decode: 30 layers of 5 pieces of work over 3.2 MB, with a barrier after each.
typedef struct {
    const float *data;
    size_t n; // rows of 64 floats
    _Atomic uint64_t sink;
    int layers;
} walk;
static void walk_region(void *arg, rl_team *team, int ith) {
    walk *k = arg;
    static const int share[5] = {2, 1, 8, 1, 4};
    float acc[16] = {0};
    for (int layer = 0; layer < k->layers; layer++) {
        size_t base = 0;
        for (int op = 0; op < 5; op++) {
            rl_work w;
            size_t i0, i1, n = k->n * (size_t)share[op] / 16;
            rl_work_begin(&w, team, ith, n, 16);
            while (rl_work_next(&w, team, ith, &i0, &i1))
                for (size_t i = i0; i < i1; i++)
                    for (int j = 0; j < 64; j++) acc[j % 16] += k->data[(base + i) * 64 + (size_t)j];
            base += n;
            if (!rl_team_barrier(team, ith)) return;
        }
    }
    uint64_t bits = 0;
    memcpy(&bits, acc, sizeof bits);
    atomic_fetch_xor(&k->sink, bits);
}

static int bench(int nth, double seconds) {
    rl_pool *pool;
    CHECK(rl_pool_create(&pool, NULL) == RL_OK);
    walk k = {.n = 12500, .layers = 30};
    float *data = malloc(k.n * 64 * sizeof *data);
    for (size_t i = 0; i < k.n * 64; i++) data[i] = (float)(i % 7);
    k.data = data;
    rl_region region = {.fn = walk_region, .arg = &k, .n_threads = nth};
    uint64_t t0 = rl_clock_ns(), end = t0 + (uint64_t)(seconds * 1e9), now;
    int passes = 0;
    do {
        CHECK(rl_pool_run(pool, &region, NULL) == RL_OK);
        passes++;
        now = rl_clock_ns();
    } while (now < end);
    printf("%.1f\n", passes / ((double)(now - t0) * 1e-9));
    free(data);
    rl_pool_destroy(pool);
    return 0;
}

// In the place of the C library's: the pool's own calls come by here.
static _Atomic long yields;
int sched_yield(void) {
    atomic_fetch_add(&yields, 1);
    return (int)syscall(SYS_sched_yield);
}
static void barriers_region(void *arg, rl_team *team, int ith) {
    for (int i = 0; i < *(int *)arg; i++) CHECK(rl_team_barrier(team, ith));
}
static int count_yields(int nth, int barriers) {
    rl_pool *pool;
    CHECK(rl_pool_create(&pool, NULL) == RL_OK);
    rl_region region = {.fn = barriers_region, .arg = &barriers, .n_threads = nth};
    CHECK(rl_pool_run(pool, &region, NULL) == RL_OK);
    printf("%ld\n", atomic_load(&yields));
    rl_pool_destroy(pool);
    return 0;
}

int main(int argc, char **argv) {
    if (argc >= 2 && strcmp(argv[1], "check") == 0)
        return check(argc > 2 ? atoi(argv[2]) : 3, argc > 3 ? atoi(argv[3]) : 1);
    if (argc == 4 && strcmp(argv[1], "bench") == 0) return bench(atoi(argv[2]), atof(argv[3]));
    if (argc == 4 && strcmp(argv[1], "yields") == 0) return count_yields(atoi(argv[2]), atoi(argv[3]));
    fprintf(stderr, "usage: %s check [rounds [fork]] | bench THREADS SECONDS | yields THREADS BARRIERS\n", argv[0]);
    return 2;
}
