/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_BUFFER_H
#define RD_BUFFER_H

#include "end.h"
#include "text.h"

/*
 * Memory before an output, and a thread that writes it out: so a stream flows on while its output
 * pauses, and an output such as a tape gets its data in long runs. The thread begins when the
 * buffer is filled to a level, goes on until it is empty, and waits for that level again; at the
 * end it writes the rest.
 *
 * It is made of chunks. Those that were in use last are used again first, so the system gives only
 * as much memory as the buffer has held at a time.
 */

#define RD_BUFFER_MIN ((uint64_t)1024 * 1024)
#define RD_BUFFER_MAX ((uint64_t)1 << 40)

typedef struct rd_buffer rd_buffer_t;

/* `start`: percent of `bytes`. `wake` is an eventfd that is written to when there is room again,
 * all is written, or the output has failed. The output stays the caller's, who does not use it
 * meanwhile. NULL: *why. */
rd_buffer_t *rd_buffer_open(const rd_end_t *output, size_t bytes, unsigned start, int wake,
                            rd_why_t *why);

/* As rd_end_write: bytes taken, or -1 and errno: EAGAIN there is no room, else what the output has
 * failed of. */
ssize_t rd_buffer_put(rd_buffer_t *buffer, const void *data, size_t len);

/* Nothing more comes. 1: all is written; 0: not yet, and *left_p bytes are left; -1: errno. */
int rd_buffer_end(rd_buffer_t *buffer, size_t *left_p);

/* Ends the thread; what is not written is dropped. */
void rd_buffer_close(rd_buffer_t *buffer);

#endif
