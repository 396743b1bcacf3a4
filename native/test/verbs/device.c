/* SPDX-License-Identifier: Apache-2.0 */

/* The device: its thread, its creation and removal, and its events. */

#include "inside.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/stat.h>

void fake_raise_async(device_t *device, enum ibv_event_type type, void *about)
{
    event_t *event = make(sizeof *event);

    event->about = about;
    event->async.event_type = type;
    if (about)
        event->async.element.qp = about;
    else
        event->async.element.port_num = 1;
    fake_mailbox_put(&device->async, event);
}

/* The kernel keeps its part of a device until the descriptors are closed, or until their numbers
 * have been reused for other files. */
static bool is_let_go(const device_t *device)
{
    struct stat stat;

    return device->users == 0 &&
           (fstat(device->context.cmd_fd, &stat) != 0 || S_ISCHR(stat.st_mode));
}

static void look_at_host(void)
{
    device_t *device = fake.device;

    if (!device)
        return;
    if (!device->is_gone && (fake_host->is_removed || fake_host->removals != device->removals)) {
        device->is_gone = true;
        for (conn_t *conn = fake.conns; conn; conn = conn->next)
            if (conn->id.verbs == &device->context && conn->is_users)
                fake_happens(conn, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, NULL, 0, 0);
    }
    if (device->is_gone)
        fake.holder->has_device = !is_let_go(device);
    if (!device->is_gone && device->is_down != fake_host->is_down) {
        device->is_down = fake_host->is_down;
        fake_raise_async(device, device->is_down ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE,
                         NULL);
    }
}

/* ---- the device's thread ---- */

static void watch(conn_t *conn, uint32_t interest)
{
    struct epoll_event event = {.events = interest, .data.ptr = conn};

    if (conn->socket < 0 || conn->interest == interest)
        return;
    if (epoll_ctl(fake.epoll, EPOLL_CTL_MOD, conn->socket, &event) != 0 &&
        epoll_ctl(fake.epoll, EPOLL_CTL_ADD, conn->socket, &event) != 0)
        broken("epoll");
    conn->interest = interest;
}

static void serve(conn_t *conn)
{
    bool is_full = false;

    if (conn->state == LISTENS) {
        fake_answer_caller(conn);
        watch(conn, EPOLLIN);
        return;
    }
    fake_receive(conn);
    fake_pass_time(conn);
    if (conn->socket >= 0)
        is_full = !fake_transmit(conn);
    watch(conn, (conn->waiting.is_there ? 0 : EPOLLIN) | (is_full ? EPOLLOUT : 0));
}

static void *run_device(void *unused)
{
    struct epoll_event events[16];
    char byte;

    (void)unused;
    for (;;) {
        (void)epoll_wait(fake.epoll, events, 16, TICK_MS);
        lock();
        if (fake.is_woken && read(fake.wake[0], &byte, 1) == 1)
            fake.is_woken = false;
        look_at_host();
        for (conn_t *conn = fake.conns; conn; conn = conn->next)
            serve(conn);
        unlock(0);
    }
    return NULL;
}

bool fake_start(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    sigset_t all, before;
    pthread_t thread;

    if (fake.runs)
        return true;
    fake.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (fake.epoll < 0 || pipe2(fake.wake, O_CLOEXEC) != 0 ||
        epoll_ctl(fake.epoll, EPOLL_CTL_ADD, fake.wake[0], &event) != 0)
        return false;
    fake.holder = fake_claim_holder();
    sigfillset(&all);
    /* From glibc 2.41 on, abort does not call a handler while this signal is blocked. */
    sigdelset(&all, SIGABRT);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    fake.runs = pthread_create(&thread, NULL, run_device, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (fake.runs)
        pthread_detach(thread);
    return fake.runs;
}

/* ---- devices ---- */

device_t *fake_open_device(void)
{
    static struct ibv_device name = {.name = "fake0"};
    device_t *device = fake.device;

    if (device && !device->is_gone)
        return device;
    if (fake_host->is_removed || (device && device->users > 0))
        return NULL;
    if (device) {
        close(device->context.async_fd);
        close(device->context.cmd_fd);
        device->async.reader = -1;
        fake_mailbox_close(&device->async);
        free(device);
    }
    fake.device = device = make(sizeof *device);
    if (!fake_mailbox_open(&device->async))
        broken("no descriptors for the device");
    device->removals = fake_host->removals;
    device->context.device = &name;
    device->context.async_fd = device->async.reader;
    device->context.cmd_fd = fcntl(device->async.reader, F_DUPFD_CLOEXEC, 0);
    device->context.ops.poll_cq = fake_poll_cq;
    device->context.ops.req_notify_cq = fake_req_notify_cq;
    device->context.ops.post_send = fake_post_send;
    device->context.ops.post_recv = fake_post_recv;
    fake.holder->has_device = true;
    return device;
}

void fake_bind_to_device(conn_t *conn, device_t *device)
{
    conn->id.verbs = &device->context;
    conn->id.port_num = 1;
    device->users++;
}

void fake_forget_user(struct ibv_context *context)
{
    ((device_t *)context)->users--;
}

/* ---- libibverbs ---- */

EXPORT int ibv_fork_init(void)
{
    if (fake.runs)
        return EINVAL;
    fake.is_prepared_for_forks = true;
    return 0;
}

EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event_p)
{
    event_t *event;

    lock();
    event = fake_mailbox_wait(&((device_t *)context)->async);
    if (event)
        *event_p = event->async;
    free(event);
    return unlock(event ? 0 : -1);
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
    (void)event;
}
