// SPDX-License-Identifier: Apache-2.0
#ifndef _GNU_SOURCE
#define _GNU_SOURCE // mincore, MADV_HUGEPAGE
#endif
#include "io/mapfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define STEP ((size_t)16 << 20)

static bool fault(const char *what) {
    const char *list = getenv("ROOFLM_FAULT");
    size_t n = strlen(what);
    while (list && *list) {
        const char *end = strchr(list, ',');
        size_t len = end ? (size_t)(end - list) : strlen(list);
        if (len == n && memcmp(list, what, n) == 0) return true;
        list = end ? end + 1 : NULL;
    }
    return false;
}

static rl_status io_error(rl_err *err, int code, const char *doing, const char *path) {
    errno = code;
    return rl_fail(err, RL_ERR_IO, "%s%s%s: %s", doing, path ? " " : "", path ? path : "", strerror(code));
}

// Huge pages spare the TLB: the copy is read end to end for every token.
static rl_status copy_file(rl_map *m, int fd, const char *path, rl_err *err) {
    void *p = NULL;
    size_t align = m->size >= 2 * HUGE_PAGE ? HUGE_PAGE : 64;
    if (posix_memalign(&p, align, m->size ? m->size : 1))
        return rl_fail(err, RL_ERR_NOMEM, "no memory for a copy of %s (%zu bytes)", path, m->size);
#ifdef MADV_HUGEPAGE
    if (align == HUGE_PAGE) (void)madvise(p, m->size, MADV_HUGEPAGE);
#endif
    size_t got = 0;
    while (got < m->size) {
        size_t want = m->size - got < STEP ? m->size - got : STEP;
        ssize_t r = pread(fd, (char *)p + got, want, (off_t)got);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) {
            rl_status st = r < 0 ? io_error(err, errno, "cannot read", path)
                                 : rl_fail(err, RL_ERR_IO, "%s became shorter while it was read", path);
            if (r == 0 && err) err->os_errno = EIO;
            free(p);
            return st;
        }
        got += (size_t)r;
    }
    m->data = p;
    return RL_OK;
}

rl_status rl_map_open(rl_map *m, const char *path, rl_load load, rl_err *err) {
    memset(m, 0, sizeof *m);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // O_NONBLOCK: a FIFO must not hang us
    if (fd < 0) return io_error(err, errno, "cannot open", path);
    struct stat info;
    rl_status st = RL_OK;
    if (fstat(fd, &info) != 0) {
        st = io_error(err, errno, "cannot stat", path);
    } else if (S_ISDIR(info.st_mode)) {
        st = io_error(err, EISDIR, "cannot open", path);
    } else if (!S_ISREG(info.st_mode)) {
        st = io_error(err, EINVAL, "not a regular file:", path);
    } else {
        m->size = (size_t)info.st_size;
        m->dev = (uint64_t)info.st_dev;
        m->ino = (uint64_t)info.st_ino;
        m->ours = info.st_uid == geteuid() || access(path, W_OK) == 0;
        if (load != RL_LOAD_COPY && m->size) {
            void *p = MAP_FAILED;
            errno = EINVAL;
            if (!fault("mmap")) p = mmap(NULL, m->size, PROT_READ, MAP_SHARED, fd, 0);
            if (p != MAP_FAILED) {
                m->data = p;
                m->mapped = true;
                m->fd = fd;
            } else if (load == RL_LOAD_MMAP) {
                st = io_error(err, errno, "cannot map", path);
            } else {
                m->refused = errno;
            }
        }
        if (st == RL_OK && !m->mapped) st = copy_file(m, fd, path, err);
    }
    if (!m->mapped) close(fd);
    return st;
}

void rl_map_close(rl_map *m) {
    if (m->mapped) {
        munmap((void *)m->data, m->size);
        close(m->fd);
    } else {
        free((void *)m->data);
    }
    memset(m, 0, sizeof *m);
}

rl_status rl_map_intact(const rl_map *m, const char *path, rl_err *err) {
    struct stat info;
    if (!m->mapped || fstat(m->fd, &info) != 0 || (size_t)info.st_size >= m->size) return RL_OK;
    errno = EIO;
    return rl_fail(err, RL_ERR_IO,
                   "%s became shorter while it was mapped (from %zu to %zu bytes): open it anew; load=\"copy\" is safe "
                   "from that",
                   path, m->size, (size_t)info.st_size);
}

