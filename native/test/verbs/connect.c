/* SPDX-License-Identifier: Apache-2.0 */

/* The functions of the connection manager. */

#include "inside.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

EXPORT struct rdma_event_channel *rdma_create_event_channel(void)
{
    cm_t *cm = make(sizeof *cm);

    lock();
    if (fake_host->is_removed || !fake_start() || !fake_mailbox_open(&cm->events)) {
        if (fake_host->is_removed)
            errno = ENODEV;
        free(cm);
        unlock(0);
        return NULL;
    }
    cm->channel.fd = cm->events.reader;
    unlock(0);
    return &cm->channel;
}

EXPORT void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
    lock();
    for (conn_t *conn = fake.conns; conn; conn = conn->next)
        if (conn->id.channel == channel)
            broken("an event channel is destroyed before its ids");
    fake_mailbox_close(&((cm_t *)channel)->events);
    free(channel);
    unlock(0);
}

EXPORT int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event_p)
{
    event_t *event;

    lock();
    event = fake_mailbox_wait(&((cm_t *)channel)->events);
    if (event) {
        ((conn_t *)event->cm.id)->unacked++;
        ((conn_t *)event->cm.id)->is_users = true;
        *event_p = &event->cm;
    }
    return unlock(event ? 0 : -1);
}

EXPORT int rdma_ack_cm_event(struct rdma_cm_event *event)
{
    lock();
    ((conn_t *)event->id)->unacked--;
    free((char *)event - offsetof(event_t, cm));
    return unlock(0);
}

EXPORT const char *rdma_event_str(enum rdma_cm_event_type type)
{
    static _Thread_local char text[32];

    snprintf(text, sizeof text, "event %d", (int)type);
    return text;
}

EXPORT int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id_p,
                          void *context, enum rdma_port_space space)
{
    lock();
    *id_p = &fake_make_conn(channel, context, space)->id;
    ((conn_t *)*id_p)->is_users = true;
    return unlock(0);
}

static void destroy_conn(conn_t *conn)
{
    conn_t **at = &fake.conns;

    fake_mailbox_forget(&((cm_t *)conn->id.channel)->events, conn);
    while (*at != conn)
        at = &(*at)->next;
    *at = conn->next;
    fake_close_socket(conn);
    if (conn->id.verbs)
        fake_forget_user(conn->id.verbs);
    free(conn);
}

EXPORT int rdma_destroy_id(struct rdma_cm_id *id)
{
    conn_t *conn = (conn_t *)id, *next;

    lock();
    if (id->qp)
        broken("an id is destroyed before its queue pair");
    if (conn->unacked > 0)
        broken("an id is destroyed before its events are acknowledged");
    for (conn_t *other = fake.conns; other; other = next) {
        next = other->next;
        if (other->listener == conn)
            other->listener = NULL;
        if (!other->listener && !other->is_users)
            destroy_conn(other);
    }
    destroy_conn(conn);
    return unlock(0);
}

/* ---- addresses ---- */

/* An address may be that of the device, the wildcard, or one that does not belong to any device. */
static bool is_any(const struct sockaddr *at)
{
    return at->sa_family == AF_INET
               ? ((const struct sockaddr_in *)(const void *)at)->sin_addr.s_addr == INADDR_ANY
               : IN6_IS_ADDR_UNSPECIFIED(
                     &((const struct sockaddr_in6 *)(const void *)at)->sin6_addr);
}

static void text_of(const struct sockaddr *at, char text[INET6_ADDRSTRLEN])
{
    const void *ip = at->sa_family == AF_INET
                         ? (const void *)&((const struct sockaddr_in *)(const void *)at)->sin_addr
                         : &((const struct sockaddr_in6 *)(const void *)at)->sin6_addr;

    if (!inet_ntop(at->sa_family, ip, text, INET6_ADDRSTRLEN))
        text[0] = 0;
}

static bool is_ours(const struct sockaddr *at)
{
    char text[INET6_ADDRSTRLEN];

    text_of(at, text);
    return strcmp(text, at->sa_family == AF_INET ? FAKE_VERBS_IPV4 : FAKE_VERBS_IPV6) == 0;
}

static uint16_t *port_at(struct sockaddr *at)
{
    return at->sa_family == AF_INET ? &((struct sockaddr_in *)(void *)at)->sin_port
                                    : &((struct sockaddr_in6 *)(void *)at)->sin6_port;
}

static void copy_address(struct sockaddr_storage *to, const struct sockaddr *from)
{
    memcpy(to, from,
           from->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
}

/* Writes the name of the socket at which a listener can be reached, derived from the host, the
 * address and the port. */
static socklen_t name_of(const char *ip, uint16_t port, struct sockaddr_un *name_p)
{
    *name_p = (struct sockaddr_un){.sun_family = AF_UNIX};
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                       (size_t)snprintf(name_p->sun_path + 1, sizeof name_p->sun_path - 1,
                                        "fake-verbs/%llx/%s/%u",
                                        (unsigned long long)fake_host->number, ip, port));
}

static int bind_locked(conn_t *conn, struct sockaddr *at)
{
    device_t *device;

    if (!is_any(at)) {
        if (!is_ours(at))
            return fails(EADDRNOTAVAIL);
        device = fake_open_device();
        if (!device)
            return fails(ENODEV);
        if (!conn->id.verbs)
            fake_bind_to_device(conn, device);
    }
    copy_address(&conn->id.route.addr.src_storage, at);
    return 0;
}

