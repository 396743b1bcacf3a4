/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TWICE_H
#define BW_TWICE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

/*
 * A ring of one process: `bytes` of memory mapped twice in a row, so that every span of it is
 * contiguous. Shared, so a fork does not copy it, and left out of crash dumps. The caller unmaps
 * twice `bytes`. NULL: errno says why, and *step_p at which step.
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
    if (done && ftruncate(fd, (off_t)bytes) < 0) {
        *step_p = "size of a ring";
        done = false;
    }
    for (uint64_t half = 0; done && half < 2; half++)
        done = mmap(at + half * bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                    0) != MAP_FAILED;
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
