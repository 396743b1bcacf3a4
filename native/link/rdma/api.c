/* SPDX-License-Identifier: Apache-2.0 */

/* Setting up and closing a link, as seen from the user's thread. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "../bytes.h"
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

/* Creates a connection, which the service starts to set up immediately. */
static bw_status_t order_connection(const bw_rdma_order_t *order, bw_link_t **link_p,
                                    bw_error_t *error_p)
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
    connection->link.ops = &bw_rdma_carrier;
    connection->order = *order;
    memcpy(connection->report.token, order->token, sizeof order->token);
    bw_rdma_service_request(connection, false);
    *link_p = &connection->link;
    return BW_OK;
}

static bool is_family(uint8_t family)
{
    return family == 4 || family == 6;
}

static const uint8_t *get_address(const uint8_t *at, bw_rdma_address_t *address_p)
{
    uint64_t scope, port;

    *address_p = (bw_rdma_address_t){.family = at[0]};
    memcpy(address_p->ip, at + 1, sizeof address_p->ip);
    at = bw_get(at + 1 + sizeof address_p->ip, &scope, 4);
    at = bw_get(at, &port, 2);
    address_p->scope = (uint32_t)scope;
    address_p->port = (uint16_t)port;
    return at;
}

bw_status_t bw_rdma_listen(const bw_order_t *wanted, bw_link_t **link_p, bw_error_t *error_p)
{
    bw_rdma_order_t order = {.listens = true, .ring_bytes = wanted->ring_bytes};
    uint64_t first = 0, last = 0;

    if (wanted->at_len == BW_RDMA_LISTEN_BYTES)
        bw_get(bw_get(get_address(wanted->at, &order.from), &first, 2), &last, 2);
    if (!is_family(order.from.family) || first > last || (last > 0 && first == 0))
        return bw_fail(error_p, BW_INVALID, "address or ports to listen at", EINVAL);
    order.port_first = (uint16_t)first;
    order.port_last = (uint16_t)last;
    if (getrandom(order.token, sizeof order.token, 0) != (ssize_t)sizeof order.token)
        return bw_fail(error_p, BW_SYSTEM, "getrandom", errno);
    return order_connection(&order, link_p, error_p);
}

bw_status_t bw_rdma_connect(const bw_order_t *wanted, bw_link_t **link_p, bw_error_t *error_p)
{
    bw_rdma_order_t order = {.ring_bytes = wanted->ring_bytes, .timeout_ms = wanted->timeout_ms};

    if (wanted->at_len == BW_RDMA_CONNECT_BYTES)
        (void)get_address(get_address(wanted->at, &order.from), &order.to);
    memcpy(order.token, wanted->token, sizeof order.token);
    if (!is_family(order.to.family) || order.to.port == 0 ||
        (order.from.family != 0 && order.from.family != order.to.family))
        return bw_fail(error_p, BW_INVALID, "address to connect to", EINVAL);
    if (!bw_ring_size_is_valid(wanted->ring_bytes))
        return bw_fail(error_p, BW_INVALID, "ring size", EINVAL);
    return order_connection(&order, link_p, error_p);
}

/* Sends the last bytes immediately if possible; the service waits until they have arrived. The
 * descriptor is passed to the caller, who may still poll it for a while, so everything that could
 * make it readable is removed from it here. */
void bw_rdma_close(bw_link_t *link, bw_leftover_t *left_p)
{
    bw_rdma_connection_t *connection = (bw_rdma_connection_t *)link;

    pthread_mutex_lock(&connection->lock);
    connection->flow.closing = true;
    if (connection->is_live)
        bw_rdma_progress(connection);
    (void)epoll_ctl(connection->epoll, EPOLL_CTL_DEL, connection->event, NULL);
    if (connection->verbs.channel)
        (void)epoll_ctl(connection->epoll, EPOLL_CTL_DEL, connection->verbs.channel->fd, NULL);
    if (left_p)
        *left_p = (bw_leftover_t){.fd = connection->epoll, .socket = -1};
    else
        close(connection->epoll);
    connection->epoll = -1;
    pthread_mutex_unlock(&connection->lock);
    bw_rdma_service_request(connection, true);
}
