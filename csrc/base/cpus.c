// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "base/cpus.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Cores within this share of each other are one class: favoured cores of one kind differ by a few percent.
#define SAME_CLASS 0.94
// A slower class still counts as big when it has this share of the fastest: capacities are measured speed (little
// cores have a quarter to a half), clocks say less, and a little core may clock at three quarters of a big one.
#define BIG_CAPACITY 0.6
#define BIG_CLOCK 0.8

// The beginning of a small file, without the newline at its end. False when it cannot be read.
static bool read_text(const char *root, char *out, size_t size, const char *fmt, ...) {
    char path[1024];
    int at = snprintf(path, sizeof path, "%s/", root);
    if (at < 0 || (size_t)at >= sizeof path) return false;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(path + at, sizeof path - (size_t)at, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)(at + n) >= sizeof path) return false;
    FILE *f = fopen(path, "r");
    if (!f) return false;
    size_t got = fread(out, 1, size - 1, f);
    fclose(f);
    out[got] = 0;
    while (got && (out[got - 1] == '\n' || out[got - 1] == ' ')) out[--got] = 0;
    return got > 0;
}

static int64_t to_int(const char *s) {
    errno = 0;
    char *end;
    long long v = strtoll(s, &end, 10);
    return end == s || errno ? 0 : v;
}

int rl_cpulist_parse(const char *text, int *out, int max, int limit) {
    int n = 0, last = -1;
    const char *p = text;
    while (*p) {
        char *end;
        long a = strtol(p, &end, 10), b = a;
        if (end == p || a < 0) return -1;
        p = end;
        if (*p == '-') {
            b = strtol(++p, &end, 10);
            if (end == p || b < a) return -1;
            p = end;
        }
        if (a <= last || b >= limit || b - a >= max - n) return -1;
        for (long i = a; i <= b; i++) out[n++] = (int)i;
        last = (int)b;
        if (*p == ',' && p[1])
            p++;
        else if (*p)
            return -1;
    }
    return n ? n : -1;
}

static void read_affinity(rl_cpus *c, const char *root) {
    for (int i = 0; i < c->n; i++) c->cpu[i].allowed = true;
    if (*root == 0) {
        cpu_set_t set;
        if (sched_getaffinity(0, sizeof set, &set) != 0) return;
        for (int i = 0; i < c->n; i++) c->cpu[i].allowed = c->cpu[i].id < CPU_SETSIZE && CPU_ISSET(c->cpu[i].id, &set);
        return;
    }
    char text[8192];
    if (!read_text(root, text, sizeof text, "proc/self/status")) return;
    char *line = strstr(text, "Cpus_allowed_list:");
    if (!line) return;
    line += strlen("Cpus_allowed_list:");
    line += strspn(line, " \t");
    line[strcspn(line, "\n")] = 0;
    int ids[RL_MAX_CPUS], n = rl_cpulist_parse(line, ids, RL_MAX_CPUS, INT_MAX);
    if (n < 0) return;
    for (int i = 0; i < c->n; i++) {
        c->cpu[i].allowed = false;
        for (int k = 0; k < n; k++)
            if (ids[k] == c->cpu[i].id) c->cpu[i].allowed = true;
    }
}

// The measure that classes are made by.
static double speed(const rl_cpu *cpu, bool by_capacity) {
    return by_capacity ? (double)cpu->capacity : (double)cpu->max_khz;
}

static void make_classes(rl_cpus *c) {
    // Capacities where all cores have one and they differ; a system that does not know them reports 1024 everywhere.
    bool by_capacity = true, differ = false;
    for (int i = 0; i < c->n; i++) {
        if (!c->cpu[i].capacity) by_capacity = false;
        if (c->cpu[i].capacity != c->cpu[0].capacity) differ = true;
    }
    by_capacity = by_capacity && differ;
    double fastest = 0;
    for (int i = 0; i < c->n; i++) {
        c->cpu[i].cls = -1;
        if (speed(&c->cpu[i], by_capacity) > fastest) fastest = speed(&c->cpu[i], by_capacity);
    }
    c->n_classes = 0;
    for (;;) {
        double top = -1;
        for (int i = 0; i < c->n; i++)
            if (c->cpu[i].cls < 0 && speed(&c->cpu[i], by_capacity) > top) top = speed(&c->cpu[i], by_capacity);
        if (top < 0) break;
        // The last class takes all that is left.
        bool last = c->n_classes == RL_MAX_CPU_CLASSES - 1;
        rl_cpu_class *k = &c->classes[c->n_classes];
        memset(k, 0, sizeof *k);
        for (int i = 0; i < c->n; i++) {
            rl_cpu *cpu = &c->cpu[i];
            if (cpu->cls >= 0 || (!last && speed(cpu, by_capacity) < top * SAME_CLASS)) continue;
            cpu->cls = c->n_classes;
            k->n++;
            k->n_allowed += cpu->allowed;
            if (cpu->max_khz > k->max_khz) k->max_khz = cpu->max_khz;
            if (cpu->capacity > k->capacity) k->capacity = cpu->capacity;
        }
        k->big = top >= fastest * (by_capacity ? BIG_CAPACITY : BIG_CLOCK);
        c->n_classes++;
    }
}

