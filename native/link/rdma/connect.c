/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Connection setup, run in the service thread. The connecting side resolves the address and the
 * route, creates all device objects, and then sends the connection request with our hello. The
 * listening side accepts a request with the right token, creates all device objects, and then
 * replies with our hello. Both post their receive slots before the other side receives the hello.
 */

#include <errno.h>
#include <stdarg.h>
#include <sys/epoll.h>

#include "../clock.h"
#include "address.h"
#include "service.h"

#define RESOLVE_MS 2000

/* A packet that is not acknowledged within 4.096 us * 2^16 = 0.27 s is sent again. As it is sent up
 * to 8 times in all, the connection to a silent peer fails after 2 to 9 seconds (devices may wait
 * up to 4 times as long). librdmacm's default would be 1 s per attempt. */
#define ACK_TIMEOUT 16
#define RETRIES 7
/* A message is sent only with a credit. If the peer then has no slot for it, the peer has announced
 * slots that do not exist, so there is no point in waiting. */
#define SLOT_RETRIES 1

/* Reason codes sent in a rejection; both sides use these numbers. */
enum { REFUSED_TOKEN = 1, REFUSED_HELLO, REFUSED_RINGS, REFUSED_MEMORY };

static const char *refusal_text(uint8_t code)
{
    switch (code) {
    case REFUSED_TOKEN:
        return "it does not know our token";
    case REFUSED_HELLO:
        return "it does not understand our hello (another version?)";
    case REFUSED_RINGS:
        return "our rings are larger than it wants";
    case REFUSED_MEMORY:
        return "it cannot make its side of the link (its log says why)";
    default:
        return "no reason given";
    }
}

/* ---- how connections end ---- */

/* Takes the device objects away from the user, after processing everything that arrived. */
static bw_rdma_verbs_t take_verbs(bw_rdma_connection_t *connection)
{
    bw_rdma_verbs_t verbs;

    pthread_mutex_lock(&connection->lock);
    if (connection->is_live)
        bw_rdma_progress(connection);
    connection->is_live = connection->rcq_is_armed = connection->scq_is_armed = false;
    verbs = connection->verbs;
    connection->verbs = (bw_rdma_verbs_t){0};
    if (verbs.channel && connection->epoll >= 0)
        (void)epoll_ctl(connection->epoll, EPOLL_CTL_DEL, verbs.channel->fd, NULL);
    pthread_mutex_unlock(&connection->lock);
    return verbs;
}

void bw_rdma_connection_release(bw_rdma_connection_t *connection)
{
    bw_rdma_verbs_t verbs = take_verbs(connection);

    bw_rdma_listener_leave(connection);
    bw_rdma_verbs_destroy(&verbs, connection->id);
    if (connection->id)
        rdma_destroy_id(connection->id);
    connection->id = NULL;
    bw_rdma_device_put(connection->device);
    connection->device = NULL;
    connection->deadline_ms = 0;
}

static void tell_failure(bw_rdma_connection_t *connection, const bw_rdma_problem_t *problem)
{
    bw_rdma_connection_release(connection);
    pthread_mutex_lock(&connection->lock);
    connection->report.state = BW_FAILED;
    connection->report.status = problem->status;
    memcpy(connection->report.text, problem->text, sizeof connection->report.text);
    bw_rdma_ring(connection);
    pthread_mutex_unlock(&connection->lock);
}

void bw_rdma_connection_fail(bw_rdma_connection_t *connection, bw_status_t status,
                             const char *format, ...)
{
    bw_rdma_problem_t problem = {.status = status};
    va_list args;

    va_start(args, format);
    vsnprintf(problem.text, sizeof problem.text, format, args);
    va_end(args);
    tell_failure(connection, &problem);
}

static bool is_linked(const bw_rdma_connection_t *connection)
{
    return connection->report.state == BW_LINKED; /* written by this thread only */
}

void bw_rdma_link_fail(bw_rdma_connection_t *connection, const char *reason)
{
    pthread_mutex_lock(&connection->lock);
    bw_rdma_fail(connection, BW_SYSTEM, reason);
    pthread_mutex_unlock(&connection->lock);
}

