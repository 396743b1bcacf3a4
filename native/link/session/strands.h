/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SESSION_STRANDS_H
#define BW_SESSION_STRANDS_H

#include <stddef.h>

#include "outgoing.h"
#include "ranges.h"

/*
 * Two streams, one in each direction, over up to BW_STRANDS_MAX connections, the strands. A stream
 * is sent in chunks over whichever strand has room. Each chunk says where it belongs, so the reader
 * can put the stream together in a ring of its own, in any order. This module does no I/O: the user
 * moves the bytes between connections and rings, and reports when a connection is dead.
 *
 * Each strand carries, from both sides, a header of 24 bytes, little-endian, and for CHUNK `len`
 * bytes:
 *
 *   kind:8, zero:24, len:32, offset:64, other:64
 *     CHUNK  offset: of its first byte in the stream
 *     ACK    offset: all before it was taken by the user; other: all before it has arrived
 *     END    offset: bytes of the whole stream; nothing follows on this connection
 *
 * The writer keeps unacknowledged bytes in a ring as large as the reader's, so it cannot send more
 * than the reader has room for, and the reader can always read. When a strand dies, the writer goes
 * back to what is known to have arrived, and the reader skips bytes that it gets twice.
 */

#define BW_STRANDS_MAX 16u
#define BW_STRAND_HEADER 24u
#define BW_CHUNK_BYTES ((uint64_t)256 * 1024)
#define BW_CHUNK_SHARE_BYTES ((uint64_t)64 * 1024) /* the same, if there are several strands */

typedef struct {
    bool is_live;
    bool is_blocked; /* set by the user: the connection takes nothing now */
    bool has_said_end, has_heard_end;
    uint8_t said[BW_STRAND_HEADER]; /* the header that is being sent */
    size_t said_at, said_len;
    uint64_t at;                     /* after it the stream's bytes from here on: */
    size_t left;                     /* this many */
    uint8_t heard[BW_STRAND_HEADER]; /* the header that is being read */
    size_t heard_len;
    uint64_t to; /* where the bytes after it belong: */
    size_t due;  /* this many */
} bw_strand_t;

typedef struct {
    /* Set by the user. */
    uint64_t in_bytes; /* of the ring */
    uint64_t head;     /* of the outgoing stream: everything before this can be sent */
    uint64_t taken;    /* of the incoming one: everything before this is done with */
    unsigned use;      /* at most this many of the live strands get chunks */
    bool is_one;       /* there will never be another strand */

    unsigned count, live; /* of `strands`: those before `count` have been used */
    unsigned last;        /* the one that got a chunk last */
    bw_strand_t strands[BW_STRANDS_MAX];
    bw_outgoing_t out;
    uint64_t freed;            /* the peer's user has taken everything before this */
    bw_ranges_t in;            /* the bytes that have come; free(in.of) */
    uint64_t acked, acked_all; /* what was last reported: taken, arrived */
    bool owes_ack, has_total;
    uint64_t total; /* length of the peer's stream in bytes */
} bw_strands_t;

/* Returns the place of another strand, or -1 if there is none left. */
int bw_strands_add(bw_strands_t *strands);

/* The connection is dead. Bytes on their way over it are sent again, unless the peer has said
 * END. */
void bw_strands_lost(bw_strands_t *strands, unsigned place);

/* ---- out ---- */

/* Returns whether something has been begun on this strand: `said_len` bytes of `said`, then `left`
 * bytes of the stream. */
static inline bool bw_strand_has_unsent(const bw_strand_t *strand)
{
    return strand->said_len > 0 || strand->left > 0;
}

/* The strand's connection has taken `bytes` of them. */
void bw_strand_sent(bw_strand_t *strand, size_t bytes);

static inline uint64_t bw_strands_unassigned(const bw_strands_t *strands)
{
    return strands->head - strands->out.next;
}

/* Begins a chunk on a free strand and returns its place, or -1 if none is free or there is nothing
 * to send. Small chunks stay on one strand, so that they arrive in order and the reader has few
 * ranges. */
int bw_strands_assign(bw_strands_t *strands);

/* Begins an ACK if at least `news` bytes are new, and returns its place or -1. With `again` it also
 * does so if a strand was lost since the last ACK, which may have been lost with it. That can wait
 * a little: if the peer is closing one strand after the other, anything that it gets over those
 * already closed resets them. */
int bw_strands_acknowledge(bw_strands_t *strands, uint64_t news, bool again);

/* Begins END on each strand once everything has been given to connections. Returns false if not
 * yet. */
bool bw_strands_end(bw_strands_t *strands);

/* ---- in ---- */

/* What a strand must read next: `len` bytes to `header`, or, if that is NULL, bytes of the stream
 * from `at` on, which go to the ring if is_new and nowhere otherwise. */
typedef struct {
    uint8_t *header;
    uint64_t at;
    size_t len;
    bool is_new;
} bw_strand_due_t;

bw_strand_due_t bw_strands_due(const bw_strands_t *strands, bw_strand_t *strand);

/* The first `bytes` of it have come. Returns false if no correct peer sends this. */
bool bw_strands_came(bw_strands_t *strands, bw_strand_t *strand, const bw_strand_due_t *due,
                     size_t bytes);

/* Returns whether the peer's whole stream has arrived. */
static inline bool bw_strands_have_all(const bw_strands_t *strands)
{
    return strands->has_total && strands->in.head == strands->total;
}

#endif
