/* SPDX-License-Identifier: Apache-2.0 */
#include "stream_count.h"

/* How many periods pass between a failed trial and the next one; doubled by each failure. */
#define HOLD 8u
#define HOLD_MAX 64u
/* For how many periods a loss is remembered. At a loss rate of 0.001 % losses are rare, but they
 * still limit a stream. */
#define LOSSY 32u

/* A trial has to increase the throughput by a tenth. */
#define GAIN 1.1
/* After losses it is enough if the throughput did not fall, because a stream needs longer than a
 * trial to reach its speed. */
#define NO_FALL 0.95
/* NO_FALL applies only if at most one segment in this many was lost. If more are lost, our own
 * streams may be the cause, because so many streams share a short queue that their windows have
 * become small. */
#define FEW_LOSSES 200u

typedef enum { QUEUE, LOSS, BUFFERS, NONE } reason_t;

rd_stream_count_t rd_stream_count_of(unsigned first)
{
    return (rd_stream_count_t){.use = first, .holds = HOLD};
}

static uint32_t shorter(uint32_t one, uint32_t other)
{
    return one == 0 || (other > 0 && other < one) ? other : one;
}

void rd_period_add(rd_period_t *period, const rd_tcp_t *before, const rd_tcp_t *now)
{
    uint32_t sent = now->sent - before->sent;

    period->acked += now->acked - before->acked;
    period->sent += sent;
    period->resent += (uint32_t)(now->resent - before->resent);
    period->busy_us += now->busy_us - before->busy_us;
    period->limited_us += now->limited_us - before->limited_us;
    period->least_rtt_us = shorter(period->least_rtt_us, now->least_rtt_us);
    if (sent > 0)
        period->rtt_us = shorter(period->rtt_us, now->rtt_us);
}

/* Returns whether the round trips show a queue, which is the case if they are longer than the
 * shortest one by more than an eighth, and by more than the millisecond that a busy host alone can
 * cause. */
static bool has_queue(const rd_period_t *period)
{
    uint32_t least = period->least_rtt_us, slack = least / 8 > 1000 ? least / 8 : 1000;

    return period->rtt_us > least + slack;
}

static reason_t reason_of(rd_stream_count_t *count, const rd_period_t *period)
{
    bool is_queued = has_queue(period);

    if (period->resent > 0 && !is_queued)
        count->lossy = LOSSY;
    else if (count->lossy > 0)
        count->lossy--;
    if (is_queued)
        return QUEUE;
    if (count->lossy > 0)
        return LOSS;
    return period->busy_us > 0 && period->limited_us >= period->busy_us / 4 ? BUFFERS : NONE;
}

static bool has_paid(const rd_stream_count_t *count, const rd_period_t *period, double rate)
{
    return rate >= GAIN * count->before || (count->is_for_loss && rate >= NO_FALL * count->before &&
                                            period->resent * FEW_LOSSES <= period->sent);
}

/* Returns false while the trial continues. The streams that were added start slowly, so a trial may
 * take a second period to pay off. */
static bool has_decided(rd_stream_count_t *count, const rd_period_t *period, double rate)
{
    bool has_failed = !has_paid(count, period, rate);

    if (has_failed && !count->was_poor) {
        count->was_poor = true;
        return false;
    }
    if (has_failed) {
        count->use = count->fewer;
        count->hold = count->holds;
        count->holds = count->holds < HOLD_MAX ? 2 * count->holds : HOLD_MAX;
    }
    count->fewer = 0;
    return true;
}

static void try_more(rd_stream_count_t *count, const rd_period_t *period, reason_t reason,
                     double rate)
{
    unsigned most = period->live;

    if (reason == NONE && most > RD_STREAMS_BLIND)
        most = RD_STREAMS_BLIND;
    if (reason == QUEUE || count->use >= most)
        return;
    count->fewer = count->use;
    count->use = 2 * count->use < most ? 2 * count->use : most;
    count->is_for_loss = reason == LOSS;
    count->was_poor = false;
    count->before = rate;
}

unsigned rd_stream_count_step(rd_stream_count_t *count, const rd_period_t *period)
{
    double rate;
    reason_t reason;

    if (!period->is_hungry || period->ms <= 0 || period->acked == 0)
        return count->use;
    rate = (double)period->acked / (double)period->ms;
    reason = reason_of(count, period);
    if (count->fewer > 0 && !has_decided(count, period, rate))
        return count->use;
    if (count->hold > 0)
        count->hold--;
    else
        try_more(count, period, reason, rate);
    return count->use;
}
