/* SPDX-License-Identifier: Apache-2.0 */

/* The link: what the user's thread does, under the connection's lock. No call here may block: work
 * is posted, completion queues are polled and armed, and a non-blocking descriptor is read. */

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "service.h"

static bw_rdma_connection_t *connection_of(bw_link_t *link)
{
    return (bw_rdma_connection_t *)link;
}

/* Returns the connection with its lock held. */
static bw_rdma_connection_t *enter(bw_link_t *link)
{
    pthread_mutex_lock(&connection_of(link)->lock);
    return connection_of(link);
}

static void leave(bw_rdma_connection_t *connection)
{
    pthread_mutex_unlock(&connection->lock);
}

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

/* ---- completions ---- */

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

/* Called when the queue pair has failed. If one of our requests was the cause, its completion has
 * already been seen. */
static void flushed(bw_rdma_connection_t *connection)
{
    while (poll_sent(connection) > 0)
        ;
    bw_rdma_fail(connection, BW_SYSTEM, reason_of(IBV_WC_WR_FLUSH_ERR));
}

/* Handles one message and posts its slot again. */
static void receive(bw_rdma_connection_t *connection, const struct ibv_wc *completion)
{
    const uint8_t *slot = connection->memory.slots + completion->wr_id * BW_RDMA_SLOT_BYTES;
    int sys_errno;

    if (completion->status == IBV_WC_WR_FLUSH_ERR)
        flushed(connection);
    else if (completion->status != IBV_WC_SUCCESS)
        bw_rdma_fail(connection, BW_SYSTEM, reason_of(completion->status));
    else if (completion->opcode != IBV_WC_RECV ||
             bw_rdma_flow_receive(&connection->flow, slot, completion->byte_len) != BW_OK)
        bw_rdma_fail(connection, BW_CORRUPT, "beamway_link_corrupt");
    else if (!bw_rdma_verbs_post_slot(&connection->verbs, &connection->memory, completion->wr_id,
                                      &sys_errno))
        bw_rdma_fail(connection, BW_SYSTEM, "beamway_rdma_device_failed");
}

#define POLL_BATCH 16

/* Handles completed receives and returns how many there were: at most as many as there are slots,
 * so that a fast peer cannot occupy this thread. This also works on a failed link, because earlier
 * messages must still be read, possibly including the one that ends the stream. */
static unsigned poll_received(bw_rdma_connection_t *connection)
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

static void post_all(bw_rdma_connection_t *connection)
{
    bw_rdma_batch_t batch;
    int sys_errno;

    while (connection->status == BW_OK && bw_rdma_flow_next(&connection->flow, &batch)) {
        connection->posts++;
        if (!bw_rdma_verbs_post_batch(&connection->verbs, &connection->memory, &batch, &sys_errno))
            bw_rdma_fail(connection, BW_SYSTEM, "beamway_rdma_device_failed");
    }
}

#define ROUNDS 4

/* Posts everything that can be sent now. If something has to wait, the completion queues are armed,
 * and it is sent when their event arrives, whether or not the user has armed the link. */
static void post(bw_rdma_connection_t *connection)
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
            arm_queue(connection, connection->verbs.scq, &connection->scq_is_armed);
        if (poll_received(connection) + poll_sent(connection) == 0)
            break;
        post_all(connection);
    }
}

void bw_rdma_progress(bw_rdma_connection_t *connection)
{
    poll_received(connection);
    poll_sent(connection);
    post(connection);
}

