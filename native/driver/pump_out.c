/* SPDX-License-Identifier: Apache-2.0 */
#include "pump_inside.h"

#include <string.h>

#include "../link/frame.h"
#include "load.h"

/*
 * The output path for distribution frames. While nothing is queued, a small frame is copied
 * straight into the ring. If there is no room, the frame and every frame after it are queued in the
 * scheduler, which decides what to send next. Only a little may be queued below the scheduler (a
 * window of the ring, or as much as the socket accepts), because bytes there cannot be overtaken.
 */

/* Fragments are kept out of the ring while it contains at least this many bytes, so that small
 * signals can overtake them. If nothing has passed fragments for a while, the limit is four times
 * as high, which gives a sleeping node time to wake up while the peer reads half of them. */
#define WINDOW_BYTES ((uint64_t)256 * 1024)
#define WIDE 4

/* From this size on, writing directly instead of through the ring is worth a system call. */
#define DIRECT_BYTES (32 * 1024)

/* How many bytes are offered to a socket at once. Fewer would mean more work for the peer and its
 * kernel, but bytes that the socket has accepted cannot be overtaken. */
#define BATCH_BYTES ((uint64_t)512 * 1024)
#define BATCH_VECTORS 64

/* How many bytes of frames other than fragments may wait for room in total: few if the ring is full
 * of such frames, more if they are waiting behind fragments. */
#define FEW_BYTES ((uint64_t)64 * 1024)
#define SMALL_BYTES ((uint64_t)1024 * 1024)

/* The peer is watched while more than this is queued. It counts as stalled if it has taken nothing
 * in this many consecutive watches. The number is larger over a network, where the peer
 * acknowledges only once per round trip. */
#define WATCH_BYTES ((uint64_t)1024 * 1024)
#define QUIET_WATCHES 2
#define QUIET_WATCHES_FAR 10

/* Gathered bytes must stay below a sender's limit, because pump_flush does not report senders. */
_Static_assert(BATCH_BYTES <= BW_SCHEDULER_SENDER_BYTES / 2, "a release may be lost");

/* How often one call retries if room appears between its last write and arming the link. */
#define ROUNDS 4

static void set_busy(bw_pump_t *pump, bool busy)
{
    if (pump->busy != busy) {
        pump->busy = busy;
        set_busy_port(pump->port, busy);
    }
}

static bool is_waiting(const bw_pump_t *pump)
{
    return pump->under_way.first || pump->scheduler.counts.frames > 0;
}

/* Returns whether the carrier is a socket. Its ring is then empty while frames are queued, and the
 * system reports when there is room. */
static bool is_socket(const bw_pump_t *pump)
{
    return pump->is_deferred && pump->link->ops->write;
}

/* Returns whether fragments are waiting for more fragments or for pump_flush. */
static bool is_gathering(const bw_pump_t *pump)
{
    return is_socket(pump) && !pump->under_way.first && pump->scheduler.counts.frames > 0 &&
           pump->scheduler.counts.bytes < BATCH_BYTES;
}

uint64_t pump_queued(const bw_pump_t *pump)
{
    return pump->scheduler.counts.bytes + pump->under_way.bytes;
}

/* Puts one byte into the VM's queue, because only if that is not empty does the VM call the driver
 * before it closes a port. */
static bool put_token(bw_pump_t *pump)
{
    char token = 0;

    if (!pump->has_token)
        pump->has_token = driver_enq(pump->port, &token, 1) >= 0;
    return pump->has_token;
}

/* ---- sending to the link ---- */

/* Sends the frames in `under_way`. If the connection is cut, they wait for the next connection. */
static bw_status_t send_under_way(bw_pump_t *pump, uint64_t *moved_p)
{
    bw_session_t *session = &pump->session;
    struct iovec vector[BATCH_VECTORS];
    size_t taken = 0;
    bw_status_t status;
    int count;

    count = bw_pending_gather(&pump->under_way, vector, BATCH_VECTORS, BUDGET_BYTES);
    status = pump->link->ops->write(pump->link, vector, count, &taken);
    bw_pending_advance(&pump->under_way, taken, &session->kept);
    bw_outgoing_send(&session->out, taken);
    *moved_p = taken;
    return status == BW_OK && taken == 0 ? BW_AGAIN : status;
}