static size_t page_size(void) {
    long p = sysconf(_SC_PAGESIZE);
    return p > 0 ? (size_t)p : 4096;
}

// Cuts the range to the map and widens it to pages. False when nothing is left.
static bool page_range(const rl_map *m, size_t offset, size_t n, uint8_t **p, size_t *bytes) {
    if (offset >= m->size || !n) return false;
    if (n > m->size - offset) n = m->size - offset;
    size_t mask = page_size() - 1;
    uintptr_t a = ((uintptr_t)m->data + offset) & ~(uintptr_t)mask;
    uintptr_t b = ((uintptr_t)m->data + offset + n + mask) & ~(uintptr_t)mask;
    *p = (uint8_t *)a;
    *bytes = (size_t)(b - a);
    return true;
}

void rl_map_advise(const rl_map *m, size_t offset, size_t n) {
    uint8_t *p;
    size_t bytes;
    if (m->mapped && page_range(m, offset, n, &p, &bytes)) (void)madvise(p, bytes, MADV_WILLNEED);
}

rl_status rl_map_preload(const rl_map *m, size_t offset, size_t n, bool (*poll)(void *), void *arg, size_t *done,
                         rl_err *err) {
    if (done) *done = 0;
    if (offset >= m->size) return RL_OK;
    if (n > m->size - offset) n = m->size - offset;
    size_t page = page_size();
    for (size_t i = 0; i < n; i += STEP) {
        if (poll && poll(arg)) return rl_fail(err, RL_ERR_INTERRUPTED, "preloading was stopped");
        size_t end = n - i < STEP ? n : i + STEP;
        rl_map_advise(m, offset + i, 2 * STEP);
        for (size_t k = i; k < end; k += page) (void)*(volatile const uint8_t *)(m->data + offset + k);
        (void)*(volatile const uint8_t *)(m->data + offset + end - 1);
        if (done) *done = end;
    }
    return RL_OK;
}

rl_status rl_map_resident(const rl_map *m, size_t offset, size_t n, size_t *bytes, rl_err *err) {
    *bytes = 0;
    uint8_t *p;
    size_t len;
    if (!page_range(m, offset, n, &p, &len)) return RL_OK;
    if (m->mapped && !m->ours)
        return io_error(err, EPERM, "only who owns a file or may write it is told which of its pages are in memory",
                        NULL);
    size_t end = n < m->size - offset ? offset + n : m->size;
    uintptr_t first = (uintptr_t)m->data + offset, last = (uintptr_t)m->data + end;
    size_t page = page_size();
    unsigned char flags[4096];
    for (size_t at = 0; at < len; at += sizeof flags * page) {
        size_t part = len - at < sizeof flags * page ? len - at : sizeof flags * page;
        if (mincore(p + at, part, (void *)flags) != 0)
            return io_error(err, errno, "cannot ask which pages are resident", NULL);
        for (size_t k = 0; k * page < part; k++) {
            if (!(flags[k] & 1)) continue;
            uintptr_t a = (uintptr_t)p + at + k * page, b = a + page;
            if (a < first) a = first;
            if (b > last) b = last;
            *bytes += (size_t)(b - a);
        }
    }
    return RL_OK;
}

rl_status rl_map_lock(const rl_map *m, size_t offset, size_t n, rl_err *err) {
    uint8_t *p;
    size_t bytes;
    if (!page_range(m, offset, n, &p, &bytes)) return RL_OK;
    if (fault("mlock")) return io_error(err, EPERM, "cannot lock pages in memory", NULL);
    if (mlock(p, bytes) != 0) return io_error(err, errno, "cannot lock pages in memory", NULL);
    return RL_OK;
}

rl_status rl_map_unlock(const rl_map *m, size_t offset, size_t n, rl_err *err) {
    uint8_t *p;
    size_t bytes;
    if (!page_range(m, offset, n, &p, &bytes)) return RL_OK;
    if (munlock(p, bytes) != 0) return io_error(err, errno, "cannot unlock pages", NULL);
    return RL_OK;
}
