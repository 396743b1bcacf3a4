/* SPDX-License-Identifier: Apache-2.0 */
#include "flow.h"

#include <string.h>

/* The peer is notified at the latest when a quarter of the ring or half of the slots are free. A
 * producer waits for at most half the ring; the consumer may leave a sixteenth of it unread. */
#define TELL_RING_PART 4
#define TELL_SLOTS_PART 2

/* The maximum size of a batch, as a fraction of the ring and in bytes. This limit lets the peer
 * read one batch while the next is being written. */
#define BATCH_RING_PART 4
#define BATCH_BYTES ((uint64_t)1024 * 1024)

/* A batch of this size asks for an acknowledgement, so that the next follows without a gap. */
#define ASKING_BYTES ((uint64_t)16 * 1024)

/* At most this many messages in a row request no completion, or the send queue would fill up. */
#define UNSIGNALED_MAX (BW_RDMA_WINDOW / 4)

void bw_rdma_flow_init(bw_rdma_flow_t *flow, uint64_t size, uint8_t *tx_data, uint8_t *rx_data,
                       uint32_t slots, uint32_t peer_slots)
{
    *flow = (bw_rdma_flow_t){.size = size,
                             .tx_data = tx_data,
                             .rx_data = rx_data,
                             .slots = slots,
                             .peer_slots = peer_slots};
}

/* Returns how many of the last batches the peer is not known to have received. */
static int ahead(const bw_rdma_flow_t *flow)
{
    int count = 0;

    while (count < BW_RDMA_AHEAD && flow->data[count] > flow->taken)
        count++;
    return count;
}

static uint64_t credits(const bw_rdma_flow_t *flow)
{
    return flow->peer_slots - (flow->number - flow->taken);
}

static bool has_data(const bw_rdma_flow_t *flow)
{
    return flow->head != flow->posted || (flow->closing && !flow->closed);
}

static bool owes_room(const bw_rdma_flow_t *flow)
{
    return flow->rx_tail - flow->told_tail >= flow->size / TELL_RING_PART;
}

static bool owes_credits(const bw_rdma_flow_t *flow)
{
    return flow->is_asked || flow->received - flow->told_received >= flow->slots / TELL_SLOTS_PART;
}

bool bw_rdma_flow_is_full(const bw_rdma_flow_t *flow)
{
    return flow->number - flow->reaped == BW_RDMA_WINDOW;
}

bool bw_rdma_flow_is_waiting(const bw_rdma_flow_t *flow)
{
    return has_data(flow) || owes_room(flow) || owes_credits(flow);
}

/* Returns true until the completion of every write is known, because a device may have to read the
 * bytes again to retransmit them. */
bool bw_rdma_flow_is_held(const bw_rdma_flow_t *flow)
{
    return flow->last_write > flow->reaped;
}

static void put_data(bw_rdma_flow_t *flow, bw_rdma_batch_t *batch)
{
    uint64_t most = bw_least(flow->size / BATCH_RING_PART, BATCH_BYTES);
    uint64_t len = bw_least(flow->head - flow->posted, most);
    uint64_t offset = flow->posted & (flow->size - 1), first = bw_least(len, flow->size - offset);

    if (len <= BW_RDMA_INLINE_BYTES) {
        batch->inlined = flow->tx_data + offset;
        batch->message.len = (uint16_t)len;
    } else {
        if (!bw_rdma_flow_is_held(flow))
            flow->held_from = flow->posted;
        flow->last_write = flow->number;
        batch->write[batch->writes].offset = offset;
        batch->write[batch->writes++].len = first;
        if (first < len) {
            batch->write[batch->writes].offset = 0;
            batch->write[batch->writes++].len = len - first;
        }
    }
    flow->posted += len;
    if (flow->closing && flow->posted == flow->head) {
        flow->closed = true;
        batch->message.flags |= BW_RDMA_FINISHED;
    }
    if (ahead(flow) == BW_RDMA_AHEAD - 1 || len >= ASKING_BYTES)
        batch->message.flags |= BW_RDMA_TELL;
    memmove(flow->data + 1, flow->data, (BW_RDMA_AHEAD - 1) * sizeof *flow->data);
    flow->data[0] = flow->number;
}

