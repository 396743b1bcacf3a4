/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TRAFFIC_H
#define BW_TRAFFIC_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Which processes have sent most over a link, in a fixed number of counters ("space saving":
 * Metwally, Agrawal, El Abbadi, Efficient Computation of Frequent and Top-k Elements in Data
 * Streams, 2005). A process without a counter takes over the smallest, and `before` says what the
 * counter had then: the process itself has sent from bytes - before up to bytes.
 *
 * Fragments are counted one by one. Of other frames only one in some 16 KB has its sender read, and
 * stands for all since the last: a sender is found as often as its share of the bytes. The distance
 * is drawn anew each time, or senders that take turns would fall between two samples for ever.
 */
#define TRAFFIC_SENDERS 32
#define TRAFFIC_SAMPLE_BYTES (16 * 1024)

typedef struct {
    uint64_t pid, bytes, before; /* pid as in bw_dist_frame_t; bytes is 0: unused */
} traffic_sender_t;

typedef struct {
    traffic_sender_t senders[TRAFFIC_SENDERS];
    uint64_t unsampled, due, random;
} traffic_t;

void traffic_count(traffic_t *traffic, uint64_t pid, uint64_t bytes);

/* Where the next sample is: half of TRAFFIC_SAMPLE_BYTES to one and a half. */
uint64_t traffic_next(traffic_t *traffic);

/* Of a frame that is no fragment. Not 0: it stands for so many bytes; count them, if its sender can
 * be read. */
static inline uint64_t traffic_sample(traffic_t *traffic, uint64_t bytes)
{
    uint64_t all = traffic->unsampled += bytes;

    if (all < traffic->due)
        return 0;
    traffic->unsampled = 0;
    traffic->due = traffic_next(traffic);
    return all;
}

#endif
