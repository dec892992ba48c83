// SPDX-License-Identifier: Apache-2.0
// The pool, its barriers and its work sharing.
//
// Waiting inside a region never sleeps: a short spin of pauses, then sched_yield, which lets a team with more
// threads than CPUs make progress (a pure spin is hundreds of times slower there, a futex at every barrier a
// fifth of the speed). Workers sleep on a condition only between regions, after a stretch of the same waiting.
//
// Stopping: the poll sets `stop`. Work is no longer handed out from then on, and the last thread to arrive at
// the next barrier writes the stop bit into the phase that releases it, so that one value tells every thread
// the same thing at the same barrier.
#define _GNU_SOURCE
#include "base/threads.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define LINE 128 // two cache lines: adjacent-line prefetchers pull pairs
#define POLL_NS 50000000u
#define STACK_BYTES (1u << 20) // musl's default of 128 KB is too little for kernels with tiles on the stack
#define IDLE_SPIN_NS 300000u   // how long a worker waits awake for the next region
#define CPUS_RECHECK_NS 1000000000u

// Pauses before the first yield: when every thread has a CPU the wait is short and a yield could hand the core
// to another process for a whole time slice; when not, whom we wait for may need this very core.
#define PAUSES_FREE 400u
#define PAUSES_CROWDED 20u

typedef struct thread_part {
    // {epoch:16, begin:24, end:24} of this thread's range in the current piece of work, in units of grain.
    _Alignas(LINE) _Atomic uint64_t range;
    _Alignas(LINE) uint32_t epoch; // calls of rl_work_begin by this thread; private to it
} thread_part;

struct rl_team {
    const rl_region *region;
    rl_pool *pool;
    int n;
    unsigned pauses;
    _Alignas(LINE) _Atomic uint32_t arrived;
    _Alignas(LINE) _Atomic uint32_t phase; // barriers passed << 1 | stopped
    _Alignas(LINE) _Atomic uint32_t stop;
    _Alignas(LINE) _Atomic int running; // workers still inside the region
    thread_part part[];
};

typedef struct worker {
    _Alignas(LINE) _Atomic uint32_t go; // regions given to this worker
    _Atomic uint32_t sleeping;
    pthread_mutex_t mutex; // only for sleeping
    pthread_cond_t cond;
    pthread_t thread;
    rl_pool *pool;
    int ith;
    bool quit;    // this and `team` are published by `go`
    bool crowded; // in its last region
    rl_team *team;
    int pinned; // CPU, or -1
    int pin_errno, ran_on;
    cpu_set_t mask; // as it was when the worker started
} worker;

// A caller that waits for its turn; lives on its stack.
typedef struct turn {
    pthread_cond_t cond;
    bool granted;
    pthread_t thread;
    struct turn *next;
} turn;

struct rl_pool {
    _Atomic int pid; // of the process that the workers live in; -1 while a forked child resets the pool
    pthread_mutex_t gate;
    bool busy;
    pthread_t owner; // whose region it is while busy
    turn *first, *last;
    int n_workers;
    worker *workers[RL_MAX_THREADS]; // [0] stays NULL: the caller
    rl_team *team;
    _Atomic uint64_t polled_ns; // only paces polling
    uint64_t counted_ns;
    int n_cpus;
    rl_pool_report report;
};

static inline void relax(void) {
#if defined(__x86_64__)
    __asm__ volatile("pause");
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); // `yield` is a no-op on most cores
#endif
}

static void poll_by_clock(rl_team *team) {
    const rl_region *r = team->region;
    if (!r->poll) return;
    uint64_t now = rl_clock_coarse_ns();
    // Relaxed: the time orders nothing.
    if (now - atomic_load_explicit(&team->pool->polled_ns, memory_order_relaxed) < POLL_NS) return;
    bool stop = r->poll(r->poll_arg);
    atomic_store_explicit(&team->pool->polled_ns, rl_clock_coarse_ns(), memory_order_relaxed);
    // Relaxed: who sees it and skips work arrives at the barrier after that (acquire-release on `arrived`), so
    // the last one to arrive sees it too.
    if (stop) atomic_store_explicit(&team->stop, 1, memory_order_relaxed);
}

