/* SPDX-License-Identifier: Apache-2.0 */
#include "pump_inside.h"

#include <string.h>

#include "../link/frame.h"

#define DIRECT_VECTORS 64

static const char zeros[8];

/* A place in a vector of bytes, so that a long vector is walked once. */
typedef struct {
    const SysIOVec *iov;
    int count;
    size_t offset; /* in iov[0] */
} cursor_t;

/* Copies the next `len` bytes, or passes them by if `to` is NULL; past the end of the vector
 * nothing is written: that is padding. */
static void copy_next(cursor_t *cursor, uint8_t *to, size_t len)
{
    while (cursor->count > 0 && len > 0) {
        size_t n = bw_least(cursor->iov->iov_len - cursor->offset, len);

        if (to) {
            memcpy(to, (const uint8_t *)cursor->iov->iov_base + cursor->offset, n);
            to += n;
        }
        len -= n;
        cursor->offset += n;
        if (cursor->offset == cursor->iov->iov_len) {
            cursor->iov++;
            cursor->count--;
            cursor->offset = 0;
        }
    }
}

/* Gives the carrier what it takes without a copy, within the budget. */
static bw_status_t put_directly(bw_link_t *link, cursor_t *cursor, uint64_t *done_p)
{
    struct iovec vector[DIRECT_VECTORS];
    size_t bytes = 0, taken, offset = cursor->offset;
    bw_status_t status;
    int count = 0;

    while (count < cursor->count && count < DIRECT_VECTORS && bytes < BUDGET_BYTES) {
        const SysIOVec *from = &cursor->iov[count];
        size_t n = bw_least(from->iov_len - offset, BUDGET_BYTES - bytes);

        vector[count++] = (struct iovec){.iov_base = from->iov_base + offset, .iov_len = n};
        bytes += n;
        offset = 0;
    }
    status = link->ops->write(link, vector, count, &taken);
    copy_next(cursor, NULL, taken);
    *done_p = taken;
    return status;
}

/* Copies and publishes as much of `total` bytes as there is room for, within the budget; *done_p
 * says how much. */
static bw_status_t put_iov(bw_pump_t *pump, const SysIOVec *iov, int count, uint64_t total,
                           uint64_t *done_p)
{
    cursor_t cursor = {.iov = iov, .count = count};
    bw_link_t *link = pump->link;
    bw_status_t status = BW_OK;
    uint64_t done = 0;

    if (link->ops->write && total >= DIRECT_BYTES)
        status = put_directly(link, &cursor, &done);
    while (status == BW_OK && done < total && done < BUDGET_BYTES) {
        uint64_t want = bw_least(total - done, PUBLISH_BYTES);
        bw_span_t span;

        status = link->ops->reserve(link, want, &span);
        if (status != BW_OK)
            break;
        want = bw_least(want, span.len);
        copy_next(&cursor, span.base, want);
        link->ops->commit(link, want);
        done += want;
    }
    pump_committed(pump, done);
    *done_p = done;
    return status;
}

void pump_set_busy(bw_pump_t *pump, bool busy)
{
    if (pump->busy != busy) {
        pump->busy = busy;
        set_busy_port(pump->port, busy);
    }
}

static bool drain_queue(bw_pump_t *pump)
{
    int count = 0;
    SysIOVec *iov = driver_peekq(pump->port, &count);
    uint64_t done, total = driver_sizeq(pump->port);
    bw_status_t status = put_iov(pump, iov, count, total, &done);

    if (status == BW_CORRUPT)
        return false;
    if (done > 0)
        driver_deq(pump->port, done);
    status = pump->link->ops->arm_write(pump->link, pump->half_ring);
    if (status == BW_AGAIN) {
        if (driver_sizeq(pump->port) == 0)
            pump_set_busy(pump, false);
        else
            pump->link->ops->wake_self(pump->link);
    }
    return status != BW_CORRUPT;
}

bool pump_drain_queue(bw_pump_t *pump)
{
    return pump->is_lane ? drain_queue(pump) : pump_drain_frames(pump);
}

