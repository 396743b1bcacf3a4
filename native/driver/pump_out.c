/* SPDX-License-Identifier: Apache-2.0 */
#include "pump_inside.h"

#include <string.h>

#include "../link/frame.h"

/* From here on a carrier's own way past the ring is worth a system call. */
#define DIRECT_BYTES (32 * 1024)
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

/* What stands in the ring is the peer's from now on; of packets, what the system does not take is
 * queued. */
static bool flush(bw_pump_t *pump)
{
    bw_span_t rest;

    pump->is_unflushed = false;
    pump->link->ops->flush(pump->link, &rest);
    return rest.len == 0 || driver_enq(pump->port, (char *)rest.base, rest.len) >= 0;
}

static void note_commit(bw_pump_t *pump)
{
    pump->is_unflushed = pump->is_deferred && pump->link->ops->needs_flush(pump->link);
}

/* Copies and publishes as much of `total` bytes as there is room for, within the budget; *done_p
 * says how much. A peer that is to read a large frame, or to make room, is woken at once. */
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
        note_commit(pump);
        if (pump->is_unflushed && total >= DIRECT_BYTES)
            (void)flush(pump);
    }
    if (pump->is_unflushed && done < total)
        (void)flush(pump);
    *done_p = done;
    return status;
}

/* The same past the ring, which is empty. */
static bw_status_t write_iov(bw_link_t *link, const SysIOVec *iov, int count, uint64_t total,
                             uint64_t *done_p)
{
    cursor_t cursor = {.iov = iov, .count = count};
    bw_status_t status = BW_OK;
    uint64_t done = 0, taken = 1;

    while (status == BW_OK && done < total && done < BUDGET_BYTES && taken > 0) {
        status = put_directly(link, &cursor, &taken);
        done += taken;
    }
    /* The connection is cut, of which the reader tells: what is written goes nowhere. */
    *done_p = taken == 0 && status == BW_OK ? total : done;
    return status;
}

static void set_busy(bw_pump_t *pump, bool busy)
{
    if (pump->busy != busy) {
        pump->busy = busy;
        set_busy_port(pump->port, busy);
    }
}

bool pump_drain_queue(bw_pump_t *pump)
{
    int count = 0;
    SysIOVec *iov = driver_peekq(pump->port, &count);
    uint64_t done, total = driver_sizeq(pump->port);
    bw_status_t status = pump->is_packets ? write_iov(pump->link, iov, count, total, &done)
                                          : put_iov(pump, iov, count, total, &done);

    if (status == BW_CORRUPT)
        return false;
    if (done > 0)
        driver_deq(pump->port, done);
    if (pump->is_unflushed) /* nobody is asked to: the poller may have called, for room */
        (void)flush(pump);
    status = pump->link->ops->arm_write(pump->link, pump->half_ring);
    pump_poll(pump);
    if (status == BW_AGAIN) {
        if (driver_sizeq(pump->port) == 0)
            set_busy(pump, false);
        else
            pump->link->ops->wake_self(pump->link);
    }
    return status != BW_CORRUPT;
}

/* Queues what of the frame is not in the ring yet; `pad` bytes belong to it that ev has not. */
static bool queue_rest(bw_pump_t *pump, ErlIOVec *ev, uint64_t done, uint64_t pad)
{
    uint64_t skip = bw_least(done, ev->size);

    if (driver_enqv(pump->port, ev, skip) < 0 ||
        driver_enq(pump->port, (char *)(uintptr_t)zeros, pad - (done - skip)) < 0)
        return false;
    set_busy(pump, true);
    return pump_drain_queue(pump);
}

/* ---- packets ---- */

/* Copies a small packet into the ring. False: it is not small, or there is no room. */
static bool stage(bw_pump_t *pump, const SysIOVec *iov, int count, uint64_t size)
{
    cursor_t cursor = {.iov = iov, .count = count};
    bw_link_t *link = pump->link;
    bw_span_t span;

    if (size >= DIRECT_BYTES || link->ops->reserve(link, size, &span) != BW_OK || span.len < size)
        return false;
    copy_next(&cursor, span.base, size);
    link->ops->commit(link, size);
    note_commit(pump);
    return true;
}

static bool send_packet(bw_pump_t *pump, ErlIOVec *ev)
{
    uint8_t header[BW_PACKET_HEADER_BYTES];
    uint64_t done = 0;

    bw_put(header, ev->size, sizeof header);
    ev->iov[0].iov_base = (char *)header;
    ev->iov[0].iov_len = sizeof header;
    ev->size += sizeof header;
    pump->frames_out++;
    if (driver_sizeq(pump->port) == 0) {
        if (stage(pump, ev->iov, ev->vsize, ev->size))
            return true;
        if (!pump_flush(pump))
            return false;
    }
    if (driver_sizeq(pump->port) > 0)
        return driver_enqv(pump->port, ev, 0) >= 0;
    if (stage(pump, ev->iov, ev->vsize, ev->size))
        return true;
    (void)write_iov(pump->link, ev->iov, ev->vsize, ev->size, &done);
    return done == ev->size || queue_rest(pump, ev, done, 0);
}

bool pump_defer(bw_pump_t *pump)
{
    if (pump->link->ops->defer && !pump->is_deferred) {
        pump->is_deferred = true;
        pump->link->ops->defer(pump->link);
    }
    return pump->is_deferred;
}

void pump_be_packets(bw_pump_t *pump)
{
    pump->is_packets = pump_defer(pump);
}

bool pump_flush(bw_pump_t *pump)
{
    if (!pump->is_unflushed)
        return true;
    if (!flush(pump))
        return false;
    if (!pump->is_packets || driver_sizeq(pump->port) == 0)
        return true;
    set_busy(pump, true);
    return pump_drain_queue(pump);
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
    if (pump->is_packets)
        return send_packet(pump, ev);
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

bool pump_tick(bw_pump_t *pump)
{
    bw_span_t span;
    bw_status_t status;

    if (driver_sizeq(pump->port) > 0)
        return true;
    if (pump->is_packets) {
        static const SysIOVec tick = {.iov_base = (char *)(uintptr_t)zeros,
                                      .iov_len = BW_PACKET_HEADER_BYTES};

        pump->frames_out += stage(pump, &tick, 1, BW_PACKET_HEADER_BYTES);
        return pump_flush(pump);
    }
    status = pump->link->ops->reserve(pump->link, BW_FRAME_HEADER_BYTES, &span);
    if (status == BW_OK && span.len >= BW_FRAME_HEADER_BYTES) {
        bw_frame_put_header(span.base, BW_FRAME_TICK, 0);
        pump->link->ops->commit(pump->link, BW_FRAME_HEADER_BYTES);
        pump->frames_out++;
        note_commit(pump);
    }
    return pump_flush(pump) && status != BW_CORRUPT;
}

/* ---- of a lane ---- */

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
    set_busy(pump, true);
    return pump_drain_queue(pump);
}

void pump_close(bw_pump_t *pump, bool deaf)
{
    pump->discards_output = true;
    pump->discards_input = deaf;
    pump->credit_frames = pump->credit_bytes = 0;
    pump->half_ring *= 2;
    set_busy(pump, true);
}

void pump_mute(bw_pump_t *pump)
{
    uint64_t queued = driver_sizeq(pump->port);

    pump->discards_output = true;
    pump->lost += queued;
    if (queued > 0)
        driver_deq(pump->port, queued);
    set_busy(pump, false);
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