/* Appends the frames, compressed into one unit if `is_unit` and there is memory for it. */
static void put_under_way(bw_pump_t *pump, bw_pending_list_t *frames, bool is_unit)
{
    bw_pending_t *unit = is_unit ? bw_packing_pack(&pump->packing, frames) : NULL;
    bw_pending_t *frame = frames->first;

    while (frame) {
        bw_pending_t *next = frame->next;

        if (unit)
            bw_pending_free(frame);
        else
            bw_pending_append(&pump->under_way, frame);
        frame = next;
    }
    if (unit)
        bw_pending_append(&pump->under_way, unit);
}

/* `under_way` is empty, so the order is preserved. */
static bw_status_t pack_staged(bw_pump_t *pump)
{
    bw_pending_list_t frames = {0};
    bw_pending_t *rest = bw_session_rest(&pump->session);
    bw_status_t status;
    uint64_t moved;

    if (!rest)
        return BW_LIMIT;
    bw_pending_append(&frames, rest);
    put_under_way(pump, &frames, true);
    status = send_under_way(pump, &moved);
    return status == BW_AGAIN ? BW_OK : status;
}

static bw_status_t flush_staged(bw_pump_t *pump)
{
    bw_session_t *session = &pump->session;
    struct iovec staged;
    bw_status_t status = BW_OK;
    bw_pending_t *rest;
    size_t taken = 0;

    pump->is_unflushed = false;
    pump->unflushed_bytes = 0;
    if (session->staged == session->end)
        return BW_OK;
    if (!pump->under_way.first &&
        bw_packing_wants(&pump->packing, false, session->end - session->staged))
        return pack_staged(pump);
    staged = (struct iovec){.iov_base = session->chunk->orig_bytes + session->staged,
                            .iov_len = session->end - session->staged};
    if (!pump->under_way.first)
        status = pump->link->ops->write(pump->link, &staged, 1, &taken);
    if (status != BW_OK && status != BW_AGAIN)
        return status;
    if (!bw_session_sent(session, taken))
        return BW_LIMIT;
    if (taken == staged.iov_len)
        return BW_OK;
    rest = bw_session_rest(session);
    if (!rest)
        return BW_LIMIT;
    rest->is_rest = taken > 0;
    bw_pending_prepend(&pump->under_way, rest);
    return BW_OK;
}

/* Sends the staged bytes, or those in the ring. Bytes that the link does not accept are queued
 * ahead of everything else. */
static bw_status_t flush(bw_pump_t *pump)
{
    SysIOVec iov;
    ErlIOVec ev = {.vsize = 1, .iov = &iov};
    bw_pending_t *frame;
    bw_span_t rest;

    if (!pump->is_unflushed)
        return BW_OK;
    if (pump->session.is_on)
        return flush_staged(pump);
    pump->is_unflushed = false;
    pump->unflushed_bytes = 0;
    pump->link->ops->flush(pump->link, &rest);
    if (rest.len == 0)
        return BW_OK;
    iov = (SysIOVec){.iov_base = (char *)rest.base, .iov_len = rest.len};
    ev.size = rest.len;
    frame = bw_pending_keep(&ev, rest.len);
    if (!frame)
        return BW_LIMIT;
    bw_pending_prepend(&pump->under_way, frame);
    return BW_OK;
}

static void commit(bw_pump_t *pump, uint64_t bytes)
{
    pump->link->ops->commit(pump->link, bytes);
    pump_committed(pump, bytes);
}

static void copy(uint8_t *to, const SysIOVec *iov, int count)
{
    for (int i = 0; i < count; i++) {
        memcpy(to, iov[i].iov_base, iov[i].iov_len);
        to += iov[i].iov_len;
    }
}

