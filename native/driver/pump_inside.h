/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PUMP_INSIDE_H
#define BW_PUMP_INSIDE_H

#include "../link/bytes.h"
#include "pump.h"

/*
 * Shared by pump_wake.c, pump_out.c, pump_in.c and pump_poll.c, which are the only files that
 * include it. As in pump.h, all calls are made under the port lock. Calls between these files go
 * only downwards: pump_wake.c calls the other three, pump_out.c calls only pump_poll.c, and
 * pump_in.c and pump_poll.c call none of the others. Functions that run for each frame are inline.
 */

/* How much one call may write on a scheduler: well under a millisecond of copying at 4 GB/s. */
#define BUDGET_BYTES (1024 * 1024)

/* How much one call may read; a small frame takes about 1 us. Reading costs more per byte than
 * writing, because large binaries use fresh memory, which the system clears page by page, and
 * because input may have to be decrypted; a small frame behind such bytes has to wait that long.
 * The poller calls again for the rest, so neither direction starves. */
#define READ_FRAMES 500
#define READ_BYTES (256 * 1024)

typedef struct {
    int frames;
    size_t bytes;
} budget_t;

static inline budget_t full_budget(void)
{
    return (budget_t){.frames = READ_FRAMES, .bytes = READ_BYTES};
}

/* A large frame is published in pieces of this size. */
#define PUBLISH_BYTES (128 * 1024)

/* ---- pump_out.c ---- */

/* Returns whether pump_drain_queue may have something to do. */
static inline bool pump_has_output(const bw_pump_t *pump)
{
    return pump->busy || pump->is_closing || pump->under_way.first ||
           pump->scheduler.counts.frames > 0;
}

/* Moves waiting frames into the ring, within the budget. The port stops being busy once nothing is
 * queued and half the ring is free. Otherwise the poller calls again when there is room, or
 * immediately if only the budget has been used up. Returns false if the link is corrupt. */
bool pump_drain_queue(bw_pump_t *pump);

/* Records that `bytes` bytes were committed, which may have to be flushed. */
static inline void pump_committed(bw_pump_t *pump, uint64_t bytes)
{
    if (!pump->is_deferred)
        return;
    pump->is_unflushed = pump->link->ops->needs_flush(pump->link);
    pump->unflushed_bytes = pump->is_unflushed ? pump->unflushed_bytes + bytes : 0;
}

void pump_start_frames(bw_pump_t *pump);

/* ---- pump_in.c ---- */

/* Like pump_receive, but subtracts what it has read from the caller's budget. */
pump_result_t pump_receive_within(bw_pump_t *pump, budget_t *budget);

/* ---- pump_poll.c ---- */

/* Polls for the events that the link wants; must be called after anything that may change them. */
void pump_poll(bw_pump_t *pump);

/* Asks for another call to this pump soon, after other ports have had their turn. */
static inline void pump_come_back(bw_pump_t *pump)
{
    bw_link_t *link = pump->link;

    if (link->ops->wake_self)
        link->ops->wake_self(link);
    else
        pump->comes_back = true;
}

#endif
