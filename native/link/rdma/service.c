/* SPDX-License-Identifier: Apache-2.0 */
#include "service.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "../clock.h"

#define LINGER_MS 1000 /* how long a closed link may take to send the rest */

static struct {
    pthread_mutex_t lock; /* protects the fields below */
    bool runs;
    bw_rdma_connection_t *requests;
    unsigned left; /* connections that their users have closed and that have not been freed yet */

    int epoll, event;
    struct rdma_event_channel *channel;
    bw_rdma_connection_t *connections; /* used only by the service thread */
} service = {.lock = PTHREAD_MUTEX_INITIALIZER, .epoll = -1, .event = -1};

bw_rdma_connection_t *bw_rdma_service_connections(void)
{
    return service.connections;
}

struct rdma_event_channel *bw_rdma_service_channel(void)
{
    return service.channel;
}

bool bw_rdma_service_watch(int fd, bw_rdma_source_t *source)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};

    return epoll_ctl(service.epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

void bw_rdma_service_forget(int fd)
{
    (void)epoll_ctl(service.epoll, EPOLL_CTL_DEL, fd, NULL);
}

void bw_rdma_service_request(bw_rdma_connection_t *connection, bool leaves)
{
    pthread_mutex_lock(&service.lock);
    connection->is_left = connection->is_left || leaves;
    service.left += leaves;
    if (!connection->is_requested) {
        connection->is_requested = true;
        connection->next_request = service.requests;
        service.requests = connection;
    }
    pthread_mutex_unlock(&service.lock);
    (void)eventfd_write(service.event, 1);
}

/* ---- closed links ---- */

static void free_connection(bw_rdma_connection_t *connection)
{
    bw_rdma_connection_t **at = &service.connections;

    while (*at != connection)
        at = &(*at)->next;
    *at = connection->next;
    if (connection->verbs.channel)
        bw_rdma_service_forget(connection->verbs.channel->fd);
    if (connection->id)
        (void)rdma_disconnect(connection->id); /* fails if it is not connected */
    bw_rdma_connection_release(connection);
    bw_rdma_memory_free(&connection->memory);
    close(connection->event);
    pthread_mutex_destroy(&connection->lock);
    free(connection);
    pthread_mutex_lock(&service.lock);
    service.left--;
    pthread_mutex_unlock(&service.lock);
}

static bool all_are_freed(void)
{
    bool all;

    pthread_mutex_lock(&service.lock);
    all = service.left == 0;
    pthread_mutex_unlock(&service.lock);
    return all;
}

/* A process often closes its links just before it exits, so this gives their last bytes time to
 * reach the peers. It uses the monotonic clock, because the wall clock may change. */
__attribute__((destructor)) static void let_links_finish(void)
{
    int64_t end = bw_clock_ms() + 1000 + LINGER_MS;

    while (!all_are_freed() && bw_clock_ms() < end)
        (void)poll(NULL, 0, 1);
}

/* Sends the rest. Returns true while there is something to wait for. If the peer never stops
 * sending, the link is closed at its deadline anyway. */
static bool has_more_to_say(bw_rdma_connection_t *connection)
{
    int rounds = 16;
    bool more;

    pthread_mutex_lock(&connection->lock);
    if (connection->is_live) {
        bw_rdma_take_events(connection);
        do
            bw_rdma_progress(connection);
        while (!bw_rdma_flow_is_closed(&connection->flow) && connection->status == BW_OK &&
               !bw_rdma_arm(connection) && --rounds > 0);
    }
    more = connection->is_live && connection->status == BW_OK &&
           !bw_rdma_flow_is_closed(&connection->flow);
    pthread_mutex_unlock(&connection->lock);
    return more;
}

static void continue_leaving(bw_rdma_connection_t *connection)
{
    if (!has_more_to_say(connection))
        free_connection(connection);
}

static void begin_leaving(bw_rdma_connection_t *connection)
{
    connection->is_leaving = true;
    /* Of the peer's messages, only the credits that they carry are still useful. */
    if (has_more_to_say(connection) &&
        bw_rdma_service_watch(connection->verbs.channel->fd, &connection->leaving))
        connection->deadline_ms = bw_clock_ms() + LINGER_MS;
    else
        free_connection(connection);
}

static void leaving_ready(bw_rdma_source_t *source)
{
    continue_leaving(
        (bw_rdma_connection_t *)((char *)source - offsetof(bw_rdma_connection_t, leaving)));
}

/* ---- requests and events ---- */

/* Once the connection is off the list, its user may queue it again in order to close it. *is_left_p
 * is the value of `is_left` before that can happen. */
static bw_rdma_connection_t *next_request(bool *is_left_p)
{
    bw_rdma_connection_t *connection;

    pthread_mutex_lock(&service.lock);
    connection = service.requests;
    if (connection) {
        service.requests = connection->next_request;
        connection->is_requested = false;
        *is_left_p = connection->is_left;
    }
    pthread_mutex_unlock(&service.lock);
    return connection;
}

static void request(bw_rdma_connection_t *connection, bool is_left)
{
    if (!connection->is_started) {
        connection->is_started = true;
        connection->leaving.ready = leaving_ready;
        connection->next = service.connections;
        service.connections = connection;
        if (!is_left)
            bw_rdma_connection_begin(connection);
    }
    if (is_left)
        begin_leaving(connection);
}

static void event_ready(bw_rdma_source_t *source)
{
    bw_rdma_connection_t *connection;
    bool is_left = false;
    eventfd_t count;

    (void)source;
    (void)eventfd_read(service.event, &count);
    while ((connection = next_request(&is_left)))
        request(connection, is_left);
}

/* An id cannot be destroyed before its events are acknowledged, so that is done first. */
static void channel_ready(bw_rdma_source_t *source)
{
    bw_rdma_cm_event_t event = {0};
    struct rdma_cm_event *got;

    (void)source;
    if (rdma_get_cm_event(service.channel, &got) != 0)
        return;
    event.type = got->event;
    event.status = got->status;
    event.id = got->id;
    event.listen_id = got->listen_id;
    if (got->param.conn.private_data) {
        event.len = got->param.conn.private_data_len;
        memcpy(event.data, got->param.conn.private_data, event.len);
    }
    rdma_ack_cm_event(got);
    bw_rdma_connection_event(&event);
}

/* ---- deadlines ---- */

static int until_first_deadline(void)
{
    int64_t first = INT64_MAX, now = bw_clock_ms();

    for (const bw_rdma_connection_t *connection = service.connections; connection;
         connection = connection->next)
        if (connection->deadline_ms != 0 && connection->deadline_ms < first)
            first = connection->deadline_ms;
    if (first == INT64_MAX)
        return -1;
    return first <= now ? 0 : first - now > 60000 ? 60000 : (int)(first - now);
}

static void check_deadlines(void)
{
    int64_t now = bw_clock_ms();
    bw_rdma_connection_t *next;

    for (bw_rdma_connection_t *connection = service.connections; connection; connection = next) {
        next = connection->next;
        if (connection->deadline_ms == 0 || connection->deadline_ms > now)
            continue;
        connection->deadline_ms = 0;
        if (connection->is_leaving)
            free_connection(connection);
        else
            bw_rdma_connection_deadline(connection);
    }
}

/* Handles one event at a time, because handling an event may destroy the object of the next one. */
static void *serve(void *unused)
{
    struct epoll_event event;

    (void)unused;
    for (;;) {
        int count = epoll_wait(service.epoll, &event, 1, until_first_deadline());

        if (count == 1)
            ((bw_rdma_source_t *)event.data.ptr)->ready(event.data.ptr);
        check_deadlines();
    }
    return NULL;
}

/* ---- starting the thread ---- */

static bw_status_t channel_error(bw_error_t *error_p, int sys_errno)
{
    return bw_fail(error_p, sys_errno == EMFILE ? BW_LIMIT : BW_SYSTEM,
                   sys_errno == ENODEV ? "no RDMA device on this host (see `rdma link`)"
                   : sys_errno == ENOENT || sys_errno == ENXIO
                       ? "/dev/infiniband/rdma_cm is missing: load the module rdma_ucm"
                   : sys_errno == EACCES || sys_errno == EPERM
                       ? "/dev/infiniband/rdma_cm may not be used by this user"
                       : "the RDMA connection manager",
                   sys_errno);
}

static bw_status_t make_channel(bw_error_t *error_p)
{
    static bw_rdma_source_t source = {.ready = channel_ready};
    int flags;

    service.channel = rdma_create_event_channel();
    if (!service.channel)
        return channel_error(error_p, errno);
    flags = fcntl(service.channel->fd, F_GETFL);
    if (flags >= 0 && fcntl(service.channel->fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
        bw_rdma_service_watch(service.channel->fd, &source))
        return BW_OK;
    bw_fail(error_p, BW_SYSTEM, "the RDMA connection manager's channel", errno);
    rdma_destroy_event_channel(service.channel);
    return BW_SYSTEM;
}

/* Blocks all signals in the thread, because they belong to the VM. */
static bool start_thread(void)
{
    sigset_t all, before;
    pthread_t thread;
    bool started;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    started = pthread_create(&thread, NULL, serve, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!started)
        return false;
    (void)pthread_setname_np(thread, "beamway_rdma");
    pthread_detach(thread);
    return true;
}

static bw_status_t start(bw_error_t *error_p)
{
    static bw_rdma_source_t source = {.ready = event_ready};
    bw_status_t status = BW_LIMIT;

    /* Before Linux 5.12, a fork may separate the device from the queues that it has in our memory.
     * Later kernels copy the queues for the child instead. If this call fails, a process that forks
     * loses its links, as it would without the call. */
    (void)ibv_fork_init();
    service.epoll = epoll_create1(EPOLL_CLOEXEC);
    service.event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (service.epoll < 0 || service.event < 0 || !bw_rdma_service_watch(service.event, &source))
        bw_fail(error_p, BW_LIMIT, "descriptors for rdma", errno);
    else if ((status = make_channel(error_p)) == BW_OK && !start_thread()) {
        rdma_destroy_event_channel(service.channel);
        status = bw_fail(error_p, BW_LIMIT, "a thread for rdma", EAGAIN);
    }
    if (status == BW_OK)
        return BW_OK;
    if (service.epoll >= 0)
        close(service.epoll);
    if (service.event >= 0)
        close(service.event);
    service.epoll = service.event = -1;
    return status;
}

bw_status_t bw_rdma_service_start(bw_error_t *error_p)
{
    bw_status_t status = BW_OK;

    pthread_mutex_lock(&service.lock);
    if (!service.runs)
        status = start(error_p);
    service.runs = status == BW_OK;
    pthread_mutex_unlock(&service.lock);
    return status;
}
