/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SESSION_OUTGOING_H
#define BW_SESSION_OUTGOING_H

#include <stdbool.h>
#include <stdint.h>

/*
 * One direction of a stream that outlives its connections, as its writer sees it. The bytes are
 * numbered from the first one on, over all connections. The writer keeps those from `arrived` on,
 * because it may have to send them again. Pure.
 */
typedef struct {
    uint64_t next;    /* the first byte that no connection has taken, or that goes out again */
    uint64_t sent;    /* no byte from here on has ever gone out */
    uint64_t arrived; /* the peer has said that it has all before this one */
} bw_outgoing_t;

/* The next bytes go out. */
static inline void bw_outgoing_send(bw_outgoing_t *way, uint64_t bytes)
{
    way->next += bytes;
    if (way->next > way->sent)
        way->sent = way->next;
}

/* The peer says that it has all before `position`; an older word says nothing new. What arrived by
 * another connection need not go out again. False: it cannot have. */
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

/* What is not known to have arrived goes out again. */
static inline void bw_outgoing_go_back(bw_outgoing_t *way)
{
    if (way->next > way->arrived)
        way->next = way->arrived;
}

/* The peer had all before `position`, and no more, when its last connection ended. False: it cannot
 * have, or what it asks for is not kept any more; nothing has changed. */
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