static inline void wait_once(rl_team *team, int ith, unsigned *round) {
    if (++*round <= team->pauses) {
        relax();
        return;
    }
    sched_yield();
    if (ith == 0) poll_by_clock(team);
}

int rl_team_size(const rl_team *team) {
    return team->n;
}

bool rl_team_barrier(rl_team *team, int ith) {
    // Relaxed: this thread read the present value with acquire at its last barrier (or got it with `go`), and
    // the phase cannot move on before this thread arrives.
    uint32_t phase = atomic_load_explicit(&team->phase, memory_order_relaxed);
    if (phase & 1) return false;
    if (ith == 0) poll_by_clock(team);
    // Acquire-release: the last one to arrive has everything that the others wrote before.
    uint32_t before = atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel);
    if (before + 1 == (uint32_t)team->n) {
        // Relaxed: nobody adds to it again before having read the new phase, which is released after this.
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        uint32_t next = phase + 2;
        if (atomic_load_explicit(&team->stop, memory_order_relaxed)) next |= 1;
        // Release: passes on what all have written.
        atomic_store_explicit(&team->phase, next, memory_order_release);
        return !(next & 1);
    }
    uint32_t now;
    unsigned round = 0;
    while ((now = atomic_load_explicit(&team->phase, memory_order_acquire)) == phase) wait_once(team, ith, &round);
    return !(now & 1);
}

// Work sharing. Each thread has one slot, and a slot belongs to the piece of work whose epoch it holds:
//
//   slot epoch == mine   the range that is left, [begin, end): the owner takes from the front, thieves from the end
//   slot epoch <  mine   its owner has not come here yet: whoever comes first (owner or thief) puts in the owner's
//                        range, which follows from (n, team size, owner), less what it takes for itself
//   slot epoch >  mine   somebody is ahead. One leaves a piece of work only after having seen every slot empty, so
//                        nothing is left in mine
//
// Hence no barrier and no reset between pieces of work. All orders are relaxed: each argument is about the one
// location that the compare-and-swap is on, and no data is handed over with a range (inputs were published by
// the barrier before). The epoch has 16 bits and is compared as a signed difference: right while no thread is
// 32767 pieces behind, and a barrier brings all together. Every passer-by refreshes every slot, so none is stale.

#define UNIT_BITS 24
#define UNIT_MAX ((1u << UNIT_BITS) - 1)
#define TAKE_MAX 8 // units taken at once: small against the poll interval and the wait at the barrier

static inline uint64_t pack(uint32_t epoch, uint64_t begin, uint64_t end) {
    return (uint64_t)(uint16_t)epoch << 48 | begin << UNIT_BITS | end;
}

static bool take(const rl_work *w, rl_team *team, int owner, bool mine, size_t *u0, size_t *u1) {
    _Atomic uint64_t *slot = &team->part[owner].range;
    uint64_t units = (w->n + w->grain - 1) / w->grain, nth = (uint64_t)team->n;
    uint64_t seen = atomic_load_explicit(slot, memory_order_relaxed);
    for (;;) {
        int16_t ahead = (int16_t)((uint16_t)(seen >> 48) - (uint16_t)w->epoch);
        if (ahead > 0) return false;
        uint64_t begin = seen >> UNIT_BITS & UNIT_MAX, end = seen & UNIT_MAX;
        if (ahead < 0) {
            begin = units * (uint64_t)owner / nth;
            end = units * ((uint64_t)owner + 1) / nth;
        } else if (begin == end) {
            return false;
        }
        uint64_t left = end - begin, n = left / 4;
        n = n > TAKE_MAX ? TAKE_MAX : n ? n : left ? 1 : 0;
        uint64_t next = mine ? pack(w->epoch, begin + n, end) : pack(w->epoch, begin, end - n);
        if (!atomic_compare_exchange_weak_explicit(slot, &seen, next, memory_order_relaxed, memory_order_relaxed))
            continue;
        *u0 = mine ? begin : end - n;
        *u1 = *u0 + n;
        return n > 0;
    }
}

