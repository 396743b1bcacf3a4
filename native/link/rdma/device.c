/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Devices that links use or have used. librdmacm opens each device once per process and keeps it
 * open, so all asynchronous events of a device arrive here and are passed on to its links.
 *
 * A device cannot be removed while this process has it open. The sentinel, an id without a
 * connection, is notified of a removal even if no link uses the device any more. The descriptors
 * are then closed without librdmacm, which would do so only when it next lists the devices.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "service.h"

struct bw_rdma_device {
    bw_rdma_source_t source; /* first member, for the cast */
    struct ibv_context *context;
    struct rdma_cm_id *sentinel; /* NULL if it could not be created */
    uint32_t users;
    bool is_gone;
    bw_rdma_device_t *next;
};

static bw_rdma_device_t *devices;

static bool is_about(const struct ibv_async_event *event, const bw_rdma_connection_t *connection)
{
    switch (event->event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
        return event->element.qp == connection->verbs.qp;
    case IBV_EVENT_CQ_ERR:
        return event->element.cq == connection->verbs.rcq ||
               event->element.cq == connection->verbs.scq;
    case IBV_EVENT_PORT_ERR:
        return event->element.port_num == connection->id->port_num;
    default:
        return false; /* does not affect an established connection */
    }
}

static const char *reason_of(enum ibv_event_type type)
{
    return type == IBV_EVENT_PORT_ERR        ? "beamway_rdma_port_is_down"
           : type == IBV_EVENT_QP_ACCESS_ERR ? "beamway_rdma_peer_wrote_elsewhere"
           : type == IBV_EVENT_CQ_ERR        ? "beamway_rdma_completion_queue_failed"
                                             : "beamway_rdma_queue_pair_failed";
}

static void remove_device(bw_rdma_device_t *device);

static void async_event(bw_rdma_source_t *source)
{
    bw_rdma_device_t *device = (bw_rdma_device_t *)source;
    struct ibv_async_event event;
    bool is_fatal;

    if (ibv_get_async_event(device->context, &event) != 0)
        return;
    for (bw_rdma_connection_t *connection = bw_rdma_service_connections(); connection;
         connection = connection->next)
        if (connection->device == device && connection->id && connection->verbs.qp &&
            is_about(&event, connection))
            bw_rdma_link_fail(connection, reason_of(event.event_type));
    is_fatal = event.event_type == IBV_EVENT_DEVICE_FATAL;
    ibv_ack_async_event(&event);
    if (is_fatal)
        remove_device(device);
}

static struct rdma_cm_id *make_sentinel(struct rdma_cm_id *like)
{
    struct sockaddr_storage at = {0};
    struct rdma_cm_id *id;

    memcpy(&at, rdma_get_local_addr(like), sizeof(struct sockaddr_in6));
    if (at.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&at)->sin6_port = 0;
    else
        ((struct sockaddr_in *)&at)->sin_port = 0;
    if (rdma_create_id(bw_rdma_service_channel(), &id, NULL, RDMA_PS_TCP) != 0)
        return NULL;
    if (rdma_bind_addr(id, (struct sockaddr *)&at) == 0 && id->verbs == like->verbs)
        return id;
    rdma_destroy_id(id);
    return NULL;
}

bw_rdma_device_t *bw_rdma_device_get(struct rdma_cm_id *id)
{
    bw_rdma_device_t *device;
    int flags;

    for (device = devices; device; device = device->next)
        if (device->context == id->verbs && !device->is_gone)
            break;
    if (!device) {
        device = calloc(1, sizeof *device);
        if (!device)
            return NULL;
        device->source.ready = async_event;
        device->context = id->verbs;
        flags = fcntl(id->verbs->async_fd, F_GETFL);
        if (flags < 0 || fcntl(id->verbs->async_fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
            !bw_rdma_service_watch(id->verbs->async_fd, &device->source)) {
            free(device);
            return NULL;
        }
        device->sentinel = make_sentinel(id);
        device->next = devices;
        devices = device;
    }
    device->users++;
    return device;
}

/* Makes the kernel release the device; librdmacm closes the replacements later. */
static void close_under_librdmacm(const struct ibv_context *context)
{
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (nothing < 0)
        return;
    (void)dup3(nothing, context->async_fd, O_CLOEXEC);
    (void)dup3(nothing, context->cmd_fd, O_CLOEXEC);
    close(nothing);
}

static void forget(bw_rdma_device_t *device)
{
    bw_rdma_device_t **at = &devices;

    while (*at != device)
        at = &(*at)->next;
    *at = device->next;
    close_under_librdmacm(device->context);
    free(device);
}

/* If the device is still present, its sentinel and its events are kept. */
void bw_rdma_device_put(bw_rdma_device_t *device)
{
    if (device && --device->users == 0 && device->is_gone)
        forget(device);
}

static void remove_device(bw_rdma_device_t *device)
{
    if (device->is_gone)
        return;
    device->is_gone = true;
    device->users++; /* our own reference, so that it survives until the end of this call */
    bw_rdma_service_forget(device->context->async_fd);
    bw_rdma_listener_device_removed(device);
    for (bw_rdma_connection_t *connection = bw_rdma_service_connections(); connection;
         connection = connection->next)
        if (connection->device == device)
            bw_rdma_connection_device_removed(connection);
    if (device->sentinel)
        rdma_destroy_id(device->sentinel);
    bw_rdma_device_put(device);
}

void bw_rdma_device_is_removed(struct rdma_cm_id *id)
{
    for (bw_rdma_device_t *device = devices; device; device = device->next)
        if (device->context == id->verbs && !device->is_gone) {
            remove_device(device);
            return;
        }
}
