/* SPDX-License-Identifier: Apache-2.0 */

/* What both threads do with a connection's completions and messages, under its lock. No call here
 * may block: work is posted, and completion queues are polled and armed. */

#include <sys/eventfd.h>

#include "service.h"

void bw_rdma_ring(bw_rdma_connection_t *connection)
{
    connection->rung = true;
    (void)eventfd_write(connection->event, 1);
}

void bw_rdma_fail(bw_rdma_connection_t *connection, bw_status_t status, const char *reason)
{
    if (connection->status != BW_OK)
        return;
    connection->status = status;
    connection->reason = reason;
    bw_rdma_ring(connection);
}

static const char *reason_of(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
        return "beamway_rdma_peer_is_silent";
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return "beamway_rdma_peer_has_no_slots";
    case IBV_WC_REM_ACCESS_ERR:
        return "beamway_rdma_peer_refuses_writes";
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
        return "beamway_rdma_peer_failed";
    case IBV_WC_WR_FLUSH_ERR:
        return "connection_closed";
    default:
        return "beamway_rdma_device_failed";
    }
}

static unsigned poll_sent(bw_rdma_connection_t *connection);

/* The queue pair has failed. If one of our requests was the cause, its completion came first. */
static void flushed(bw_rdma_connection_t *connection)
{
    while (poll_sent(connection) > 0)
        ;
    bw_rdma_fail(connection, BW_SYSTEM, reason_of(IBV_WC_WR_FLUSH_ERR));
}

static void receive(bw_rdma_connection_t *connection, const struct ibv_wc *completion)
{
    const uint8_t *slot = connection->memory.slots + completion->wr_id * BW_RDMA_SLOT_BYTES;

    if (completion->status == IBV_WC_WR_FLUSH_ERR)
        flushed(connection);
    else if (completion->status != IBV_WC_SUCCESS)
        bw_rdma_fail(connection, BW_SYSTEM, reason_of(completion->status));
    else if (completion->opcode != IBV_WC_RECV ||
             bw_rdma_flow_receive(&connection->flow, slot, completion->byte_len) != BW_OK)
        bw_rdma_fail(connection, BW_CORRUPT, "beamway_link_corrupt");
    else if (!bw_rdma_verbs_post_slot(&connection->verbs, &connection->memory, completion->wr_id))
        bw_rdma_fail(connection, BW_SYSTEM, "beamway_rdma_device_failed");
}

#define POLL_BATCH 16

unsigned bw_rdma_poll_received(bw_rdma_connection_t *connection)
{
    struct ibv_wc completion[POLL_BATCH];
    unsigned taken = 0;
    int count = POLL_BATCH;

    while (connection->status != BW_CORRUPT && count == POLL_BATCH && taken < BW_RDMA_SLOTS) {
        count = ibv_poll_cq(connection->verbs.rcq, POLL_BATCH, completion);
        if (count < 0)
            bw_rdma_fail(connection, BW_SYSTEM, "beamway_rdma_device_failed");
        for (int i = 0; i < count && connection->status != BW_CORRUPT; i++, taken++)
            receive(connection, &completion[i]);
    }
    return taken;
}

static unsigned poll_sent(bw_rdma_connection_t *connection)
{
    struct ibv_wc completion[POLL_BATCH];
    int count;

    if (connection->status != BW_OK || connection->flow.reaped == connection->flow.number)
        return 0;
    count = ibv_poll_cq(connection->verbs.scq, POLL_BATCH, completion);
    if (count < 0)
        bw_rdma_fail(connection, BW_SYSTEM, "beamway_rdma_device_failed");
    for (int i = 0; i < count && connection->status == BW_OK; i++)
        if (completion[i].status == IBV_WC_SUCCESS)
            bw_rdma_flow_reap(&connection->flow, completion[i].wr_id);
        else
            bw_rdma_fail(connection, BW_SYSTEM, reason_of(completion[i].status));
    return count < 0 ? 0 : (unsigned)count;
}

static void arm_queue(bw_rdma_connection_t *connection, struct ibv_cq *queue, bool *is_armed)
{
    if (*is_armed)
        return;
    *is_armed = ibv_req_notify_cq(queue, 0) == 0;
    if (!*is_armed)
        bw_rdma_fail(connection, BW_SYSTEM, "beamway_rdma_device_failed");
}

void bw_rdma_arm_sent(bw_rdma_connection_t *connection)
{
    arm_queue(connection, connection->verbs.scq, &connection->scq_is_armed);
}

static void post_all(bw_rdma_connection_t *connection)
{
    bw_rdma_batch_t batch;

    while (connection->status == BW_OK && bw_rdma_flow_next(&connection->flow, &batch)) {
        connection->posts++;
        if (!bw_rdma_verbs_post_batch(&connection->verbs, &connection->memory, &batch))
            bw_rdma_fail(connection, BW_SYSTEM, "beamway_rdma_device_failed");
    }
}

#define ROUNDS 4

void bw_rdma_post(bw_rdma_connection_t *connection)
{
    bw_rdma_flow_t *flow = &connection->flow;

    post_all(connection);
    for (int round = 0; connection->status == BW_OK && bw_rdma_flow_is_waiting(flow); round++) {
        if (round == ROUNDS) { /* the peer is too fast; let others run first */
            bw_rdma_ring(connection);
            break;
        }
        arm_queue(connection, connection->verbs.rcq, &connection->rcq_is_armed);
        if (bw_rdma_flow_is_full(flow))
            bw_rdma_arm_sent(connection);
        if (bw_rdma_poll_received(connection) + poll_sent(connection) == 0)
            break;
        post_all(connection);
    }
}

void bw_rdma_progress(bw_rdma_connection_t *connection)
{
    bw_rdma_poll_received(connection);
    poll_sent(connection);
    bw_rdma_post(connection);
}

bool bw_rdma_arm(bw_rdma_connection_t *connection)
{
    uint64_t head = connection->flow.rx_head;
    unsigned taken;

    arm_queue(connection, connection->verbs.rcq, &connection->rcq_is_armed);
    if (connection->flow.closing) /* wait for the completion of the last message */
        bw_rdma_arm_sent(connection);
    taken = bw_rdma_poll_received(connection);
    poll_sent(connection);
    bw_rdma_post(connection);
    return connection->status == BW_OK && connection->flow.rx_head == head && taken < BW_RDMA_SLOTS;
}

void bw_rdma_take_events(bw_rdma_connection_t *connection)
{
    struct ibv_cq *queue;
    void *context;

    while ((connection->rcq_is_armed || connection->scq_is_armed) &&
           ibv_get_cq_event(connection->verbs.channel, &queue, &context) == 0) {
        ibv_ack_cq_events(queue, 1);
        connection->events++;
        if (queue == connection->verbs.rcq)
            connection->rcq_is_armed = false;
        else
            connection->scq_is_armed = false;
    }
}
