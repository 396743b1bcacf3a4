/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_BUNDLE_STATE_H
#define RD_BUNDLE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "bundle.h"
#include "stream_count.h"

/*
 * A bundle as its two threads see it: bundle.c runs on the user's thread, bundle_thread.c on the
 * link's own. They share the two rings and the positions in them, and each position has one writer.
 * Neither thread waits for the other, except in bundle_close, which joins the link's thread.
 */

#define RD_PERIOD_MIN_MS 200 /* measure at least this long with the same number of connections */

/* The connection that carries one strand. */
typedef struct {
    int fd; /* -1 if dead */
    rd_tls_t *tls;
    bool may_read, is_used;
    rd_tcp_t seen; /* the kernel's counters at the end of the last period */
} rd_wire_t;

typedef enum { RD_BUNDLE_RUNS, RD_BUNDLE_ENDED, RD_BUNDLE_FAILED } rd_bundle_state_t;

/* `link`, `event`, `wake`, the rings and their sizes, and `most` are written before the thread
 * starts, and read by both threads. */
typedef struct {
    bw_link_t link; /* must be first: a bw_link_t pointer is cast to this type */
    pthread_t thread;
    int event; /* wakes the user */
    int wake;  /* wakes the thread */
    uint8_t *out, *in;
    uint64_t out_bytes, in_bytes;
    unsigned most;

    /* Shared by the two threads. */
    _Atomic uint64_t out_head, in_tail; /* written by the user: committed, released */
    _Atomic uint64_t out_tail, in_head; /* written by the thread: acknowledged, arrived */
    _Atomic uint64_t wants;             /* the amount of room that the user is waiting for */
    _Atomic uint64_t awaits; /* the user is waiting for bytes after position `awaits` - 1 */
    _Atomic bool is_asleep;  /* the thread is waiting */
    _Atomic bool is_closing; /* the user has closed the link */
    _Atomic int state;       /* rd_bundle_state_t; in_head is final when it is not RD_BUNDLE_RUNS */
    _Atomic(const char *) reason; /* for RD_BUNDLE_FAILED */
    _Atomic unsigned live, used;
    pthread_mutex_t mutex;  /* held while a connection is added */
    _Atomic unsigned added; /* how many of `adds` the thread may take */
    rd_wire_t adds[RD_STREAMS_MAX];

    /* Used only by the user's thread. */
    uint64_t peeked, told; /* in_head as returned by peek; in_tail when the thread was last told */
    int peeked_state;

    /* Used only by the link's thread. */
    bw_strands_t strands;
    rd_wire_t wires[BW_STRANDS_MAX]; /* only the first strands.count are used */
    unsigned come;                   /* how many of `adds` the thread has taken */
    uint64_t seen_head, seen_tail;   /* the user's positions at the last turn */
    const char *last_reason;         /* why the last connection died, or NULL if it was closed */
    rd_stream_count_t stream_count;
    bool is_auto;
    int64_t period_ms, period_began_ms;
    uint8_t scratch[65536];
} rd_bundle_t;

static inline uint8_t *rd_bundle_place(uint8_t *ring, uint64_t bytes, uint64_t position)
{
    return ring + (position & (bytes - 1));
}

/* Returns the number of bytes that one acknowledgement covers. */
static inline uint64_t rd_bundle_ack_bytes(const rd_bundle_t *bundle)
{
    return bundle->in_bytes / (bundle->most > 1 ? 64 : 16);
}

/* Returns the room in the outgoing ring. Either thread may call this. */
static inline uint64_t rd_bundle_room(const rd_bundle_t *bundle)
{
    return bundle->out_bytes - (atomic_load_explicit(&bundle->out_head, memory_order_relaxed) -
                                atomic_load_explicit(&bundle->out_tail, memory_order_acquire));
}

/* The main function of the link's thread; the argument is the bundle. It runs until the user has
 * closed the link and the remaining bytes are sent, but for at most PARTING_MS after the close. */
void *rd_bundle_thread(void *argument);

#endif
