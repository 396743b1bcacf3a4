/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TRAFFIC_H
#define BW_TRAFFIC_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Finds the processes that have sent most over a link, with a fixed number of counters ("space
 * saving": Metwally, Agrawal, El Abbadi, Efficient Computation of Frequent and Top-k Elements in
 * Data Streams, 2005). A process without a counter takes over the smallest one, and `before` is
 * what that counter had then, so the process itself has sent between bytes - before and bytes.
 *
 * Every fragment is counted. Of other frames the sender is read only about once in 16 KB, and that
 * frame counts for all since the last sample, so a sender is found in proportion to its share of
 * the bytes. The distance to the next sample is random, because with a fixed one some of the
 * senders that take turns might never be sampled.
 */
#define TRAFFIC_SENDERS 32
#define TRAFFIC_SAMPLE_BYTES (16 * 1024)

typedef struct {
    uint64_t pid, bytes, before; /* pid as in bw_dist_frame_t; unused if bytes is 0 */
} traffic_sender_t;

typedef struct {
    traffic_sender_t senders[TRAFFIC_SENDERS];
    uint64_t unsampled, due, random;
} traffic_t;

void traffic_count(traffic_t *traffic, uint64_t pid, uint64_t bytes);

/* Returns the distance to the next sample: half of TRAFFIC_SAMPLE_BYTES to one and a half. */
uint64_t traffic_next(traffic_t *traffic);

/* For a frame that is not a fragment. A result other than 0 is the number of bytes to count for its
 * sender, if that can be read. */
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