static bw_status_t stage_in_chunk(bw_pump_t *pump, const SysIOVec *iov, int count, size_t size)
{
    bw_session_t *session = &pump->session;
    uint8_t *to = bw_session_gap(session, size);
    bw_status_t status = BW_OK;

    if (!to && session->staged < session->end) {
        status = flush(pump);
        if (status != BW_OK || pump->under_way.first)
            return status == BW_OK ? BW_AGAIN : status;
        to = bw_session_gap(session, size);
    }
    if (!to)
        return BW_LIMIT;
    copy(to, iov, count);
    session->end += size;
    pump->is_unflushed = true;
    pump->unflushed_bytes += size;
    return BW_OK;
}

/* Copies a complete frame into the ring. Returns BW_AGAIN if it is large or does not fit. */
static bw_status_t stage(bw_pump_t *pump, const SysIOVec *iov, int count, uint64_t size)
{
    bw_link_t *link = pump->link;
    bw_status_t status;
    bw_span_t span;

    if (size >= (link->ops->write ? DIRECT_BYTES : PUBLISH_BYTES))
        return BW_AGAIN;
    if (pump->session.is_on)
        return stage_in_chunk(pump, iov, count, size);
    status = link->ops->reserve(link, size, &span);
    if (status != BW_OK || span.len < size)
        return status == BW_OK ? BW_AGAIN : status;
    copy(span.base, iov, count);
    commit(pump, size);
    return BW_OK;
}

static bw_status_t copy_under_way(bw_pump_t *pump, uint64_t *moved_p)
{
    struct iovec vector[BATCH_VECTORS];
    uint64_t want = bw_least(pump->under_way.bytes, PUBLISH_BYTES), copied = 0;
    bw_span_t span;
    bw_status_t status = pump->link->ops->reserve(pump->link, want, &span);
    int count;

    if (status != BW_OK)
        return status;
    count = bw_pending_gather(&pump->under_way, vector, BATCH_VECTORS, bw_least(want, span.len));
    for (int i = 0; i < count; i++) {
        memcpy(span.base + copied, vector[i].iov_base, vector[i].iov_len);
        copied += vector[i].iov_len;
    }
    bw_pending_advance(&pump->under_way, copied, NULL);
    commit(pump, copied);
    *moved_p = copied;
    return copied >= DIRECT_BYTES ? flush(pump) : BW_OK;
}

/* Sends the frames in `under_way`. Large frames, and all frames that wait for a socket, are sent
 * without a copy. If that is impossible, or if the connection is cut, they go through the ring. */
static bw_status_t move_under_way(bw_pump_t *pump, uint64_t *moved_p)
{
    struct iovec vector[BATCH_VECTORS];
    bw_link_t *link = pump->link;
    bw_status_t status;
    size_t taken;
    int count;

    if (pump->session.is_on)
        return send_under_way(pump, moved_p);
    if (!link->ops->write || (!is_socket(pump) && pump->under_way.bytes < DIRECT_BYTES))
        return copy_under_way(pump, moved_p);
    count = bw_pending_gather(&pump->under_way, vector, BATCH_VECTORS, BUDGET_BYTES);
    status = link->ops->write(link, vector, count, &taken);
    if (status == BW_OK && taken == 0)
        return copy_under_way(pump, moved_p);
    bw_pending_advance(&pump->under_way, taken, NULL);
    *moved_p = taken;
    return status;
}

static uint64_t window(const bw_pump_t *pump)
{
    return pump->unpassed_bytes < PUMP_UNPASSED_BYTES
               ? pump->window
               : bw_least(WIDE * pump->window, pump->half_ring);
}

static void note_passing(bw_pump_t *pump, const bw_scheduled_t *frame)
{
    const bw_pending_t *pending = frame->user;

    if (pending->is_bulk)
        pump->unpassed_bytes += frame->bytes;
    else if (pump->scheduler.counts.continuation_bytes > 0)
        pump->unpassed_bytes = 0;
}

