/* SPDX-License-Identifier: Apache-2.0 */

/* Listeners for peers: one port of the connection manager per address, shared by all connections
 * that wait there. A peer's token selects the connection. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../bytes.h"
#include "../token.h"
#include "address.h"
#include "service.h"

#define BACKLOG 64

struct bw_rdma_listener {
    struct rdma_cm_id *id;
    bw_rdma_device_t *device;
    bw_rdma_address_t at; /* including the port */
    uint32_t connections;
    bw_rdma_listener_t *next;
};

static bw_rdma_listener_t *listeners;

static bool is_same_place(const bw_rdma_address_t *left, const bw_rdma_address_t *right)
{
    return left->family == right->family && left->scope == right->scope &&
           memcmp(left->ip, right->ip, sizeof left->ip) == 0;
}

static bool is_any(const bw_rdma_address_t *address)
{
    static const uint8_t any[16];

    return memcmp(address->ip, any, sizeof any) == 0;
}

static void destroy(bw_rdma_listener_t *listener)
{
    bw_rdma_listener_t **at = &listeners;

    while (*at != listener)
        at = &(*at)->next;
    *at = listener->next;
    rdma_destroy_id(listener->id);
    bw_rdma_device_put(listener->device);
    free(listener);
}

/* Returns an id listening at the port, or NULL with errno set. */
static struct rdma_cm_id *listen_at(const bw_rdma_order_t *order, uint32_t port)
{
    struct sockaddr_storage at;
    struct rdma_cm_id *id;
    int saved;

    if (rdma_create_id(bw_rdma_service_channel(), &id, NULL, RDMA_PS_TCP) != 0)
        return NULL;
    bw_rdma_sockaddr(&order->from, (uint16_t)port, &at);
    if (rdma_bind_addr(id, (struct sockaddr *)&at) == 0 && rdma_listen(id, BACKLOG) == 0)
        return id;
    saved = errno;
    rdma_destroy_id(id);
    errno = saved;
    return NULL;
}

static struct rdma_cm_id *listen_in_range(const bw_rdma_order_t *order)
{
    struct rdma_cm_id *id = NULL;

    for (uint32_t port = order->port_first; !id && port <= order->port_last; port++) {
        id = listen_at(order, port);
        if (!id && errno != EADDRINUSE)
            break;
    }
    return id;
}

static bw_rdma_listener_t *make(bw_rdma_connection_t *connection)
{
    const bw_rdma_order_t *order = &connection->order;
    bw_rdma_listener_t *listener;
    char where[BW_RDMA_ADDRESS_TEXT];
    struct rdma_cm_id *id;

    bw_rdma_address_text(&order->from, where);
    id = listen_in_range(order);
    if (!id) {
        bw_rdma_connection_fail(
            connection, BW_SYSTEM,
            errno == EADDRINUSE ? "no port of %u to %u is free for rdma at %s (rdma_ports): %s"
                                : "listening at a port of %u to %u for rdma at %s: %s",
            order->port_first, order->port_last, where,
            errno == ENODEV || errno == EADDRNOTAVAIL ? "no RDMA device has this address"
                                                      : strerror(errno));
        return NULL;
    }
    listener = calloc(1, sizeof *listener);
    if (listener && id->verbs)
        listener->device = bw_rdma_device_get(id);
    /* If the address belongs to no particular device, each peer's request determines it. */
    if (!listener || (!listener->device && !is_any(&order->from))) {
        rdma_destroy_id(id);
        bw_rdma_connection_fail(connection, BW_SYSTEM, "no RDMA device has the address %s", where);
        free(listener);
        return NULL;
    }
    listener->id = id;
    listener->at = order->from;
    listener->at.port = ntohs(rdma_get_src_port(id));
    listener->next = listeners;
    listeners = listener;
    return listener;
}

bool bw_rdma_listener_join(bw_rdma_connection_t *connection)
{
    const bw_rdma_order_t *order = &connection->order;
    bw_rdma_listener_t *listener;

    for (listener = listeners; listener; listener = listener->next)
        if (is_same_place(&listener->at, &order->from) &&
            (order->port_last == 0 ||
             (listener->at.port >= order->port_first && listener->at.port <= order->port_last)))
            break;
    if (!listener)
        listener = make(connection);
    if (!listener)
        return false;
    listener->connections++;
    connection->listener = listener;
    pthread_mutex_lock(&connection->lock);
    connection->report.state = BW_LISTENING;
    connection->report.address_len = BW_RDMA_PORT_BYTES;
    bw_put(connection->report.address, listener->at.port, BW_RDMA_PORT_BYTES);
    bw_rdma_describe(listener->id, &connection->report);
    bw_rdma_ring(connection);
    pthread_mutex_unlock(&connection->lock);
    return true;
}

void bw_rdma_listener_leave(bw_rdma_connection_t *connection)
{
    bw_rdma_listener_t *listener = connection->listener;

    connection->listener = NULL;
    if (listener && --listener->connections == 0)
        destroy(listener);
}

bw_rdma_listener_t *bw_rdma_listener_of(const struct rdma_cm_id *id)
{
    bw_rdma_listener_t *listener = listeners;

    while (listener && listener->id != id)
        listener = listener->next;
    return listener;
}

bw_rdma_connection_t *bw_rdma_listener_find(const bw_rdma_listener_t *listener,
                                            const uint8_t *token)
{
    bw_rdma_connection_t *found = NULL;

    for (bw_rdma_connection_t *connection = bw_rdma_service_connections(); connection;
         connection = connection->next)
        if (connection->listener == listener && bw_token_is_same(connection->order.token, token))
            found = connection;
    return found;
}

void bw_rdma_listener_device_removed(const bw_rdma_device_t *device)
{
    for (bw_rdma_connection_t *connection = bw_rdma_service_connections(); connection;
         connection = connection->next)
        if (connection->listener && connection->listener->device == device)
            bw_rdma_connection_fail(connection, BW_SYSTEM, "the RDMA device was removed");
}
