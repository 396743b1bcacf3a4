/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_STREAM_COUNT_H
#define RD_STREAM_COUNT_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Decides how many streams a hop with `--streams auto` uses, from what the kernel reports about
 * them (TCP_INFO). These functions are pure: the caller measures, and calls rd_stream_count_step at
 * the end of each period.
 *
 * The number only doubles, and each doubling is a trial that is undone if it does not pay off.
 * Packet loss without a queue limits each stream to a rate that does not depend on the other
 * streams (M. Mathis et al., The macroscopic behavior of the TCP congestion avoidance algorithm,
 * 1997), so more streams carry more. A queue on the path means that the line is full, so no stream
 * is added.
 */

#define RD_STREAMS_FIRST 4u  /* how many streams a hop begins with */
#define RD_STREAMS_BLIND 16u /* maximum, unless losses or full buffers call for more streams */

/* What the kernel has counted on one connection since it was opened. */
typedef struct {
    uint64_t acked;                /* bytes that the peer has acknowledged */
    uint32_t sent, resent;         /* segments; these two wrap */
    uint32_t rtt_us, least_rtt_us; /* smoothed and shortest round-trip time, or 0 if unknown */
    uint64_t busy_us;              /* time with data to send */
    uint64_t limited_us;           /* how much of busy_us was spent with a full socket buffer */
} rd_tcp_t;

/* One period over all streams of a hop. */
typedef struct {
    int64_t ms;
    uint64_t acked, sent, resent;
    uint32_t rtt_us;       /* shortest of the streams that sent anything, or 0 if none did */
    uint32_t least_rtt_us; /* shortest that any stream has ever seen, or 0 if unknown */
    uint64_t busy_us, limited_us;
    unsigned live;  /* how many streams there are */
    bool is_hungry; /* there was more to send than was sent */
} rd_period_t;

/* Adds what a stream has done between two readings. */
void rd_period_add(rd_period_t *period, const rd_tcp_t *before, const rd_tcp_t *now);

typedef struct {
    unsigned use;
    unsigned fewer; /* how many streams were in use before the current trial, or 0 if no trial */
    bool is_for_loss, was_poor; /* losses caused the trial; its first period showed no gain */
    double before;              /* the throughput before the trial */
    unsigned hold, holds;       /* periods until the next trial, and after the next failure */
    unsigned lossy; /* for this many periods, a loss without a queue is a reason for a trial */
} rd_stream_count_t;

rd_stream_count_t rd_stream_count_of(unsigned first);

/* Returns the number of streams to use from now on, which may exceed the number of streams that
 * exist. */
unsigned rd_stream_count_step(rd_stream_count_t *count, const rd_period_t *period);

#endif
