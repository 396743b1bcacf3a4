/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SESSION_STRANDS_H
#define BW_SESSION_STRANDS_H

#include <stddef.h>

#include "../bytes.h"
#include "outgoing.h"
#include "ranges.h"

/*
 * Carries two streams, one in each direction, over up to BW_STRANDS_MAX connections, which are
 * called strands. A stream is sent in chunks over any strand that has room. Each chunk states its
 * offset in the stream, so the reader can assemble the stream in its own ring, whatever the order
 * of arrival. This module does no I/O: the user moves the bytes between connections and rings, and
 * reports when a connection is dead.
 *
 * On each strand, both sides send messages that consist of a little-endian header of 24 bytes and,
 * for CHUNK, `len` bytes of the stream:
 *
 *   kind:8, zero:24, len:32, offset:64, other:64
 *     CHUNK  offset: the position of the first of these bytes in the stream
 *     ACK    offset: bytes that the user has consumed; other: bytes that have arrived without a
 *            gap; len: bytes that have arrived after the gap (0 from earlier versions)
 *     END    offset: the length of the stream; nothing follows on this connection
 *
 * The writer keeps unacknowledged bytes in a ring as large as the reader's, so it cannot send more
 * than the reader has room for, and the reader can always read. When a strand is lost, the writer
 * goes back to the first byte that is not known to have arrived, and the reader skips duplicates.
 */

#define BW_STRANDS_MAX 64u
#define BW_STRAND_HEADER 24u
#define BW_CHUNK_BYTES ((uint64_t)256 * 1024)
#define BW_CHUNK_SHARE_BYTES ((uint64_t)64 * 1024) /* chunk size if there are several strands */

typedef struct {
    bool is_live;
    bool is_blocked; /* set by the user: the connection accepts nothing now */
    bool has_said_end, has_heard_end;
    uint8_t said[BW_STRAND_HEADER]; /* the header that is being sent */
    size_t said_at, said_len;
    uint64_t at;                     /* the position of the stream bytes that follow the header */
    size_t left;                     /* how many of them have not been sent */
    uint8_t heard[BW_STRAND_HEADER]; /* the header that is being read */
    size_t heard_len;
    uint64_t to; /* the position of the stream bytes that follow the header */
    size_t due;  /* how many of them have not arrived */
} bw_strand_t;

typedef struct {
    /* Set by the user. */
    uint64_t in_bytes; /* size of the ring for input */
    uint64_t head;     /* outgoing stream: everything before this can be sent */
    uint64_t taken;    /* incoming stream: the user has consumed everything before this */
    unsigned use;      /* only the first `use` of the live strands are given chunks */
    bool is_one;       /* there will never be another strand */

    unsigned count, live; /* used entries of `strands`, including dead ones; live strands */
    unsigned last;        /* the strand that was given the last chunk */
    bw_strand_t strands[BW_STRANDS_MAX];
    bw_outgoing_t out;
    uint64_t beyond; /* the peer has this many bytes after out.arrived as well */
    uint64_t again;  /* bytes before this may have been sent twice, because a strand was lost */
    uint64_t freed;  /* the peer's user has consumed everything before this */
    bw_ranges_t in;  /* the bytes that have arrived; the user frees in.of */
    uint64_t acked, acked_all; /* the positions last reported to the peer: consumed, arrived */
    uint64_t unreported; /* bytes that have arrived since, including bytes that arrived again */
    bool owes_ack, has_total;
    uint64_t total; /* length of the peer's stream in bytes */
} bw_strands_t;

/* Adds a strand and returns its index, or -1 if there are already too many. */
int bw_strands_add(bw_strands_t *strands);

/* Records that the connection of a strand is lost. Bytes that were in flight on it are sent again,
 * unless the peer has sent END. */
void bw_strands_lost(bw_strands_t *strands, unsigned place);

/* ---- the outgoing stream ---- */

/* Returns whether there is more to send: `said_len` bytes of `said`, then `left` of the stream. */
static inline bool bw_strand_has_unsent(const bw_strand_t *strand)
{
    return strand->said_len > 0 || strand->left > 0;
}

/* Records that the strand's connection has accepted `bytes` of these bytes. */
void bw_strand_sent(bw_strand_t *strand, size_t bytes);

static inline uint64_t bw_strands_unassigned(const bw_strands_t *strands)
{
    return strands->head - strands->out.next;
}

/* Returns how many bytes are on their way, as far as the peer has reported. While a lost segment is
 * sent again, these are only the bytes of one strand. Bytes that are sent again because a strand
 * was lost are on their way even if the peer has them. */
static inline uint64_t bw_strands_in_flight(const bw_strands_t *strands)
{
    uint64_t open = strands->out.next - strands->out.arrived;

    return strands->out.arrived < strands->again ? open : open - bw_least(open, strands->beyond);
}

/* Starts a chunk on a free strand and returns its index, or -1 if none is free or there is nothing
 * to send. Small chunks stay on one strand, so the reader gets them in order and has few ranges. */
int bw_strands_assign(bw_strands_t *strands);

/* Starts an ACK if at least `news` bytes have been consumed or have arrived since the last one.
 * Bytes that arrive again count, because an ACK may have been lost. Returns the index of its
 * strand, or -1. With `again` it also does so if a strand was lost since the last ACK, because the
 * ACK may have been lost with it. The caller should delay such an ACK a little: if the peer is
 * closing its strands one at a time, bytes sent to those already closed would reset them. */
int bw_strands_acknowledge(bw_strands_t *strands, uint64_t news, bool again);

/* Starts END on each strand, or returns false if other bytes must be sent first. */
bool bw_strands_end(bw_strands_t *strands);

/* ---- the incoming stream ---- */

/* The next read on a strand: `len` bytes into `header`, or, if `header` is NULL, `len` bytes of the
 * stream from `at` on, which are stored in the ring if is_new and discarded otherwise. */
typedef struct {
    uint8_t *header;
    uint64_t at;
    size_t len;
    bool is_new;
} bw_strand_due_t;

bw_strand_due_t bw_strands_due(const bw_strands_t *strands, bw_strand_t *strand);

/* Records that `bytes` due bytes have arrived. Returns false if the peer violated the protocol. */
bool bw_strands_came(bw_strands_t *strands, bw_strand_t *strand, const bw_strand_due_t *due,
                     size_t bytes);

static inline bool bw_strands_have_all(const bw_strands_t *strands)
{
    return strands->has_total && strands->in.head == strands->total;
}

#endif
