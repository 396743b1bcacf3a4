/* SPDX-License-Identifier: Apache-2.0 */
#include "pump.h"

#include <string.h>

#include "../link/frame.h"

/* What one call on a scheduler may do each way: well under a millisecond, at about 1 us a small
 * frame and 4 GB/s a copy. The poller comes back for the rest, so neither direction starves. */
#define BUDGET_FRAMES 500
#define BUDGET_BYTES (1024 * 1024)

/* Frames above this are gathered while they arrive, so that both sides copy at the same time. */
#define GATHER_BYTES (256 * 1024)

/* Half a frame above this is gathered too. Below it stays in the ring until it is whole, which
 * must leave the producer more than the half ring that it may be waiting for. */
#define GATHER_PART_BYTES (BW_RING_MIN_BYTES / 16)

/* So often may a peer publish between our read and our arming in one call. */
#define ROUNDS 4

/* A large frame is published in pieces of this size. */
#define PUBLISH_BYTES (128 * 1024)

static const char zeros[8];

static uint64_t least(uint64_t left, uint64_t right)
{
    return left < right ? left : right;
}

/* ---- out ---- */

/* A place in a vector of bytes, so that a long vector is walked once. */
typedef struct {
    const SysIOVec *iov;
    int count;
    size_t offset; /* in iov[0] */
} cursor_t;

/* Copies the next `len` bytes; past the end of the vector nothing is written: that is padding. */
static void copy_next(cursor_t *cursor, uint8_t *to, size_t len)
{
    while (cursor->count > 0 && len > 0) {
        size_t n = least(cursor->iov->iov_len - cursor->offset, len);

        memcpy(to, (const uint8_t *)cursor->iov->iov_base + cursor->offset, n);
        to += n;
        len -= n;
        cursor->offset += n;
        if (cursor->offset == cursor->iov->iov_len) {
            cursor->iov++;
            cursor->count--;
            cursor->offset = 0;
        }
    }
}

/* Copies and publishes as much of `total` bytes as there is room for, within the budget; *done_p
 * says how much. */
static bw_status_t put_iov(bw_link_t *link, const SysIOVec *iov, int count, uint64_t total,
                           uint64_t *done_p)
{
    cursor_t cursor = {.iov = iov, .count = count};
    bw_status_t status = BW_OK;
    uint64_t done = 0;

    while (done < total && done < BUDGET_BYTES) {
        uint64_t want = least(total - done, PUBLISH_BYTES);
        bw_span_t span;

        status = link->ops->reserve(link, want, &span);
        if (status != BW_OK)
            break;
        want = least(want, span.len);
        copy_next(&cursor, span.base, want);
        link->ops->commit(link, want);
        done += want;
    }
    *done_p = done;
    return status;
}

static void set_busy(bw_pump_t *pump, bool busy)
{
    if (pump->busy != busy) {
        pump->busy = busy;
        set_busy_port(pump->port, busy);
    }
}

/* Moves the queue into the ring, within the budget; not busy any more once it is empty and half the
 * ring is free. Otherwise the poller comes: for room, or at once if only the budget is used up. */
static bool drain_queue(bw_pump_t *pump)
{
    int count = 0;
    SysIOVec *iov = driver_peekq(pump->port, &count);
    uint64_t done;
    bw_status_t status = put_iov(pump->link, iov, count, driver_sizeq(pump->port), &done);

    if (status == BW_CORRUPT)
        return false;
    if (done > 0)
        driver_deq(pump->port, done);
    status = pump->link->ops->arm_write(pump->link, pump->half_ring);
    if (status == BW_AGAIN) {
        if (driver_sizeq(pump->port) == 0)
            set_busy(pump, false);
        else
            pump->link->ops->kick(pump->link);
    }
    return status != BW_CORRUPT;
}

/* Queues what of the frame is not in the ring yet; `pad` bytes belong to it that ev has not. */
static bool queue_rest(bw_pump_t *pump, ErlIOVec *ev, uint64_t done, uint64_t pad)
{
    uint64_t skip = least(done, ev->size);

    if (driver_enqv(pump->port, ev, skip) < 0 ||
        driver_enq(pump->port, (char *)(uintptr_t)zeros, pad - (done - skip)) < 0)
        return false;
    set_busy(pump, true);
    return drain_queue(pump);
}

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
    size = bw_frame_size((uint32_t)ev->size);
    if (pump->is_mute) {
        pump->lost += size;
        return true;
    }
    bw_frame_put_header(header, ev->size > 0 ? BW_FRAME_DATA : BW_FRAME_TICK, (uint32_t)ev->size);
    ev->iov[0].iov_base = (char *)header;
    ev->iov[0].iov_len = sizeof header;
    ev->size += sizeof header;
    pump->frames_out++;
    if (driver_sizeq(pump->port) == 0 &&
        put_iov(pump->link, ev->iov, ev->vsize, size, &done) == BW_CORRUPT)
        return false;
    return done == size || queue_rest(pump, ev, done, size - ev->size);
}