EXPORT int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *at)
{
    lock();
    return unlock(bind_locked((conn_t *)id, at));
}

EXPORT int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to,
                             int timeout_ms)
{
    struct sockaddr_storage ours = {.ss_family = to->sa_family};
    conn_t *conn = (conn_t *)id;

    (void)timeout_ms;
    if (to->sa_family == AF_INET)
        inet_pton(AF_INET, FAKE_VERBS_IPV4, &((struct sockaddr_in *)&ours)->sin_addr);
    else
        inet_pton(AF_INET6, FAKE_VERBS_IPV6, &((struct sockaddr_in6 *)&ours)->sin6_addr);
    lock();
    if (bind_locked(conn, from && !is_any(from) ? from : (struct sockaddr *)&ours) != 0)
        return unlock(-1);
    copy_address(&id->route.addr.dst_storage, to);
    if (is_ours(to))
        fake_happens(conn, RDMA_CM_EVENT_ADDR_RESOLVED, 0, NULL, 0, 0);
    else
        fake_happens(conn, RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH, NULL, 0, 0);
    return unlock(0);
}

EXPORT int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
    (void)timeout_ms;
    lock();
    fake_happens((conn_t *)id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL, 0, 0);
    return unlock(0);
}

EXPORT int rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t len)
{
    (void)id, (void)level, (void)name, (void)value, (void)len;
    return 0;
}

EXPORT __be16 rdma_get_src_port(struct rdma_cm_id *id)
{
    return *port_at(&id->route.addr.src_addr);
}

/* ---- connections ---- */

static int bind_socket(conn_t *conn, uint16_t port)
{
    char ip[INET6_ADDRSTRLEN];
    struct sockaddr_un name;
    socklen_t len;

    text_of(&conn->id.route.addr.src_addr, ip);
    len = name_of(ip, port, &name);
    *port_at(&conn->id.route.addr.src_addr) = htons(port);
    return bind(conn->socket, (struct sockaddr *)&name, len);
}

EXPORT int rdma_listen(struct rdma_cm_id *id, int backlog)
{
    conn_t *conn = (conn_t *)id;
    uint16_t port = ntohs(*port_at(&id->route.addr.src_addr));
    int bound;

    lock();
    conn->socket = fake_open_socket();
    bound = conn->socket < 0 ? -1 : 0;
    if (bound == 0 && port != 0)
        bound = bind_socket(conn, port);
    else if (bound == 0)
        for (port = 32768; (bound = bind_socket(conn, port)) != 0 && port < 60999;)
            port++;
    if (bound != 0 || listen(conn->socket, backlog < 16 ? 16 : backlog) != 0)
        return unlock(-1);
    conn->state = LISTENS;
    wake();
    return unlock(0);
}

/* Connects to the listener at exactly this address, or to one at the wildcard address. */
static int call(conn_t *conn)
{
    uint16_t port = ntohs(*port_at(&conn->id.route.addr.dst_addr));
    char ips[3][INET6_ADDRSTRLEN] = {"", "0.0.0.0", "::"};
    struct sockaddr_un name;
    int result = -1;

    text_of(&conn->id.route.addr.dst_addr, ips[0]);
    conn->socket = fake_open_socket();
    if (conn->socket < 0)
        broken("no descriptor for a connection");
    for (int i = 0; i < 3 && result != 0; i++) {
        socklen_t len = name_of(ips[i], port, &name);

        result = connect(conn->socket, (struct sockaddr *)&name, len);
    }
    return result;
}

EXPORT int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
    conn_t *conn = (conn_t *)id;

    lock();
    if (param->private_data_len > ASKED_BYTES)
        return unlock(fails(EINVAL));
    conn->state = CALLS;
    if (call(conn) != 0) {
        fake_close_socket(conn);
        conn->state = OVER;
        fake_happens(conn, RDMA_CM_EVENT_REJECTED, NOBODY_LISTENS, NULL, 0, REFUSED_BYTES);
    } else {
        (void)fake_put(conn, &(head_t){.kind = ASK, .status = param->rnr_retry_count},
                       param->private_data, param->private_data_len);
    }
    wake();
    return unlock(0);
}

EXPORT int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
    conn_t *conn = (conn_t *)id;

    lock();
    if (conn->state != CALLED)
        return unlock(fails(EINVAL));
    conn->state = ACCEPTED;
    if (id->qp)
        id->qp->state = IBV_QPS_RTS;
    (void)fake_put(conn, &(head_t){.kind = ANSWER, .status = param->rnr_retry_count},
                   param->private_data, param->private_data_len);
    wake();
    return unlock(0);
}

EXPORT int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t len)
{
    lock();
    if (((conn_t *)id)->state != CALLED)
        return unlock(fails(EINVAL));
    (void)fake_put((conn_t *)id, &(head_t){.kind = REFUSE}, data, len);
    ((conn_t *)id)->state = OVER;
    return unlock(0);
}

EXPORT int rdma_disconnect(struct rdma_cm_id *id)
{
    conn_t *conn = (conn_t *)id;

    lock();
    if (conn->state != CONNECTED && conn->state != ACCEPTED)
        return unlock(fails(EINVAL));
    if (id->qp)
        fake_fail_pair((pair_t *)id->qp);
    (void)shutdown(conn->socket, SHUT_RDWR); /* the device's thread reads the end of the stream */
    return unlock(0);
}
