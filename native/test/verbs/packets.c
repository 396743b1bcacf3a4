/* SPDX-License-Identifier: Apache-2.0 */

/* Packets between two ends, over abstract unix sockets. */

#include "inside.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

void fake_happens(conn_t *conn, enum rdma_cm_event_type type, int status, const void *data,
                  size_t len, size_t padded)
{
    event_t *event = make(sizeof *event);
    conn_t *to = conn->listener && type == RDMA_CM_EVENT_CONNECT_REQUEST ? conn->listener : conn;

    event->about = conn;
    event->cm.id = &conn->id;
    event->cm.listen_id = conn->listener ? &conn->listener->id : NULL;
    event->cm.event = type;
    event->cm.status = status;
    if (len > 0)
        memcpy(event->data, data, len);
    if (padded > 0) {
        event->cm.param.conn.private_data = event->data;
        event->cm.param.conn.private_data_len = (uint8_t)padded;
    }
    fake_mailbox_put(&((cm_t *)to->id.channel)->events, event);
}

/* A real device keeps such descriptors inside the kernel, so they must not count towards the
 * process's limit. */
static void lift_limit(struct rlimit *before_p)
{
    struct rlimit limit;

    (void)getrlimit(RLIMIT_NOFILE, before_p);
    limit = *before_p;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

int fake_open_socket(void)
{
    struct rlimit before;
    int fd;

    lift_limit(&before);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)setrlimit(RLIMIT_NOFILE, &before);
    return fd;
}

void fake_close_socket(conn_t *conn)
{
    if (conn->socket >= 0)
        close(conn->socket);
    conn->socket = -1;
    conn->waiting.is_there = false;
}

bool fake_put(conn_t *conn, const head_t *head, const void *bytes, size_t len)
{
    struct iovec iov[2] = {{(void *)(uintptr_t)head, sizeof *head},
                           {(void *)(uintptr_t)bytes, len}};
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};

    return conn->socket < 0 || sendmsg(conn->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ||
           errno != EAGAIN;
}

/* ---- receiving ---- */

/* The peer has closed its end, and everything has been read. */
static void hang_up(conn_t *conn)
{
    conn_state_t state = conn->state;

    fake_close_socket(conn);
    conn->state = OVER;
    conn->gone_at = now_ms();
    if (state == NEW)
        return; /* its request has not been reported yet */
    if (state == CONNECTED)
        fake_happens(conn, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0, 0);
    else if (state != OVER)
        fake_happens(conn, RDMA_CM_EVENT_REJECTED, CONSUMER_REJECTS, NULL, 0, REFUSED_BYTES);
}

static void is_established(conn_t *conn)
{
    conn->state = CONNECTED;
    if (conn->id.qp)
        conn->id.qp->state = IBV_QPS_RTS;
}

static void packet(conn_t *conn, const head_t *head, const uint8_t *bytes, size_t len)
{
    switch (head->kind) {
    case ASK:
        if (conn->state != NEW)
            return;
        conn->state = CALLED;
        conn->retries = head->status;
        fake_happens(conn, RDMA_CM_EVENT_CONNECT_REQUEST, 0, bytes, len, ASKED_BYTES);
        return;
    case ANSWER:
        conn->retries = head->status;
        is_established(conn);
        (void)fake_put(conn, &(head_t){.kind = READY}, NULL, 0);
        fake_happens(conn, RDMA_CM_EVENT_ESTABLISHED, 0, bytes, len, ANSWERED_BYTES);
        return;
    case READY:
        conn->state = CONNECTED;
        fake_happens(conn, RDMA_CM_EVENT_ESTABLISHED, 0, NULL, 0, 0);
        return;
    case REFUSE:
        conn->state = OVER;
        fake_happens(conn, RDMA_CM_EVENT_REJECTED, CONSUMER_REJECTS, bytes, len, REFUSED_BYTES);
        return;
    default:
        break;
    }
    if (!pair_of(conn))
        return;
    if (head->kind == ACK || head->kind == NAK) {
        fake_acknowledged(pair_of(conn), head);
    } else if (pair_of(conn)->qp.state != IBV_QPS_RTS) {
        return;
    } else if (head->kind == WRITE) {
        fake_write_bytes(conn, head, bytes, len);
    } else if (!fake_fill_slot(conn, bytes, len)) {
        conn->waiting.is_there = true;
        conn->waiting.until = conn->retries == 7
                                  ? INT64_MAX
                                  : now_ms() + (int64_t)(conn->retries + 1) * SLOT_RETRY_MS;
        conn->waiting.len = len;
        memcpy(conn->waiting.bytes, bytes, len);
    }
}

/* While a message waits for a slot, no later message may pass. Returns true if no message is
 * waiting any more. */
static bool try_waiting(conn_t *conn)
{
    pair_t *pair = pair_of(conn);

    if (!conn->waiting.is_there)
        return true;
    if (pair && pair->qp.state == IBV_QPS_RTS &&
        !fake_fill_slot(conn, conn->waiting.bytes, conn->waiting.len)) {
        if (now_ms() < conn->waiting.until)
            return false;
        pair->refusal = IBV_WC_RNR_RETRY_EXC_ERR; /* the sender's queue pair fails, not ours */
    }
    conn->waiting.is_there = false;
    return true;
}

void fake_receive(conn_t *conn)
{
    static uint8_t bytes[CHUNK];
    head_t head;
    struct iovec iov[2] = {{&head, sizeof head}, {bytes, sizeof bytes}};
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};

    while (conn->socket >= 0 && try_waiting(conn)) {
        ssize_t n = recvmsg(conn->socket, &message, MSG_DONTWAIT);

        if (n >= (ssize_t)sizeof head)
            packet(conn, &head, bytes, (size_t)n - sizeof head);
        else if (n < 0 && errno == EAGAIN)
            return;
        else if (n >= 0 || errno != ECONNRESET) /* a reset overtakes bytes that are still unread */
            hang_up(conn);
    }
}

/* ---- accepting connections ---- */

conn_t *fake_make_conn(struct rdma_event_channel *channel, void *context,
                       enum rdma_port_space space)
{
    conn_t *conn = make(sizeof *conn);

    conn->id.channel = channel;
    conn->id.context = context;
    conn->id.ps = space;
    conn->socket = -1;
    conn->next = fake.conns;
    fake.conns = conn;
    return conn;
}

void fake_answer_caller(conn_t *listener)
{
    int socket = accept4(listener->socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    device_t *device = socket >= 0 ? fake_open_device() : NULL;
    conn_t *conn;

    if (!device) {
        if (socket >= 0)
            close(socket);
        return;
    }
    conn = fake_make_conn(listener->id.channel, listener->id.context, listener->id.ps);
    conn->listener = listener;
    conn->socket = socket;
    conn->id.route.addr = listener->id.route.addr;
    fake_bind_to_device(conn, device);
}
