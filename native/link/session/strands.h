/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SESSION_STRANDS_H
#define BW_SESSION_STRANDS_H

#include <stddef.h>

#include "outgoing.h"
#include "ranges.h"

/*
 * Two streams, one each way, over up to BW_STRANDS_MAX connections, the strands. A stream goes in
 * chunks over whichever strand has room. Each chunk says where it belongs, so the reader puts the
 * stream together in a ring of its own, in any order. Pure: the user moves the bytes between
 * connections and rings, and says when a connection is dead.
 *
 * On each strand, from both sides, a header of 24 bytes, little-endian, then for CHUNK `len` bytes:
 *
 *   kind:8, zero:24, len:32, offset:64, other:64
 *     CHUNK  offset: of its first byte in the stream
 *     ACK    offset: all before it was taken by the user; other: all before it has arrived
 *     END    offset: bytes of the whole stream; nothing follows on this connection
 *
 * The writer keeps what is not acknowledged in a ring as large as the reader's, so it cannot send
 * what the reader has no room for, and the reader always reads. When a strand dies, the writer goes
 * back to what is known to have arrived, and the reader passes over what it has twice.
 */

#define BW_STRANDS_MAX 16u
#define BW_STRAND_HEADER 24u
#define BW_CHUNK_BYTES ((uint64_t)256 * 1024)
#define BW_CHUNK_SHARE_BYTES ((uint64_t)64 * 1024) /* the same, where there are several strands */

typedef struct {
    bool is_live;
    bool is_blocked; /* the user's: the connection takes nothing now */
    bool has_said_end, has_heard_end;
    uint8_t said[BW_STRAND_HEADER]; /* a header that is being sent */
    size_t said_at, said_len;
    uint64_t at; /* and behind it so many bytes of the stream */
    size_t left;
    uint8_t heard[BW_STRAND_HEADER]; /* a header that is being read */
    size_t heard_len;
    uint64_t to; /* and where the bytes behind it belong */
    size_t due;
} bw_strand_t;

typedef struct {
    /* The user's. */
    uint64_t in_bytes; /* of the ring */
    uint64_t head;     /* of the stream that goes out: all before this can go */
    uint64_t taken;    /* of the one that comes in: all before this is done with */
    unsigned use;      /* of the strands that live, at most so many get chunks */
    bool is_one;       /* there will never be another strand */

    unsigned count, live; /* of `strands`: those before `count` were ever used */
    unsigned last;        /* the one that took a chunk */
    bw_strand_t strands[BW_STRANDS_MAX];
    bw_outgoing_t out;
    uint64_t freed;            /* the peer's user has taken all before this */
    bw_ranges_t in;            /* what has come; free(in.of) */
    uint64_t acked, acked_all; /* what was said: taken, arrived */
    bool owes_ack, has_total;
    uint64_t total; /* the peer's stream has so many bytes */
} bw_strands_t;

/* The place of one more; -1: there are as many as can be. */
int bw_strands_add(bw_strands_t *strands);

/* The connection is dead. What is on its way over it goes out again, unless the peer has said END.
 */
void bw_strands_lost(bw_strands_t *strands, unsigned place);

/* ---- out ---- */

/* Whether something has been begun on this strand: `said_len` bytes of `said`, then `left` bytes of
 * the stream. */
static inline bool bw_strand_has_unsent(const bw_strand_t *strand)
{
    return strand->said_len > 0 || strand->left > 0;
}

/* Its connection has taken so many of them. */
void bw_strand_sent(bw_strand_t *strand, size_t bytes);

static inline uint64_t bw_strands_unassigned(const bw_strands_t *strands)
{
    return strands->head - strands->out.next;
}

/* Begins a chunk on a strand that is free: its place. -1: there is none, or nothing to send. Small
 * chunks stay on one strand, so that they arrive in order and the reader has few ranges. */
int bw_strands_assign(bw_strands_t *strands);

/* Begins an ACK, if so many bytes are news: its place, or -1. `again`: also if a strand was lost
 * since the last one, which it may have taken along. That can wait a little: where the peer is
 * closing one strand after the other, what it gets over those that are closed resets them. */
int bw_strands_acknowledge(bw_strands_t *strands, uint64_t news, bool again);

/* Once all that goes out has been given to connections: begins END on each strand. False: not yet.
 */
bool bw_strands_end(bw_strands_t *strands);

/* ---- in ---- */

/* What a strand is to read next: `len` bytes to `header`, or, where that is NULL, of the stream
 * from `at` on; is_new: to the ring, or else nowhere. */
typedef struct {
    uint8_t *header;
    uint64_t at;
    size_t len;
    bool is_new;
} bw_strand_due_t;

bw_strand_due_t bw_strands_due(const bw_strands_t *strands, bw_strand_t *strand);

/* The first `bytes` of it have come. False: no correct peer sends this. */
bool bw_strands_came(bw_strands_t *strands, bw_strand_t *strand, const bw_strand_due_t *due,
                     size_t bytes);

/* The peer's stream has come to its end. */
static inline bool bw_strands_have_all(const bw_strands_t *strands)
{
    return strands->has_total && strands->in.head == strands->total;
}

#endif