static void put_message(bw_rdma_flow_t *flow, bw_rdma_batch_t *batch)
{
    batch->message.head = flow->posted;
    batch->message.tail = flow->told_tail = flow->rx_tail;
    batch->message.received = flow->told_received = flow->received;
    flow->is_asked = false;
    batch->number = flow->number;
    flow->end[flow->number % BW_RDMA_WINDOW] = flow->posted;
    flow->unsignaled = batch->signaled ? 0 : flow->unsignaled + 1;
}

bool bw_rdma_flow_next(bw_rdma_flow_t *flow, bw_rdma_batch_t *batch_p)
{
    /* When closing, this end does not wait for the reader, which may stay busy for longer than the
     * link is kept. */
    bool with_data = has_data(flow) && (ahead(flow) < BW_RDMA_AHEAD || flow->closing);

    if (bw_rdma_flow_is_full(flow))
        return false;
    if (credits(flow) < 2 && !(credits(flow) == 1 && owes_credits(flow)))
        return false;
    if (!with_data && !owes_room(flow) && !owes_credits(flow))
        return false;
    memset(batch_p, 0, sizeof *batch_p);
    flow->number++;
    if (with_data)
        put_data(flow, batch_p);
    batch_p->signaled =
        batch_p->writes > 0 || flow->closed || flow->unsignaled + 1 >= UNSIGNALED_MAX;
    put_message(flow, batch_p);
    return true;
}

void bw_rdma_flow_reap(bw_rdma_flow_t *flow, uint64_t number)
{
    uint64_t end = flow->end[number % BW_RDMA_WINDOW];

    flow->reaped = number;
    if (bw_rdma_flow_is_held(flow) && flow->posted - end < flow->posted - flow->held_from)
        flow->held_from = end;
}

/* Checks every field before any of them is used. */
static bool is_valid(const bw_rdma_flow_t *flow, const bw_rdma_message_t *message, size_t bytes)
{
    uint64_t more = message->head - flow->rx_head;
    uint64_t free_bytes = flow->size - (flow->rx_head - flow->told_tail);
    uint32_t taken = message->received - (uint32_t)flow->taken;

    return bytes == sizeof *message + message->len && (message->len == 0 || message->len == more) &&
           more <= free_bytes && (more == 0 || !flow->finished) &&
           message->tail - flow->tail <= flow->posted - flow->tail &&
           taken <= flow->number - flow->taken && (message->flags & ~BW_RDMA_FLAGS) == 0;
}

bw_status_t bw_rdma_flow_receive(bw_rdma_flow_t *flow, const uint8_t *slot, size_t bytes)
{
    bw_rdma_message_t message;

    if (bytes < sizeof message || bytes > BW_RDMA_SLOT_BYTES)
        return BW_CORRUPT;
    memcpy(&message, slot, sizeof message);
    if (!is_valid(flow, &message, bytes))
        return BW_CORRUPT;
    memcpy(flow->rx_data + (flow->rx_head & (flow->size - 1)), slot + sizeof message, message.len);
    flow->rx_head = message.head;
    flow->tail = message.tail;
    flow->taken += message.received - (uint32_t)flow->taken;
    flow->finished = flow->finished || (message.flags & BW_RDMA_FINISHED);
    flow->is_asked = flow->is_asked || (message.flags & BW_RDMA_TELL);
    flow->received++;
    return BW_OK;
}

/* The bytes of a posted write stay in the ring until the write completes, even if the peer has
 * already freed them. */
uint64_t bw_rdma_flow_room(const bw_rdma_flow_t *flow)
{
    uint64_t used = flow->head - flow->tail;
    uint64_t held = bw_rdma_flow_is_held(flow) ? flow->head - flow->held_from : 0;

    return flow->size - (held > used ? held : used);
}

bool bw_rdma_flow_is_closed(const bw_rdma_flow_t *flow)
{
    return flow->closed && flow->reaped == flow->number;
}
