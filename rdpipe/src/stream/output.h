/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_OUTPUT_H
#define RD_OUTPUT_H

#include "endpoint.h"
#include "text.h"

/*
 * Pieces of text on their way to standard output, in the order in which they arrived. No call
 * blocks, because pieces are queued here while the reader is slow or paused. A sender gets its
 * confirmation only when its piece is written, so the queue is bounded by the bytes that each
 * sender may have in transit.
 */

typedef struct rd_piece rd_piece_t;

typedef struct {
    rd_end_t end; /* fd is -1 if not open, or no longer open */
    rd_piece_t *first, **last_p;
} rd_output_t;

typedef enum {
    RD_OUTPUT_IDLE,  /* nothing to write, or the reader has no room */
    RD_OUTPUT_TAKEN, /* a piece was written; *from_p and *len_p describe it */
    RD_OUTPUT_QUIT,  /* the reader has closed */
    RD_OUTPUT_FAULT  /* the write has failed; *why is set */
} rd_output_step_t;

/* Takes ownership of the descriptor, which is -1 if there is no output. */
void rd_output_open(rd_output_t *output_p, int fd);

/* Takes ownership of `data`, which was allocated with malloc. Returns false if memory is exhausted
 * or the output is closed. */
bool rd_output_put(rd_output_t *output, size_t from, char *data, size_t len);

/* Writes at most one piece. After QUIT and FAULT the output is closed and the remaining pieces are
 * dropped. */
rd_output_step_t rd_output_step(rd_output_t *output, size_t *from_p, size_t *len_p, rd_why_t *why);

static inline bool rd_output_is_empty(const rd_output_t *output)
{
    return !output->first;
}

/* Returns the descriptor to poll, or -1 if there is nothing to write. */
static inline int rd_output_fd(const rd_output_t *output)
{
    return output->first ? output->end.fd : -1;
}

/* Closes the output. On failure, *why is set, and text that was written may be lost. */
bool rd_output_close(rd_output_t *output, rd_why_t *why);

#endif
