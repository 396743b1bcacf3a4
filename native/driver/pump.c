/* SPDX-License-Identifier: Apache-2.0 */
#include "pump.h"

#include <string.h>

#include "../link/frame.h"

/* What one call on a scheduler may do each way: well under a millisecond, at about 1 us a small
 * frame and 4 GB/s a copy. The poller comes back for the rest, so neither direction starves. */
#define BUDGET_FRAMES 500
#define BUDGET_BYTES (1024 * 1024)

/* A lane's large binaries are new memory, which the system clears page by page. */
#define LANE_BUDGET_BYTES (256 * 1024)

/* Frames above this are gathered while they arrive, so that both sides copy at the same time. */
#define GATHER_BYTES (256 * 1024)

/* Half a frame above this is gathered too. Below it stays in the ring until it is whole, which
 * must leave the producer more than the half ring that it may be waiting for. */
#define GATHER_PART_BYTES (BW_RING_MIN_BYTES / 16)

/* So often may a peer publish between our read and our arming in one call. */
#define ROUNDS 4

/* A large frame is published in pieces of this size. */
#define PUBLISH_BYTES (128 * 1024)

/* From here on a carrier's own way past the ring is worth a system call. */
#define DIRECT_BYTES (32 * 1024)
#define DIRECT_VECTORS 16

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

/* Copies the next `len` bytes, or passes them by if `to` is NULL; past the end of the vector
 * nothing is written: that is padding. */
