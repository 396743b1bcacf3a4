/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PUMP_INSIDE_H
#define BW_PUMP_INSIDE_H

#include "../link/bytes.h"
#include "pump.h"

/*
 * What pump_out.c, pump_in.c and pump_wake.c share; only they include it. As in pump.h, all calls
 * are made under the port lock. Out and in do not call each other: only pump_wake.c calls both.
 * Functions that run for each frame are inline.
 */

/* What one call on a scheduler may write, which takes well under a millisecond at 4 GB/s per
 * copy. */
#define BUDGET_BYTES (1024 * 1024)

/* What one call may read, at about 1 us per small frame. Bytes cost more here than in the other
 * direction, because large binaries are new memory, which the system clears page by page, and
 * others are encrypted. A small frame waits behind them. The poller comes back for the rest, so
 * neither direction starves. */
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

/* Whether pump_drain_queue may have something to do. */
static inline bool pump_has_output(const bw_pump_t *pump)
{
    return pump->busy || pump->is_closing || pump->under_way.first ||
           pump->scheduler.counts.frames > 0;
}

/* Moves waiting frames into the ring, within the budget. The port is no longer busy once nothing
 * waits and half the ring is free. Otherwise the poller calls again, when there is room, or at once
 * if only the budget is used up. Returns false if the link is corrupt. */
bool pump_drain_queue(bw_pump_t *pump);

/* `bytes` were committed, or written past the ring, so they may have to be flushed. */
static inline void pump_committed(bw_pump_t *pump, uint64_t bytes)
{
    if (!pump->is_deferred)
        return;
    pump->is_unflushed = pump->link->ops->needs_flush(pump->link);
    pump->unflushed_bytes = pump->is_unflushed ? pump->unflushed_bytes + bytes : 0;
}

void pump_start_frames(bw_pump_t *pump);

/* ---- pump_wake.c ---- */

/* Has the VM poll for what the link wants now. Must follow anything that may change that. */
void pump_poll(bw_pump_t *pump);

/* Has this pump called again soon, after others have had their turn. */
static inline void pump_come_back(bw_pump_t *pump)
{
    bw_link_t *link = pump->link;

    if (link->ops->wake_self)
        link->ops->wake_self(link);
    else
        pump->comes_back = true;
}

/* ---- pump_in.c ---- */

/* pump_receive with the rest of a budget, from which it subtracts what it read. */
pump_result_t pump_receive_within(bw_pump_t *pump, budget_t *budget);

#endif
