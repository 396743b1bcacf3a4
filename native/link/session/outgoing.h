/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SESSION_OUTGOING_H
#define BW_SESSION_OUTGOING_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The writer's view of one direction of a stream that outlives its connections. Bytes are numbered
 * consecutively across all connections. The writer retains those from `arrived` on, because it may
 * have to send them again. These functions only move the positions.
 */
typedef struct {
    uint64_t next;    /* the next byte to send, which may have been sent before */
    uint64_t sent;    /* the first byte that has never been sent */
    uint64_t arrived; /* the peer has acknowledged everything before this byte */
} bw_outgoing_t;

static inline void bw_outgoing_send(bw_outgoing_t *way, uint64_t bytes)
{
    way->next += bytes;
    if (way->next > way->sent)
        way->sent = way->next;
}

/* Records that the peer has acknowledged everything before `position`; an older acknowledgement has
 * no effect. Bytes that arrived over another connection are not sent again. Returns false if the
 * peer cannot have these bytes. */
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

/* Goes back to the first byte that is not known to have arrived, to send all from there again. */
static inline void bw_outgoing_go_back(bw_outgoing_t *way)
{
    if (way->next > way->arrived)
        way->next = way->arrived;
}

/* Resumes at `position`, up to which the peer had read. Returns false, and changes nothing, if it
 * cannot have read that far, or if the bytes that it needs have already been discarded. */
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
