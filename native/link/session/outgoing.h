/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SESSION_OUTGOING_H
#define BW_SESSION_OUTGOING_H

#include <stdbool.h>
#include <stdint.h>

/*
 * One direction of a stream that outlives its connections, as its writer sees it. The bytes are
 * numbered from the first one on, over all connections. The writer keeps those from `arrived` on,
 * because it may have to send them again. These functions only move the positions.
 */
typedef struct {
    uint64_t next;    /* the first byte that no connection has taken, or that is sent again */
    uint64_t sent;    /* no byte from here on has ever been sent */
    uint64_t arrived; /* the peer has reported that it has everything before this one */
} bw_outgoing_t;

/* The next bytes are sent. */
static inline void bw_outgoing_send(bw_outgoing_t *way, uint64_t bytes)
{
    way->next += bytes;
    if (way->next > way->sent)
        way->sent = way->next;
}

/* The peer reports that it has everything before `position`; an older report has no effect. Bytes
 * that arrived over another connection need not be sent again. Returns false if the peer cannot
 * have them. */
static inline bool bw_outgoing_acknowledged(bw_outgoing_t *way, uint64_t position)
{
    if (position > way->sent)
        return false;
    if (position > way->arrived)
        way->arrived = position;
    if (way->next < way->arrived)
        way->next = way->arrived;
    return true;
}

/* Everything that is not known to have arrived must be sent again. */
static inline void bw_outgoing_go_back(bw_outgoing_t *way)
{
    if (way->next > way->arrived)
        way->next = way->arrived;
}

/* When its last connection ended, the peer had the bytes before `position` and no more. Returns
 * false, and changes nothing, if it cannot have had them, or if the bytes that it needs are no
 * longer kept. */
static inline bool bw_outgoing_resume(bw_outgoing_t *way, uint64_t position)
{
    if (position < way->arrived || position > way->sent)
        return false;
    *way = (bw_outgoing_t){.next = position, .sent = position, .arrived = position};
    return true;
}

static inline uint64_t bw_outgoing_in_flight(const bw_outgoing_t *way)
{
    return way->sent - way->arrived;
}

#endif
