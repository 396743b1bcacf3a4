/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TRIM_H
#define BW_TRIM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

/* The maximum that one call gives back, because the system takes up to 0.3 ms per megabyte. */
#define BW_TRIM_BYTES ((uint64_t)1024 * 1024)

/*
 * Gives back a piece of the memory of an empty ring, which is mapped twice in a row. `head` is the
 * current position of the ring, and *trimmed_p is the position up to which memory has already been
 * given back; the bytes between the two are backed by memory. Returns true if there is more to give
 * back. Needs _DEFAULT_SOURCE.
 */
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
