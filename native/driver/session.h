/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SESSION_H
#define BW_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "erl_driver.h"

#include "../link/session/outgoing.h"
#include "pending.h"

/*
 * What lets a link outlive its connection: both sides number the bytes of each direction
 * (outgoing.h). What the peer is not known to have taken is kept by reference. When a connection is
 * lost each side stops reading it, so how far it has read does not change any more. Over the next
 * connection both say how far that is, and each goes on from there. `docs/dev/session.md` has the
 * whole protocol; who may connect is decided there, not here.
 *
 * How far the reader has come also goes back in frames of their own (frame.h). They are numbered
 * like all bytes, so one may come twice; an older one says nothing new.
 *
 * Small frames are copied into a chunk. What is sent of it is kept as a part of the chunk, so that
 * a byte is copied once, as without a session. All calls are made under the port lock.
 */

/* How much of small frames stands together: at most so much. The first chunk is small, because a
 * node may have thousands of links that are hardly used. A chunk that the peer has not taken when
 * it is full is followed by one of twice its size. */
#define BW_SESSION_CHUNK_BYTES ((size_t)128 * 1024)
#define BW_SESSION_FIRST_CHUNK_BYTES ((size_t)512)

/* The reader says how far it has come each time that it has read so much. */
#define BW_SESSION_ACK_BYTES ((uint64_t)256 * 1024)

typedef struct {
    bool is_on;
    bw_pending_list_t kept; /* frames that are out and have not arrived for certain */
    uint64_t from;          /* the number of the first byte of `kept` */
    bw_outgoing_t out;      /* the peer has read so far: at `from` or within the first frame */
    uint64_t limit; /* so many bytes may be out and not read; beyond that no new frame goes out */
    uint64_t told;  /* bytes read that the peer need not hear of any more */
    ErlDrvBinary *chunk; /* NULL: none */
    size_t staged, end;  /* bytes of the chunk that wait to be sent: from, to */
} bw_session_t;

static inline bool bw_session_is_full(const bw_session_t *session)
{
    return session->is_on && bw_outgoing_in_flight(&session->out) >= session->limit;
}

/* Where `size` bytes of small frames go, at most a chunk; NULL: what is staged must be sent first,
 * or there is no memory. */
uint8_t *bw_session_gap(bw_session_t *session, size_t size);

/* So many of the staged bytes are out. False: there is no memory. */
bool bw_session_sent(bw_session_t *session, size_t bytes);

/* The rest of the staged bytes, as a frame that waits. NULL: there is no memory. */
bw_pending_t *bw_session_rest(bw_session_t *session);

/* The peer has read so far. False: it cannot have. */
bool bw_session_acknowledged(bw_session_t *session, uint64_t position);

/* The next connection begins: the peer has read so far. What comes after that goes out again,
 * before the list. False: it cannot have, or the bytes are gone; nothing has changed. */
bool bw_session_resume(bw_session_t *session, bw_pending_list_t *list, uint64_t position);

/* The link rests: gives the chunk back if nothing of it is needed. */
void bw_session_rests(bw_session_t *session);

void bw_session_free(bw_session_t *session);

#endif
