/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SESSION_RANGES_H
#define BW_SESSION_RANGES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/*
 * Tracks which bytes of a stream have arrived if its pieces arrive in any order and some of them
 * twice. Everything before `head` has arrived. After `head`, only the ranges in `of` have arrived;
 * they are sorted and do not touch each other.
 */
#define BW_RANGES_MAX 65536u

typedef struct {
    uint64_t from, to;
} bw_range_t;

typedef struct {
    uint64_t head;
    bw_range_t *of;
    size_t count, size;
} bw_ranges_t;

/* Returns the index of the first range that ends at `at` or later. */
static inline size_t bw_ranges_from(const bw_ranges_t *ranges, uint64_t at)
{
    size_t low = 0, high = ranges->count;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (ranges->of[middle].to < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Returns how many of the `len` bytes from `at` on are in the same state as the first one, and sets
 * *is_new_p to whether they have not arrived yet. */
static inline size_t bw_ranges_run(const bw_ranges_t *ranges, uint64_t at, size_t len,
                                   bool *is_new_p)
{
    size_t i;
    uint64_t end = at + len;

    *is_new_p = false;
    if (at < ranges->head)
        return (end < ranges->head ? end : ranges->head) - at;
    i = bw_ranges_from(ranges, at + 1);
    if (i < ranges->count && ranges->of[i].from <= at)
        return (end < ranges->of[i].to ? end : ranges->of[i].to) - at;
    *is_new_p = true;
    return (i < ranges->count && ranges->of[i].from < end ? ranges->of[i].from : end) - at;
}

/* Returns how many bytes have arrived after the gap at `head`. */
static inline uint64_t bw_ranges_beyond(const bw_ranges_t *ranges)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < ranges->count; i++)
        sum += ranges->of[i].to - ranges->of[i].from;
    return sum;
}

/* Adds bytes that have arrived. Returns false if there are too many ranges, or if out of memory. */
static inline bool bw_ranges_add(bw_ranges_t *ranges, uint64_t from, uint64_t to)
{
    size_t i, last;

    if (from < ranges->head)
        from = ranges->head;
    if (to <= from)
        return true;
    i = last = bw_ranges_from(ranges, from);
    while (last < ranges->count && ranges->of[last].from <= to) { /* they are merged */
        from = ranges->of[last].from < from ? ranges->of[last].from : from;
        to = ranges->of[last].to > to ? ranges->of[last].to : to;
        last++;
    }
    if (from == ranges->head) {
        ranges->head = to;
    } else {
        if (i == last && ranges->count == ranges->size) {
            size_t size = ranges->size > 0 ? 2 * ranges->size : 64;
            bw_range_t *of =
                size > BW_RANGES_MAX ? NULL : realloc(ranges->of, size * sizeof *ranges->of);

            if (!of)
                return false;
            ranges->of = of;
            ranges->size = size;
        }
        if (i == last) {
            memmove(&ranges->of[i + 1], &ranges->of[i], (ranges->count - i) * sizeof *ranges->of);
            ranges->count++;
            last = i + 1;
        }
        ranges->of[i++] = (bw_range_t){from, to};
    }
    if (last > i) {
        memmove(&ranges->of[i], &ranges->of[last], (ranges->count - last) * sizeof *ranges->of);
        ranges->count -= last - i;
    }
    return true;
}

#endif