bool pump_tick(bw_pump_t *pump)
{
    bw_span_t span;
    bw_status_t status;

    if (driver_sizeq(pump->port) > 0)
        return true;
    status = pump->link->ops->reserve(pump->link, BW_FRAME_HEADER_BYTES, &span);
    if (status == BW_OK && span.len >= BW_FRAME_HEADER_BYTES) {
        bw_frame_put_header(span.base, BW_FRAME_TICK, 0);
        pump->link->ops->commit(pump->link, BW_FRAME_HEADER_BYTES);
        pump->frames_out++;
    }
    return status != BW_CORRUPT;
}

/* ---- out, of a lane ---- */

bool pump_end(bw_pump_t *pump)
{
    uint8_t header[BW_FRAME_HEADER_BYTES];
    SysIOVec iov = {.iov_base = (char *)header, .iov_len = sizeof header};
    uint64_t done = 0;

    if (pump->is_mute)
        return true;
    pump->said_end = true;
    bw_frame_put_header(header, BW_FRAME_END, 0);
    if (driver_sizeq(pump->port) == 0 &&
        put_iov(pump->link, &iov, 1, sizeof header, &done) == BW_CORRUPT)
        return false;
    if (done == sizeof header)
        return true;
    if (driver_enq(pump->port, (char *)header + done, sizeof header - done) < 0)
        return false;
    set_busy(pump, true);
    return drain_queue(pump);
}

void pump_close(bw_pump_t *pump, bool deaf)
{
    pump->is_mute = true;
    pump->is_deaf = deaf;
    pump->credit_frames = pump->credit_bytes = 0;
    pump->half_ring *= 2;
    set_busy(pump, true);
}

void pump_mute(bw_pump_t *pump)
{
    uint64_t queued = driver_sizeq(pump->port);

    pump->is_mute = true;
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
        bytes -= least(bytes, BW_FRAME_HEADER_BYTES);
    return bytes + pump->lost;
}

/* ---- in ---- */

/* Whether the next frame may be given to the owner. The last one may use up more bytes than there
 * are, else a frame that is larger than what a lane's owner grants at once would never come. */
static bool has_credit(const bw_pump_t *pump)
{
    return !pump->is_lane || pump->is_deaf || (pump->credit_frames > 0 && pump->credit_bytes > 0);
}

static void use_credit(bw_pump_t *pump, uint64_t len)
{
    if (!pump->is_lane || pump->is_deaf)
        return;
    pump->credit_frames--;
    pump->credit_bytes -= (int64_t)len;
    pump->has_run_out = !has_credit(pump);
}

static bool start_gathering(bw_pump_t *pump, const bw_frame_t *frame)
{
    pump->gathered = driver_alloc_binary(frame->len);
    pump->gathered_len = 0;
    pump->gathered_size = frame->size - BW_FRAME_HEADER_BYTES;
    return pump->gathered != NULL;
}

/* Takes what of the large frame is in the span, at most `most`; gives the bytes used. */
static size_t gather(bw_pump_t *pump, const uint8_t *at, size_t avail, size_t most)
{
    uint64_t len = (uint64_t)pump->gathered->orig_size;
    size_t n = least(least(avail, most), pump->gathered_size - pump->gathered_len);

    if (pump->gathered_len < len)
        memcpy(pump->gathered->orig_bytes + pump->gathered_len, at,
               least(n, len - pump->gathered_len));
    pump->gathered_len += n;
    if (pump->gathered_len == pump->gathered_size) {
        if (!pump->is_deaf)
            driver_output_binary(pump->port, NULL, 0, pump->gathered, 0, (ErlDrvSizeT)len);
        use_credit(pump, len);
        pump_reset(pump);
    }
    return n;
}

void pump_reset(bw_pump_t *pump)
{
    if (pump->gathered)
        driver_free_binary(pump->gathered);
    pump->gathered = NULL;
}

