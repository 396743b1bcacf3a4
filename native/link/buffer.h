/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_BUFFER_H
#define BW_BUFFER_H

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "bytes.h"
#include "ring.h"
#include "status.h"
#include "trim.h"
#include "twice.h"

/*
 * A ring of one process alone, for a carrier whose bytes go through the kernel: bytes from `tail`
 * to `head`, positions as in ring.h.
 */
typedef struct {
    uint8_t *data; /* mapped twice in a row; NULL: none */
    uint64_t size;
    uint64_t head, tail;
    uint64_t trimmed_at; /* the head at which memory went back */
} bw_buffer_t;

static inline uint64_t bw_buffer_fill(const bw_buffer_t *buffer)
{
    return buffer->head - buffer->tail;
}

static inline uint64_t bw_buffer_room(const bw_buffer_t *buffer)
{
    return buffer->size - bw_buffer_fill(buffer);
}

static inline uint8_t *bw_buffer_place(const bw_buffer_t *buffer, uint64_t position)
{
    return buffer->data + (position & (buffer->size - 1));
}

/* What is in it, and what has room in it. */
static inline bw_span_t bw_buffer_span(const bw_buffer_t *buffer)
{
    return (bw_span_t){.base = bw_buffer_place(buffer, buffer->tail),
                       .len = bw_buffer_fill(buffer)};
}

static inline bw_span_t bw_buffer_gap(const bw_buffer_t *buffer)
{
    return (bw_span_t){.base = bw_buffer_place(buffer, buffer->head),
                       .len = bw_buffer_room(buffer)};
}

/* False: there is not so much room. */
static inline bool bw_buffer_put(bw_buffer_t *buffer, const void *bytes, size_t len)
{
    if (len > bw_buffer_room(buffer))
        return false;
    if (len > 0)
        memcpy(bw_buffer_place(buffer, buffer->head), bytes, len);
    buffer->head += len;
    return true;
}

/* Takes at most `most` bytes out of it: how many. */
static inline size_t bw_buffer_get(bw_buffer_t *buffer, void *to, size_t most)
{
    size_t n = bw_least(bw_buffer_fill(buffer), most);

    memcpy(to, bw_buffer_place(buffer, buffer->tail), n);
    buffer->tail += n;
    return n;
}

/* An empty one of a valid ring size. */
static inline bw_status_t bw_buffer_make(bw_buffer_t *buffer_p, const char *name, uint64_t size,
                                         bw_error_t *error_p)
{
    const char *step;

    *buffer_p = (bw_buffer_t){.data = bw_map_twice(name, size, &step), .size = size};
    return buffer_p->data ? BW_OK : bw_fail_system(error_p, step, errno);
}

/* As `trim` of link.h. */
static inline bool bw_buffer_trim(bw_buffer_t *buffer)
{
    return bw_buffer_fill(buffer) == 0 &&
           bw_trim(buffer->data, buffer->size, buffer->head, &buffer->trimmed_at);
}

/* Its memory, for a bw_leftover_t. */
static inline struct iovec bw_buffer_take(bw_buffer_t *buffer)
{
    struct iovec map = {.iov_base = buffer->data, .iov_len = 2 * buffer->size};

    buffer->data = NULL;
    return map;
}

static inline void bw_buffer_free(bw_buffer_t *buffer)
{
    if (buffer->data)
        munmap(buffer->data, 2 * buffer->size);
}

#endif
