// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "probe/counters.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

// The first version of the kernel's struct perf_event_attr, 64 bytes, which every kernel takes. Its header is not
// always installed (musl, Termux).
typedef struct attr {
    uint32_t type, size;
    uint64_t config, sample_period, sample_type, read_format, flags;
    uint32_t wakeup_events, bp_type;
    uint64_t config1;
} attr;
_Static_assert(sizeof(attr) == 64, "PERF_ATTR_SIZE_VER0");

enum { FLAG_DISABLED = 1, FLAG_INHERIT = 2, FLAG_EXCLUDE_KERNEL = 32, FLAG_EXCLUDE_HV = 64 };
enum { FORMAT_ENABLED = 1, FORMAT_RUNNING = 2 };
enum { OPEN_CLOEXEC = 8 };
enum { IOC_ENABLE = 0x2400, IOC_DISABLE = 0x2401 };

int rl_counter_open(uint32_t type, uint64_t config, int tid, bool kernel) {
#ifdef SYS_perf_event_open
    attr a;
    memset(&a, 0, sizeof a);
    a.type = type;
    a.size = sizeof a;
    a.config = config;
    a.read_format = FORMAT_ENABLED | FORMAT_RUNNING;
    a.flags = FLAG_DISABLED | FLAG_INHERIT | (kernel ? 0 : FLAG_EXCLUDE_KERNEL | FLAG_EXCLUDE_HV);
    long fd = syscall(SYS_perf_event_open, &a, tid, -1, -1, OPEN_CLOEXEC);
    return fd >= 0 ? (int)fd : -errno;
#else
    (void)type, (void)config, (void)tid, (void)kernel;
    return -ENOSYS;
#endif
}

int rl_counter_run(int fd, bool on) {
    return ioctl(fd, on ? IOC_ENABLE : IOC_DISABLE, 0) == 0 ? 0 : -errno;
}

int rl_counter_read(int fd, rl_counter_value *out) {
    ssize_t n = read(fd, out, sizeof *out);
    return n == (ssize_t)sizeof *out ? 0 : n < 0 ? -errno : -EIO;
}
