/* SPDX-License-Identifier: Apache-2.0 */
#include "fault_way.h"

#include <stddef.h>

#include "../link/bytes.h"

/* Times are rounded up to a multiple of this, so that a waiting user rarely has to check. */
#define STEP_US 1000u

/* The rate is granted in portions, so that a slow link does not pass bytes one at a time. */
#define PORTION_US 10000u

/* At most this many unused portions accumulate, so that a late timer does not cause a burst. */
#define PORTIONS_AT_ONCE 5u

static bw_fault_mark_t *mark_at(const bw_fault_way_t *way, uint32_t index)
{
    return (bw_fault_mark_t *)&way->marks[(way->first + index) % BW_FAULT_MARKS];
}

/* Returns the delay plus a random jitter. The jitter comes from Knuth's linear congruential
 * generator, of which only the upper bits are random enough. */
static uint64_t drawn_us(bw_fault_way_t *way, const bw_fault_t *fault)
{
    uint64_t most = (uint64_t)fault->jitter_ms * 1000;

    way->random = way->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint64_t)fault->delay_ms * 1000 + (most ? (way->random >> 33) % (most + 1) : 0);
}

void bw_fault_note(bw_fault_way_t *way, const bw_fault_t *fault, uint64_t position, uint64_t now_us)
{
    bw_fault_mark_t *last = way->count > 0 ? mark_at(way, way->count - 1) : NULL;
    uint64_t after_us = drawn_us(way, fault), due_us = now_us;

    if (position <= way->seen)
        return;
    if (way->seen == way->open) /* nothing was waiting, so the rate applies from now on */
        way->rated_us = now_us;
    way->seen = position;
    if (after_us > 0)
        due_us = (now_us + after_us + STEP_US - 1) / STEP_US * STEP_US;
    if (last && (after_us == 0 || due_us <= last->due_us)) {
        last->position = position;
        return;
    }
    if (way->count == BW_FAULT_MARKS) {
        *last = (bw_fault_mark_t){.position = position, .due_us = due_us};
        return;
    }
    way->count++;
    *mark_at(way, way->count - 1) = (bw_fault_mark_t){.position = position, .due_us = due_us};
}

static uint64_t allowed(const bw_fault_t *fault, uint64_t since_us)
{
    uint64_t portions = bw_least(since_us / PORTION_US, PORTIONS_AT_ONCE);

    return portions * fault->rate / (1000000 / PORTION_US);
}

static uint64_t due_position(bw_fault_way_t *way, uint64_t now_us)
{
    uint64_t due = way->open;

    for (uint32_t i = 0; i < way->count && mark_at(way, i)->due_us <= now_us; i++)
        due = mark_at(way, i)->position;
    return due;
}

static void forget_marks(bw_fault_way_t *way)
{
    while (way->count > 0 && mark_at(way, 0)->position <= way->open) {
        way->first = (way->first + 1) % BW_FAULT_MARKS;
        way->count--;
    }
}

uint64_t bw_fault_open(bw_fault_way_t *way, const bw_fault_t *fault, bool holds, uint64_t now_us)
{
    uint64_t due = holds ? way->open : due_position(way, now_us);

    if (fault->rate == 0) {
        way->open = due;
    } else {
        uint64_t since_us = now_us - way->rated_us;

        way->open += bw_least(due - way->open, allowed(fault, since_us));
        way->rated_us = now_us - since_us % PORTION_US;
    }
    forget_marks(way);
    return way->open;
}

uint64_t bw_fault_wait_us(const bw_fault_way_t *way, const bw_fault_t *fault, bool holds,
                          uint64_t now_us)
{
    const bw_fault_mark_t *next = mark_at(way, 0);
    uint64_t due_us, paid_us = way->rated_us + PORTION_US;

    if (holds || way->count == 0)
        return UINT64_MAX;
    due_us = fault->rate > 0 && paid_us > next->due_us ? paid_us : next->due_us;
    return due_us > now_us ? due_us - now_us : 0;
}

void bw_fault_retime(bw_fault_way_t *way, const bw_fault_t *fault, uint64_t now_us)
{
    uint64_t latest_us = now_us + (uint64_t)fault->delay_ms * 1000;

    for (uint32_t i = 0; i < way->count; i++)
        if (mark_at(way, i)->due_us > latest_us)
            mark_at(way, i)->due_us = latest_us;
    way->rated_us = now_us;
}
