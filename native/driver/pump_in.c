/* SPDX-License-Identifier: Apache-2.0 */
#include "pump_inside.h"

#include <string.h>

#include "../link/frame.h"
#include "load.h"

/* A partial frame larger than this is gathered while it arrives. A smaller one stays in the ring
 * until it is complete, so this size must leave more than half the ring free, because the producer
 * may be waiting for that much room. */
#define GATHER_PART_BYTES (BW_RING_MIN_BYTES / 16)

/* How much memory is allocated for a frame at first, however large it claims to be. */
#define FIRST_BYTES (4 * 1024 * 1024)

/* The VM decodes a distribution frame in place and in two passes, between which the peer could
 * write into the ring. So such a frame is copied first: frames up to this size together with those
 * that follow, and larger ones individually, as if they were gathered. */
#define RUN_FRAME_BYTES 512

/* A message in a mailbox keeps its whole run in memory, so a run holds only a few frames. */
#define RUN_BYTES (2 * 1024)

static bw_frame_state_t parse(const bw_pump_t *pump, const uint8_t *at, size_t avail,
                              bw_frame_t *frame_p)
{
    if (pump->session.is_on && !bw_packing_is_full(&pump->packing))
        return bw_session_parse(at, avail, frame_p);
    return pump->is_packets ? bw_packet_parse(at, avail, frame_p)
                            : bw_frame_parse(at, avail, frame_p);
}

/* Prepares to gather a frame, or the rest of it after `head` bytes, in a binary as it arrives. */
static void gather_into(bw_pump_t *pump, ErlDrvBinary *binary, const bw_frame_t *frame, size_t head)
{
    pump->gathered = binary;
    pump->gathered_from = pump->gathered_len = 0;
    pump->gathered_end = frame->len - head;
    pump->gathered_size = frame->size - frame->head - head;
    pump->join = -1;
}

/* Sets a separate reason if an allocation failed, because the peer has done nothing wrong. */
static bool is_had(bw_pump_t *pump, const ErlDrvBinary *binary)
{
    if (!binary)
        pump->reason = "enomem";
    return binary != NULL;
}

static bool start_gathering(bw_pump_t *pump, const bw_frame_t *frame)
{
    ErlDrvBinary *binary = driver_alloc_binary(bw_least(frame->len, FIRST_BYTES));

    if (!is_had(pump, binary))
        return false;
    gather_into(pump, binary, frame, 0);
    return true;
}

/* Starts the first or the next fragment of a signal. Returns false if it is not joined. */
static bool start_fragment(bw_pump_t *pump, const bw_frame_t *frame, const uint8_t *head,
                           size_t *head_bytes_p)
{
    int index = bw_join_find(&pump->joins, head, frame->len);
    bool is_first = index < 0;

    if (is_first)
        index = bw_join_begin(&pump->joins, head, frame->len);
    if (index < 0)
        return false;
    *head_bytes_p = is_first ? 0 : BW_FRAGMENT_HEAD_BYTES;
    gather_into(pump, pump->joins.joins[index].binary, frame, *head_bytes_p);
    pump->gathered_from = pump->joins.joins[index].len;
    pump->join = index;
    return true;
}

/* Returns false if the frame is a distribution signal that the VM cannot read. */
static bool hand_over(bw_pump_t *pump, ErlDrvBinary *binary, ErlDrvSizeT offset, ErlDrvSizeT len)
{
    if (driver_output_binary(pump->port, NULL, 0, binary, offset, len) >= 0)
        return true;
    pump->reason = "beamway_signal_corrupt";
    return false;
}

static bool hand_over_joined(bw_pump_t *pump, int index)
{
    bw_joined_t joined = bw_join_take(&pump->joins, index);
    bool is_read = hand_over(pump, joined.binary, joined.offset, joined.len);

    driver_free_binary(joined.binary);
    return is_read;
}

/* Like hand_over, but first passes the signals that must precede this frame. */
static bool give(bw_pump_t *pump, ErlDrvBinary *binary, ErlDrvSizeT offset, ErlDrvSizeT len)
{
    const uint8_t *frame = (const uint8_t *)binary->orig_bytes + offset;
    int first;

    while ((first = bw_join_ahead_of(&pump->joins, frame, len)) >= 0)
        if (!hand_over_joined(pump, first))
            return false;
    if (first == BW_JOIN_REFUSES) {
        pump->reason = "beamway_signal_corrupt";
        return false;
    }
    return hand_over(pump, binary, offset, len);
}

