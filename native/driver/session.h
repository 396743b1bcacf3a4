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
 * (outgoing.h), and keep by reference what the peer is not known to have read. When a connection is
 * lost, each side stops reading it, so how far it has read no longer changes. Over the next
 * connection both sides exchange these positions, and each continues from there.
 * `docs/dev/session.md` describes the whole protocol, including who may connect, which is not
 * decided here.
 *
 * The reader also reports its position in frames of its own (frame.h). They are numbered like all
 * bytes, so one may come twice; a position that is older than the last has no effect.
 *
 * Small frames are copied into a chunk. Bytes of it that have been sent are kept as a part of the
 * chunk, so a byte is copied once, as without a session. All calls are made under the port lock.
 */

/* The most that a chunk of small frames holds. The first chunk is small, because a node may have
 * thousands of links that are hardly used. A chunk that is full before the peer has read it is
 * followed by one of twice its size. */
#define BW_SESSION_CHUNK_BYTES ((size_t)128 * 1024)
#define BW_SESSION_FIRST_CHUNK_BYTES ((size_t)512)

/* The reader reports its position each time that it has read this much. */
#define BW_SESSION_ACK_BYTES ((uint64_t)256 * 1024)

typedef struct {
    bool is_on;
    bw_pending_list_t kept; /* frames that are out and may not have arrived */
    uint64_t from;          /* the number of the first byte of `kept` */
    bw_outgoing_t out;      /* the peer's position: `from`, or within the first frame */
    uint64_t limit;      /* bytes that may be out and unread; beyond that no new frame goes out */
    uint64_t told;       /* bytes read that need no further report to the peer */
    ErlDrvBinary *chunk; /* NULL: none */
    size_t staged, end;  /* bytes of the chunk that wait to be sent: from, to */
} bw_session_t;

static inline bool bw_session_is_full(const bw_session_t *session)
{
    return session->is_on && bw_outgoing_in_flight(&session->out) >= session->limit;
}

/* Returns where `size` bytes of small frames go, at most a chunk. Returns NULL if the staged bytes
 * must be sent first, or if out of memory. */
uint8_t *bw_session_gap(bw_session_t *session, size_t size);

/* Records that this many of the staged bytes are out. Returns false if out of memory. */
bool bw_session_sent(bw_session_t *session, size_t bytes);

/* Makes a waiting frame of the rest of the staged bytes. Returns NULL if out of memory. */
bw_pending_t *bw_session_rest(bw_session_t *session);

/* Records that the peer has read up to `position`. Returns false if it cannot have. */
bool bw_session_acknowledged(bw_session_t *session, uint64_t position);

/* Begins the next connection: everything after `position`, up to which the peer has read, is put
 * before the list to be sent again. Returns false, and changes nothing, if the peer cannot have
 * read that far or the bytes are gone. */
bool bw_session_resume(bw_session_t *session, bw_pending_list_t *list, uint64_t position);

/* The link is idle, so this frees the chunk if nothing of it is needed. */
void bw_session_rests(bw_session_t *session);

void bw_session_free(bw_session_t *session);

#endif
