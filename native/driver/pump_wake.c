/* SPDX-License-Identifier: Apache-2.0 */
#include "between.h"
#include "pump_inside.h"

/* So often may a peer publish between our read and our arming in one call. */
#define ROUNDS 4

/* What has been read since a mark, as the rule of looking counts it. */
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

/* What has been read since the mark has drained the ring. */
static void learn(bw_pump_t *pump, mark_t before)
{
    if (pump->spin.budget_us > 0 && pump->frames_in != before.frames)
        bw_spin_learn(&pump->spin, bw_now_us(), load_since(pump, before));
}

/* Armed: a peer that closes from now on rings; one that has closed already is seen here. */
static wake_result_t asleep(bw_pump_t *pump)
{
    return pump->link->ops->is_finished(pump->link) ? WAKE_FINISHED : WAKE_ASLEEP;
}

/* Ends a round of looking: armed, or the poller comes at once. */
static wake_result_t arm_or_wake(bw_pump_t *pump)
{
    bw_status_t status = pump->link->ops->arm_read(pump->link);

    pump->spinning = false;
    if (status == BW_AGAIN)
        pump->link->ops->wake_self(pump->link);
    return status == BW_CORRUPT ? WAKE_FAILED : asleep(pump);
}

/* ---- a connection that is polled itself ---- */

static ErlDrvEvent socket_of(const bw_pump_t *pump)
{
    return (ErlDrvEvent)(intptr_t)pump->socket;
}

static void poll_for(const bw_pump_t *pump, int mode, bool *polls, bool wanted)
{
    if (*polls != wanted && driver_select(pump->port, socket_of(pump), mode, wanted) == 0)
        *polls = wanted;
}

void pump_poll(bw_pump_t *pump)
{
    if (pump->socket == 0)
        return;
    poll_for(pump, ERL_DRV_READ, &pump->polls_input, !pump->spinning);
    poll_for(pump, ERL_DRV_WRITE, &pump->polls_room, pump->link->ops->is_blocked(pump->link));
}

bool pump_expose(bw_pump_t *pump)
{
    int fd = pump->link->ops->expose ? pump->link->ops->expose(pump->link) : -1;

    if (fd < 0)
        return true;
    pump->socket = fd;
    pump->polls_input =
        driver_select(pump->port, socket_of(pump), ERL_DRV_READ | ERL_DRV_USE, 1) == 0;
    return pump->polls_input;
}

void pump_stop_polling(bw_pump_t *pump)
{
    if (pump->socket != 0)
        driver_select(pump->port, socket_of(pump), ERL_DRV_READ | ERL_DRV_WRITE | ERL_DRV_USE, 0);
    pump->socket = 0;
    pump->polls_input = pump->polls_room = false;
}

/* ---- a link that outlives its connections ---- */

bool pump_is_attached(const bw_pump_t *pump)
{
    return pump->link && pump->link != &bw_between;
}

void pump_detach(bw_pump_t *pump)
{
    pump->link = &bw_between;
    pump->spinning = false;
    pump->input_drained = true;
}

bool pump_attach(bw_pump_t *pump, bw_link_t *link, uint64_t position)
{
    /* What is staged waits behind what goes out again. */
    if (!pump_flush(pump) || !bw_session_resume(&pump->session, &pump->under_way, position))
        return false;
    pump->link = link;
    link->ops->defer(link);
    /* The peer has been told over this connection. */
    pump->session.told = pump->bytes_read;
    return true;
}

/* After whatever has read. */
static wake_result_t acknowledge(bw_pump_t *pump, wake_result_t result)
{
    return result != WAKE_FAILED && pump_untold(pump) >= BW_SESSION_ACK_BYTES &&
                   !pump_acknowledge(pump)
               ? WAKE_FAILED
               : result;
}

/* ---- rounds ---- */

/* Reads until the ring is empty and armed. `readable` is the descriptor as the poller sees it. */
static wake_result_t drain_and_arm(bw_pump_t *pump, bool readable)
{
    mark_t before = mark(pump);
    budget_t budget = full_budget(); /* of all rounds */

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
    /* Before the descriptor is polled again others run; the room that came with this doorbell
     * must not wait so long. */
    if (pump_has_output(pump) && !pump_drain_queue(pump))
        return WAKE_FAILED;
    /* Reading what the kernel had may have made it quiet as well. */
    if (!readable || pump->link->ops->caps & BW_CAP_KERNEL_BUFFERS)
        pump->link->ops->wake_self(pump->link);
    return WAKE_ASLEEP;
}

wake_result_t pump_wake(bw_pump_t *pump)
{
    wake_result_t result;

    pump->wakeups++;
    result = acknowledge(pump, drain_and_arm(pump, true));
    pump_poll(pump);
    return result;
}

wake_result_t pump_ready(bw_pump_t *pump, bool has_room)
{
    wake_result_t result = WAKE_ASLEEP;

    pump->wakeups++;
    pump->link->ops->is_ready(pump->link, has_room);
    if (!has_room)
        result = acknowledge(pump, drain_and_arm(pump, false));
    else if (pump_has_output(pump) && !pump_drain_queue(pump))
        result = WAKE_FAILED;
    pump_poll(pump);
    return result;
}

static wake_result_t look(bw_pump_t *pump)
{
    mark_t before = mark(pump);
    pump_result_t result;

    if (!pump->spinning) /* the poller came between, for room, and has armed */
        return WAKE_ASLEEP;
    if (!pump_flush(pump)) /* what was sent before looking began */
        return WAKE_FAILED;
    result = pump_receive(pump);
    if (result == PUMP_FAILED)
        return WAKE_FAILED;
    /* A word of the peer makes room, and nothing else tells of it. */
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
