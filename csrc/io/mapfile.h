// SPDX-License-Identifier: Apache-2.0
// The bytes of a file: mapped, or copied into anonymous memory where mapping is refused or not wanted. Says what
// is resident, reads ahead and locks pages. Touching a file that another process shortened after it was mapped
// raises SIGBUS, as with every mapping: rl_map_intact tells before; a copy is safe from that.
#ifndef RL_IO_MAPFILE_H
#define RL_IO_MAPFILE_H

#include <stdbool.h>

#include "base/status.h"

typedef enum rl_load { RL_LOAD_AUTO, RL_LOAD_MMAP, RL_LOAD_COPY } rl_load; // auto: mmap, buffered read where refused

typedef struct rl_map {
    const uint8_t *data; // a copy is 64-byte aligned
    size_t size;
    bool mapped;       // file pages; false: a private copy
    int fd;            // of a mapped file, to see whether it is still whole
    int refused;       // errno of an mmap that was refused and replaced by a copy, else 0
    bool ours;         // the user owns the file or may write it
    uint64_t dev, ino; // the file's identity
} rl_map;

/// Opens a regular file read-only. The environment variable ROOFLM_FAULT, a comma-separated list of "mmap" and
/// "mlock", makes these calls fail as a system that forbids them would, for tests of the fallbacks.
rl_status rl_map_open(rl_map *m, const char *path, rl_load load, rl_err *err);
void rl_map_close(rl_map *m);

/// RL_ERR_IO when the mapped file is now shorter than the map. To be asked before pages are touched, as often as that
/// is worth a system call; nothing protects from a file that shrinks meanwhile.
rl_status rl_map_intact(const rl_map *m, const char *path, rl_err *err);

// The rest works on a range of bytes of the map; ranges are widened to whole pages.

/// Tells the kernel that the range will be read soon (asynchronous, may do nothing).
void rl_map_advise(const rl_map *m, size_t offset, size_t n);
/// Reads the range into memory and waits for it. `poll` (may be NULL) is asked every 16 MB; true stops with
/// RL_ERR_INTERRUPTED. *done counts bytes as they arrive (may be NULL).
rl_status rl_map_preload(const rl_map *m, size_t offset, size_t n, bool (*poll)(void *), void *arg, size_t *done,
                         rl_err *err);
/// Bytes of the range that are in memory now. RL_ERR_IO with EPERM for a mapped file that is not ours: the system calls
/// all pages of such a file resident.
rl_status rl_map_resident(const rl_map *m, size_t offset, size_t n, size_t *bytes, rl_err *err);
/// Pins the range in memory. RL_ERR_IO with os_errno where the system denies it (EPERM, ENOMEM: RLIMIT_MEMLOCK).
rl_status rl_map_lock(const rl_map *m, size_t offset, size_t n, rl_err *err);
rl_status rl_map_unlock(const rl_map *m, size_t offset, size_t n, rl_err *err);

#endif
