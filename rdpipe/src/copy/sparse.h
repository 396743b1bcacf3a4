/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_SPARSE_H
#define RD_SPARSE_H

/* Reading files that may have holes. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

static inline bool rd_is_sparse(const struct stat *is)
{
    return (uint64_t)is->st_blocks * 512 < (uint64_t)is->st_size;
}

/* Returns the end of the hole that contains `at`, but at most `size`. Returns `at` itself if it is
 * not in a hole. */
static inline uint64_t rd_end_of_hole(int fd, uint64_t at, uint64_t size)
{
    off_t data = lseek(fd, (off_t)at, SEEK_DATA);

    if (data < 0)
        return errno == ENXIO ? size : at;
    return (uint64_t)data > size ? size : (uint64_t)data;
}

/* Returns the end of the data that contains `at`, but at most `size`. */
static inline uint64_t rd_end_of_data(int fd, uint64_t at, uint64_t size)
{
    off_t hole = lseek(fd, (off_t)at, SEEK_HOLE);

    return hole < 0 || (uint64_t)hole > size || (uint64_t)hole <= at ? size : (uint64_t)hole;
}

/* Reads exactly `len` bytes. On failure, errno is set, or 0 if the file ends earlier. */
static inline bool rd_read_at(int fd, uint8_t *to, size_t len, uint64_t at)
{
    while (len > 0) {
        ssize_t n = pread(fd, to, len, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = 0;
        if (n <= 0)
            return false;
        to += n;
        at += (uint64_t)n;
        len -= (size_t)n;
    }
    return true;
}

#endif
