/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SESSION_H
#define BW_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "erl_driver.h"

#include "../link/session/outgoing.h"
#include "queued_frames.h"

/*
 * A session lets a link outlive its connection. Both sides number the bytes in each direction
 * (outgoing.h), and retain references to the bytes that the peer is not known to have read. When a
 * connection is lost, each side stops reading from it, so its read position no longer changes. Over
 * the next connection both sides exchange these positions, and each continues from there.
 * `docs/dev/session.md` describes the whole protocol, including who may connect.
 *
 * The reader also reports its position in its own frames (frame.h). The bytes of these frames are
 * numbered like all others, so the same report may arrive twice; a lower position has no effect.
 *
 * Small frames are copied into a chunk, and retained as references to it, so each byte is copied
 * only once, just as without a session. All calls need the port lock.
 */

/* The sizes of chunks. The first is small, because a node may have thousands of links that are
 * hardly used; if a chunk is full before the peer has read it, the next is twice as large. */
#define BW_SESSION_CHUNK_BYTES ((size_t)128 * 1024)
#define BW_SESSION_FIRST_CHUNK_BYTES ((size_t)512)

/* The reader reports its position each time it has read this many bytes. */
#define BW_SESSION_ACK_BYTES ((uint64_t)256 * 1024)
/* After a delay, the reader sends a separate message if it has read at least this many bytes since
 * its last report. If it has read fewer, the report waits until a frame is sent in the other
 * direction or the link has been idle for a while. */
#define BW_SESSION_ACK_ALONE_BYTES ((uint64_t)4 * 1024)

typedef struct {
    bool is_on;
    bw_pending_list_t kept; /* frames that have been sent but may not have arrived */
    uint64_t from;          /* the number of the first byte of `kept` */
    bw_outgoing_t out;      /* the peer's position, which is `from` or within the first frame */
    uint64_t limit;         /* at this number of unacknowledged bytes, no new frame is sent */
    uint64_t told;          /* the read position that the peer already knows */
    ErlDrvBinary *chunk;    /* NULL if there is none */
    size_t staged, end; /* start and end of the bytes in the chunk that are waiting to be sent */
} bw_session_t;

static inline bool bw_session_is_full(const bw_session_t *session)
{
    return session->is_on && bw_outgoing_in_flight(&session->out) >= session->limit;
}

/* Returns a pointer to the place to write `size` bytes of small frames; `size` must not exceed one
 * chunk. Returns NULL if the staged bytes must be sent first, or if out of memory. */
uint8_t *bw_session_gap(bw_session_t *session, size_t size);

/* Records that `bytes` of the staged bytes have been sent. Returns false if out of memory. */
bool bw_session_sent(bw_session_t *session, size_t bytes);

/* Turns the remaining staged bytes into a queued frame. Returns NULL if out of memory. */
bw_pending_t *bw_session_rest(bw_session_t *session);

/* Records that the peer has read up to `position`. Returns false if that is impossible. */
bool bw_session_acknowledged(bw_session_t *session, uint64_t position);

/* Prepares for the next connection: puts everything after `position`, up to which the peer has
 * read, at the front of the list so that it is sent again. Returns false, and changes nothing, if
 * the peer cannot have read that far or the bytes have already been freed. */
bool bw_session_resume(bw_session_t *session, bw_pending_list_t *list, uint64_t position);

/* Called when the link is idle: frees the chunk if none of its bytes are needed. */
void bw_session_rests(bw_session_t *session);

void bw_session_free(bw_session_t *session);

#endif