static bool is_window_open(bw_pump_t *pump)
{
    uint64_t wanted = pump->ring_bytes - window(pump);
    bw_span_t span;

    return is_socket(pump) ||
           (pump->link->ops->reserve(pump->link, wanted, &span) == BW_OK && span.len >= wanted);
}

/* Returns how many queued bytes do not belong to a large message. */
static uint64_t small_bytes(const bw_pump_t *pump)
{
    const bw_scheduler_counts_t *counts = &pump->scheduler.counts;

    return bw_least(counts->ready_bytes,
                    counts->bytes - counts->continuation_bytes - pump->first_bytes);
}

/* Returns whether frames may be taken from the scheduler. A full session stops frames here rather
 * than further down, because acknowledgements must still get through: if both sessions are full,
 * each side is waiting for an acknowledgement from the other. */
static bool may_take(bw_pump_t *pump)
{
    return pump->scheduler.counts.frames > 0 && !bw_session_is_full(&pump->session) &&
           (small_bytes(pump) > 0 || is_window_open(pump));
}

static void take(bw_pump_t *pump, bw_pending_list_t *to)
{
    bw_scheduled_t *frame = bw_scheduler_take(&pump->scheduler);

    if (frame->kind == BW_DIST_FIRST)
        pump->first_bytes -= frame->bytes;
    note_passing(pump, frame);
    bw_pending_append(to, frame->user);
}

/* Returns the unit's cost for the budget, or 0 if its frames are sent uncompressed. */
static uint64_t take_unit(bw_pump_t *pump)
{
    bw_pending_list_t frames = {0};
    bool is_unit;

    while (frames.bytes < BW_UNIT_BYTES && may_take(pump))
        take(pump, &frames);
    is_unit = bw_packing_wants(&pump->packing, frames.bulk > 0, frames.bytes);
    put_under_way(pump, &frames, is_unit);
    return is_unit ? BW_UNIT_COST * frames.bytes : 0;
}

/* Takes one unit at a time, so that later frames can pass those that are not packed yet. */
static void take_units(bw_pump_t *pump, uint64_t batch, uint64_t *budget)
{
    uint64_t cost = 0;

    while (cost == 0 && pump->under_way.bytes < batch && may_take(pump))
        cost = take_unit(pump);
    *budget -= bw_least(*budget, cost);
}

/* Takes the next frames from the scheduler. Returns false if none may be sent. */
static bool take_next(bw_pump_t *pump, uint64_t *budget)
{
    uint64_t batch = is_socket(pump) ? BATCH_BYTES : 1;

    if (pump->packing.is_on) {
        if (!pump->under_way.first)
            take_units(pump, batch, budget);
    } else {
        while (pump->under_way.bytes < batch && may_take(pump))
            take(pump, &pump->under_way);
    }
    return pump->under_way.first;
}

/* ---- queue limits ---- */

/* Returns how many of the sent bytes the peer is known to have taken. */
static uint64_t taken(const bw_pump_t *pump)
{
    bw_link_stats_t stats = {0};

    pump->link->ops->stats(pump->link, &stats);
    return stats.bytes_out - stats.unreleased;
}

/* Returns whether the port should be busy. Fragments alone do not make it busy, because their
 * senders are held individually. It is busy while the VM is being asked whether it suspends a
 * sender, and while the peer takes nothing. */
static bool shall_be_busy(const bw_pump_t *pump)
{
    const bw_scheduler_counts_t *counts = &pump->scheduler.counts;
    const bw_pending_t *next = pump->under_way.first;
    uint64_t small = small_bytes(pump) + (next && !next->is_bulk ? pump->under_way.bytes : 0);
    bool has_bulk = counts->continuation_bytes + pump->first_bytes + pump->under_way.bulk > 0;

    if (counts->asked > 0 || pump->is_stalled)
        return true;
    if (!pump->busy)
        return counts->bytes > BW_SCHEDULER_ALL_BYTES ||
               small > (has_bulk ? SMALL_BYTES : FEW_BYTES);
    if (counts->bytes > BW_SCHEDULER_ALL_BYTES / 4 * 3)
        return true;
    return !has_bulk || small > SMALL_BYTES / 2;
}