typedef struct {
    int frames;
    size_t bytes;
} budget_t;

#define FULL_BUDGET ((budget_t){.frames = BUDGET_FRAMES, .bytes = BUDGET_BYTES})

/* Known from the header on: what is refused need not come. */
static bool is_too_large(bw_pump_t *pump, const bw_frame_t *frame)
{
    if (!pump->is_lane || frame->len <= pump->largest)
        return false;
    pump->reason = "beamway_frame_too_large";
    return true;
}

/* What this kind of frame is to this kind of port. MORE: it can be read. */
static pump_result_t judge(bw_pump_t *pump, const bw_frame_t *frame)
{
    if (!pump->is_lane)
        return frame->kind == BW_FRAME_END ? PUMP_FAILED : PUMP_MORE;
    pump->has_end = frame->kind == BW_FRAME_END;
    return pump->has_end ? PUMP_ENDED : has_credit(pump) ? PUMP_MORE : PUMP_PAUSED;
}

/* A frame that is whole, to the VM. */
static void deliver(bw_pump_t *pump, const bw_frame_t *frame, const uint8_t *at)
{
    if (!pump->is_deaf && (frame->kind == BW_FRAME_DATA || pump->is_lane))
        driver_output(pump->port, (char *)(uintptr_t)(at + BW_FRAME_HEADER_BYTES), frame->len);
    use_credit(pump, frame->len);
}

/* Reads frames from a span. *used_p: bytes done with. IDLE: the rest, if any, is half a frame. */
static pump_result_t receive_span(bw_pump_t *pump, const bw_span_t *span, budget_t *budget,
                                  size_t *used_p)
{
    size_t used = 0;
    pump_result_t result = PUMP_MORE;

    while (budget->frames > 0 && used < budget->bytes) {
        const uint8_t *at = span->base + used;
        size_t avail = span->len - used;
        bw_frame_state_t state;
        bw_frame_t frame;

        if (pump->gathered) {
            if (avail == 0) {
                result = PUMP_IDLE;
                break;
            }
            used += gather(pump, at, avail, budget->bytes - used);
            continue;
        }
        state = bw_frame_parse(at, avail, &frame);
        if (state == BW_FRAME_CORRUPT || (state != BW_FRAME_SHORT && is_too_large(pump, &frame))) {
            result = PUMP_FAILED;
            break;
        }
        if (state == BW_FRAME_SHORT || (state == BW_FRAME_PART && frame.len <= GATHER_PART_BYTES)) {
            result = PUMP_IDLE;
            break;
        }
        result = judge(pump, &frame);
        if (result == PUMP_ENDED)
            used += frame.size;
        if (result != PUMP_MORE)
            break;
        pump->frames_in++;
        budget->frames--;
        if (state == BW_FRAME_PART || frame.len > GATHER_BYTES) {
            if (!start_gathering(pump, &frame)) {
                result = PUMP_FAILED;
                break;
            }
            used += BW_FRAME_HEADER_BYTES;
            continue;
        }
        deliver(pump, &frame, at);
        used += frame.size;
    }
    *used_p = used;
    return result;
}

static pump_result_t receive_pieces(bw_pump_t *pump, budget_t *budget)
{
    pump_result_t result = PUMP_MORE;

    while (budget->frames > 0 && budget->bytes > 0) {
        bw_span_t span;
        size_t used = 0, most = least(budget->bytes, PUBLISH_BYTES);
        budget_t piece = {.frames = budget->frames, .bytes = most};
        bw_status_t status = pump->link->ops->peek(pump->link, &span);

        if (status == BW_AGAIN)
            return PUMP_IDLE;
        if (status != BW_OK)
            return PUMP_FAILED;
        result = receive_span(pump, &span, &piece, &used);
        if (used > 0)
            pump->link->ops->release(pump->link, used);
        pump->bytes_read += used;
        budget->frames = piece.frames;
        budget->bytes -= least(used, budget->bytes);
        if (result != PUMP_MORE)
            return result;
    }
    return PUMP_MORE;
}

static pump_result_t receive(bw_pump_t *pump, budget_t *budget)
{
    pump_result_t result = receive_pieces(pump, budget);

    pump->is_dry = result == PUMP_IDLE;
    pump->is_paused = result == PUMP_PAUSED;
    return result;
}

pump_result_t pump_receive(bw_pump_t *pump)
{
    budget_t budget = FULL_BUDGET;

    return receive(pump, &budget);
}