static bool give_whole(bw_pump_t *pump, bw_joined_t whole)
{
    bool is_read = give(pump, whole.binary, whole.offset, whole.len);

    driver_free_binary(whole.binary);
    return is_read;
}

static bool finish_fragment(bw_pump_t *pump, int index, uint64_t bytes)
{
    return !bw_join_advance(&pump->joins, index, bytes) ||
           give_whole(pump, bw_join_take(&pump->joins, index));
}

static bool give_small(bw_pump_t *pump, ErlDrvBinary *run, size_t offset, uint32_t len)
{
    const uint8_t *frame = (const uint8_t *)run->orig_bytes + offset;
    int index = pump->joins.count > 0 && len >= BW_FRAGMENT_HEAD_BYTES
                    ? bw_join_find(&pump->joins, frame, len)
                    : -1;

    if (index < 0)
        return give(pump, run, (ErlDrvSizeT)offset, len);
    memcpy(bw_join_gap(&pump->joins, index), frame + BW_FRAGMENT_HEAD_BYTES,
           len - BW_FRAGMENT_HEAD_BYTES);
    return finish_fragment(pump, index, len - BW_FRAGMENT_HEAD_BYTES);
}

/* Returns how much of the frame, without its padding, fits into the memory. */
static uint64_t end_of_memory(const bw_pump_t *pump)
{
    return bw_least(pump->gathered_end, (uint64_t)pump->gathered->orig_size - pump->gathered_from);
}

/* Returns where to write the next byte; *bytes_p is how many may be written before the padding. */
static uint8_t *gap(const bw_pump_t *pump, uint64_t *bytes_p)
{
    uint64_t done = bw_least(pump->gathered_len, pump->gathered_end);

    *bytes_p = end_of_memory(pump) - done;
    return (uint8_t *)pump->gathered->orig_bytes + pump->gathered_from + done;
}

/* Doubles the memory if it is full and the frame is still incomplete. */
static bool grow(bw_pump_t *pump)
{
    uint64_t end = end_of_memory(pump);
    ErlDrvBinary *binary;

    if (pump->gathered_len < end || end == pump->gathered_end)
        return true;
    binary =
        driver_realloc_binary(pump->gathered, (ErlDrvSizeT)bw_least(2 * end, pump->gathered_end));
    if (!is_had(pump, binary))
        return false;
    pump->gathered = binary;
    return true;
}

/* Records `n` more bytes of the frame or its padding. Returns false if there is not enough memory
 * for the rest, or if the frame cannot be read. */
static bool advance(bw_pump_t *pump, size_t n)
{
    ErlDrvBinary *binary = pump->gathered;

    pump->gathered_len += n;
    if (pump->gathered_len < pump->gathered_size)
        return grow(pump);
    pump->gathered = NULL;
    return pump->join < 0
               ? give_whole(pump, (bw_joined_t){.binary = binary, .len = binary->orig_size})
               : finish_fragment(pump, pump->join, pump->gathered_end);
}

/* Copies at most `most` bytes of the frame, and no more than there is memory for. Sets *used_p to
 * the number of bytes copied. */
static bool gather(bw_pump_t *pump, const uint8_t *at, size_t avail, size_t most, size_t *used_p)
{
    uint64_t bytes, rest = pump->gathered_size - pump->gathered_len;
    uint8_t *to = gap(pump, &bytes);

    if (end_of_memory(pump) < pump->gathered_end)
        rest = bytes;
    *used_p = bw_least(bw_least(avail, most), rest);
    memcpy(to, at, bw_least(*used_p, bytes));
    return advance(pump, *used_p);
}

/* Like gather, but reads from the carrier directly instead of from the ring, if the carrier
 * supports it. *used_p is 0 if the bytes are in the ring. */
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
    status = link->ops->read(link, to, bw_least(bytes, most), used_p);
    return *used_p == 0 || advance(pump, *used_p) ? status : BW_LIMIT;
}

void pump_reset(bw_pump_t *pump)
{
    if (pump->gathered && pump->join < 0)
        driver_free_binary(pump->gathered);
    pump->gathered = NULL;
    bw_joins_free(&pump->joins);
    bw_packing_forget(&pump->packing);
}

static bool begins_run(const bw_frame_t *frame, size_t avail)
{
    return frame->len <= RUN_FRAME_BYTES && avail >= frame->size;
}

static bool hear_load(bw_pump_t *pump, const uint8_t *at)
{
    uint64_t load = bw_number(at, BW_LOAD_BYTES);

    if (!bw_load_is_valid(load)) {
        pump->reason = "beamway_link_corrupt";
        return false;
    }
    pump->peer_load = load;
    pump->peer_load_ms = bw_now_ms();
    return true;
}

