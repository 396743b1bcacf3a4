/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_BUFFER_H
#define RD_BUFFER_H

#include "endpoint.h"
#include "text.h"

/*
 * Memory in front of an output, and a thread that empties it. The stream keeps flowing while its
 * output pauses, and an output such as a tape gets its data in long runs: the thread starts to
 * write when the buffer is filled to a level, writes until it is empty, and then waits for that
 * level again. At the end it writes the rest.
 *
 * The buffer consists of chunks. The most recently used chunks are reused first, so the buffer
 * never uses more memory than its contents have needed so far.
 */

#define RD_BUFFER_MIN ((uint64_t)1024 * 1024)
#define RD_BUFFER_MAX ((uint64_t)1 << 40)

typedef struct rd_buffer rd_buffer_t;

/* `start` is a percentage of `bytes`. The eventfd `wake` is signalled when there is room again,
 * when everything is written, or when the output has failed. The caller still owns the output, but
 * must not use it until rd_buffer_close. On failure, *why is set. */
rd_buffer_t *rd_buffer_open(const rd_end_t *output, size_t bytes, unsigned start, int wake,
                            rd_why_t *why);

/* Like rd_end_write: returns the number of bytes accepted, or -1 with errno, which is EAGAIN if the
 * buffer is full and otherwise the output's error. */
ssize_t rd_buffer_put(rd_buffer_t *buffer, const void *data, size_t len);

/* Tells the thread that no more data will follow. Returns 1 if everything is written, 0 if *left_p
 * bytes remain, and -1 with errno if the output has failed. */
int rd_buffer_end(rd_buffer_t *buffer, size_t *left_p);

/* Stops the thread, and discards the data that it has not written. */
void rd_buffer_close(rd_buffer_t *buffer);

#endif
