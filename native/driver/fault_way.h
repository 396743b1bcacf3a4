/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FAULT_WAY_H
#define BW_FAULT_WAY_H

#include <stdbool.h>
#include <stdint.h>

/*
 * One direction of a link with a fault (fault.h): when which of its bytes may go on. Pure: the
 * caller brings positions in the stream of bytes, and the time in microseconds of a clock that does
 * not go back.
 */

typedef struct {
    uint32_t delay_ms, jitter_ms; /* of each byte in each direction; jitter: up to so much more */
    uint64_t rate;                /* bytes a second in each direction; 0: no limit */
    bool holds_in, holds_out;     /* nothing goes on */
} bw_fault_t;

#define BW_FAULT_MARKS 1024

/* What came up to a position may go on at a time. */
typedef struct {
    uint64_t position, due_us;
} bw_fault_mark_t;

typedef struct {
    uint64_t seen, open; /* what has come, and what may go on */
    uint64_t rated_us;   /* so far the rate has been paid */
    uint64_t random;
    uint32_t first, count;
    bw_fault_mark_t marks[BW_FAULT_MARKS];
} bw_fault_way_t;

/* Bytes up to that position have come. Without room for another mark they wait with the last ones.
 */
void bw_fault_note(bw_fault_way_t *way, const bw_fault_t *fault, uint64_t position,
                   uint64_t now_us);

/* How far they may go on now. */
uint64_t bw_fault_open(bw_fault_way_t *way, const bw_fault_t *fault, bool holds, uint64_t now_us);

/* How long until more may go on; UINT64_MAX: nothing waits, or it is held. */
uint64_t bw_fault_wait_us(const bw_fault_way_t *way, const bw_fault_t *fault, bool holds,
                          uint64_t now_us);

/* What waits does so no longer than if it came now. */
void bw_fault_retime(bw_fault_way_t *way, const bw_fault_t *fault, uint64_t now_us);

#endif