static uint64_t room_to_await(const bw_pump_t *pump)
{
    return is_waiting(pump) && !pump->under_way.first && pump->window < pump->half_ring
               ? pump->ring_bytes - window(pump) / 2
               : pump->half_ring;
}

static void set_stalled(bw_pump_t *pump, bool is_stalled)
{
    pump->is_stalled = is_stalled;
    bw_scheduler_hold_nobody(&pump->scheduler, is_stalled);
}

/* Sends as much as the budget allows, and arms the link for writing if frames remain. */
static bw_status_t drain(bw_pump_t *pump)
{
    uint64_t budget = BUDGET_BYTES;

    for (int round = 0; round < ROUNDS && budget > 0; round++) {
        bw_status_t status = is_socket(pump) ? flush(pump) : BW_OK;

        while (status == BW_OK && budget > 0 && take_next(pump, &budget)) {
            uint64_t moved = 0;

            status = move_under_way(pump, &moved);
            budget -= bw_least(budget, moved);
            if (pump->is_stalled && moved > 0)
                set_stalled(pump, false);
        }
        if (status != BW_OK && status != BW_AGAIN)
            return status;
        set_busy(pump, shall_be_busy(pump));
        if (!is_waiting(pump) && !pump->busy)
            return BW_OK;
        if (budget == 0)
            break;
        /* The peer's next acknowledgement will make room. */
        if (bw_session_is_full(&pump->session) && !pump->under_way.first)
            return BW_OK;
        status = pump->link->ops->arm_write(pump->link, room_to_await(pump));
        if (status != BW_AGAIN)
            return status;
        if (!is_waiting(pump)) {
            set_busy(pump, false);
            return BW_OK;
        }
    }
    pump_come_back(pump);
    return BW_OK;
}

/* Returns whether a link over several connections has bytes that none of them has accepted. */
static bool has_rest(const bw_pump_t *pump)
{
    const bw_carrier_t *ops = pump->link->ops;

    return pump->session.is_on && ops->needs_flush && ops->needs_flush(pump->link);
}

/* Every output path ends here. It flushes if frames are waiting for room, because the peer must
 * wake up to make room, and if the port is closing. */
static bool settle(bw_pump_t *pump, bw_status_t status)
{
    if (status == BW_OK &&
        (is_waiting(pump) || pump->is_closing || pump->unflushed_bytes >= PUMP_GATHERED_BYTES)) {
        bool had_under_way = pump->under_way.first;

        status = flush(pump);
        if (status == BW_OK && !had_under_way && pump->under_way.first)
            status = drain(pump);
    }
    if (status == BW_LIMIT)
        pump->reason = "enomem";
    if (status != BW_OK)
        return false;
    pump_poll(pump);
    if (pump->is_closing && !is_waiting(pump) && !has_rest(pump) && pump->has_token) {
        pump->has_token = false;
        driver_deq(pump->port, driver_sizeq(pump->port)); /* empty if the port has failed */
    }
    return true;
}

bool pump_drain_queue(bw_pump_t *pump)
{
    bw_status_t status = drain(pump);

    /* The poller may have called because there is room; in that case, nothing else flushes. */
    if (status == BW_OK)
        status = flush(pump);
    return settle(pump, status);
}

bool pump_flush(bw_pump_t *pump)
{
    bool had_under_way = pump->under_way.first;
    bw_status_t status = flush(pump);

    if (status == BW_OK && !had_under_way && (pump->under_way.first || is_gathering(pump)))
        status = drain(pump);
    return settle(pump, status);
}

/* ---- output from the VM ---- */

