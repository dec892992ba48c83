// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void rl_err_clear(rl_err *err) {
    if (!err) return;
    memset(err, 0, sizeof *err);
    err->offset = UINT64_MAX;
}

static void write_message(rl_err *err, rl_status code, const char *fmt, va_list ap) {
    int saved = errno;
    err->code = code;
    err->os_errno = code == RL_ERR_IO ? saved : 0;
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
}

rl_status rl_fail(rl_err *err, rl_status code, const char *fmt, ...) {
    if (!err) return code;
    rl_err_clear(err);
    va_list ap;
    va_start(ap, fmt);
    write_message(err, code, fmt, ap);
    va_end(ap);
    return code;
}

rl_status rl_fail_format(rl_err *err, const char *key, const char *tensor, uint64_t offset, const char *fmt, ...) {
    if (!err) return RL_ERR_FORMAT;
    rl_err_clear(err);
    va_list ap;
    va_start(ap, fmt);
    write_message(err, RL_ERR_FORMAT, fmt, ap);
    va_end(ap);
    err->offset = offset;
    if (key) snprintf(err->key, sizeof err->key, "%s", key);
    if (tensor) snprintf(err->tensor, sizeof err->tensor, "%s", tensor);
    return RL_ERR_FORMAT;
}