void bw_rdma_connection_device_removed(bw_rdma_connection_t *connection)
{
    if (is_linked(connection)) {
        bw_rdma_link_fail(connection, "beamway_rdma_device_removed");
        bw_rdma_connection_release(connection);
        /* The unsent bytes are lost, and the connection is freed in the next round. */
        if (connection->is_leaving)
            connection->deadline_ms = bw_clock_ms();
    } else {
        bw_rdma_connection_fail(connection, BW_SYSTEM, "the RDMA device was removed");
    }
}

void bw_rdma_connection_deadline(bw_rdma_connection_t *connection)
{
    char text[BW_RDMA_ADDRESS_TEXT];

    bw_rdma_address_text(&connection->order.to, text);
    bw_rdma_connection_fail(connection, BW_SYSTEM,
                            "no answer from %s, port %u, over rdma within %u ms", text,
                            connection->order.to.port, connection->order.timeout_ms);
}

/* ---- starting a connection ---- */

static void begin_connecting(bw_rdma_connection_t *connection)
{
    const bw_rdma_order_t *order = &connection->order;
    struct sockaddr_storage from, to;
    char text[BW_RDMA_ADDRESS_TEXT];

    bw_rdma_sockaddr(&order->from, 0, &from);
    bw_rdma_sockaddr(&order->to, order->to.port, &to);
    connection->deadline_ms = bw_clock_ms() + order->timeout_ms;
    if (rdma_create_id(bw_rdma_service_channel(), &connection->id, NULL, RDMA_PS_TCP) != 0) {
        connection->id = NULL;
        bw_rdma_connection_fail(connection, BW_SYSTEM, "an id of the connection manager: %s",
                                strerror(errno));
    } else if (rdma_resolve_addr(connection->id,
                                 order->from.family ? (struct sockaddr *)&from : NULL,
                                 (struct sockaddr *)&to, RESOLVE_MS) != 0) {
        int saved = errno;

        bw_rdma_address_text(&order->to, text);
        bw_rdma_connection_fail(connection, BW_REFUSED, "no RDMA device reaches %s: %s", text,
                                strerror(saved));
    }
}

void bw_rdma_connection_begin(bw_rdma_connection_t *connection)
{
    if (connection->order.listens)
        (void)bw_rdma_listener_join(connection);
    else
        begin_connecting(connection);
}

/* ---- both sides ---- */

/* The user polls the completion channel from now on, but uses nothing before `is_live`. */
static bw_status_t give_verbs(bw_rdma_connection_t *connection, const bw_rdma_verbs_t *verbs,
                              bw_rdma_problem_t *problem_p)
{
    struct epoll_event event = {.events = EPOLLIN};
    bw_status_t status = BW_OK;

    pthread_mutex_lock(&connection->lock);
    connection->verbs = *verbs;
    if (connection->epoll >= 0 &&
        epoll_ctl(connection->epoll, EPOLL_CTL_ADD, verbs->channel->fd, &event) != 0)
        status = bw_rdma_problem(problem_p, BW_SYSTEM, "polling the completion channel: %s",
                                 strerror(errno));
    pthread_mutex_unlock(&connection->lock);
    return status;
}

/* Creates the memory and all device objects. */
static bw_status_t equip(bw_rdma_connection_t *connection, uint64_t ring_bytes,
                         bw_rdma_problem_t *problem_p)
{
    uint8_t timeout = ACK_TIMEOUT;
    bw_rdma_verbs_t verbs;
    bw_status_t status;

    connection->device = bw_rdma_device_get(connection->id);
    if (!connection->device)
        return bw_rdma_problem(problem_p, BW_LIMIT, "watching the RDMA device: %s",
                               strerror(errno));
    /* Older kernels do not support this option; the default then remains in effect. */
    (void)rdma_set_option(connection->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout,
                          sizeof timeout);
    status = bw_rdma_memory_make(&connection->memory, ring_bytes, problem_p);
    if (status == BW_OK)
        status = bw_rdma_verbs_make(&verbs, connection->id, &connection->memory, problem_p);
    return status == BW_OK ? give_verbs(connection, &verbs, problem_p) : status;
}

