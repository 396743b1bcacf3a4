/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_TRANSFER_H
#define RD_TRANSFER_H

#include <stdatomic.h>

#include "buffer.h"
#include "resume.h"
#include "stream.h"

/*
 * The two functions that move a stream: `feed` from a descriptor into a hop, `drain` from a hop to
 * a descriptor, to another hop, or to both. Each runs in a thread of its own, or is the whole
 * program.
 *
 * Nothing is spooled: bytes on their way are in the rings, so the rings bound the memory.
 */

typedef enum {
    RD_TRANSFER_DONE,  /* the whole stream was taken by the other side */
    RD_TRANSFER_QUIT,  /* the consumer wanted no more, as with a broken pipe */
    RD_TRANSFER_FAULT, /* the stream is incomplete: `why` */
    RD_TRANSFER_RUNS
} rd_outcome_t;

typedef struct {
    int wake;        /* an eventfd: look at the members below */
    uint64_t rate;   /* feed: bytes per second at most; 0: unlimited */
    uint64_t buffer; /* drain: bytes of memory in front of the output; 0: none */
    unsigned start;  /* percentage of `buffer` at which writing begins */
    bool empties;    /* drain: the output is a file that is emptied when the stream begins */
    int drop_ms;     /* drain: an output that takes nothing for this time is dropped; 0: never */
    rd_resume_t *resume; /* NULL: the stream cannot be continued after a cut */
    /* written by others */
    _Atomic bool stop; /* end with a fault */
    /* written by the transfer */
    _Atomic uint64_t bytes; /* of the stream, including `first` */
    _Atomic uint64_t first; /* how many of these were there before */
    _Atomic uint64_t size;  /* feed: how many there will be; 0: unknown */
    _Atomic bool has_ended; /* drain: the consumer has the complete stream */
    /* drain: the output gets nothing more, but stays open so that its reader can be ended first */
    _Atomic bool is_dropped;
    /* drain: called with `of` when END has come, just before the output is closed; may be NULL */
    void (*at_end)(void *of);
    void (*at_drop)(void *of); /* drain: called when is_dropped becomes true */
    void *of;
    rd_outcome_t outcome;
    rd_why_t why; /* of a fault; with QUIT and ABORT the text of the other side */
} rd_transfer_t;

bool rd_transfer_init(rd_transfer_t *transfer, rd_why_t *why);
void rd_transfer_free(rd_transfer_t *transfer);
/* Any thread may call this. */
void rd_transfer_wake(rd_transfer_t *transfer);

/* Sends `input` to its end, and closes it. */
void rd_feed(rd_transfer_t *transfer, rd_stream_t *to, rd_end_t *input);

/* Writes to `output` (whose fd may be -1) and sends on to `forward` (may be NULL). Closes the
 * output when the stream has ended. If the stream is cut off the output stays open, so that its
 * reader does not take what it has for the complete stream. */
void rd_drain(rd_transfer_t *transfer, rd_stream_t *from, rd_end_t *output, rd_stream_t *forward);

#endif
