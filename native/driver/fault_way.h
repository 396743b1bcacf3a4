/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FAULT_WAY_H
#define BW_FAULT_WAY_H

#include <stdbool.h>
#include <stdint.h>

/*
 * One direction of a link with a fault (fault.h): decides when its bytes may pass. It makes no
 * system calls: the caller supplies positions in the stream, and the time of a monotonic clock.
 */

typedef struct {
    uint32_t delay_ms, jitter_ms; /* delay of each byte, plus a random jitter up to jitter_ms */
    uint64_t rate;                /* bytes per second in each direction; 0 if unlimited */
    bool holds_in, holds_out;     /* nothing passes */
} bw_fault_t;

#define BW_FAULT_MARKS 1024

/* The bytes before `position` may pass from `due_us` on. */
typedef struct {
    uint64_t position, due_us;
} bw_fault_mark_t;

typedef struct {
    uint64_t seen, open; /* how many bytes have arrived, and how many of them may pass */
    uint64_t rated_us;   /* the time up to which the rate has been accounted for */
    uint64_t random;
    uint32_t first, count;
    bw_fault_mark_t marks[BW_FAULT_MARKS];
} bw_fault_way_t;

/* Records that the bytes before `position` have arrived. If there is no room for another mark,
 * these bytes share the last mark. */
void bw_fault_note(bw_fault_way_t *way, const bw_fault_t *fault, uint64_t position,
                   uint64_t now_us);

/* Returns the position up to which bytes may pass now. */
uint64_t bw_fault_open(bw_fault_way_t *way, const bw_fault_t *fault, bool holds, uint64_t now_us);

/* Returns the time until more bytes may pass, or UINT64_MAX if there are none or all are held. */
uint64_t bw_fault_wait_us(const bw_fault_way_t *way, const bw_fault_t *fault, bool holds,
                          uint64_t now_us);

/* Applies a new fault: no byte waits longer than it would if it had arrived now. */
void bw_fault_retime(bw_fault_way_t *way, const bw_fault_t *fault, uint64_t now_us);

#endif
