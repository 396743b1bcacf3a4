/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TRAFFIC_H
#define BW_TRAFFIC_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Finds the processes that have sent the most over a link, using a fixed number of counters ("space
 * saving": Metwally, Agrawal, El Abbadi, Efficient Computation of Frequent and Top-k Elements in
 * Data Streams, 2005). A process without a counter takes over the one with the lowest value and
 * saves that value in `before`, so it has itself sent between `bytes - before` and `bytes`.
 *
 * Every fragment is counted. For other frames, the sender is read only about once per 16 KB, and is
 * charged with all bytes since the last sample, so the bytes counted for each sender are
 * proportional to that sender's share. The distance to the next sample is random, because if
 * several senders take turns, a fixed distance might never sample some of them.
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

/* Returns the distance to the next sample: between 0.5 and 1.5 times TRAFFIC_SAMPLE_BYTES. */
uint64_t traffic_next(traffic_t *traffic);

/* Called for each frame that is not a fragment. Returns how many bytes the caller should charge to
 * the sender of this frame, if the sender can be read, or 0 if the frame is not sampled. */
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