/* Handles a word, whose payload is at `at`. Returns false if the link must be closed. */
static bool hear(bw_pump_t *pump, bw_frame_kind_t kind, const uint8_t *at)
{
    pump->session.told += BW_WORD_BYTES;
    if (kind == BW_FRAME_LOAD)
        return hear_load(pump, at);
    if (kind == BW_FRAME_END)
        pump->reason = "connection_closed";
    else if (!bw_session_acknowledged(&pump->session, bw_number(at, 8)))
        pump->reason = "beamway_session_corrupt";
    return !pump->reason;
}

static bool give_next(bw_pump_t *pump, ErlDrvBinary *run, size_t used, const bw_frame_t *frame)
{
    const uint8_t *payload = (const uint8_t *)run->orig_bytes + used + frame->head;

    switch (frame->kind) {
    case BW_FRAME_DATA:
        return give_small(pump, run, used + frame->head, frame->len);
    case BW_FRAME_TICK:
        return frame->len == 0 || hear_load(pump, payload);
    default:
        return hear(pump, frame->kind, payload);
    }
}

/* Passes the complete frames in a copy of the first bytes to the VM. *used_p is their size. */
static pump_result_t give_run(bw_pump_t *pump, const uint8_t *at, size_t avail, budget_t *budget,
                              size_t *used_p)
{
    size_t used = 0, len = bw_least(avail, RUN_BYTES);
    ErlDrvBinary *run = driver_alloc_binary((ErlDrvSizeT)len);
    const uint8_t *copy;
    bool is_read = true;
    bw_frame_t frame;

    if (!is_had(pump, run))
        return PUMP_FAILED;
    copy = (const uint8_t *)run->orig_bytes;
    memcpy(run->orig_bytes, at, len);
    while (is_read && budget->frames > 0 &&
           parse(pump, copy + used, len - used, &frame) == BW_FRAME_WHOLE &&
           frame.kind != BW_FRAME_UNIT) {
        is_read = give_next(pump, run, used, &frame);
        used += frame.size;
        pump->frames_in++;
        budget->frames--;
    }
    driver_free_binary(run);
    *used_p = used;
    /* The first frame was complete, so if it no longer is, the peer has overwritten it. */
    return is_read && used > 0 ? PUMP_MORE : PUMP_FAILED;
}

/* Reads each byte only once, because the peer can overwrite it. */
static void read_head(const uint8_t *at, const bw_frame_t *frame, uint8_t *head, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        head[i] = ((const volatile uint8_t *)at)[frame->head + i];
}

static bool can_begin(const bw_frame_t *frame, size_t avail)
{
    return avail >= frame->size ||
           (frame->len > GATHER_PART_BYTES && avail >= frame->head + BW_FRAGMENT_HEAD_BYTES);
}

static pump_result_t begin_frame(bw_pump_t *pump, const bw_frame_t *frame, const uint8_t *at,
                                 size_t *used_p)
{
    uint8_t head[BW_FRAGMENT_HEAD_BYTES] = {0};
    size_t head_bytes = 0;

    read_head(at, frame, head, bw_least(frame->len, sizeof head));
    if (start_fragment(pump, frame, head, &head_bytes)) {
        *used_p = frame->head + head_bytes;
        return PUMP_MORE;
    }
    *used_p = frame->head;
    return start_gathering(pump, frame) ? PUMP_MORE : PUMP_FAILED;
}

static pump_result_t unit_result(bw_pump_t *pump, bw_unit_state_t state)
{
    if (state == BW_UNIT_OK)
        return PUMP_MORE;
    pump->reason = state == BW_UNIT_NO_MEMORY ? "enomem" : "beamway_compression_corrupt";
    return PUMP_FAILED;
}

/* The word of an empty unit need not be acknowledged. */
static pump_result_t begin_unit(bw_pump_t *pump, const uint8_t *at, budget_t *budget,
                                size_t *used_p)
{
    uint64_t word = bw_number(at + BW_PACKET_HEADER_BYTES, 8);

    budget->frames--;
    *used_p = BW_WORD_BYTES;
    if (word == 0)
        pump->session.told += BW_WORD_BYTES;
    return unit_result(pump, bw_packing_hear(&pump->packing, word));
}

static pump_result_t take_unit(bw_pump_t *pump, const uint8_t *at, size_t avail, size_t *used_p)
{
    *used_p = bw_least(avail, pump->packing.left);
    if (*used_p == 0)
        return PUMP_IDLE;
    return unit_result(pump, bw_packing_unpack(&pump->packing, at, *used_p));
}