/* Queues what of the frame is not in the ring yet; `pad` bytes belong to it that ev has not. */
static bool queue_rest(bw_pump_t *pump, ErlIOVec *ev, uint64_t done, uint64_t pad)
{
    uint64_t skip = bw_least(done, ev->size);

    if (driver_enqv(pump->port, ev, skip) < 0 ||
        driver_enq(pump->port, (char *)(uintptr_t)zeros, pad - (done - skip)) < 0)
        return false;
    pump_set_busy(pump, true);
    return drain_queue(pump);
}

/* ---- from the VM ---- */

bool pump_send(bw_pump_t *pump, ErlIOVec *ev)
{
    uint8_t header[BW_FRAME_HEADER_BYTES];
    uint64_t size, done = 0;

    if (ev->size == 0 && !pump->is_lane)
        return pump_tick(pump);
    if (ev->size > BW_FRAME_MAX_BYTES) { /* its length would be cut off in the header */
        pump->reason = "beamway_frame_too_large";
        return false;
    }
    if (!pump->is_lane)
        return pump_send_frame(pump, ev);
    size = bw_frame_size((uint32_t)ev->size);
    if (pump->discards_output) {
        pump->lost += size;
        return true;
    }
    bw_frame_put_header(header, ev->size > 0 ? BW_FRAME_DATA : BW_FRAME_TICK, (uint32_t)ev->size);
    ev->iov[0].iov_base = (char *)header;
    ev->iov[0].iov_len = sizeof header;
    ev->size += sizeof header;
    pump->frames_out++;
    if (driver_sizeq(pump->port) == 0 &&
        put_iov(pump, ev->iov, ev->vsize, size, &done) == BW_CORRUPT)
        return false;
    return done == size || queue_rest(pump, ev, done, size - ev->size);
}

/* ---- of a lane ---- */

/* What the system does not take stays in the ring, and goes when there is room. */
bool pump_flush_lane(bw_pump_t *pump)
{
    if (!pump->is_unflushed)
        return true;
    pump->is_unflushed = false;
    pump->unflushed_bytes = 0;
    return pump->link->ops->arm_write(pump->link, 0) != BW_CORRUPT;
}

bool pump_end(bw_pump_t *pump)
{
    uint8_t header[BW_FRAME_HEADER_BYTES];
    SysIOVec iov = {.iov_base = (char *)header, .iov_len = sizeof header};
    uint64_t done = 0;

    if (pump->discards_output)
        return true;
    pump->said_end = true;
    bw_frame_put_header(header, BW_FRAME_END, 0);
    if (driver_sizeq(pump->port) == 0 && put_iov(pump, &iov, 1, sizeof header, &done) == BW_CORRUPT)
        return false;
    if (done == sizeof header)
        return true;
    if (driver_enq(pump->port, (char *)header + done, sizeof header - done) < 0)
        return false;
    pump_set_busy(pump, true);
    return drain_queue(pump);
}

void pump_close(bw_pump_t *pump, bool deaf)
{
    pump->discards_output = true;
    pump->discards_input = deaf;
    pump->credit_frames = pump->credit_bytes = 0;
    pump->half_ring *= 2;
    pump_set_busy(pump, true);
}

void pump_mute(bw_pump_t *pump)
{
    uint64_t queued = driver_sizeq(pump->port);

    pump->discards_output = true;
    pump->lost += queued;
    if (queued > 0)
        driver_deq(pump->port, queued);
    pump_set_busy(pump, false);
}

uint64_t pump_unreleased(const bw_pump_t *pump)
{
    bw_link_stats_t stats;
    uint64_t bytes;

    pump->link->ops->stats(pump->link, &stats);
    bytes = stats.unreleased + driver_sizeq(pump->port);
    /* a last word is the last thing in there, and no frame of anybody */
    if (pump->said_end)
        bytes -= bw_least(bytes, BW_FRAME_HEADER_BYTES);
    return bytes + pump->lost;
}
