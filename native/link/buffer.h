/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_BUFFER_H
#define BW_BUFFER_H

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "bytes.h"
#include "ring.h"
#include "status.h"
#include "ring_memory.h"

/* How much memory an idle buffer retains: one page on most machines. */
#define BW_BUFFER_KEPT_BYTES 4096u

/*
 * A ring that is private to this process, for a carrier whose bytes go through the kernel. It holds
 * the bytes from `tail` to `head`, which are positions as in ring.h. Whenever it is empty, the next
 * byte is written to its beginning, so if only a few bytes are buffered at a time, it keeps reusing
 * the same small piece of memory.
 */
typedef struct {
    uint8_t *data; /* mapped twice in a row; NULL if not mapped */
    uint64_t size;
    uint64_t head, tail;
    uint64_t origin; /* the position of data[0] */
    uint64_t used;   /* how many bytes from its beginning may be backed by memory */
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
    return buffer->data + ((position - buffer->origin) & (buffer->size - 1));
}

/* Returns how many bytes may be backed by memory, including those from before the last rewind. */
static inline uint64_t bw_buffer_used(const bw_buffer_t *buffer)
{
    uint64_t since = bw_least(buffer->head - buffer->origin, buffer->size);

    return since > buffer->used ? since : buffer->used;
}

static inline void bw_buffer_rewind(bw_buffer_t *buffer)
{
    if (bw_buffer_fill(buffer) > 0)
        return;
    buffer->used = bw_buffer_used(buffer);
    buffer->origin = buffer->head;
}

/* Return the readable bytes in the buffer, and the free space. */
static inline bw_span_t bw_buffer_span(const bw_buffer_t *buffer)
{
    return (bw_span_t){.base = bw_buffer_place(buffer, buffer->tail),
                       .len = bw_buffer_fill(buffer)};
}

static inline bw_span_t bw_buffer_gap(bw_buffer_t *buffer)
{
    bw_buffer_rewind(buffer);
    return (bw_span_t){.base = bw_buffer_place(buffer, buffer->head),
                       .len = bw_buffer_room(buffer)};
}

/* Advances the positions by `n` bytes that bypass the buffer, which must be empty. */
static inline void bw_buffer_skip(bw_buffer_t *buffer, size_t n)
{
    buffer->head += n;
    buffer->tail += n;
    buffer->origin += n;
}

/* Undoes the puts of unread bytes, which remain readable in place until the next put. */
static inline void bw_buffer_drop(bw_buffer_t *buffer)
{
    buffer->used = bw_buffer_used(buffer);
    buffer->head = buffer->tail;
}

/* Returns false if there is not enough room. */
static inline bool bw_buffer_put(bw_buffer_t *buffer, const void *bytes, size_t len)
{
    if (len > bw_buffer_room(buffer))
        return false;
    if (len > 0)
        memcpy(bw_buffer_gap(buffer).base, bytes, len);
    buffer->head += len;
    return true;
}

static inline size_t bw_buffer_get(bw_buffer_t *buffer, void *to, size_t most)
{
    size_t n = bw_least(bw_buffer_fill(buffer), most);

    memcpy(to, bw_buffer_place(buffer, buffer->tail), n);
    buffer->tail += n;
    return n;
}

/* Creates an empty buffer; `size` is a valid ring size. */
static inline bw_status_t bw_buffer_make(bw_buffer_t *buffer_p, const char *name, uint64_t size,
                                         bw_error_t *error_p)
{
    const char *step;

    *buffer_p = (bw_buffer_t){.data = bw_map_twice(name, size, &step), .size = size};
    return buffer_p->data ? BW_OK : bw_fail_system(error_p, step, errno);
}

static inline bool bw_buffer_has_spare(const bw_buffer_t *buffer)
{
    return bw_buffer_used(buffer) > BW_BUFFER_KEPT_BYTES;
}

/* Like `trim` in link.h: gives back all memory except the first page, starting from the end. */
static inline bool bw_buffer_trim(bw_buffer_t *buffer)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), least, from;

    if (bw_buffer_fill(buffer) > 0 || !bw_buffer_has_spare(buffer))
        return false;
    bw_buffer_rewind(buffer);
    from = least = (BW_BUFFER_KEPT_BYTES + page - 1) / page * page;
    if (buffer->used <= least) {
        buffer->used = BW_BUFFER_KEPT_BYTES;
        return false;
    }
    if (buffer->used > least + BW_TRIM_BYTES)
        from = (buffer->used - BW_TRIM_BYTES + page - 1) / page * page;
    if (madvise(buffer->data + from, (buffer->used - from + page - 1) / page * page, MADV_REMOVE) !=
        0)
        return false;
    buffer->used = from > least ? from : BW_BUFFER_KEPT_BYTES;
    return from > least;
}

/* Transfers ownership of the buffer's memory to the caller, who puts it in a bw_leftover_t. */
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