static struct rdma_conn_param with_hello(const bw_rdma_connection_t *connection, bool with_token,
                                         uint8_t at[BW_RDMA_HELLO_BYTES])
{
    bw_rdma_hello_t hello = {.ring_address = (uintptr_t)connection->memory.rx,
                             .ring_bytes = connection->memory.ring_bytes,
                             .ring_key = connection->verbs.rx_mr->rkey,
                             .slots = BW_RDMA_SLOTS};

    if (with_token)
        memcpy(hello.token, connection->order.token, sizeof hello.token);
    bw_rdma_hello_put(&hello, at);
    return (struct rdma_conn_param){.private_data = at,
                                    .private_data_len = BW_RDMA_HELLO_BYTES,
                                    .retry_count = RETRIES,
                                    .rnr_retry_count = SLOT_RETRIES};
}

static void set_peer(bw_rdma_connection_t *connection, const bw_rdma_hello_t *hello)
{
    pthread_mutex_lock(&connection->lock);
    connection->verbs.peer_ring = hello->ring_address;
    connection->verbs.peer_key = hello->ring_key;
    bw_rdma_flow_init(&connection->flow, connection->memory.ring_bytes, connection->memory.tx,
                      connection->memory.rx, BW_RDMA_SLOTS, hello->slots);
    pthread_mutex_unlock(&connection->lock);
}

static void become_link(bw_rdma_connection_t *connection)
{
    connection->deadline_ms = 0;
    pthread_mutex_lock(&connection->lock);
    connection->is_live = true;
    connection->report.state = BW_LINKED;
    bw_rdma_describe(connection->id, &connection->report);
    bw_rdma_ring(connection);
    pthread_mutex_unlock(&connection->lock);
}

/* ---- the connecting side ---- */

static void address_resolved(bw_rdma_connection_t *connection)
{
    if (rdma_resolve_route(connection->id, RESOLVE_MS) != 0)
        bw_rdma_connection_fail(connection, BW_SYSTEM, "no route over rdma: %s", strerror(errno));
}

static void route_resolved(bw_rdma_connection_t *connection)
{
    bw_rdma_problem_t problem;
    uint8_t hello[BW_RDMA_HELLO_BYTES];
    struct rdma_conn_param param;

    if (equip(connection, connection->order.ring_bytes, &problem) != BW_OK) {
        tell_failure(connection, &problem);
        return;
    }
    param = with_hello(connection, true, hello);
    if (rdma_connect(connection->id, &param) != 0)
        bw_rdma_connection_fail(connection, BW_SYSTEM, "connecting over rdma: %s", strerror(errno));
}

static void answered(bw_rdma_connection_t *connection, const bw_rdma_cm_event_t *event)
{
    bw_error_t error;
    bw_rdma_hello_t hello;

    if (bw_rdma_hello_get(event->data, event->len, &hello, &error) != BW_OK) {
        bw_rdma_connection_fail(connection, BW_REFUSED, "%s", error.step);
    } else if (hello.ring_bytes != connection->order.ring_bytes) {
        bw_rdma_connection_fail(
            connection, BW_REFUSED, "the peer answers with rings of %llu bytes, not %llu",
            (unsigned long long)hello.ring_bytes, (unsigned long long)connection->order.ring_bytes);
    } else {
        set_peer(connection, &hello);
        become_link(connection);
    }
}

/* ---- the listener ---- */

static void refuse(struct rdma_cm_id *id, uint8_t code)
{
    (void)rdma_reject(id, &code, sizeof code);
    rdma_destroy_id(id);
}

static void admit(bw_rdma_connection_t *connection, struct rdma_cm_id *id,
                  const bw_rdma_hello_t *request)
{
    bw_rdma_problem_t problem;
    uint8_t hello[BW_RDMA_HELLO_BYTES];
    struct rdma_conn_param param;
    uint8_t code = REFUSED_MEMORY;

    connection->id = id;
    bw_rdma_listener_leave(connection);
    if (equip(connection, request->ring_bytes, &problem) != BW_OK) {
        (void)rdma_reject(id, &code, sizeof code);
        tell_failure(connection, &problem);
        return;
    }
    set_peer(connection, request);
    param = with_hello(connection, false, hello);
    if (rdma_accept(id, &param) != 0)
        bw_rdma_connection_fail(connection, BW_SYSTEM, "accepting over rdma: %s", strerror(errno));
}

