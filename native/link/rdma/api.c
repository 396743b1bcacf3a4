/* SPDX-License-Identifier: Apache-2.0 */

/* The functions of rdma.h, as the user's thread calls them. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "service.h"

static bool make_descriptors(bw_rdma_connection_t *connection)
{
    struct epoll_event event = {.events = EPOLLIN};
    int saved;

    connection->epoll = epoll_create1(EPOLL_CLOEXEC);
    connection->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (connection->epoll >= 0 && connection->event >= 0 &&
        epoll_ctl(connection->epoll, EPOLL_CTL_ADD, connection->event, &event) == 0)
        return true;
    saved = errno;
    if (connection->epoll >= 0)
        close(connection->epoll);
    if (connection->event >= 0)
        close(connection->event);
    errno = saved;
    return false;
}

/* A connection that the service begins at once. */
static bw_status_t order_connection(const bw_rdma_order_t *order,
                                    bw_rdma_connection_t **connection_p, bw_error_t *error_p)
{
    bw_rdma_connection_t *connection = calloc(1, sizeof *connection);

    if (!connection)
        return bw_fail(error_p, BW_LIMIT, "memory for the link", ENOMEM);
    if (!make_descriptors(connection)) {
        int saved = errno;

        free(connection);
        return bw_fail(error_p, BW_LIMIT, "descriptors for the link", saved);
    }
    pthread_mutex_init(&connection->lock, NULL);
    connection->link.ops = &bw_rdma_link_ops;
    connection->order = *order;
    memcpy(connection->report.token, order->token, sizeof order->token);
    bw_rdma_service_request(connection, false);
    *connection_p = connection;
    return BW_OK;
}

static bool is_family(uint8_t family)
{
    return family == 4 || family == 6;
}

static bw_status_t api_listen(const bw_rdma_address_t *at, uint16_t port_first, uint16_t port_last,
                              uint64_t max_ring_bytes, bw_rdma_connection_t **connection_p,
                              bw_error_t *error_p)
{
    bw_rdma_order_t order = {.listens = true,
                             .from = *at,
                             .port_first = port_first,
                             .port_last = port_last,
                             .ring_bytes = max_ring_bytes};

    if (!is_family(at->family) || port_first > port_last || (port_last > 0 && port_first == 0))
        return bw_fail(error_p, BW_INVALID, "address or ports to listen at", EINVAL);
    if (getrandom(order.token, sizeof order.token, 0) != (ssize_t)sizeof order.token)
        return bw_fail(error_p, BW_SYSTEM, "getrandom", errno);
    return order_connection(&order, connection_p, error_p);
}

static bw_status_t api_connect(const bw_rdma_address_t *from, const bw_rdma_address_t *to,
                               const uint8_t token[BW_RDMA_TOKEN_BYTES], uint64_t ring_bytes,
                               uint32_t timeout_ms, bw_rdma_connection_t **connection_p,
                               bw_error_t *error_p)
{
    bw_rdma_order_t order = {.to = *to, .ring_bytes = ring_bytes, .timeout_ms = timeout_ms};

    if (from)
        order.from = *from;
    memcpy(order.token, token, sizeof order.token);
    if (!is_family(to->family) || to->port == 0 || (from && from->family != to->family))
        return bw_fail(error_p, BW_INVALID, "address to connect to", EINVAL);
    if (!bw_ring_size_is_valid(ring_bytes))
        return bw_fail(error_p, BW_INVALID, "ring size", EINVAL);
    return order_connection(&order, connection_p, error_p);
}

static int api_fd(const bw_rdma_connection_t *connection)
{
    return connection->epoll;
}

static void api_look(bw_rdma_connection_t *connection, bw_rdma_report_t *report_p)
{
    connection->link.ops->clear_event(&connection->link);
    pthread_mutex_lock(&connection->lock);
    *report_p = connection->report;
    pthread_mutex_unlock(&connection->lock);
}

static bw_link_t *api_take(bw_rdma_connection_t *connection)
{
    return &connection->link;
}

/* The last word goes out at once if it can; the service waits until it has arrived. The descriptor
 * goes quiet here, since whoever gets it may poll it a little longer. */
void bw_rdma_api_close(bw_rdma_connection_t *connection, int *fd_p)
{
    pthread_mutex_lock(&connection->lock);
    connection->flow.closing = true;
    if (connection->is_live)
        bw_rdma_progress(connection);
    (void)epoll_ctl(connection->epoll, EPOLL_CTL_DEL, connection->event, NULL);
    if (connection->verbs.channel)
        (void)epoll_ctl(connection->epoll, EPOLL_CTL_DEL, connection->verbs.channel->fd, NULL);
    if (fd_p)
        *fd_p = connection->epoll;
    else
        close(connection->epoll);
    connection->epoll = -1;
    pthread_mutex_unlock(&connection->lock);
    bw_rdma_service_request(connection, true);
}

static const bw_rdma_api_t api = {
    .version = BW_RDMA_API_VERSION,
    .listen = api_listen,
    .connect = api_connect,
    .fd = api_fd,
    .look = api_look,
    .take = api_take,
    .close = bw_rdma_api_close,
};

__attribute__((visibility("default"))) const bw_rdma_api_t *bw_rdma_api(uint32_t version,
                                                                        bw_error_t *error_p);

const bw_rdma_api_t *bw_rdma_api(uint32_t version, bw_error_t *error_p)
{
    if (version != BW_RDMA_API_VERSION) {
        (void)bw_fail(error_p, BW_REFUSED,
                      "beamway_rdma.so is of another version than the driver: build both", 0);
        return NULL;
    }
    return bw_rdma_service_start(error_p) == BW_OK ? &api : NULL;
}
