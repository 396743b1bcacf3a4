/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_OUTPUT_H
#define RD_OUTPUT_H

#include "end.h"
#include "text.h"

/*
 * Pieces of text on their way to standard output, in the order in which they came. Nothing waits:
 * a reader that is slow or paused leaves them here, and who sends them is told only when they are
 * written, so that their number is bounded by what each sender may have under way.
 */

typedef struct rd_piece rd_piece_t;

typedef struct {
    rd_end_t end; /* fd -1: not open, or not any more */
    rd_piece_t *first, **last_p;
} rd_output_t;

typedef enum {
    RD_OUTPUT_IDLE,  /* nothing to write, or no room for it */
    RD_OUTPUT_TAKEN, /* a piece is written: *from_p and *len_p */
    RD_OUTPUT_QUIT,  /* the reader wants no more */
    RD_OUTPUT_FAULT  /* *why */
} rd_output_step_t;

/* Takes the descriptor; -1: there is no output. */
void rd_output_open(rd_output_t *output_p, int fd);

/* Takes `data`, which is from malloc. False: no memory, or the output is closed. */
bool rd_output_put(rd_output_t *output, size_t from, char *data, size_t len);

/* Writes as far as one piece. After QUIT and FAULT the output is closed, what was left is gone. */
rd_output_step_t rd_output_step(rd_output_t *output, size_t *from_p, size_t *len_p, rd_why_t *why);

static inline bool rd_output_is_empty(const rd_output_t *output)
{
    return !output->first;
}

/* What poll has to wait for: -1 if there is nothing to write. */
static inline int rd_output_fd(const rd_output_t *output)
{
    return output->first ? output->end.fd : -1;
}

/* Closes it. False and *why: what was written may not be there. */
bool rd_output_close(rd_output_t *output, rd_why_t *why);

#endif
