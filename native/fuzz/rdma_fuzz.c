/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes what an rdma peer sends: its hello, then messages in slots, while we write and read at any
 * time.
 *
 * Input: BW_RDMA_HELLO_BYTES of a hello, then repeatedly a byte of choices: 0 to 63: we write this
 * many hundred bytes; 64 to 127: we read as many; 128 to 191: the send queue completes; above that:
 * a message, whose head is the following 24 bytes and which carries (choice - 192) * 10 bytes. This
 * checks that accesses and positions stay within the rings, and that the peer's slots and the send
 * queue are never overrun.
 */
#include "../link/rdma/flow.h"
#include "../test/rings.h"
#include "input.h"

#define RING BW_RING_MIN_BYTES

static void post(bw_rdma_flow_t *flow)
{
    bw_rdma_batch_t batch;

    while (bw_rdma_flow_next(flow, &batch)) {
        must(flow->number - flow->reaped <= BW_RDMA_WINDOW);
        must(flow->number - flow->taken <= flow->peer_slots);
        must(batch.writes <= 2 && batch.message.len <= BW_RDMA_INLINE_BYTES);
        for (int i = 0; i < batch.writes; i++)
            must(batch.write[i].offset + batch.write[i].len <= RING);
    }
    must(flow->head - flow->tail <= RING && flow->rx_head - flow->rx_tail <= RING);
    must(bw_rdma_flow_room(flow) <= RING);
}

static void move(bw_rdma_flow_t *flow, uint8_t choice)
{
    uint64_t room = bw_rdma_flow_room(flow), full = flow->rx_head - flow->rx_tail;
    uint64_t want = (choice & 63u) * 100;

    if (choice < 64) {
        flow->head += want < room ? want : room;
    } else if (choice < 128) {
        flow->rx_tail += want < full ? want : full;
    } else if (flow->number > flow->reaped) {
        bw_rdma_flow_reap(flow, flow->number);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    static uint8_t *tx, *rx;
    uint8_t slot[2 * BW_RDMA_SLOT_BYTES + 256] = {0};
    bw_error_t error = {0};
    bw_rdma_hello_t hello;
    bw_rdma_flow_t flow;

    if (!tx)
        must((tx = map_twice(RING)) && (rx = map_twice(RING)));
    if (size < BW_RDMA_HELLO_BYTES ||
        bw_rdma_hello_get(input, BW_RDMA_HELLO_BYTES, &hello, &error) != BW_OK)
        return 0;
    must(bw_ring_size_is_valid(hello.ring_bytes));
    bw_rdma_flow_init(&flow, RING, tx, rx, BW_RDMA_SLOTS, hello.slots);
    for (size_t at = BW_RDMA_HELLO_BYTES; at < size; at++) {
        if (input[at] < 192) {
            move(&flow, input[at]);
        } else {
            size_t left = size - at - 1, head = sizeof(bw_rdma_message_t);
            size_t bytes = head + (input[at] - 192u) * 10;

            memcpy(slot, input + at + 1, left < head ? left : head);
            if (bw_rdma_flow_receive(&flow, slot, bytes) != BW_OK)
                return 0;
            at += left < head ? left : head;
        }
        post(&flow);
    }
    return 0;
}