void rl_work_begin(rl_work *w, rl_team *team, int ith, size_t n, size_t grain) {
    if (grain == 0) grain = 1;
    size_t units = n / grain + (n % grain != 0);
    if (units > UNIT_MAX) grain *= units / UNIT_MAX + 1;
    w->n = n;
    w->grain = grain;
    w->epoch = ++team->part[ith].epoch;
    w->victim = ith;
}

bool rl_work_next(rl_work *w, rl_team *team, int ith, size_t *i0, size_t *i1) {
    if (ith == 0) poll_by_clock(team);
    if (atomic_load_explicit(&team->stop, memory_order_relaxed)) return false; // see poll_by_clock
    while (w->victim >= 0) {
        size_t u0, u1;
        if (take(w, team, w->victim, w->victim == ith, &u0, &u1)) {
            *i0 = u0 * w->grain;
            *i1 = u1 * w->grain < w->n ? u1 * w->grain : w->n;
            return true;
        }
        // An empty slot stays empty for this piece of work: go on to the next, round to ourselves.
        int next = w->victim + 1 == team->n ? 0 : w->victim + 1;
        w->victim = next == ith ? -1 : next;
    }
    return false;
}

// Workers.

// Moves the thread that asks to one CPU: 0, or why not.
static int pin_here(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (cpu < 0 || cpu >= CPU_SETSIZE) return EINVAL;
    CPU_SET(cpu, &set);
    // 0 is the calling thread itself: no need for pthread_setaffinity_np, which bionic lacks.
    return sched_setaffinity(0, sizeof set, &set) == 0 ? 0 : errno;
}

static void pin_worker(worker *w, const int *cpus) {
    int want = cpus ? cpus[w->ith] : -1;
    if (want == w->pinned) return;
    if (want >= 0)
        w->pin_errno = pin_here(want);
    else
        w->pin_errno = sched_setaffinity(0, sizeof w->mask, &w->mask) == 0 ? 0 : errno;
    w->pinned = w->pin_errno ? -2 : want; // -2: try again next time
}

// The caller is pinned for the length of a region and then put back: threads that it starts later inherit its mask.
typedef struct caller_place {
    bool moved;
    int pin_errno;
    cpu_set_t home;
} caller_place;

static caller_place pin_caller(const int *cpus) {
    caller_place p = {0};
    if (!cpus) return p;
    if (sched_getaffinity(0, sizeof p.home, &p.home) != 0)
        p.pin_errno = errno;
    else
        p.pin_errno = pin_here(cpus[0]);
    p.moved = !p.pin_errno;
    return p;
}

static void put_back(const caller_place *p) {
    if (p->moved) (void)sched_setaffinity(0, sizeof p->home, &p->home);
}

static void wait_for_go(worker *w, uint32_t seen) {
    uint64_t until = 0;
    for (unsigned round = 0;; round++) {
        // Acquire: brings `team`, `quit` and the region with it.
        if (atomic_load_explicit(&w->go, memory_order_acquire) != seen) return;
        // No yield where every thread has a CPU: it would hand this one to a busy process for a whole time slice, and
        // the next region is about to begin. A worker that goes to sleep instead is preferred when it wakes.
        if (w->crowded && round > PAUSES_CROWDED) sched_yield();
        relax();
        if (round % 16 != 15) continue;
        uint64_t now = rl_clock_ns();
        if (!until) until = now + IDLE_SPIN_NS;
        if (now > until) break;
    }
    pthread_mutex_lock(&w->mutex);
    // Sequentially consistent, with give() doing the opposite: either it sees `sleeping`, or we see `go`.
    atomic_store_explicit(&w->sleeping, 1, memory_order_seq_cst);
    while (atomic_load_explicit(&w->go, memory_order_seq_cst) == seen) pthread_cond_wait(&w->cond, &w->mutex);
    atomic_store_explicit(&w->sleeping, 0, memory_order_relaxed);
    pthread_mutex_unlock(&w->mutex);
}