static void min_quota(rl_cpus *c, double quota) {
    if (quota > 0 && (c->quota == 0 || quota < c->quota)) c->quota = quota;
}

static void min_memory(rl_cpus *c, const char *text) {
    int64_t v = to_int(text); // "max" gives 0; version 1 writes its largest page-aligned number for no limit
    if (v > 0 && v < INT64_C(1) << 60 && (c->memory_limit == 0 || (uint64_t)v < c->memory_limit))
        c->memory_limit = (uint64_t)v;
}

static void read_limits_v2(rl_cpus *c, const char *root, const char *at) {
    char text[128];
    long long quota, period;
    if (read_text(root, text, sizeof text, "%s/cpu.max", at)) {
        c->cgroup = 2;
        if (sscanf(text, "%lld %lld", &quota, &period) == 2 && period > 0) min_quota(c, (double)quota / (double)period);
    }
    if (read_text(root, text, sizeof text, "%s/memory.max", at)) {
        c->cgroup = 2;
        min_memory(c, text);
    }
}

static void read_limits_v1(rl_cpus *c, const char *root, const char *at) {
    char text[128], period[128];
    if (read_text(root, text, sizeof text, "%s/cpu.cfs_quota_us", at) &&
        read_text(root, period, sizeof period, "%s/cpu.cfs_period_us", at)) {
        c->cgroup = 1;
        if (to_int(text) > 0 && to_int(period) > 0) min_quota(c, (double)to_int(text) / (double)to_int(period));
    }
    if (read_text(root, text, sizeof text, "%s/memory.limit_in_bytes", at)) {
        c->cgroup = 1;
        min_memory(c, text);
    }
}

// A group is bound by its ancestors too, so every level up to the mount is read. In a container the path may be one of
// the host's that is not visible here; the walk then ends at the mount, which is the container's own group.
static void walk_up(rl_cpus *c, const char *root, const char *mount, const char *path,
                    void (*read)(rl_cpus *, const char *, const char *)) {
    char at[768];
    if (snprintf(at, sizeof at, "%s%s", mount, path) >= (int)sizeof at) return;
    size_t base = strlen(mount);
    for (;;) {
        size_t len = strlen(at);
        while (len > base && at[len - 1] == '/') at[--len] = 0;
        read(c, root, at);
        if (len <= base) return;
        *strrchr(at, '/') = 0;
    }
}

static bool names_controller(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *p = list; *p;) {
        size_t len = strcspn(p, ",");
        if (len == n && memcmp(p, name, n) == 0) return true;
        p += len + (p[len] == ',');
    }
    return false;
}

static void read_cgroups(rl_cpus *c, const char *root) {
    char text[8192];
    if (!read_text(root, text, sizeof text, "proc/self/cgroup")) text[0] = 0;
    bool cpu1 = false;
    for (char *line = text; *line;) {
        size_t len = strcspn(line, "\n");
        char *next = line + len + (line[len] == '\n');
        line[len] = 0;
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        line = next;
        if (!path) continue;
        *path++ = 0;
        list++;
        if (!*list) {
            walk_up(c, root, "sys/fs/cgroup", path, read_limits_v2);
            walk_up(c, root, "sys/fs/cgroup/unified", path, read_limits_v2);
        }
        if (names_controller(list, "cpu")) {
            cpu1 = true;
            walk_up(c, root, "sys/fs/cgroup/cpu", path, read_limits_v1);
            walk_up(c, root, "sys/fs/cgroup/cpu,cpuacct", path, read_limits_v1);
        }
        if (names_controller(list, "memory")) walk_up(c, root, "sys/fs/cgroup/memory", path, read_limits_v1);
    }
    // Some sandboxes hide /proc/self/cgroup but show the group's files.
    if (!c->cgroup) read_limits_v2(c, root, "sys/fs/cgroup");
    if (!c->cgroup && !cpu1) read_limits_v1(c, root, "sys/fs/cgroup/cpu");
}

