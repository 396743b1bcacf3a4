/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_RDMA_FLOW_H
#define BW_RDMA_FLOW_H

#include "wire.h"

/*
 * Decides what one end of an rdma link has to send, and when: it tracks the positions of both
 * rings, the credits of both receive queues, and the space in the send queue. It does not depend on
 * verbs or a clock, so all of it is tested without a device (native/test/rdma/rdma_flow_test.c).
 *
 * The sender has its own ring, of the same size as the receiver's. A batch consists of the bytes
 * committed since the last one: at most two writes put them at the same position in the peer's
 * ring, and then one message reports how far the stream has advanced. If there are only a few
 * bytes, they travel in the message itself, and the receiver copies them into its ring. Every
 * message carries the tail of the other direction and the count of messages received, so neither
 * needs a message of its own while data flows.
 *
 * The reader paces a busy writer: while there are BW_RDMA_AHEAD batches that the reader has not
 * polled for yet, committed bytes only accumulate. Once the reader has polled, they are sent as one
 * batch. The last of the BW_RDMA_AHEAD batches asks for an acknowledgement. A small batch on its
 * own does not ask, so an exchange of small messages costs one message each way.
 *
 * Credits: a message needs a receive slot at the peer. The last slot is reserved for a message that
 * returns credits, that is, one that reports slots that no earlier message has reported. So even if
 * neither end has any other slot left, one of them can always send.
 */

/* The maximum number of uncompleted messages. Each needs up to 3 work requests and a buffer. */
#define BW_RDMA_WINDOW 32u
#define BW_RDMA_WORK_REQUESTS (3u * BW_RDMA_WINDOW)
#define BW_RDMA_AHEAD 2

typedef struct {
    uint64_t size;    /* of each ring */
    uint8_t *rx_data; /* mapped twice in a row */
    uint8_t *tx_data; /* mapped twice in a row */

    uint64_t head;   /* committed */
    uint64_t posted; /* how far bytes have been passed to the queue pair */
    uint64_t tail;   /* how far the peer has freed them */
    uint64_t number; /* number of the last message posted */
    uint64_t reaped; /* the last message that the send queue has completed */
    uint64_t taken;  /* the last message that the peer is known to have received */
    /* numbers of the last messages that moved data, newest first, or 0 if none */
    uint64_t data[BW_RDMA_AHEAD];
    uint64_t last_write; /* number of the last message with writes before it, or 0 if none */
    uint64_t end[BW_RDMA_WINDOW]; /* `posted` after each message, by number */
    uint64_t held_from;  /* while last_write > reaped: writes may read the ring from here on */
    uint32_t unsignaled; /* messages posted since the last signaled one */
    uint32_t slots, peer_slots;
    bool closing, closed; /* nothing more will be committed; the peer has been told so */

    uint64_t rx_head, rx_tail; /* arrived; released */
    uint64_t told_tail;
    uint32_t received, told_received;
    bool is_asked; /* the peer is waiting for an acknowledgement */
    bool finished; /* the peer will not write any more */
} bw_rdma_flow_t;

typedef struct {
    struct {
        uint64_t offset; /* in both rings */
        uint64_t len;
    } write[2];
    int writes;
    bw_rdma_message_t message;
    const uint8_t *inlined; /* message.len bytes, placed after the message */
    uint64_t number;
    bool signaled; /* the message (never a write) asks for a completion */
} bw_rdma_batch_t;

void bw_rdma_flow_init(bw_rdma_flow_t *flow, uint64_t size, uint8_t *tx_data, uint8_t *rx_data,
                       uint32_t slots, uint32_t peer_slots);

/* Sets *batch_p to the batch that must be posted now, and counts it as posted. Returns false if
 * there is nothing to send or if the batch has to wait. */
bool bw_rdma_flow_next(bw_rdma_flow_t *flow, bw_rdma_batch_t *batch_p);

/* Returns true if something waits for the peer or, if the send queue is full, for a completion. */
bool bw_rdma_flow_is_waiting(const bw_rdma_flow_t *flow);
bool bw_rdma_flow_is_full(const bw_rdma_flow_t *flow);

/* Returns true if a completion may be needed before there is more room. */
bool bw_rdma_flow_is_held(const bw_rdma_flow_t *flow);

/* Records that the send queue has completed everything up to message `number`. */
void bw_rdma_flow_reap(bw_rdma_flow_t *flow, uint64_t number);

/* Handles a message of `bytes` bytes that arrived in a slot; the caller must post the slot again
 * before the next bw_rdma_flow_next. Returns BW_OK, or BW_CORRUPT without changing anything. */
bw_status_t bw_rdma_flow_receive(bw_rdma_flow_t *flow, const uint8_t *slot, size_t bytes);

/* Returns the free bytes at head. */
uint64_t bw_rdma_flow_room(const bw_rdma_flow_t *flow);

/* Returns true if the peer has received everything, including the message that ends the stream. */
bool bw_rdma_flow_is_closed(const bw_rdma_flow_t *flow);

#endif
