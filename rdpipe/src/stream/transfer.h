/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_TRANSFER_H
#define RD_TRANSFER_H

#include <stdatomic.h>

#include "buffer.h"
#include "resume.h"
#include "stream.h"

/*
 * The two functions that transfer a stream: `feed` from a descriptor into a hop, `drain` from a hop
 * to a descriptor, to another hop, or to both. Each runs in its own thread, or makes up the entire
 * program.
 *
 * Nothing is spooled: data in transit is only in the rings, so their size limits the memory use.
 */

typedef enum {
    RD_TRANSFER_DONE,  /* the other side has accepted the complete stream */
    RD_TRANSFER_QUIT,  /* the consumer closed early, as with a broken pipe */
    RD_TRANSFER_FAULT, /* the stream is incomplete; `why` has the reason */
    RD_TRANSFER_RUNS
} rd_outcome_t;

typedef struct {
    int wake;        /* an eventfd; when it is signalled, check the members below */
    uint64_t rate;   /* feed: maximum number of bytes per second, or 0 if unlimited */
    uint64_t buffer; /* drain: bytes of memory in front of the output, or 0 if none */
    unsigned start;  /* percentage of `buffer` at which writing begins */
    bool empties;    /* drain: the output is a file that is truncated when the stream begins */
    int drop_ms; /* drain: an output that accepts no data for this long is dropped; 0 means never */
    rd_resume_t *resume; /* NULL if the stream cannot be resumed after an interruption */
    /* Written by other threads: */
    _Atomic bool stop; /* stop, and report a fault */
    /* Written by the transfer: */
    _Atomic uint64_t bytes; /* bytes of the stream, including `first` */
    _Atomic uint64_t first; /* how many of these had already been transferred at the start */
    _Atomic uint64_t size;  /* feed: how many there will be, or 0 if unknown */
    /* drain: the output gets no more data, but stays open so that its reader can be killed first */
    _Atomic bool is_dropped;
    /* drain: called with `of` at END, just before the output is closed; may be NULL */
    void (*at_end)(void *of);
    void (*at_drop)(void *of); /* drain: called when is_dropped becomes true */
    void *of;
    rd_outcome_t outcome;
    rd_why_t why; /* why it ended (in `feed`, this may be the text of the consumer's ABORT) */
} rd_transfer_t;

bool rd_transfer_init(rd_transfer_t *transfer, rd_why_t *why);
void rd_transfer_free(rd_transfer_t *transfer);
/* Any thread may call this. */
void rd_transfer_wake(rd_transfer_t *transfer);

/* Sends `input` until its end, and closes it. */
void rd_feed(rd_transfer_t *transfer, rd_stream_t *to, rd_end_t *input);

/* Writes to `output` (whose fd may be -1) and forwards to `forward` (may be NULL). Closes the
 * output when the stream is complete. If the stream is interrupted the output stays open, so that
 * its reader does not mistake what it has received for the complete stream. */
void rd_drain(rd_transfer_t *transfer, rd_stream_t *from, rd_end_t *output, rd_stream_t *forward);

#endif
