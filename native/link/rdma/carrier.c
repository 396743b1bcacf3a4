/* SPDX-License-Identifier: Apache-2.0 */

/* The function table, and what the user's thread does with a link, under the connection's lock. No
 * call here may block. Nothing else in this directory calls this file. */

#include <sys/eventfd.h>

#include "../carriers.h"
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
        bw_rdma_post(connection);
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
        bw_rdma_post(connection);
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
        bw_rdma_post(connection);
    leave(connection);
}

/* A link that has ended is not armed. A peeked partial frame that is not released stays unread. */
static bw_status_t rdma_arm_read(bw_link_t *link)
{
    bw_rdma_connection_t *connection = enter(link);
    bw_rdma_flow_t *flow = &connection->flow;
    bool has_ended = connection->status != BW_OK || flow->finished;
    bw_status_t status = BW_AGAIN;

    if (has_ended) {
        if (connection->is_live)
            bw_rdma_poll_received(connection);
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
                bw_rdma_arm_sent(connection);
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

static bw_status_t rdma_probe(uint64_t ring_bytes, bw_error_t *error_p)
{
    (void)ring_bytes;
    return bw_rdma_service_start(error_p);
}

static void rdma_step(bw_link_t *link, bw_report_t *report_p)
{
    bw_rdma_connection_t *connection;

    rdma_clear_event(link);
    connection = enter(link);
    *report_p = connection->report;
    leave(connection);
}

const bw_carrier_t bw_rdma_carrier = {
    .kind = "rdma",
    .caps = BW_CAP_TELLS_DEATH | BW_CAP_BACKGROUND,
    .probe = rdma_probe,
    .listen = bw_rdma_listen,
    .connect = bw_rdma_connect,
    .step = rdma_step,
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
    .close = bw_rdma_close,
};

/* The shared object's only symbol. */
__attribute__((visibility("default"))) bw_carrier_fn bw_carrier;

const bw_carrier_t *bw_carrier(uint32_t version, bw_error_t *error_p)
{
    if (version != BW_CARRIER_VERSION) {
        (void)bw_fail(error_p, BW_REFUSED,
                      "beamway_rdma.so is of another version than the driver: build both", 0);
        return NULL;
    }
    return bw_rdma_service_start(error_p) == BW_OK ? &bw_rdma_carrier : NULL;
}