static void choose_threads(rl_cpus *c) {
    // One thread per allowed core of the big classes; of the fastest class that has an allowed core when none is big.
    int allowed = 0, fastest = -1, cores = 0, littles = 0, siblings = 0;
    for (int i = 0; i < c->n; i++) {
        allowed += c->cpu[i].allowed;
        if (c->cpu[i].allowed && (fastest < 0 || c->cpu[i].cls < fastest)) fastest = c->cpu[i].cls;
    }
    for (int i = 0; i < c->n; i++) {
        const rl_cpu *cpu = &c->cpu[i];
        if (!cpu->allowed) continue;
        if (cpu->cls != fastest && !c->classes[cpu->cls].big) {
            littles++;
            continue;
        }
        bool taken = false;
        for (int k = 0; k < i; k++) taken |= c->cpu[k].allowed && c->cpu[k].core == cpu->core;
        if (taken)
            siblings++;
        else
            c->default_cpus[cores++] = cpu->id;
    }
    int n = cores ? cores : 1, by_quota = c->quota > 0 ? (int)(c->quota + 1e-6) : n;
    if (by_quota < 1) by_quota = 1;
    size_t at = (size_t)snprintf(c->reason, sizeof c->reason, "%d CPU%s online", c->n, c->n == 1 ? "" : "s");
#define ADD(...) at += at < sizeof c->reason ? (size_t)snprintf(c->reason + at, sizeof c->reason - at, __VA_ARGS__) : 0
    if (allowed < c->n) ADD(", affinity allows %d", allowed);
    if (siblings) ADD(", one thread per core");
    if (littles) ADD(", %d little core%s left out", littles, littles == 1 ? "" : "s");
    if (by_quota < n) {
        ADD(", the cgroup's quota is %.4g CPUs", c->quota);
        n = by_quota;
    }
    if (n > 256) {
        n = 256;
        ADD(", at most 256");
    }
#undef ADD
    c->default_threads = n;
}

rl_status rl_cpus_read(rl_cpus *out, const char *root, rl_err *err) {
    rl_cpus *c = out;
    memset(c, 0, sizeof *c);
    if (!root || strcmp(root, "/") == 0) root = "";
    char text[4096];
    int ids[RL_MAX_CPUS], n = -1;
    if (read_text(root, text, sizeof text, "sys/devices/system/cpu/online"))
        n = rl_cpulist_parse(text, ids, RL_MAX_CPUS, INT_MAX);
    if (n < 0 && !*root) { // sysfs hidden: numbers from 0 on
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        n = online < 1 ? 1 : online > RL_MAX_CPUS ? RL_MAX_CPUS : (int)online;
        for (int i = 0; i < n; i++) ids[i] = i;
    }
    if (n < 0)
        return rl_fail(err, RL_ERR_IO, "%s/sys/devices/system/cpu/online is missing or not a list of CPUs", root);
    c->n = c->n_present = n;
    if (read_text(root, text, sizeof text, "sys/devices/system/cpu/present")) {
        int present[RL_MAX_CPUS], k = rl_cpulist_parse(text, present, RL_MAX_CPUS, INT_MAX);
        if (k > 0) c->n_present = k;
    }
    for (int i = 0; i < n; i++) {
        rl_cpu *cpu = &c->cpu[i];
        const char *dir = "sys/devices/system/cpu/cpu";
        cpu->id = cpu->core = ids[i];
        if (read_text(root, text, sizeof text, "%s%d/cpufreq/cpuinfo_max_freq", dir, ids[i]))
            cpu->max_khz = to_int(text);
        if (read_text(root, text, sizeof text, "%s%d/cpu_capacity", dir, ids[i])) cpu->capacity = (int)to_int(text);
        int siblings[RL_MAX_CPUS];
        if ((read_text(root, text, sizeof text, "%s%d/topology/core_cpus_list", dir, ids[i]) ||
             read_text(root, text, sizeof text, "%s%d/topology/thread_siblings_list", dir, ids[i])) &&
            rl_cpulist_parse(text, siblings, RL_MAX_CPUS, INT_MAX) > 0)
            cpu->core = siblings[0];
    }
    read_affinity(c, root);
    make_classes(c);
    read_cgroups(c, root);
    choose_threads(c);
    return RL_OK;
}
