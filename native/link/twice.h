/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TWICE_H
#define BW_TWICE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* Rings are mapped twice in a row, so that every span of one is contiguous. */

/* Calls ftruncate on a memfd. If `bytes` exceeds the file size limit, this only fails with EFBIG,
 * whereas the kernel would also send SIGXFSZ, which kills the process. */
static inline int bw_set_size(int fd, uint64_t bytes)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
        errno = EFBIG;
        return -1;
    }
    return ftruncate(fd, (off_t)bytes);
}

/* Maps `bytes` bytes of the file twice, at addresses that the caller has reserved. Returns false
 * with errno set. */
static inline bool bw_map_halves(uint8_t *at, uint64_t bytes, int fd, uint64_t offset)
{
    for (int half = 0; half < 2; half++, at += bytes)
        if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) ==
            MAP_FAILED)
            return false;
    return true;
}

/*
 * Creates a ring for this process and maps it twice. The mapping is shared, so that fork does not
 * copy it, and is excluded from core dumps. The caller must unmap 2 * `bytes`. On failure returns
 * NULL with errno set and the failed step in *step_p.
 */
static inline uint8_t *bw_map_twice(const char *name, uint64_t bytes, const char **step_p)
{
    uint8_t *at = MAP_FAILED;
    int fd = memfd_create(name, MFD_CLOEXEC), saved;
    bool done;

    *step_p = "memfd_create";
    done = fd >= 0;
    if (done) {
        *step_p = "mmap of a ring";
        at = mmap(NULL, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        done = at != MAP_FAILED;
    }
    if (done && bw_set_size(fd, bytes) < 0) {
        *step_p = "size of a ring (ulimit -f?)";
        done = false;
    }
    done = done && bw_map_halves(at, bytes, fd, 0);
    saved = errno;
    if (fd >= 0)
        close(fd);
    if (!done && at != MAP_FAILED)
        munmap(at, 2 * bytes);
    errno = saved;
    if (!done)
        return NULL;
    (void)madvise(at, 2 * bytes, MADV_DONTDUMP);
    return at;
}

#endif
