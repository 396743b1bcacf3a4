/* SPDX-License-Identifier: Apache-2.0 */

#include "lane.h"

#include <errno.h>
#include <sys/socket.h>

#include "../link/bytes.h"
#include "../link/socket_link.h"

/* Beside rdma the socket's end may overtake what is on its way: silence for so long is the end. */
#define SILENCE_MS 50
#define SILENCE_MAX_MS 1000

static uint32_t number32_at(const char *at)
{
    return (uint32_t)bw_number(at, 4);
}

/* What BW_CAP_... says of the lane's carrier. */
static bool has(const lane_t *lane, unsigned cap)
{
    return lane->pump->link->ops->caps & cap;
}

static ErlDrvTermData port_term(const lane_t *lane)
{
    return driver_mk_port(lane->pump->port);
}

/* ---- messages ---- */

/* {Port, Word} to the owner. */
static bool tell_owner(lane_t *lane, const char *word)
{
    ErlDrvTermData message[] = {ERL_DRV_PORT,  port_term(lane),
                                ERL_DRV_ATOM,  driver_mk_atom((char *)(uintptr_t)word),
                                ERL_DRV_TUPLE, 2};

    return erl_drv_output_term(port_term(lane), message, 6) > 0;
}

static void tell_passive(lane_t *lane)
{
    lane->pump->has_run_out = false;
    (void)tell_owner(lane, "passive");
}

/* An owner that looks already needs no word. */
static void tell_look(lane_t *lane)
{
    if (!lane->is_looking)
        lane->is_looking = tell_owner(lane, "look");
}

static void tell_writable(lane_t *lane)
{
    ErlDrvTermData message[] = {
        ERL_DRV_PORT, port_term(lane), ERL_DRV_ATOM, driver_mk_atom("writable"), ERL_DRV_TUPLE, 2};

    /* one that has ended meanwhile needs no answer */
    for (int i = 0; i < lane->asker_count; i++)
        (void)erl_drv_send_term(port_term(lane), lane->askers[i], message, 6);
    lane->asker_count = 0;
}

/* Last: the port ends. */
static void end(lane_t *lane, const char *reason)
{
    ErlDrvUInt64 unreleased = pump_unreleased(lane->pump);
    ErlDrvTermData message[] = {ERL_DRV_PORT,   port_term(lane),
                                ERL_DRV_ATOM,   driver_mk_atom("closed"),
                                ERL_DRV_ATOM,   driver_mk_atom((char *)(uintptr_t)reason),
                                ERL_DRV_UINT64, (ErlDrvTermData)&unreleased,
                                ERL_DRV_TUPLE,  4};

    tell_writable(lane); /* their next try says that the lane is closed */
    (void)erl_drv_output_term(port_term(lane), message, 10);
    driver_exit(lane->pump->port, 0);
}

/* ---- the end ---- */

void lane_fail(lane_t *lane)
{
    bw_link_t *link = lane->pump->link;
    const char *reason = lane->pump->reason;

    if (!reason)
        reason = link->ops->reason(link);
    end(lane, reason ? reason : "beamway_link_corrupt");
}

/* The peer has said its last word, or its end of the link is closed. To a last word one of ours is
 * the answer, by which the peer knows that everything has been read. */
static void finish(lane_t *lane)
{
    bool has_end = lane->pump->has_end;

    if (has_end && driver_sizeq(lane->pump->port) == 0)
        (void)pump_end(lane->pump);
    end(lane, has_end ? "closed" : "connection_closed");
}

/* Our owner has closed the lane: over when the peer has taken everything. Where the kernel takes it
 * that is not known, so the peer's end is waited for. */
static bool is_closed(const lane_t *lane, wake_result_t result)
{
    return result == WAKE_FAILED || result == WAKE_FINISHED || lane->is_gone ||
           (!has(lane, BW_CAP_KERNEL_BUFFERS) && !lane->pump->busy);
}

/* The peer is gone. What shared rings hold then is all; otherwise something may be on its way. */
static void after_gone(lane_t *lane)
{
    if (!lane->pump->input_drained)
        return;
    if (has(lane, BW_CAP_SHARED_RINGS) || bw_now_ms() - lane->gone_at_ms > SILENCE_MAX_MS) {
        end(lane, "connection_closed");
        return;
    }
    lane->read_at_check = lane->pump->bytes_read;
    driver_set_timer(lane->pump->port, SILENCE_MS);
}

void lane_written(lane_t *lane)
{
    if (!lane->pump->busy && lane->asker_count > 0)
        tell_writable(lane);
}

void lane_after(lane_t *lane, wake_result_t result)
{
    bw_pump_t *pump = lane->pump;

    if (pump->has_run_out)
        tell_passive(lane);
    if (result == WAKE_LOOKING)
        tell_look(lane);
    if (lane->is_closing) {
        if (is_closed(lane, result))
            end(lane, "local_close");
        return;
    }
    lane_written(lane);
    if (result == WAKE_FAILED)
        lane_fail(lane);
    else if (result == WAKE_FINISHED)
        finish(lane);
    else if (lane->is_gone)
        after_gone(lane);
}

void lane_guard(lane_t *lane)
{
    char discarded[4096];
    ssize_t n;

    do
        n = recv(lane->guard, discarded, sizeof discarded, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n > 0 || (n < 0 && errno == EAGAIN))
        return; /* nobody has anything to say here */
    driver_select(lane->pump->port, (ErlDrvEvent)(intptr_t)lane->guard, ERL_DRV_READ, 0);
    lane->is_gone = true;
    lane->gone_at_ms = bw_now_ms();
    lane->pump->spin.budget_us = 0; /* nobody to wait for */
    pump_mute(lane->pump);
    lane_after(lane, pump_wake(lane->pump));
}