static void give(worker *w) {
    atomic_fetch_add_explicit(&w->go, 1, memory_order_seq_cst); // see wait_for_go; also releases `team`
    if (!atomic_load_explicit(&w->sleeping, memory_order_seq_cst)) return;
    pthread_mutex_lock(&w->mutex);
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->mutex);
}

static void *worker_main(void *arg) {
    worker *w = arg;
    if (sched_getaffinity(0, sizeof w->mask, &w->mask) != 0) memset(&w->mask, 0xFF, sizeof w->mask);
    for (uint32_t seen = 0;; seen++) {
        wait_for_go(w, seen);
        if (w->quit) return NULL;
        rl_team *team = w->team;
        w->crowded = team->pauses == PAUSES_CROWDED;
        pin_worker(w, team->region->cpus);
        team->region->fn(team->region->arg, team, w->ith);
        w->ran_on = sched_getcpu();
        // Release: the caller, who reads 0 with acquire, sees all we wrote. The team is not touched after this.
        atomic_fetch_sub_explicit(&team->running, 1, memory_order_release);
    }
}

int rl_thread_start(pthread_t *out, void *(*fn)(void *), void *arg) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(out, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

static rl_status start_worker(rl_pool *pool, int ith, rl_err *err) {
    worker *w = NULL;
    if (posix_memalign((void **)&w, LINE, sizeof *w) != 0)
        return rl_fail(err, RL_ERR_NOMEM, "no memory for worker thread %d", ith);
    memset(w, 0, sizeof *w);
    atomic_init(&w->go, 0);
    atomic_init(&w->sleeping, 0);
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->cond, NULL);
    w->pool = pool;
    w->ith = ith;
    w->pinned = -1;
    int rc = rl_thread_start(&w->thread, worker_main, w);
    if (rc != 0) {
        pthread_cond_destroy(&w->cond);
        pthread_mutex_destroy(&w->mutex);
        free(w);
        errno = rc;
        return rl_fail(err, RL_ERR_IO, "cannot start worker thread %d: %s", ith, strerror(rc));
    }
    pool->workers[ith] = w;
    pool->n_workers++;
    return RL_OK;
}

// The pool.

static void init_gate(rl_pool *pool) {
    pthread_mutex_init(&pool->gate, NULL);
    pool->busy = false;
    pool->first = pool->last = NULL;
}

rl_status rl_pool_create(rl_pool **out, rl_err *err) {
    *out = NULL;
    rl_pool *pool = calloc(1, sizeof *pool);
    size_t team_bytes = sizeof(rl_team) + RL_MAX_THREADS * sizeof(thread_part);
    if (!pool || posix_memalign((void **)&pool->team, LINE, team_bytes) != 0) {
        free(pool);
        return rl_fail(err, RL_ERR_NOMEM, "no memory for the thread pool");
    }
    memset(pool->team, 0, team_bytes);
    init_gate(pool);
    atomic_init(&pool->pid, (int)getpid());
    atomic_init(&pool->polled_ns, rl_clock_coarse_ns());
    *out = pool;
    return RL_OK;
}

// In a forked child the workers are gone, and locks are as some other thread of the parent left them.
static void reset_after_fork(rl_pool *pool) {
    int pid = (int)getpid(), was = atomic_load_explicit(&pool->pid, memory_order_acquire);
    if (was == pid) return;
    if (was != -1 &&
        atomic_compare_exchange_strong_explicit(&pool->pid, &was, -1, memory_order_acquire, memory_order_acquire)) {
        for (int i = 1; i < RL_MAX_THREADS; i++) {
            free(pool->workers[i]);
            pool->workers[i] = NULL;
        }
        pool->n_workers = 0;
        init_gate(pool);
        atomic_store_explicit(&pool->pid, pid, memory_order_release);
        return;
    }
    while (atomic_load_explicit(&pool->pid, memory_order_acquire) != pid) sched_yield();
}