static bool is_fragment(const ErlIOVec *ev)
{
    uint8_t head[2] = {0};
    size_t have = 0;

    for (int i = 1; i < ev->vsize && have < sizeof head; i++)
        for (size_t at = 0; at < ev->iov[i].iov_len && have < sizeof head; at++)
            head[have++] = (uint8_t)ev->iov[i].iov_base[at];
    return head[0] == BW_DIST_VERSION &&
           (head[1] == BW_DIST_HEADER_FIRST || head[1] == BW_DIST_HEADER_REST);
}

static uint64_t put_header(const bw_pump_t *pump, uint8_t *at, uint64_t len)
{
    if (pump->is_packets) {
        bw_put(at, len, BW_PACKET_HEADER_BYTES);
        return BW_PACKET_HEADER_BYTES;
    }
    bw_frame_put_header(at, len > 0 ? BW_FRAME_DATA : BW_FRAME_TICK, (uint32_t)len);
    return BW_FRAME_HEADER_BYTES;
}

static bw_status_t keep(bw_pump_t *pump, const ErlIOVec *ev, uint64_t size, bool is_bulk)
{
    bw_pending_t *frame = bw_pending_keep(ev, size);

    if (!frame)
        return BW_LIMIT;
    frame->is_bulk = is_bulk;
    if (!put_token(pump) || !bw_scheduler_put(&pump->scheduler, &frame->scheduled, frame->iov + 1,
                                              frame->count - 2, size)) {
        bw_pending_free(frame);
        return BW_LIMIT;
    }
    if (frame->scheduled.kind == BW_DIST_FIRST)
        pump->first_bytes += size;
    if (is_bulk && bw_scheduler_pid(&frame->scheduled) != 0)
        traffic_count(&pump->traffic, bw_scheduler_pid(&frame->scheduled), size);
    return BW_OK;
}

/* Samples the senders of small frames: one sampled frame represents many bytes. */
static void sample(bw_pump_t *pump, const ErlIOVec *ev, uint64_t size)
{
    uint64_t stands_for = traffic_sample(&pump->traffic, size);
    bw_dist_frame_t frame;

    if (stands_for == 0)
        return;
    frame = bw_dist_frame_read((const struct iovec *)ev->iov + 1, ev->vsize - 1);
    if (frame.has_sender)
        traffic_count(&pump->traffic, frame.sender, stands_for);
}

/* All fragments, and all frames that have to wait, go through the scheduler. */
static bool send_frame(bw_pump_t *pump, ErlIOVec *ev)
{
    uint8_t header[BW_FRAME_HEADER_BYTES];
    uint64_t len = ev->size, size;
    bool is_full = pump->under_way.first, is_bulk = is_fragment(ev);
    bw_status_t status;

    ev->iov[0].iov_base = (char *)header;
    ev->iov[0].iov_len = put_header(pump, header, len);
    ev->size += ev->iov[0].iov_len;
    size = pump->is_packets ? ev->size : bw_frame_size((uint32_t)len);
    pump->frames_out++;
    if (!is_bulk)
        sample(pump, ev, size);
    if (!is_bulk && !is_waiting(pump) && !bw_session_is_full(&pump->session) &&
        stage(pump, ev->iov, ev->vsize, size) == BW_OK)
        return pump->unflushed_bytes < PUMP_GATHERED_BYTES || settle(pump, BW_OK);
    status = keep(pump, ev, size, is_bulk);
    if (status == BW_OK && is_full)
        set_busy(pump, shall_be_busy(pump));
    else if (status == BW_OK && is_bulk && is_gathering(pump))
        return pump->is_unflushed = true;
    else if (status == BW_OK)
        status = drain(pump);
    return settle(pump, status);
}

/* ---- sending words to the peer's driver ---- */

/* Sends a word after everything that is staged or in `under_way`, and before everything that is
 * queued. The word is not staged if the staged bytes may be compressed into a unit. */