static uint64_t now_us(void)
{
    return (uint64_t)erl_drv_monotonic_time(ERL_DRV_USEC);
}

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
        bw_spin_learn(&pump->spin, now_us(), load_since(pump, before));
}

/* Armed: a peer that closes from now on rings; one that has closed already is seen here. */
static wake_result_t asleep(bw_pump_t *pump)
{
    return pump->link->ops->is_finished(pump->link) ? WAKE_FINISHED : WAKE_ASLEEP;
}

/* Ends a round of looking: armed, or the poller comes at once. */
static wake_result_t arm_or_kick(bw_pump_t *pump)
{
    bw_status_t status = pump->link->ops->arm_read(pump->link);

    pump->spinning = false;
    if (status == BW_AGAIN)
        pump->link->ops->kick(pump->link);
    return status == BW_CORRUPT ? WAKE_FAILED : asleep(pump);
}

/* Reads until the ring is empty and armed. `readable` is the descriptor as the poller sees it. */
static wake_result_t drain_and_arm(bw_pump_t *pump, bool readable)
{
    mark_t before = mark(pump);
    budget_t budget = FULL_BUDGET; /* of all rounds */

    pump->spinning = false;
    for (int round = 0; round < ROUNDS; round++) {
        pump_result_t result = receive(pump, &budget);
        bw_status_t status;

        if (result == PUMP_FAILED)
            return WAKE_FAILED;
        if (result == PUMP_ENDED)
            return WAKE_FINISHED;
        if (result == PUMP_MORE)
            break;
        if (readable)
            pump->link->ops->hush(pump->link);
        readable = false;
        if (pump->busy && !drain_queue(pump))
            return WAKE_FAILED;
        if (result == PUMP_PAUSED) /* not armed: what comes meanwhile wakes nobody */
            return WAKE_ASLEEP;
        learn(pump, before);
        before = mark(pump);
        if (pump->spin.budget_us > 0 && bw_spin_begins(&pump->spin, now_us())) {
            pump->spinning = true;
            return WAKE_LOOKING;
        }
        status = pump->link->ops->arm_read(pump->link);
        if (status == BW_OK)
            return asleep(pump);
        if (status == BW_CORRUPT)
            return WAKE_FAILED;
    }
    /* Before the descriptor is looked at again others run; the room that came with this doorbell
     * must not wait so long. */
    if (pump->busy && !drain_queue(pump))
        return WAKE_FAILED;
    if (!readable)
        pump->link->ops->kick(pump->link);
    return WAKE_ASLEEP;
}

wake_result_t pump_wake(bw_pump_t *pump)
{
    pump->wakeups++;
    return drain_and_arm(pump, true);
}

wake_result_t pump_look(bw_pump_t *pump)
{
    mark_t before = mark(pump);
    pump_result_t result;

    if (!pump->spinning) /* the poller came between, for room, and has armed */
        return WAKE_ASLEEP;
    result = pump_receive(pump);
    if (result == PUMP_FAILED)
        return WAKE_FAILED;
    if (result == PUMP_MORE)
        return WAKE_LOOKING;
    if (result == PUMP_ENDED || pump->link->ops->is_finished(pump->link))
        return WAKE_FINISHED;
    if (bw_spin_goes_on(&pump->spin, now_us(), load_since(pump, before)))
        return WAKE_LOOKING;
    return arm_or_kick(pump);
}

void pump_start(bw_pump_t *pump, bw_link_t *link)
{
    bw_link_stats_t stats;

    link->ops->stats(link, &stats);
    bw_spin_init(&pump->spin, 0);
    pump->link = link;
    pump->half_ring = stats.ring_bytes / 2;
}

void pump_be_lane(bw_pump_t *pump, uint32_t largest)
{
    pump->is_lane = true;
    pump->largest = largest;
}

/* Sums stop at a value that nobody uses up. */
static int64_t sum(int64_t left, int64_t right)
{
    return left > INT64_MAX / 2 || right > INT64_MAX / 2 ? INT64_MAX / 2 : left + right;
}

wake_result_t pump_credit(bw_pump_t *pump, int64_t frames, int64_t bytes)
{
    pump->credit_frames = sum(pump->credit_frames, frames);
    pump->credit_bytes = sum(pump->credit_bytes, bytes);
    if (!pump->is_paused || !has_credit(pump))
        return WAKE_ASLEEP;
    return drain_and_arm(pump, false);
}