void rl_pool_destroy(rl_pool *pool) {
    if (!pool) return;
    bool ours = atomic_load_explicit(&pool->pid, memory_order_acquire) == (int)getpid();
    if (ours) {
        // At the end of a program a thread that nobody waits for may still be inside: it keeps what it uses.
        pthread_mutex_lock(&pool->gate);
        bool busy = pool->busy;
        pthread_mutex_unlock(&pool->gate);
        if (busy) return;
    }
    for (int i = 1; i < RL_MAX_THREADS; i++) {
        worker *w = pool->workers[i];
        if (!w) continue;
        if (ours) {
            w->quit = true;
            give(w);
            pthread_join(w->thread, NULL);
            pthread_cond_destroy(&w->cond);
            pthread_mutex_destroy(&w->mutex);
        }
        free(w);
    }
    if (ours) pthread_mutex_destroy(&pool->gate);
    free(pool->team);
    free(pool);
}

void rl_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

void rl_deadline_in(struct timespec *t, uint64_t ns) {
    clock_gettime(CLOCK_MONOTONIC, t);
    ns += (uint64_t)t->tv_nsec;
    t->tv_sec += (time_t)(ns / 1000000000u);
    t->tv_nsec = (long)(ns % 1000000000u);
}

// Takes the pool, in the order of asking.
static rl_status enter(rl_pool *pool, const rl_region *region, rl_err *err) {
    pthread_mutex_lock(&pool->gate);
    if (!pool->busy) {
        pool->busy = true;
        pool->owner = pthread_self();
        pthread_mutex_unlock(&pool->gate);
        return RL_OK;
    }
    // A signal handler that the poll runs may come here; the region it interrupts would wait for it forever.
    if (pthread_equal(pool->owner, pthread_self())) {
        pthread_mutex_unlock(&pool->gate);
        return rl_fail(err, RL_ERR_BUSY,
                       "parallel work cannot be started from inside parallel work of the same thread");
    }
    turn t = {.granted = false, .thread = pthread_self(), .next = NULL};
    rl_cond_init(&t.cond);
    if (pool->last)
        pool->last->next = &t;
    else
        pool->first = &t;
    pool->last = &t;
    bool stop = false;
    while (!t.granted && !stop) {
        struct timespec until;
        rl_deadline_in(&until, POLL_NS);
        int rc = pthread_cond_timedwait(&t.cond, &pool->gate, &until);
        if (t.granted || rc != ETIMEDOUT || !region->poll) continue;
        // Not under the lock: the poll may wait for the GIL, and its holder for this lock.
        pthread_mutex_unlock(&pool->gate);
        stop = region->poll(region->poll_arg);
        pthread_mutex_lock(&pool->gate);
    }
    if (!t.granted) {
        turn **at = &pool->first, *before = NULL;
        while (*at != &t) before = *at, at = &(*at)->next;
        *at = t.next;
        if (pool->last == &t) pool->last = before;
    }
    bool got = t.granted;
    pthread_mutex_unlock(&pool->gate);
    pthread_cond_destroy(&t.cond);
    // Granted and asked to stop at once: run, the poll will ask again.
    return got ? RL_OK : rl_fail(err, RL_ERR_INTERRUPTED, "interrupted");
}

// n: threads of the region that ran, 0 when none did.
static void leave(rl_pool *pool, int n, int caller_errno) {
    int cpu = sched_getcpu();
    pthread_mutex_lock(&pool->gate);
    if (n) pool->report.n_threads = n;
    for (int i = 0; i < n; i++) {
        pool->report.cpu[i] = i ? pool->workers[i]->ran_on : cpu;
        pool->report.pin_errno[i] = i ? pool->workers[i]->pin_errno : caller_errno;
    }
    turn *t = pool->first;
    if (t) {
        pool->first = t->next;
        if (!pool->first) pool->last = NULL;
        t->granted = true; // busy stays set: the pool goes from hand to hand
        pool->owner = t->thread;
        pthread_cond_signal(&t->cond);
    } else {
        pool->busy = false;
    }
    pthread_mutex_unlock(&pool->gate);
}