static void requested(const bw_rdma_cm_event_t *event)
{
    bw_rdma_listener_t *listener = bw_rdma_listener_of(event->listen_id);
    bw_rdma_connection_t *connection;
    bw_rdma_hello_t hello;
    bw_error_t error;

    if (bw_rdma_hello_get(event->data, event->len, &hello, &error) != BW_OK)
        refuse(event->id, REFUSED_HELLO);
    else if (!listener || !(connection = bw_rdma_listener_find(listener, hello.token)))
        refuse(event->id, REFUSED_TOKEN);
    else if (hello.ring_bytes > connection->order.ring_bytes)
        refuse(event->id, REFUSED_RINGS);
    else
        admit(connection, event->id, &hello);
}

/* ---- events ---- */

static void rejected(bw_rdma_connection_t *connection, const bw_rdma_cm_event_t *event)
{
    char text[BW_RDMA_ADDRESS_TEXT];

    bw_rdma_address_text(&connection->order.to, text);
    if (event->len > 0 && event->data[0] != 0)
        bw_rdma_connection_fail(connection, BW_REFUSED, "the peer refuses the rdma link: %s",
                                refusal_text(event->data[0]));
    else
        bw_rdma_connection_fail(connection, BW_REFUSED,
                                "nobody listens for rdma at %s, port %u (reason %d)", text,
                                connection->order.to.port, event->status);
}

static void not_reached(bw_rdma_connection_t *connection, const bw_rdma_cm_event_t *event)
{
    char text[BW_RDMA_ADDRESS_TEXT];

    bw_rdma_address_text(&connection->order.to, text);
    bw_rdma_connection_fail(connection, BW_REFUSED, "%s is not reached over rdma: %s (%s)", text,
                            event->status < 0 ? strerror(-event->status) : "no answer",
                            rdma_event_str(event->type));
}

static bw_rdma_connection_t *connection_of(const struct rdma_cm_id *id)
{
    bw_rdma_connection_t *connection = bw_rdma_service_connections();

    while (connection && connection->id != id)
        connection = connection->next;
    return connection;
}

static void linked_event(bw_rdma_connection_t *connection, const bw_rdma_cm_event_t *event)
{
    if (event->type == RDMA_CM_EVENT_DISCONNECTED)
        bw_rdma_link_fail(connection, "connection_closed");
    else if (event->type == RDMA_CM_EVENT_CONNECT_ERROR || event->type == RDMA_CM_EVENT_UNREACHABLE)
        bw_rdma_link_fail(connection, "beamway_rdma_connection_failed");
}

void bw_rdma_connection_event(const bw_rdma_cm_event_t *event)
{
    bw_rdma_connection_t *connection = connection_of(event->id);

    if (event->type == RDMA_CM_EVENT_CONNECT_REQUEST)
        requested(event);
    else if (event->type == RDMA_CM_EVENT_DEVICE_REMOVAL)
        bw_rdma_device_is_removed(event->id);
    else if (!connection)
        return; /* belongs to a listener or is the sentinel */
    else if (is_linked(connection))
        linked_event(connection, event);
    else if (event->type == RDMA_CM_EVENT_ADDR_RESOLVED)
        address_resolved(connection);
    else if (event->type == RDMA_CM_EVENT_ROUTE_RESOLVED)
        route_resolved(connection);
    else if (event->type == RDMA_CM_EVENT_ESTABLISHED && connection->order.listens)
        become_link(connection);
    else if (event->type == RDMA_CM_EVENT_ESTABLISHED)
        answered(connection, event);
    else if (event->type == RDMA_CM_EVENT_REJECTED)
        rejected(connection, event);
    else if (event->type != RDMA_CM_EVENT_ADDR_CHANGE)
        not_reached(connection, event);
}
