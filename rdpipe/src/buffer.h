/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_BUFFER_H
#define RD_BUFFER_H

#include "end.h"
#include "text.h"

/*
 * Memory in front of an output, and a thread that empties it. The stream keeps flowing while its
 * output pauses, and an output such as a tape gets its data in long runs: the thread starts to
 * write when the buffer is filled to a level, writes until it is empty, and then waits for that
 * level again. At the end it writes the rest.
 *
 * The buffer consists of chunks. The chunks used most recently are reused first, so the system
 * provides only as much memory as the buffer has held at one time.
 */

#define RD_BUFFER_MIN ((uint64_t)1024 * 1024)
#define RD_BUFFER_MAX ((uint64_t)1 << 40)

typedef struct rd_buffer rd_buffer_t;

/* `start` is a percentage of `bytes`. The eventfd `wake` is written to when there is room again,
 * everything is written, or the output has failed. The output stays the caller's, but the caller
 * does not use it until rd_buffer_close. On NULL, *why is set. */
rd_buffer_t *rd_buffer_open(const rd_end_t *output, size_t bytes, unsigned start, int wake,
                            rd_why_t *why);

/* Like rd_end_write: returns the bytes taken, or -1 with errno, which is EAGAIN if the buffer is
 * full, else the error of the output. */
ssize_t rd_buffer_put(rd_buffer_t *buffer, const void *data, size_t len);

/* Tells the thread that nothing follows. Returns 1 if everything is written, 0 if *left_p bytes
 * remain, and -1 with errno if the output has failed. */
int rd_buffer_end(rd_buffer_t *buffer, size_t *left_p);

/* Ends the thread, and drops what it has not written. */
void rd_buffer_close(rd_buffer_t *buffer);

#endif
