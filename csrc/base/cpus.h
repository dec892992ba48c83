// SPDX-License-Identifier: Apache-2.0
// The CPUs this process may use, in classes of equal cores, what a control group allows of them, and from that the
// number of threads to start with and why. Everything is read below a root directory, so that tests can show it
// other machines.
#ifndef RL_BASE_CPUS_H
#define RL_BASE_CPUS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define RL_MAX_CPUS 1024
#define RL_MAX_CPU_CLASSES 8

typedef struct rl_cpu {
    int id;
    bool allowed;    // by the affinity mask
    int cls;         // index into classes
    int64_t max_khz; // cpufreq cpuinfo_max_freq, 0 when not known
    int capacity;    // cpu_capacity (1024 is the fastest core of the system), 0 when not known
    int core;        // lowest CPU number that shares this core: siblings are hardware threads of one core
} rl_cpu;

typedef struct rl_cpu_class {
    int n, n_allowed;
    int64_t max_khz; // of its fastest core
    int capacity;
    bool big; // good for a thread of its own beside the fastest
} rl_cpu_class;

typedef struct rl_cpus {
    int n; // online
    rl_cpu cpu[RL_MAX_CPUS];
    int n_present; // online or not
    int n_classes; // fastest first
    rl_cpu_class classes[RL_MAX_CPU_CLASSES];
    int cgroup;            // 1, 2, or 0 when there is none
    double quota;          // CPUs worth of time, 0: no limit
    uint64_t memory_limit; // bytes, 0: no limit
    int default_threads;
    int default_cpus[RL_MAX_CPUS]; // the CPUs meant, default_threads of them
    char reason[256];
} rl_cpus;

/// root: NULL or "/" for this machine; elsewhere the affinity comes from <root>/proc/self/status and is everything
/// when that is missing. RL_ERR_IO when not even the online CPUs can be found.
rl_status rl_cpus_read(rl_cpus *out, const char *root, rl_err *err);

/// Parses "0-3,6" into ascending numbers below `limit`, at most `max`; -1 when it is no such list.
int rl_cpulist_parse(const char *text, int *out, int max, int limit);

#endif
