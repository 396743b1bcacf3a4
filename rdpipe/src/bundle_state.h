/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_BUNDLE_STATE_H
#define RD_BUNDLE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "bundle.h"
#include "session/pace.h"

/*
 * A bundle as its two threads see it. bundle.c runs on the user's thread, bundle_thread.c on the
 * link's own. They share the two rings and the positions in them, each of which has one writer.
 * `event` wakes the user and `wake` the thread. No call of either waits for the other, but for
 * bundle_close, which joins the thread.
 */

#define RD_PERIOD_MIN_MS 200 /* of measuring with the same number of connections */

/* The connection of one strand. */
typedef struct {
    int fd; /* -1: dead */
    rd_tls_t *tls;
    bool may_read;
} rd_wire_t;

typedef enum { RD_BUNDLE_RUNS, RD_BUNDLE_ENDED, RD_BUNDLE_FAILED } rd_bundle_state_t;

/* Written before the thread starts and read by both threads: link, event, wake, the rings and their
 * sizes, most. */
typedef struct {
    bw_link_t link; /* first: a bw_link_t pointer is a pointer to this one */
    pthread_t thread;
    int event; /* the user's: look again */
    int wake;  /* the thread's */
    uint8_t *out, *in;
    uint64_t out_bytes, in_bytes;
    unsigned most;

    /* Between the two threads. Each position has one writer. */
    _Atomic uint64_t out_head, in_tail; /* the user's: committed, released */
    _Atomic uint64_t out_tail, in_head; /* the thread's: acknowledged, arrived */
    _Atomic uint64_t wants;             /* room that the user waits for */
    _Atomic uint64_t awaits;            /* he waits for more than arrived up to here, + 1 */
    _Atomic bool is_asleep;             /* the thread waits */
    _Atomic bool is_closing;            /* the user wants no more */
    _Atomic int state; /* rd_bundle_state_t; in_head is final when it is not RD_BUNDLE_RUNS */
    _Atomic(const char *) reason; /* of RD_BUNDLE_FAILED */
    _Atomic unsigned live, used;
    pthread_mutex_t mutex;  /* of who adds a connection */
    _Atomic unsigned added; /* so many of `adds` are the thread's */
    rd_wire_t adds[RD_STREAMS_MAX];

    /* The user's. */
    uint64_t peeked, told; /* in_head as peek gave it; in_tail when the thread was told */
    int peeked_state;

    /* The thread's. */
    bw_strands_t strands;
    rd_wire_t wires[BW_STRANDS_MAX]; /* those before strands.count */
    unsigned come;                   /* of `adds` */
    uint64_t seen_head, seen_tail;   /* of the user's positions, in the last turn */
    const char *last_reason;         /* of a connection that is dead; NULL: it was closed */
    bw_pace_t pace;
    bool is_auto;
    int64_t period_ms, period_began_ms;
    uint64_t period_from;
    bool is_first_period; /* shorter, until there are streams to add */
    uint8_t scratch[65536];
} rd_bundle_t;

static inline uint8_t *rd_bundle_place(uint8_t *ring, uint64_t bytes, uint64_t position)
{
    return ring + (position & (bytes - 1));
}

/* So many bytes are confirmed at once. */
static inline uint64_t rd_bundle_ack_bytes(const rd_bundle_t *bundle)
{
    return bundle->in_bytes / (bundle->most > 1 ? 64 : 16);
}

/* Of the outgoing ring; by either thread. */
static inline uint64_t rd_bundle_room(const rd_bundle_t *bundle)
{
    return bundle->out_bytes - (atomic_load_explicit(&bundle->out_head, memory_order_relaxed) -
                                atomic_load_explicit(&bundle->out_tail, memory_order_acquire));
}

/* The link's thread, with the bundle as its argument: until the user closes and his bytes are gone,
 * or PARTING_MS later. */
void *rd_bundle_thread(void *argument);

#endif
