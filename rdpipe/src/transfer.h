/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_TRANSFER_H
#define RD_TRANSFER_H

#include <stdatomic.h>

#include "buffer.h"
#include "resume.h"
#include "stream.h"

/*
 * What moves a stream: `feed` from a descriptor into a hop, `drain` from a hop to a descriptor, to
 * a further hop, or to both. Each runs in a thread of its own, or is the whole program.
 *
 * Nothing is spooled: what is on its way is in the rings, so memory is bounded by them.
 */

typedef enum {
    RD_TRANSFER_DONE,  /* the whole stream was taken by the other side */
    RD_TRANSFER_QUIT,  /* the consumer wanted no more, as a broken pipe */
    RD_TRANSFER_FAULT, /* the stream is not whole: `why` */
    RD_TRANSFER_RUNS
} rd_outcome_t;

typedef struct {
    int wake;            /* an eventfd: look at what follows */
    uint64_t rate;       /* feed: bytes a second at most, 0: as many as there are */
    uint64_t buffer;     /* drain: bytes of memory before the output, 0: none */
    unsigned start;      /* percent of it at which writing begins */
    bool empties;        /* drain: the output is a file that is emptied when the stream begins */
    int drop_ms;         /* drain: an output that takes nothing for so long is dropped, 0: never */
    rd_resume_t *resume; /* NULL: the stream cannot go on after a cut */
    /* written by others */
    _Atomic bool stop; /* end with a fault */
    /* written by the transfer */
    _Atomic uint64_t bytes; /* of the stream, with those of before */
    _Atomic uint64_t first; /* of these that were there before */
    _Atomic uint64_t size;  /* feed: how many there will be, 0: nobody knows */
    _Atomic bool has_ended; /* drain: the stream is whole, the consumer has it all */
    /* drain: the output gets nothing more, and stays open, so that what reads it can be ended */
    _Atomic bool is_dropped;
    /* drain: called with `of` when END has come, just before the output is closed; NULL: nothing */
    void (*at_end)(void *of);
    void (*at_drop)(void *of); /* drain: is_dropped has become true */
    void *of;
    rd_outcome_t outcome;
    rd_why_t why; /* of a fault; with QUIT and ABORT what the other side said */
} rd_transfer_t;

bool rd_transfer_init(rd_transfer_t *transfer, rd_why_t *why);
void rd_transfer_free(rd_transfer_t *transfer);
/* From any thread. */
void rd_transfer_wake(rd_transfer_t *transfer);

/* Reads `input` to its end. Closes it. */
void rd_feed(rd_transfer_t *transfer, rd_stream_t *to, rd_end_t *input);

/* Writes to `output` (its fd may be -1) and sends on to `forward` (may be NULL). Closes the output
 * when the stream has ended; when it is cut off the output stays open, so that its reader does not
 * take what came for the whole. */
void rd_drain(rd_transfer_t *transfer, rd_stream_t *from, rd_end_t *output, rd_stream_t *forward);

#endif
