// SPDX-License-Identifier: Apache-2.0
// Errors as values: every function that can fail returns a code and writes what is wrong, and where, into
// the caller's buffer. Nothing here or below ever exits, aborts or prints; only csrc/py raises.
#ifndef RL_BASE_STATUS_H
#define RL_BASE_STATUS_H

#include <stddef.h>
#include <stdint.h>

typedef enum rl_status {
    RL_OK = 0,
    RL_ERR_NOMEM,        // MemoryError
    RL_ERR_ARG,          // ValueError: the caller's argument is wrong
    RL_ERR_FORMAT,       // rooflm.FormatError: the file is wrong; key, tensor, offset say where
    RL_ERR_IO,           // OSError; os_errno is set
    RL_ERR_UNSUPPORTED,  // rooflm.Error: a valid file or request that this build cannot honour
    RL_ERR_CONTEXT_FULL, // rooflm.ContextFull; limit and needed are set
    RL_ERR_KERNEL,       // rooflm.KernelUnavailable
    RL_ERR_BUSY,         // rooflm.SessionBusy
    RL_ERR_INTERRUPTED   // the poll callback asked to stop; csrc/py re-raises the pending exception
} rl_status;

typedef struct rl_err {
    rl_status code;
    int os_errno;
    uint64_t offset; // byte offset in the file, UINT64_MAX when unknown
    uint64_t limit, needed;
    char key[128];    // metadata key, "" when none
    char tensor[128]; // tensor name, "" when none
    char msg[512];    // whole sentence, ready to show
} rl_err;

/// Resets the buffer; call it before the first use.
void rl_err_clear(rl_err *err);

/// Writes the message and returns `code`, so that `return rl_fail(err, ...)` reads well. `err` may be NULL.
rl_status rl_fail(rl_err *err, rl_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/// The same, naming the metadata key or tensor (NULL for none) and the byte offset (UINT64_MAX for unknown).
rl_status rl_fail_format(rl_err *err, const char *key, const char *tensor, uint64_t offset, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

#define RL_TRY(expr)                                                                                                   \
    do {                                                                                                               \
        rl_status rl_try_status_ = (expr);                                                                             \
        if (rl_try_status_ != RL_OK) return rl_try_status_;                                                            \
    } while (0)

/// Overflow-checked size arithmetic: false when the result does not fit.
static inline int rl_mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline int rl_add_size(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

#endif