static void copy_next(cursor_t *cursor, uint8_t *to, size_t len)
{
    while (cursor->count > 0 && len > 0) {
        size_t n = least(cursor->iov->iov_len - cursor->offset, len);

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
        size_t n = least(from->iov_len - offset, BUDGET_BYTES - bytes);

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
static bw_status_t put_iov(bw_link_t *link, const SysIOVec *iov, int count, uint64_t total,
                           uint64_t *done_p)
{
    cursor_t cursor = {.iov = iov, .count = count};
    bw_status_t status = BW_OK;
    uint64_t done = 0;

    if (link->ops->write && total >= DIRECT_BYTES)
        status = put_directly(link, &cursor, &done);
    while (status == BW_OK && done < total && done < BUDGET_BYTES) {
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

/* A frame, or the rest of it behind `head` bytes, will be copied into a binary as it arrives. */
static void gather_into(bw_pump_t *pump, ErlDrvBinary *binary, const bw_frame_t *frame, size_t head)
{
    pump->gathered = binary;
    pump->gathered_from = pump->gathered_len = 0;
    pump->gathered_end = frame->len - head;
    pump->gathered_size = frame->size - BW_FRAME_HEADER_BYTES - head;
    pump->whole = -1;
}

static bool start_gathering(bw_pump_t *pump, const bw_frame_t *frame)
{
    ErlDrvBinary *binary = driver_alloc_binary(frame->len);

    if (binary)
        gather_into(pump, binary, frame, 0);
    return binary != NULL;
}

static bool start_part(bw_pump_t *pump, const bw_frame_t *frame, const uint8_t *head)
{
    int whole = bw_parts_place(&pump->parts, head, frame->len);

    if (whole < 0)
        return false;
    gather_into(pump, pump->parts.wholes[whole].binary, frame, BW_PART_HEAD_BYTES);
    pump->gathered_from = pump->parts.wholes[whole].len;
    pump->whole = whole;
    return true;
}

static void give_whole(bw_pump_t *pump, char *head, ErlDrvSizeT head_len, ErlDrvBinary *binary)
{
    ErlDrvSizeT len = (ErlDrvSizeT)binary->orig_size;

    if (!pump->is_deaf)
        driver_output_binary(pump->port, head, head_len, binary, 0, len);
    use_credit(pump, (uint64_t)len);
    driver_free_binary(binary);
}

static void finish_part(bw_pump_t *pump)
{
    bw_whole_t *whole = &pump->parts.wholes[pump->whole];
    char head[5] = {(char)pump->parts.mark};

    whole->len += pump->gathered_end;
    if (whole->len < (uint64_t)whole->binary->orig_size)
        return;
    for (int i = 0; i < 4; i++)
        head[1 + i] = (char)(whole->number >> (24 - 8 * i));
    give_whole(pump, head, sizeof head, bw_parts_take(&pump->parts, pump->whole));
}

/* Where the frame's next byte goes, and how many do before its padding. */
static uint8_t *gap(const bw_pump_t *pump, uint64_t *bytes_p)
{
    uint64_t done = least(pump->gathered_len, pump->gathered_end);

    *bytes_p = pump->gathered_end - done;
    return (uint8_t *)pump->gathered->orig_bytes + pump->gathered_from + done;
}

/* So many bytes more of the frame are there, or of its padding. */
static void advance(bw_pump_t *pump, size_t n)
{
    ErlDrvBinary *binary = pump->gathered;

    pump->gathered_len += n;
    if (pump->gathered_len < pump->gathered_size)
        return;
    pump->gathered = NULL;
    if (pump->whole >= 0)
        finish_part(pump);
    else
        give_whole(pump, NULL, 0, binary);
}

/* Takes what of the frame is in the span, at most `most`; gives the bytes used. */
static size_t gather(bw_pump_t *pump, const uint8_t *at, size_t avail, size_t most)
{
    size_t n = least(least(avail, most), pump->gathered_size - pump->gathered_len);
    uint64_t bytes;
    uint8_t *to = gap(pump, &bytes);

    memcpy(to, at, least(n, bytes));
    advance(pump, n);
    return n;
}

/* The same without the ring, if the carrier can: *used_p are bytes, 0 if the ring has them. */
static bw_status_t gather_directly(bw_pump_t *pump, size_t most, size_t *used_p)
{
    bw_link_t *link = pump->link;
    bw_status_t status;
    uint64_t bytes;
    uint8_t *to;

    *used_p = 0;
    if (!pump->gathered || !link->ops->read)
        return BW_OK;
    to = gap(pump, &bytes);
    if (bytes == 0)
        return BW_OK;
    status = link->ops->read(link, to, least(bytes, most), used_p);
    if (*used_p > 0)
        advance(pump, *used_p);
    return status;
}

void pump_reset(bw_pump_t *pump)
{
    if (pump->gathered && pump->whole < 0)
        driver_free_binary(pump->gathered);
    pump->gathered = NULL;
    bw_parts_free(&pump->parts);
}

typedef struct {
    int frames;
    size_t bytes;
} budget_t;

static budget_t full_budget(const bw_pump_t *pump)
{
    return (budget_t){.frames = BUDGET_FRAMES,
                      .bytes = pump->is_lane ? LANE_BUDGET_BYTES : BUDGET_BYTES};
}

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

/* The head of a part, read once: the peer can write there. False: the frame is none. */
static bool read_head(const bw_pump_t *pump, const bw_frame_t *frame, const uint8_t *at,
                      uint8_t head[BW_PART_HEAD_BYTES])
{
    if (pump->parts.mark == 0 || frame->len < BW_PART_HEAD_BYTES)
        return false;
    for (size_t i = 0; i < BW_PART_HEAD_BYTES; i++)
        head[i] = ((const volatile uint8_t *)at)[BW_FRAME_HEADER_BYTES + i];
    return bw_part_is_one(&pump->parts, head, frame->len);
}

/* Whether so much of a frame is there that it can be begun. */
static bool can_begin(const bw_pump_t *pump, const bw_frame_t *frame, size_t avail)
{
    return avail >= frame->size ||
           (frame->len > GATHER_PART_BYTES &&
            (pump->parts.mark == 0 || avail >= BW_FRAME_HEADER_BYTES + BW_PART_HEAD_BYTES));
}

/* Begins to take a frame that is there, at least in part. *used_p: its bytes done with. */
static pump_result_t begin_frame(bw_pump_t *pump, const bw_frame_t *frame, const uint8_t *at,
                                 size_t avail, size_t *used_p)
{
    uint8_t head[BW_PART_HEAD_BYTES];

    if (read_head(pump, frame, at, head)) {
        *used_p = BW_FRAME_HEADER_BYTES + BW_PART_HEAD_BYTES;
        return start_part(pump, frame, head) ? PUMP_MORE : PUMP_FAILED;
    }
    if (avail < frame->size || frame->len > GATHER_BYTES) {
        *used_p = BW_FRAME_HEADER_BYTES;
        return start_gathering(pump, frame) ? PUMP_MORE : PUMP_FAILED;
    }
    deliver(pump, frame, at);
    *used_p = frame->size;
    return PUMP_MORE;
}

/* Reads frames from a span. *used_p: bytes done with. IDLE: the rest, if any, is half a frame. */
static pump_result_t receive_span(bw_pump_t *pump, const bw_span_t *span, budget_t *budget,
                                  size_t *used_p)
{
    size_t used = 0;
    pump_result_t result = PUMP_MORE;

    while (budget->frames > 0 && used < budget->bytes) {
        const uint8_t *at = span->base + used;
        size_t avail = span->len - used, done = 0;
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
        if (state == BW_FRAME_SHORT || !can_begin(pump, &frame, avail)) {
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
        result = begin_frame(pump, &frame, at, avail, &done);
        if (result != PUMP_MORE)
            break;
        used += done;
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
        bw_status_t status = gather_directly(pump, budget->bytes, &used);

        result = PUMP_MORE;
        if (status == BW_OK && used == 0) {
            status = pump->link->ops->peek(pump->link, &span);
            if (status == BW_OK)
                result = receive_span(pump, &span, &piece, &used);
            if (used > 0)
                pump->link->ops->release(pump->link, used);
        }
        if (status == BW_AGAIN)
            return PUMP_IDLE;
        if (status != BW_OK)
            return PUMP_FAILED;
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
    budget_t budget = full_budget(pump);

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
    budget_t budget = full_budget(pump); /* of all rounds */

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

void pump_be_lane(bw_pump_t *pump, uint32_t largest, uint8_t mark, uint32_t largest_whole)
{
    pump->is_lane = true;
    pump->largest = largest;
    pump->parts.mark = mark;
    pump->parts.largest = largest_whole;
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
