/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SESSION_FLIGHT_H
#define BW_SESSION_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "../bytes.h"

/*
 * Decides how many bytes a sender over several connections may have in flight. TCP limits each
 * connection but not their sum, so they could fill the queues of the path, and a small message
 * would have to wait for all of that. The caller supplies the time and the kernel's statistics.
 *
 * As in BBR (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016),
 * the limit follows from the highest rate that was delivered recently and from the shortest round
 * trip. Their product fills the path, and somewhat more keeps it full when acknowledgements arrive
 * in bursts. Twice the product would fill a queue that holds as much as the path, so that segments
 * are dropped. What the peer's kernel has, but its program has not acknowledged, is not on the path
 * and therefore added, up to as much again. If the limit makes the sender wait although the round
 * trip shows no queue, the limit doubles with each round trip.
 *
 * The queue may be that of other senders, and then the rate falls because they take their share. So
 * the rate is forgotten slowly, or limit and rate would sink together. If the shortest round trip
 * has not been seen for 10 s, the limit becomes small for some round trips, so that the sender's
 * own queue cannot hide it. What is measured then counts, even if it is longer.
 */
#define BW_FLIGHT_LEAST_BYTES ((uint64_t)256 * 1024)
#define BW_FLIGHT_DRAIN_BYTES ((uint64_t)128 * 1024)
#define BW_FLIGHT_MOST_BYTES ((uint64_t)1024 * 1024 * 1024)
#define BW_FLIGHT_TRUST_US ((uint64_t)10 * 1000000)
/* The kernel's round trip is an average over many packets, so one sample is not enough. */
#define BW_FLIGHT_DRAIN_SAMPLES 6u
#define BW_FLIGHT_PERCENT 160u /* of the product */
/* A rate that is not reached any more halves in about two thirds of this time. */
#define BW_FLIGHT_FORGET_US ((uint64_t)15 * 1000000)
/* Samples are at least this far apart, and at least one round trip. */
#define BW_FLIGHT_SAMPLE_US ((uint64_t)5000)
/* A round trip may vary by this much without a queue. */
#define BW_FLIGHT_SLACK_US ((uint64_t)2000)

typedef struct {
    uint64_t limit;                 /* 0 before the first sample */
    uint64_t at_us, delivered;      /* of the last sample */
    uint64_t least_us, least_at_us; /* the shortest round trip, and when it was last seen */
    uint64_t rate, last;            /* bytes per second: the highest of recent ones, the last one */
    unsigned drain;                 /* samples still to be taken with a small limit */
    /* Set by the caller: since the last sample, the sender has had to wait, and because of the
     * limit. */
    bool has_waited, is_full;
} bw_flight_t;

static inline bool bw_flight_is_due(const bw_flight_t *flight, uint64_t now_us)
{
    return now_us - flight->at_us >= bw_greatest(flight->least_us, BW_FLIGHT_SAMPLE_US);
}

static inline void bw_flight_take_rtt(bw_flight_t *flight, uint64_t now_us, uint64_t rtt_us)
{
    bool counts = flight->least_us == 0 || flight->drain == 1;

    if (flight->drain > 0)
        flight->drain--;
    if (counts || rtt_us < flight->least_us)
        flight->least_us = rtt_us;
    if (counts || rtt_us <= flight->least_us + flight->least_us / 8)
        flight->least_at_us = now_us;
    else if (flight->drain == 0 && now_us - flight->least_at_us > BW_FLIGHT_TRUST_US)
        flight->drain = BW_FLIGHT_DRAIN_SAMPLES;
}

/* Of two rates in succession the smaller counts, because acknowledgements may arrive in bursts. */
static inline void bw_flight_take_rate(bw_flight_t *flight, uint64_t now_us, uint64_t delivered,
                                       bool is_of_path)
{
    uint64_t passed_us = now_us - flight->at_us;
    uint64_t rate = (delivered - flight->delivered) * 1000000 / passed_us;

    if (is_of_path)
        flight->rate -=
            flight->rate / 1000 * bw_least(passed_us, 1000000) / (BW_FLIGHT_FORGET_US / 1000);
    flight->rate = bw_greatest(flight->rate, bw_least(rate, flight->last));
    flight->last = rate;
}

/* Takes a sample: the bytes that all connections have delivered so far, the shortest of their round
 * trips, and how many bytes count as in flight only because the peer's program has not acknowledged
 * them yet. Fewer delivered bytes than before mean that a connection is gone. A rate that is lower
 * than before says something about the path only if the path has a queue and the sender had to
 * wait. */
static inline void bw_flight_sample(bw_flight_t *flight, uint64_t now_us, uint64_t delivered,
                                    uint64_t rtt_us, uint64_t late)
{
    bool has_queue;
    uint64_t filled;

    bw_flight_take_rtt(flight, now_us, rtt_us);
    has_queue = rtt_us > flight->least_us + bw_greatest(flight->least_us / 8, BW_FLIGHT_SLACK_US);
    if (flight->at_us > 0 && delivered >= flight->delivered)
        bw_flight_take_rate(flight, now_us, delivered, flight->has_waited && has_queue);
    filled = flight->rate * bw_greatest(flight->least_us, BW_FLIGHT_SAMPLE_US) / 1000000 *
             BW_FLIGHT_PERCENT / 100;
    filled = bw_least(filled + bw_least(late, filled), BW_FLIGHT_MOST_BYTES);
    if (has_queue || filled > flight->limit)
        flight->limit = filled;
    else if (flight->is_full && flight->limit < BW_FLIGHT_MOST_BYTES)
        flight->limit *= 2;
    flight->limit = bw_greatest(flight->limit, BW_FLIGHT_LEAST_BYTES);
    if (flight->drain > 0)
        flight->limit = BW_FLIGHT_DRAIN_BYTES;
    flight->at_us = now_us;
    flight->delivered = delivered;
    flight->has_waited = flight->is_full = false;
}

#endif