/* Receives a run of frames, one frame, or as much of a frame as has arrived. If a frame was partly
 * received earlier, at most `most` bytes of it are consumed. Unless this fails, *used_p is how many
 * bytes were consumed. */
static pump_result_t take_next(bw_pump_t *pump, const uint8_t *at, size_t avail, size_t most,
                               budget_t *budget, size_t *used_p)
{
    bw_frame_state_t state;
    bw_frame_t frame;

    *used_p = 0;
    if (pump->gathered) {
        if (avail == 0)
            return PUMP_IDLE;
        return gather(pump, at, avail, most, used_p) ? PUMP_MORE : PUMP_FAILED;
    }
    if (pump->packing.left > 0)
        return take_unit(pump, at, bw_least(avail, most), used_p);
    state = parse(pump, at, avail, &frame);
    if (state == BW_FRAME_CORRUPT)
        return PUMP_FAILED;
    if (state == BW_FRAME_SHORT || !can_begin(&frame, avail))
        return PUMP_IDLE;
    if (frame.kind == BW_FRAME_UNIT)
        return begin_unit(pump, at, budget, used_p);
    if (begins_run(&frame, avail))
        return give_run(pump, at, avail, budget, used_p);
    pump->frames_in++;
    budget->frames--;
    return begin_frame(pump, &frame, at, used_p);
}

/* Reads frames from a span until they complete a unit. If the span is in a complete unit, reads
 * packets until the end of that unit. *used_p is how many bytes were consumed. After PUMP_IDLE, the
 * remaining bytes, if any, are a partial frame. */
static pump_result_t receive_span(bw_pump_t *pump, const bw_span_t *span, budget_t *budget,
                                  size_t *used_p)
{
    bool is_in_unit = bw_packing_is_full(&pump->packing);
    size_t used = 0;
    pump_result_t result = PUMP_MORE;

    while (result == PUMP_MORE && budget->frames > 0 && used < budget->bytes &&
           bw_packing_is_full(&pump->packing) == is_in_unit) {
        size_t done;

        result = take_next(pump, span->base + used, span->len - used, budget->bytes - used, budget,
                           &done);
        if (result != PUMP_FAILED)
            used += done;
    }
    *used_p = used;
    return result;
}

/* Reads packets from the complete unit, which contains only complete packets. */
static pump_result_t receive_unit(bw_pump_t *pump, budget_t *budget)
{
    bw_packing_t *packing = &pump->packing;
    bw_span_t span = {.base = packing->unit + packing->at, .len = packing->want - packing->at};
    budget_t piece = {.frames = budget->frames, .bytes = bw_least(budget->bytes, span.len)};
    pump_result_t result;
    size_t used;

    result = receive_span(pump, &span, &piece, &used);
    packing->at += used;
    budget->frames = piece.frames;
    budget->bytes -= bw_least(used, budget->bytes);
    if (result == PUMP_IDLE || (result == PUMP_FAILED && !pump->reason) ||
        (pump->gathered && packing->at == packing->want))
        result = unit_result(pump, BW_UNIT_CORRUPT);
    return result;
}

static pump_result_t receive_pieces(bw_pump_t *pump, budget_t *budget)
{
    pump_result_t result = PUMP_MORE;

    while (budget->frames > 0 && budget->bytes > 0) {
        bw_span_t span;
        size_t used = 0, most = bw_least(budget->bytes, PUBLISH_BYTES);
        budget_t piece = {.frames = budget->frames, .bytes = most};
        bw_status_t status;

        if (bw_packing_is_full(&pump->packing)) {
            if (receive_unit(pump, budget) == PUMP_FAILED)
                return PUMP_FAILED;
            continue;
        }
        status = gather_directly(pump, budget->bytes, &used);
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
        budget->bytes -= bw_least(used, budget->bytes);
        /* The carrier can read the rest of the frame directly into its place. */
        if (result == PUMP_IDLE && used > 0 && pump->gathered && pump->link->ops->read)
            continue;
        if (result != PUMP_MORE)
            return result;
    }
    return PUMP_MORE;
}

pump_result_t pump_receive_within(bw_pump_t *pump, budget_t *budget)
{
    pump_result_t result = receive_pieces(pump, budget);

    pump->input_drained = result == PUMP_IDLE;
    return result;
}

pump_result_t pump_receive(bw_pump_t *pump)
{
    budget_t budget = full_budget();

    return pump_receive_within(pump, &budget);
}
