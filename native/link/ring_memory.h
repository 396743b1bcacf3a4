/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_RING_MEMORY_H
#define BW_RING_MEMORY_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* Each ring is mapped twice in a row, so that every span of the ring is contiguous. */

/* Like ftruncate on a memfd, except that if `bytes` exceeds the file size limit, this only fails
 * with EFBIG. ftruncate would also cause a SIGXFSZ, which kills the process. */
static inline int bw_set_size(int fd, uint64_t bytes)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
        errno = EFBIG;
        return -1;
    }
    return ftruncate(fd, (off_t)bytes);
}

/* Maps `bytes` bytes of the file twice, at reserved addresses. Returns false with errno set. */
static inline bool bw_map_halves(uint8_t *at, uint64_t bytes, int fd, uint64_t offset)
{
    for (int half = 0; half < 2; half++, at += bytes)
        if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) ==
            MAP_FAILED)
            return false;
    return true;
}

/* Creates a ring for this process and maps it twice. The mapping is shared, so that fork does not
 * copy it, and is excluded from core dumps. The caller must unmap 2 * `bytes`. On failure returns
 * NULL with errno set and the failed step in *step_p. */
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

/* The maximum that one call gives back, because the system takes up to 0.3 ms per megabyte. */
#define BW_TRIM_BYTES ((uint64_t)1024 * 1024)

/* Gives back a piece of the memory of an empty ring. `head` is the current position of the ring,
 * and *trimmed_p is the position up to which memory has already been given back; the bytes between
 * the two are backed by memory. Returns true if there is more. Needs _DEFAULT_SOURCE. */
static inline bool bw_trim(uint8_t *data, uint64_t size, uint64_t head, uint64_t *trimmed_p)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), used = head - *trimmed_p, first, end;

    if (used > size)
        used = size;
    if (used == 0)
        return false;
    first = (head - used) & (size - 1);
    end = first + (used < BW_TRIM_BYTES ? used : BW_TRIM_BYTES);
    first -= first % page;
    if (madvise(data + first, (end + page - 1 - (end + page - 1) % page) - first, MADV_REMOVE) != 0)
        return false;
    *trimmed_p = head - used + (used < BW_TRIM_BYTES ? used : BW_TRIM_BYTES);
    return *trimmed_p != head;
}

#endif