void lane_timeout(lane_t *lane)
{
    if (lane->is_closing)
        end(lane, "local_close");
    else if (lane->pump->input_drained && lane->pump->bytes_read == lane->read_at_check)
        end(lane, "connection_closed");
    else
        lane_after(lane, pump_wake(lane->pump));
}

/* ---- commands ---- */

bool lane_open(lane_t *lane, const char *data, size_t len, reply_t *reply)
{
    int socket = len == 13 ? (int)number32_at(data) : 0;
    bw_error_t error = {0};
    bw_status_t status = BW_OK;

    if (!lane->pump->link || lane->is_on || len != 13)
        return false;
    if (socket > 0)
        status = bw_socket_watch(socket, &lane->guard, &error);
    reply_status(reply, status, &error);
    if (status != BW_OK)
        return true;
    if (lane->guard >= 0 && driver_select(lane->pump->port, (ErlDrvEvent)(intptr_t)lane->guard,
                                          ERL_DRV_READ | ERL_DRV_USE, 1) != 0)
        return false;
    lane->is_on = true;
    pump_be_lane(lane->pump, number32_at(data + 4), (uint8_t)data[8], number32_at(data + 9));
    return true;
}

bool lane_credit(lane_t *lane, const char *data, size_t len)
{
    uint64_t frames, bytes;

    if (!lane->is_on || len != 16)
        return false;
    frames = bw_number(data, 8);
    bytes = bw_number(data + 8, 8);
    if (frames > INT64_MAX || bytes > INT64_MAX)
        return false;
    if (!lane->is_closing)
        lane_after(lane, pump_credit(lane->pump, (int64_t)frames, (int64_t)bytes));
    return true;
}

bool lane_ask(lane_t *lane, reply_t *reply)
{
    ErlDrvTermData caller = driver_caller(lane->pump->port);
    bw_error_t error = {0};

    if (!lane->is_on)
        return false;
    for (int i = 0; i < lane->asker_count; i++)
        if (lane->askers[i] == caller)
            return true;
    if (lane->asker_count == LANE_ASKERS_MAX) {
        reply_status(reply, bw_fail(&error, BW_LIMIT, "too many processes wait for the lane", 0),
                     &error);
        return true;
    }
    lane->askers[lane->asker_count++] = caller;
    if (!lane->pump->busy)
        tell_writable(lane);
    return true;
}

/* Nothing more is taken from senders, and what comes is thrown away: what the kernel holds is read,
 * so that the peer's last word arrives; rings are left as they are, so that the peer knows what was
 * not taken. */
bool lane_close(lane_t *lane)
{
    bw_pump_t *pump = lane->pump;
    bool fine;

    if (!lane->is_on)
        return false;
    if (lane->is_closing)
        return true;
    fine = pump_end(pump);
    lane->is_closing = true;
    pump->spin.budget_us = 0; /* the owner may be gone */
    pump_close(pump, has(lane, BW_CAP_KERNEL_BUFFERS));
    driver_set_timer(pump->port, LANE_CLOSE_MS);
    lane_after(lane, fine ? pump_wake(pump) : WAKE_FAILED);
    return true;
}

void lane_stats(const lane_t *lane, reply_t *reply)
{
    const bw_pump_t *pump = lane->pump;

    reply_number(reply, (uint64_t)pump->credit_frames, 8);
    reply_number(reply, (uint64_t)pump->credit_bytes, 8);
    reply_number(reply, pump->link ? pump_unreleased(pump) : 0, 8);
}

bool lane_attend(lane_t *lane, const char *data, size_t len)
{
    bw_link_t *link = lane->pump->link;
    uint64_t poll_us;

    if (!lane->is_on || len != 8)
        return false;
    poll_us = bw_number(data, 8);
    if (poll_us > UINT32_MAX)
        return false;
    bw_spin_init(&lane->pump->spin, (uint32_t)poll_us);
    /* over rings a commit costs no system call while the peer is awake */
    if (has(lane, BW_CAP_KERNEL_BUFFERS) && link->ops->defer) {
        link->ops->defer(link);
        lane->pump->is_deferred = true;
    }
    return true;
}

bool lane_look(lane_t *lane, reply_t *reply)
{
    wake_result_t result;

    if (!lane->is_on)
        return false;
    result = pump_look(lane->pump);
    lane->is_looking = result == WAKE_LOOKING;
    reply_number(reply, lane->is_looking, 1);
    lane_after(lane, result);
    return true;
}

/* ---- what gathers ---- */

bool lane_flush(lane_t *lane)
{
    bool fine = pump_flush(lane->pump);

    lane->flushed_us = bw_now_us(); /* sending takes as long as some frames do */
    return fine;
}

bool lane_sends_at_once(lane_t *lane, bool is_lone)
{
    const bw_pump_t *pump = lane->pump;

    if (is_lone || pump->spinning || lane_owns_timer(lane) ||
        pump->unflushed_bytes >= PUMP_GATHERED_BYTES)
        return true;
    if (!lane->is_flush_asked) {
        if (bw_now_us() - lane->flushed_us > LANE_UNDER_WAY_US)
            return true;
        lane->is_flush_asked = tell_owner(lane, "flush");
    }
    return !lane->is_flush_asked;
}

void lane_stop(lane_t *lane)
{
    if (lane->guard >= 0)
        driver_select(lane->pump->port, (ErlDrvEvent)(intptr_t)lane->guard,
                      ERL_DRV_READ | ERL_DRV_USE, 0);
}
