/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_LINK_H
#define BW_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "ring.h"
#include "status.h"

/*
 * A link joins exactly two endpoints by two one-way byte streams. Each carrier (shm, rdma,
 * tcp) fills one bw_link_ops_t; this table is all that a user of a link sees.
 *
 * Nothing here blocks. All calls on one link are made by one thread at a time (in the driver:
 * under the port lock). After BW_CORRUPT or BW_SYSTEM only stats, reason and close may be called.
 */
typedef struct bw_link bw_link_t;

typedef struct {
    uint64_t bytes_in, bytes_out;         /* released, committed */
    uint64_t doorbells_in, doorbells_out; /* answered, rung: system calls both */
    uint64_t stalls;                      /* times that the producer armed for room */
    uint64_t ring_bytes;                  /* of one direction */
    uint64_t fill_in, fill_out;           /* bytes in the rings now */
    uint64_t unreleased; /* committed bytes that the peer is not known to have taken */
} bw_link_stats_t;

/* What is left of a link that was closed. */
typedef struct {
    int fd;              /* the polled descriptor */
    int socket;          /* has much that nobody will read, -1: none */
    struct iovec map[2]; /* memory that is mapped; iov_base NULL: none */
} bw_leftover_t;

/* Frees all but `fd`; for a link with rings of a gigabyte this takes some 100 ms. By any thread. */
void bw_leftover_free(bw_leftover_t *leftover);

/* For carriers. Throws away what a socket holds, 0.5 MB in a round. True: there may be more. */
bool bw_discard(int socket, int rounds);

typedef struct {
    const char *kind;
    /* Writable bytes, contiguous, at best `want` or more: BW_OK, BW_AGAIN, BW_CORRUPT. */
    bw_status_t (*reserve)(bw_link_t *link, size_t want, bw_span_t *span_p);
    /* Publishes the first n bytes of the reserved span and rings if the peer sleeps. */
    void (*commit)(bw_link_t *link, size_t n);
    /* Readable bytes, contiguous: BW_OK, BW_AGAIN, BW_CORRUPT. */
    bw_status_t (*peek)(bw_link_t *link, bw_span_t *span_p);
    /* Frees the first n bytes of the peeked span and rings if the peer waits for that room. */
    void (*release)(bw_link_t *link, size_t n);
    /* Both are NULL if a ring is the only way. Sends the bytes from where they stand, behind all
     * that was committed, as many as go at once. BW_OK: the rest may be reserved and committed.
     * BW_AGAIN: nothing goes now, and arm_write tells when something does. */
    bw_status_t (*write)(bw_link_t *link, const struct iovec *iov, int count, size_t *taken_p);
    /* Reads at most `most` bytes to where they belong. BW_OK: so many; none if they stand in the
     * ring, or if the link has ended: peek gives it. BW_AGAIN: nothing is there, as peek would say.
     */
    bw_status_t (*read)(bw_link_t *link, uint8_t *to, size_t most, size_t *got_p);
    /* Ask for one wake-up on `fd`: when more can be read than the last
     * peek gave, or when `room` bytes can be written, at most half the ring while the peer reads
     * and does not close. BW_OK: armed. BW_AGAIN: it is so already, nothing is armed. BW_CORRUPT,
     * from arm_read also if the link has ended and what was left unread of the last peek is all
     * there will ever be. */
    bw_status_t (*arm_read)(bw_link_t *link);
    bw_status_t (*arm_write)(bw_link_t *link, size_t room);
    /* The descriptor to poll for reading; it belongs to the link. */
    int (*fd)(const bw_link_t *link);
    /* Makes `fd` quiet again. Call it before arm_read, never after. */
    void (*clear_event)(bw_link_t *link);
    /* Makes `fd` readable: whoever polls it comes back to this link. */
    void (*wake_self)(bw_link_t *link);
    /* Gives memory of an idle outgoing ring back to the system, a piece in one call. True: there is
     * more to give. Does nothing unless the peer has read everything. */
    bool (*trim)(bw_link_t *link);
    void (*stats)(const bw_link_t *link, bw_link_stats_t *stats_p);
    /* True if the peer has closed its end in order and all that it wrote has been released. */
    bool (*is_finished)(bw_link_t *link);
    /* True if the peer's process is known to be gone: what can be read from now on is all that it
     * has written. NULL, and false: not known. */
    bool (*is_orphan)(bw_link_t *link);
    /* Why the link is of no use any more, fit for an atom; NULL if the carrier does not know. */
    const char *(*reason)(bw_link_t *link);
    /* Closes everything and frees the link. If `left_p` is not NULL, what takes long is left to the
     * caller, and the polled descriptor, which he closes when its poller lets go. */
    void (*close)(bw_link_t *link, bw_leftover_t *left_p);
} bw_link_ops_t;

struct bw_link {
    const bw_link_ops_t *ops;
};

#endif