static bw_status_t put_word(bw_pump_t *pump, uint8_t *bytes, size_t size)
{
    SysIOVec iov = {.iov_base = (char *)bytes, .iov_len = size};
    ErlIOVec ev = {.vsize = 1, .size = (ErlDrvSizeT)size, .iov = &iov};
    bool goes_alone = is_waiting(pump) || pump->packing.is_on;
    bw_status_t status = goes_alone ? BW_AGAIN : stage(pump, &iov, 1, size);
    bw_pending_t *frame;

    if (status != BW_AGAIN)
        return status;
    status = flush(pump);
    if (status != BW_OK)
        return status;
    frame = bw_pending_keep(&ev, size);
    if (!frame)
        return BW_LIMIT;
    bw_pending_insert(&pump->under_way, frame);
    return drain(pump);
}

/* Tells the peer how far this side has read. Does not flush. */
static bw_status_t put_ack(bw_pump_t *pump)
{
    uint8_t word[BW_WORD_BYTES];

    pump->owes_ack = false;
    pump->session.told = pump->bytes_read;
    bw_word_put(word, BW_FRAME_ACK, pump->bytes_read);
    return put_word(pump, word, sizeof word);
}

static inline bool has_load(const bw_pump_t *pump)
{
    return pump->tells_load &&
           atomic_load_explicit(&bw_load_samples, memory_order_relaxed) != pump->load_told;
}

/* Does not flush, because the load can wait until other bytes are sent. */
static bw_status_t tell_load(bw_pump_t *pump)
{
    uint8_t bytes[BW_FRAME_HEADER_BYTES + BW_LOAD_BYTES];

    if (!has_load(pump) || !pump_is_attached(pump))
        return BW_OK;
    pump->load_told = atomic_load(&bw_load_samples);
    if (pump->is_packets) {
        bw_word_put(bytes, BW_FRAME_LOAD, bw_load_last());
        return put_word(pump, bytes, BW_WORD_BYTES);
    }
    bw_frame_put_header(bytes, BW_FRAME_TICK, BW_LOAD_BYTES);
    (void)bw_put(bytes + BW_FRAME_HEADER_BYTES, bw_load_last(), BW_LOAD_BYTES);
    return put_word(pump, bytes, sizeof bytes);
}

/* These words wait for a frame or a tick, because alone they would wake both nodes. */
static bw_status_t put_waiting_words(bw_pump_t *pump)
{
    bw_status_t status = tell_load(pump);

    return status == BW_OK && pump->owes_ack && pump_is_attached(pump) ? put_ack(pump) : status;
}

bool pump_send(bw_pump_t *pump, ErlIOVec *ev)
{
    if (ev->size == 0)
        return pump_tick(pump);
    if (ev->size > BW_FRAME_MAX_BYTES) { /* the length would not fit in the header */
        pump->reason = "beamway_frame_too_large";
        return false;
    }
    if ((has_load(pump) || pump->owes_ack) && !settle(pump, put_waiting_words(pump)))
        return false;
    return send_frame(pump, ev);
}

bool pump_tick(bw_pump_t *pump)
{
    uint8_t header[BW_FRAME_HEADER_BYTES];
    SysIOVec tick = {.iov_base = (char *)header};
    bw_status_t status;

    if (is_waiting(pump))
        return true;
    status = put_waiting_words(pump);
    if (status != BW_OK)
        return settle(pump, status);
    tick.iov_len = put_header(pump, header, 0);
    status = stage(pump, &tick, 1, tick.iov_len);
    pump->frames_out += status == BW_OK;
    return pump_flush(pump) && status != BW_CORRUPT;
}

/* ---- a link that outlives its connections ---- */

void pump_begin_session(bw_pump_t *pump, uint64_t limit)
{
    pump->session.is_on = true;
    pump->session.limit = limit;
}

/* A word may overtake queued frames, but the word for an empty unit must follow all units, so it is
 * sent only if nothing is queued. */
bool pump_rest(bw_pump_t *pump)
{
    const bw_session_t *session = &pump->session;
    uint8_t word[BW_WORD_BYTES];

    bw_session_rests(&pump->session);
    if (is_waiting(pump) || session->staged < session->end || !bw_packing_rests(&pump->packing))
        return true;
    bw_word_put(word, BW_FRAME_UNIT, 0);
    return settle(pump, put_word(pump, word, sizeof word));
}

