// SPDX-License-Identifier: Apache-2.0
#include "py/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool write_file(void *f, const void *data, size_t n) {
    return fwrite(data, 1, n, f) == n;
}
static bool read_file(void *f, void *data, size_t n) {
    return fread(data, 1, n, f) == n;
}

static rl_status io_error(rl_err *err, const char *doing, const char *path) {
    int code = errno ? errno : EIO;
    rl_fail(err, RL_ERR_IO, "cannot %s %.300s: %s", doing, path, strerror(code));
    err->os_errno = code;
    return RL_ERR_IO;
}

// A device or a pipe is written to in place: a new file would do away with it.
static bool can_be_replaced(const char *path) {
    struct stat info;
    return stat(path, &info) != 0 || S_ISREG(info.st_mode);
}

static FILE *create(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    if (!f && fd >= 0) close(fd);
    return f;
}

rl_status rl_py_save_file(const char *path, rl_status (*save)(void *what, rl_write_fn, void *to, rl_err *), void *what,
                          rl_err *err) {
    char *real = realpath(path, NULL); // a link stays a link; NULL for a new file
    const char *target = real ? real : path;
    size_t room = strlen(target) + 64;
    char *fresh = can_be_replaced(target) ? malloc(room) : NULL;
    if (fresh) snprintf(fresh, room, "%s.%ld-%p.part", target, (long)getpid(), (void *)&room); // one for each thread
    FILE *f = fresh ? create(fresh) : fopen(target, "wb");
    if (!f) {
        rl_status failed = io_error(err, "write", path);
        free(fresh);
        free(real);
        return failed;
    }
    errno = 0;
    rl_status st = save(what, write_file, f, err);
    if (ferror(f)) st = io_error(err, "write", path);
    if (fclose(f) != 0 && st == RL_OK) st = io_error(err, "write", path);
    if (fresh && st == RL_OK && rename(fresh, target) != 0) st = io_error(err, "write", path);
    if (fresh && st != RL_OK) unlink(fresh);
    free(fresh);
    free(real);
    return st;
}

rl_status rl_py_load_file(const char *path, rl_status (*load)(void *what, rl_read_fn, void *from, rl_err *), void *what,
                          rl_err *err) {
    FILE *f = fopen(path, "rb");
    if (!f) return io_error(err, "read", path);
    rl_status st = load(what, read_file, f, err);
    if (ferror(f)) st = io_error(err, "read", path); // such as a directory, which opens
    fclose(f);
    if (st != RL_OK) rl_py_name_file(err, path);
    return st;
}