static int count_cpus(rl_pool *pool) {
    uint64_t now = rl_clock_coarse_ns();
    if (pool->n_cpus && now - pool->counted_ns < CPUS_RECHECK_NS) return pool->n_cpus;
    cpu_set_t set;
    long n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    pool->n_cpus = n > 0 ? (int)n : 1;
    pool->counted_ns = now;
    return pool->n_cpus;
}

static void init_team(rl_team *team, rl_pool *pool, const rl_region *region) {
    team->region = region;
    team->pool = pool;
    team->n = region->n_threads;
    atomic_init(&team->arrived, 0);
    atomic_init(&team->phase, 0);
    atomic_init(&team->stop, 0);
    atomic_init(&team->running, region->n_threads - 1);
    for (int i = 0; i < team->n; i++) {
        atomic_init(&team->part[i].range, 0);
        team->part[i].epoch = 0;
    }
}

static void report_alone(rl_pool *pool, int pin_errno) {
    int cpu = sched_getcpu();
    reset_after_fork(pool);
    pthread_mutex_lock(&pool->gate);
    pool->report.n_threads = 1;
    pool->report.cpu[0] = cpu;
    pool->report.pin_errno[0] = pin_errno;
    pthread_mutex_unlock(&pool->gate);
}

// Alone, without workers and without waiting for anybody: several callers can do this at once.
static rl_status run_alone(rl_pool *pool, const rl_region *region, rl_err *err) {
    union {
        rl_team team;
        char bytes[sizeof(rl_team) + sizeof(thread_part)];
    } here;
    init_team(&here.team, pool, region);
    here.team.pauses = PAUSES_FREE;
    caller_place place = pin_caller(region->cpus);
    region->fn(region->arg, &here.team, 0);
    report_alone(pool, place.pin_errno);
    put_back(&place);
    if (atomic_load_explicit(&here.team.stop, memory_order_relaxed))
        return rl_fail(err, RL_ERR_INTERRUPTED, "interrupted");
    return RL_OK;
}

rl_status rl_pool_run(rl_pool *pool, const rl_region *region, rl_err *err) {
    int n = region->n_threads;
    if (n < 1 || n > RL_MAX_THREADS)
        return rl_fail(err, RL_ERR_ARG, "n_threads must be from 1 to %d, not %d", RL_MAX_THREADS, n);
    if (n == 1) return run_alone(pool, region, err);
    reset_after_fork(pool);
    RL_TRY(enter(pool, region, err));
    for (int i = pool->n_workers + 1; i < n; i++) {
        rl_status rc = start_worker(pool, i, err);
        if (rc != RL_OK) {
            leave(pool, 0, 0);
            return rc;
        }
    }
    rl_team *team = pool->team;
    init_team(team, pool, region);
    team->pauses = n > count_cpus(pool) ? PAUSES_CROWDED : PAUSES_FREE;
    for (int i = 1; i < n; i++) {
        pool->workers[i]->team = team;
        give(pool->workers[i]);
    }
    caller_place place = pin_caller(region->cpus); // after the workers have started: they inherit the mask
    region->fn(region->arg, team, 0);
    unsigned round = 0;
    // Acquire: what the workers wrote.
    while (atomic_load_explicit(&team->running, memory_order_acquire) > 0) wait_once(team, 0, &round);
    bool stopped = atomic_load_explicit(&team->stop, memory_order_relaxed);
    leave(pool, n, place.pin_errno);
    put_back(&place);
    return stopped ? rl_fail(err, RL_ERR_INTERRUPTED, "interrupted") : RL_OK;
}

void rl_pool_last_report(rl_pool *pool, rl_pool_report *out) {
    reset_after_fork(pool);
    pthread_mutex_lock(&pool->gate);
    *out = pool->report;
    pthread_mutex_unlock(&pool->gate);
}