bool pump_acknowledge(bw_pump_t *pump)
{
    bw_status_t status = tell_load(pump);

    if (status == BW_OK)
        status = put_ack(pump);
    if (status == BW_OK)
        status = flush(pump);
    return settle(pump, status);
}

void pump_say_end(bw_pump_t *pump)
{
    uint8_t word[BW_WORD_BYTES];

    if (!pump->session.is_on || !pump_is_attached(pump) || !pump_flush(pump) || is_waiting(pump))
        return;
    bw_word_put(word, BW_FRAME_END, pump->bytes_read);
    if (put_word(pump, word, sizeof word) == BW_OK)
        (void)flush(pump);
}

/* ---- watching for a stalled peer ---- */

bool pump_begins_watch(bw_pump_t *pump)
{
    if (pump->is_watched || pump->scheduler.counts.bytes <= WATCH_BYTES)
        return false;
    pump->taken_at_watch = taken(pump);
    pump->quiet_watches = 0;
    return pump->is_watched = true;
}

static int most_quiet(const bw_pump_t *pump)
{
    bool is_near = pump->link->ops->caps & BW_CAP_SHARED_RINGS;

    return is_near ? QUIET_WATCHES : QUIET_WATCHES_FAR;
}

bool pump_watch(bw_pump_t *pump, bool *again_p)
{
    uint64_t now = taken(pump);

    pump->quiet_watches = now == pump->taken_at_watch ? pump->quiet_watches + 1 : 0;
    pump->taken_at_watch = now;
    *again_p = pump->is_watched = is_waiting(pump);
    set_stalled(pump, pump->is_watched && pump->quiet_watches >= most_quiet(pump));
    return pump_drain_queue(pump);
}

bool pump_answer(bw_pump_t *pump, uint64_t key, bw_answer_t answer, bool *is_held_p)
{
    *is_held_p = bw_scheduler_answer(&pump->scheduler, key, answer);
    return pump_drain_queue(pump);
}

/* ---- initialization and cleanup ---- */

bool pump_defer(bw_pump_t *pump)
{
    const bw_carrier_t *ops = pump->link->ops;

    if (ops->defer && !pump->is_deferred &&
        (!(ops->caps & BW_CAP_KERNEL_BUFFERS) || put_token(pump))) {
        pump->is_deferred = true;
        ops->defer(pump->link);
    }
    return pump->is_deferred;
}

void pump_be_packets(bw_pump_t *pump)
{
    pump->is_packets = pump_defer(pump);
}

void pump_start_frames(bw_pump_t *pump)
{
    /* The reader of a shared ring reports room byte by byte, others half a ring at a time. */
    pump->window = pump->link->ops->caps & BW_CAP_SHARED_RINGS
                       ? bw_least(WINDOW_BYTES, pump->half_ring)
                       : pump->half_ring;
    pump->unpassed_bytes = PUMP_UNPASSED_BYTES;
    bw_scheduler_init(&pump->scheduler, BW_SCHEDULER_SENDER_BYTES);
}

void pump_finish(bw_pump_t *pump)
{
    pump->is_closing = true;
    if (!pump_drain_queue(pump))
        pump_drop(pump);
}

void pump_drop(bw_pump_t *pump)
{
    bw_scheduled_t *next;

    bw_pending_advance(&pump->under_way, pump->under_way.bytes, NULL);
    bw_session_free(&pump->session);
    (void)bw_packing_rests(&pump->packing);
    while ((next = bw_scheduler_take(&pump->scheduler)))
        bw_pending_free(next->user);
    bw_scheduler_end(&pump->scheduler);
    pump->first_bytes = 0;
    if (pump->has_token)
        driver_deq(pump->port, driver_sizeq(pump->port));
    pump->has_token = false;
}
