/* SPDX-License-Identifier: Apache-2.0 */
#include "detached_link.h"
#include "pump_inside.h"

/* How often one call retries if the peer publishes between its last read and arming the link. */
#define ROUNDS 4

/* A position in the input, from which the spin policy counts frames and bytes. */
typedef struct {
    uint64_t frames, bytes;
} mark_t;

static mark_t mark(const bw_pump_t *pump)
{
    return (mark_t){.frames = pump->frames_in, .bytes = pump->bytes_read};
}

static uint32_t load_since(const bw_pump_t *pump, mark_t before)
{
    return bw_spin_load(pump->frames_in - before.frames, pump->bytes_read - before.bytes);
}

static void learn(bw_pump_t *pump, mark_t before)
{
    if (pump->spin.budget_us > 0 && pump->frames_in != before.frames)
        bw_spin_learn(&pump->spin, bw_now_us(), load_since(pump, before));
}

/* Called once the link is armed. A peer that closes its end later rings the doorbell, so only a
 * peer that has already closed must be detected here. */
static wake_result_t asleep(bw_pump_t *pump)
{
    return pump->link->ops->is_finished(pump->link) ? WAKE_FINISHED : WAKE_ASLEEP;
}

/* Ends spinning: arms the link, or has the poller call again if there is something to read. */
static wake_result_t arm_or_wake(bw_pump_t *pump)
{
    bw_status_t status = pump->link->ops->arm_read(pump->link);

    pump->spinning = false;
    if (status == BW_AGAIN)
        pump_come_back(pump);
    return status == BW_CORRUPT ? WAKE_FAILED : asleep(pump);
}

void pump_detach(bw_pump_t *pump)
{
    pump->link = &bw_detached_link;
    pump->is_faulty = false;
    pump->polls = 0;
    pump->spinning = pump->comes_back = false;
    pump->input_drained = true;
}

bool pump_attach(bw_pump_t *pump, bw_link_t *link, uint64_t position)
{
    /* Staged bytes must be queued after the bytes that are sent again. */
    if (!pump_flush(pump) || !bw_session_resume(&pump->session, &pump->under_way, position))
        return false;
    pump->link = link;
    link->ops->defer(link);
    /* When this connection was set up, the peer was told how far this side has read. */
    pump->session.told = pump->bytes_read;
    pump->owes_ack = false;
    return true;
}

void pump_replace(bw_pump_t *pump, bw_link_t *faulty)
{
    pump->link = faulty;
    pump->is_faulty = true;
}

/* Acknowledges if enough has been read. Must be called after anything that reads. */
static wake_result_t acknowledge(bw_pump_t *pump, wake_result_t result)
{
    return result != WAKE_FAILED && pump_untold(pump) >= BW_SESSION_ACK_BYTES &&
                   !pump_acknowledge(pump)
               ? WAKE_FAILED
               : result;
}

/* Reads until the ring is empty and the link is armed. If `readable`, the descriptor is readable,
 * and remains so until it is cleared. */
static wake_result_t drain_and_arm(bw_pump_t *pump, bool readable)
{
    mark_t before = mark(pump);
    budget_t budget = full_budget(); /* shared by all rounds */

    pump->spinning = false;
    for (int round = 0; round < ROUNDS; round++) {
        pump_result_t result = pump_receive_within(pump, &budget);
        bw_status_t status;

        if (result == PUMP_FAILED)
            return WAKE_FAILED;
        if (result == PUMP_MORE)
            break;
        if (readable)
            pump->link->ops->clear_event(pump->link);
        readable = false;
        if (pump_has_output(pump) && !pump_drain_queue(pump))
            return WAKE_FAILED;
        learn(pump, before);
        before = mark(pump);
        if (pump->spin.budget_us > 0 && !pump_is_cut(pump) &&
            bw_spin_begins(&pump->spin, bw_now_us())) {
            pump->spinning = true;
            return WAKE_LOOKING;
        }
        status = pump->link->ops->arm_read(pump->link);
        if (status == BW_OK)
            return asleep(pump);
        if (status == BW_CORRUPT)
            return WAKE_FAILED;
    }
    /* Other ports run before this descriptor is polled again, so any room must be used now. */
    if (pump_has_output(pump) && !pump_drain_queue(pump))
        return WAKE_FAILED;
    /* Reading from the kernel may also have cleared the descriptor. */
    if (!readable || pump->link->ops->caps & BW_CAP_KERNEL_BUFFERS)
        pump_come_back(pump);
    return WAKE_ASLEEP;
}

wake_result_t pump_wake(bw_pump_t *pump)
{
    const bw_carrier_t *ops = pump->link->ops;
    wake_result_t result;

    pump->wakeups++;
    pump->comes_back = false;
    if (ops->is_ready)
        ops->is_ready(pump->link, POLLIN);
    result = acknowledge(pump, drain_and_arm(pump, !ops->is_ready));
    pump_poll(pump);
    return result;
}

wake_result_t pump_has_room(bw_pump_t *pump)
{
    bool is_sound;

    pump->wakeups++;
    pump->link->ops->is_ready(pump->link, POLLOUT);
    is_sound = !pump_has_output(pump) || pump_drain_queue(pump);
    pump_poll(pump);
    return is_sound ? WAKE_ASLEEP : WAKE_FAILED;
}

static wake_result_t look(bw_pump_t *pump)
{
    mark_t before = mark(pump);
    pump_result_t result;

    if (!pump->spinning) /* the doorbell rang because there is room, and pump_wake armed the link */
        return WAKE_ASLEEP;
    if (!pump_flush(pump)) /* bytes that were committed before spinning began */
        return WAKE_FAILED;
    result = pump_receive(pump);
    if (result == PUMP_FAILED)
        return WAKE_FAILED;
    /* An acknowledgement from the peer may have made room, which nothing else reports. */
    if (pump->session.is_on && pump_has_output(pump) && !pump_drain_queue(pump))
        return WAKE_FAILED;
    if (result == PUMP_MORE)
        return WAKE_LOOKING;
    if (pump->link->ops->is_finished(pump->link))
        return WAKE_FINISHED;
    if (bw_spin_goes_on(&pump->spin, bw_now_us(), load_since(pump, before)))
        return WAKE_LOOKING;
    return arm_or_wake(pump);
}

wake_result_t pump_look(bw_pump_t *pump)
{
    wake_result_t result = acknowledge(pump, look(pump));

    pump_poll(pump);
    return result;
}

void pump_start(bw_pump_t *pump, bw_link_t *link)
{
    bw_link_stats_t stats;

    link->ops->stats(link, &stats);
    bw_spin_init(&pump->spin, 0);
    pump->link = link;
    pump->ring_bytes = stats.ring_bytes;
    pump->half_ring = stats.ring_bytes / 2;
    pump_start_frames(pump);
}