bool bw_rdma_arm(bw_rdma_connection_t *connection)
{
    uint64_t head = connection->flow.rx_head;
    unsigned taken;

    arm_queue(connection, connection->verbs.rcq, &connection->rcq_is_armed);
    if (connection->flow.closing) /* wait for the completion of the last message */
        arm_queue(connection, connection->verbs.scq, &connection->scq_is_armed);
    taken = poll_received(connection);
    poll_sent(connection);
    post(connection);
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

/* ---- the table ---- */

static bw_status_t rdma_reserve(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    bw_rdma_connection_t *connection = enter(link);
    bw_rdma_flow_t *flow = &connection->flow;
    bw_status_t status = BW_AGAIN;

    if (connection->is_live && connection->status == BW_OK) {
        if (bw_rdma_flow_room(flow) < want)
            bw_rdma_progress(connection);
        span_p->base = flow->tx_data + (flow->head & (flow->size - 1));
        span_p->len = bw_rdma_flow_room(flow);
        status = span_p->len > 0 && connection->status == BW_OK ? BW_OK : BW_AGAIN;
    }
    leave(connection);
    return status;
}

static void rdma_commit(bw_link_t *link, size_t n)
{
    bw_rdma_connection_t *connection = enter(link);

    connection->flow.head += n;
    if (!connection->is_deferred && connection->is_live && connection->status == BW_OK)
        post(connection);
    leave(connection);
}

static void rdma_defer(bw_link_t *link)
{
    enter(link)->is_deferred = true;
    leave(connection_of(link));
}

static bool rdma_needs_flush(const bw_link_t *link)
{
    bw_rdma_connection_t *connection = enter((bw_link_t *)(uintptr_t)link);
    bool needs = connection->flow.head != connection->flow.posted;

    leave(connection);
    return needs;
}

/* Bytes that cannot be sent yet stay in the ring and are sent when an event arrives. */
static void rdma_flush(bw_link_t *link, bw_span_t *rest_p)
{
    bw_rdma_connection_t *connection = enter(link);

    if (connection->is_live && connection->status == BW_OK)
        post(connection);
    leave(connection);
    *rest_p = (bw_span_t){0};
}

static bw_status_t rdma_peek(bw_link_t *link, bw_span_t *span_p)
{
    bw_rdma_connection_t *connection = enter(link);
    bw_rdma_flow_t *flow = &connection->flow;
    bw_status_t status = BW_AGAIN;

    if (connection->is_live)
        bw_rdma_progress(connection);
    connection->peeked = flow->rx_head;
    if (connection->status == BW_CORRUPT) {
        status = BW_CORRUPT;
    } else if (flow->rx_head != flow->rx_tail) {
        span_p->base = flow->rx_data + (flow->rx_tail & (flow->size - 1));
        span_p->len = flow->rx_head - flow->rx_tail;
        status = BW_OK;
    } else if (connection->status != BW_OK && !flow->finished) {
        status = connection->status;
    }
    leave(connection);
    return status;
}

static void rdma_release(bw_link_t *link, size_t n)
{
    bw_rdma_connection_t *connection = enter(link);

    connection->flow.rx_tail += n;
    if (connection->is_live && connection->status == BW_OK)
        post(connection);
    leave(connection);
}

/* A link that has ended is never armed. A partial frame that the caller has peeked at but not
 * released remains unread. */
static bw_status_t rdma_arm_read(bw_link_t *link)
{
    bw_rdma_connection_t *connection = enter(link);
    bw_rdma_flow_t *flow = &connection->flow;
    bool has_ended = connection->status != BW_OK || flow->finished;
    bw_status_t status = BW_AGAIN;

    if (has_ended) {
        if (connection->is_live)
            poll_received(connection);
        if (flow->finished && flow->rx_head == flow->rx_tail) {
            status = BW_OK;
        } else if (connection->status == BW_CORRUPT || flow->rx_head == connection->peeked) {
            bw_rdma_fail(connection, BW_SYSTEM, "connection_closed");
            status = BW_CORRUPT;
        }
    } else if (connection->is_live && bw_rdma_arm(connection) &&
               flow->rx_head == connection->peeked) {
        status = BW_OK;
    }
    leave(connection);
    return status;
}

static bw_status_t rdma_arm_write(bw_link_t *link, size_t room)
{
    bw_rdma_connection_t *connection = enter(link);
    bw_status_t status = BW_OK; /* also returned for a failed link, which will never have room */

    if (connection->is_live && connection->status == BW_OK) {
        if (bw_rdma_flow_room(&connection->flow) < room) {
            if (bw_rdma_flow_is_held(&connection->flow))
                arm_queue(connection, connection->verbs.scq, &connection->scq_is_armed);
            bw_rdma_arm(connection);
        }
        if (bw_rdma_flow_room(&connection->flow) >= room)
            status = BW_AGAIN;
        else
            connection->stalls++;
    }
    leave(connection);
    return status;
}

static int rdma_fd(const bw_link_t *link)
{
    return ((const bw_rdma_connection_t *)link)->epoll;
}

static void rdma_clear_event(bw_link_t *link)
{
    bw_rdma_connection_t *connection = enter(link);
    eventfd_t count;

    if (connection->is_live)
        bw_rdma_take_events(connection);
    if (connection->rung) {
        connection->rung = false;
        (void)eventfd_read(connection->event, &count);
    }
    leave(connection);
}

static void rdma_wake_self(bw_link_t *link)
{
    bw_rdma_connection_t *connection = enter(link);

    bw_rdma_ring(connection);
    leave(connection);
}

static bool rdma_trim(bw_link_t *link)
{
    (void)link; /* registered memory must stay mapped */
    return false;
}

static void rdma_stats(const bw_link_t *link, bw_link_stats_t *stats_p)
{
    bw_rdma_connection_t *connection = enter((bw_link_t *)(uintptr_t)link);
    const bw_rdma_flow_t *flow = &connection->flow;

    *stats_p = (bw_link_stats_t){
        .bytes_in = flow->rx_tail,
        .bytes_out = flow->head,
        .doorbells_in = connection->events,
        .doorbells_out = connection->posts,
        .stalls = connection->stalls,
        .ring_bytes = flow->size,
        .fill_in = flow->rx_head - flow->rx_tail,
        .fill_out = flow->head - flow->tail,
        .unreleased = flow->head - flow->tail,
    };
    leave(connection);
}

static bool rdma_is_finished(bw_link_t *link)
{
    bw_rdma_connection_t *connection = enter(link);
    bool finished =
        connection->flow.finished && connection->flow.rx_head == connection->flow.rx_tail;

    leave(connection);
    return finished;
}

static const char *rdma_reason(bw_link_t *link)
{
    bw_rdma_connection_t *connection = enter(link);
    const char *reason = connection->reason;

    leave(connection);
    return reason;
}

/* The service thread frees the rest. */
static void rdma_close(bw_link_t *link, bw_leftover_t *left_p)
{
    if (left_p)
        *left_p = (bw_leftover_t){.socket = -1};
    bw_rdma_close(connection_of(link), left_p ? &left_p->fd : NULL);
}

static bw_status_t rdma_probe(uint64_t ring_bytes, bw_error_t *error_p)
{
    (void)ring_bytes;
    return bw_rdma_service_start(error_p);
}

const bw_carrier_t bw_rdma_carrier = {
    .kind = "rdma",
    .caps = BW_CAP_TELLS_DEATH | BW_CAP_BACKGROUND,
    .probe = rdma_probe,
    .listen = bw_rdma_listen,
    .connect = bw_rdma_connect,
    .step = bw_rdma_step,
    .reserve = rdma_reserve,
    .commit = rdma_commit,
    .defer = rdma_defer,
    .needs_flush = rdma_needs_flush,
    .flush = rdma_flush,
    .peek = rdma_peek,
    .release = rdma_release,
    .arm_read = rdma_arm_read,
    .arm_write = rdma_arm_write,
    .fd = rdma_fd,
    .clear_event = rdma_clear_event,
    .wake_self = rdma_wake_self,
    .trim = rdma_trim,
    .stats = rdma_stats,
    .is_finished = rdma_is_finished,
    .reason = rdma_reason,
    .close = rdma_close,
};
