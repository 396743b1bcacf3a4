/* SPDX-License-Identifier: Apache-2.0 */
#include "tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../buffer.h"
#include "../bytes.h"

/* What one call reads at most from the socket: some 100 us of copying. */
#define PULL_BYTES ((uint64_t)512 * 1024)

/* The same while large frames come, which are read to where they belong: the next one's beginning.
 */
#define PULL_BETWEEN_BYTES ((uint64_t)16 * 1024)

/* What is thrown away while a scheduler waits: up to 4 MB. */
#define DISCARD_ROUNDS 8

typedef struct {
    bw_link_t link; /* first: a bw_link_t pointer is a tcp_link_t pointer */
    bw_buffer_t out, in;
    uint64_t peeked; /* in.head as the last peek gave it */
    int socket, event, epoll;
    bool is_frugal;     /* large frames are read to where they belong: little is pulled */
    bool may_read;      /* the socket may have something: ask it */
    bool is_ending;     /* the poller has told of the end: no event comes after it */
    bool is_blocked;    /* the socket has no room, and tells when it has */
    bool is_awaited;    /* and a write waits for that */
    bool is_deferred;   /* commit leaves the sending to flush */
    bool has_ended;     /* the peer's stream has ended, or the connection has failed */
    const char *reason; /* it has failed */
    const char *cut_by; /* why what we write goes nowhere, NULL if it does not */
    uint64_t reads, writes, stalls;
    uint64_t lost; /* bytes that were committed after it was cut */
} tcp_link_t;

static tcp_link_t *tcp_of(bw_link_t *link)
{
    return (tcp_link_t *)link;
}

/* ---- the socket ---- */

static const char *reason_of(int sys_errno)
{
    switch (sys_errno) {
    case ECONNRESET:
    case EPIPE:
        return "connection_closed";
    case ETIMEDOUT:
        return "etimedout";
    case EHOSTUNREACH:
        return "ehostunreach";
    case ENETUNREACH:
        return "enetunreach";
    default:
        return "beamway_tcp_failed";
    }
}

/* What was not sent yet is lost. */
static void lose(tcp_link_t *tcp)
{
    tcp->lost += bw_buffer_fill(&tcp->out);
    tcp->out.tail = tcp->out.head;
}

/* The connection takes nothing more. The reader tells of it, when everything that had arrived is
 * read; the socket says why only once, here. */
static void cut(tcp_link_t *tcp, const char *reason)
{
    tcp->cut_by = reason;
    tcp->may_read = true;
    lose(tcp);
}

/* Gives the kernel what it takes of the outgoing ring. */
static void push(tcp_link_t *tcp)
{
    bw_buffer_t *out = &tcp->out;

    while (bw_buffer_fill(out) > 0 && !tcp->is_blocked) {
        ssize_t n = send(tcp->socket, bw_buffer_place(out, out->tail), bw_buffer_fill(out),
                         MSG_NOSIGNAL | MSG_DONTWAIT);

        tcp->writes++;
        if (n >= 0)
            out->tail += (uint64_t)n;
        else if (errno == EAGAIN)
            tcp->is_blocked = true;
        else if (errno != EINTR)
            cut(tcp, reason_of(errno));
    }
}

/* Takes what the socket has; 0: nothing, or it has ended. */
static size_t take(tcp_link_t *tcp, struct iovec *iov, size_t count, size_t most)
{
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = count};
    ssize_t n;

    do
        n = recvmsg(tcp->socket, &message, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    tcp->reads++;
    if (n > 0) {
        tcp->may_read = (size_t)n == most || tcp->is_ending;
        return (size_t)n;
    }
    tcp->may_read = false;
    if (n == 0 || errno != EAGAIN) {
        tcp->has_ended = true;
        tcp->reason = n < 0 && !tcp->cut_by ? reason_of(errno) : tcp->cut_by;
    }
    return 0;
}

/* Takes what the socket has into the ring, as far as there is room. */
static void pull(tcp_link_t *tcp)
{
    bw_buffer_t *in = &tcp->in;
    size_t most = bw_least(bw_buffer_room(in), tcp->is_frugal ? PULL_BETWEEN_BYTES : PULL_BYTES);
    struct iovec iov = {.iov_base = bw_buffer_place(in, in->head), .iov_len = most};

    in->head += take(tcp, &iov, 1, most);
}

/* ---- the table ---- */

static bw_status_t tcp_reserve(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    tcp_link_t *tcp = tcp_of(link);

    if (bw_buffer_room(&tcp->out) < want)
        push(tcp);
    if (bw_buffer_room(&tcp->out) == 0)
        return BW_AGAIN;
    span_p->base = bw_buffer_place(&tcp->out, tcp->out.head);
    span_p->len = bw_buffer_room(&tcp->out);
    return BW_OK;
}

static void tcp_commit(bw_link_t *link, size_t n)
{
    tcp_link_t *tcp = tcp_of(link);

    tcp->out.head += n;
    if (tcp->cut_by)
        lose(tcp);
    else if (!tcp->is_deferred)
        push(tcp);
}

static void tcp_defer(bw_link_t *link)
{
    tcp_of(link)->is_deferred = true;
}

static bool tcp_needs_flush(const bw_link_t *link)
{
    return bw_buffer_fill(&((const tcp_link_t *)link)->out) > 0;
}

static void tcp_flush(bw_link_t *link, bw_span_t *rest_p)
{
    tcp_link_t *tcp = tcp_of(link);

    push(tcp);
    *rest_p = (bw_span_t){.base = bw_buffer_place(&tcp->out, tcp->out.tail),
                          .len = bw_buffer_fill(&tcp->out)};
    tcp->is_awaited |= rest_p->len > 0;
    tcp->out.head = tcp->out.tail;
}

static bw_status_t tcp_peek(bw_link_t *link, bw_span_t *span_p)
{
    tcp_link_t *tcp = tcp_of(link);
    bw_buffer_t *in = &tcp->in;

    if (!tcp->has_ended && (tcp->may_read || bw_buffer_fill(in) == 0) &&
        bw_buffer_fill(in) < (tcp->is_frugal ? PULL_BETWEEN_BYTES : in->size))
        pull(tcp);
    tcp->peeked = in->head;
    if (bw_buffer_fill(in) == 0)
        return tcp->reason ? BW_SYSTEM : BW_AGAIN;
    span_p->base = bw_buffer_place(in, in->tail);
    span_p->len = bw_buffer_fill(in);
    return BW_OK;
}

static void tcp_release(bw_link_t *link, size_t n)
{
    tcp_of(link)->in.tail += n;
}

/* The positions of both rings go on, as if the bytes had been there. */
static bw_status_t tcp_write(bw_link_t *link, const struct iovec *iov, int count, size_t *taken_p)
{
    tcp_link_t *tcp = tcp_of(link);
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)iov,
                             .msg_iovlen = (size_t)count};
    ssize_t n = 0;

    *taken_p = 0;
    push(tcp);
    if (tcp->cut_by)
        return BW_OK;
    if (!tcp->is_blocked) {
        do
            n = sendmsg(tcp->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        while (n < 0 && errno == EINTR);
        tcp->writes++;
        tcp->is_blocked = n < 0 && errno == EAGAIN;
    }
    if (tcp->is_blocked) {
        tcp->is_awaited = true;
        return BW_AGAIN;
    }
    if (n < 0) {
        cut(tcp, reason_of(errno));
        return BW_OK;
    }
    tcp->out.head += (uint64_t)n;
    tcp->out.tail = tcp->out.head;
    *taken_p = (size_t)n;
    return BW_OK;
}

static bw_status_t tcp_read(bw_link_t *link, uint8_t *to, size_t most, size_t *got_p)
{
    tcp_link_t *tcp = tcp_of(link);
    bw_buffer_t *in = &tcp->in;
    struct iovec iov[2] = {
        {.iov_base = to, .iov_len = most},
        {.iov_base = bw_buffer_place(in, in->head + most), .iov_len = PULL_BETWEEN_BYTES}};
    size_t n;

    *got_p = 0;
    if (tcp->has_ended || bw_buffer_fill(in) > 0)
        return BW_OK;
    tcp->is_frugal = true;
    n = take(tcp, iov, 2, most + PULL_BETWEEN_BYTES);
    *got_p = bw_least(n, most);
    in->tail += *got_p;
    in->head += n;
    tcp->peeked = in->head;
    return n > 0 || tcp->has_ended ? BW_OK : BW_AGAIN;
}

/* What came before the last clear_event is seen here, what comes after it makes the descriptor
 * readable. A stream that has ended within what the user waits for more of will never give it. */
static bw_status_t tcp_arm_read(bw_link_t *link)
{
    tcp_link_t *tcp = tcp_of(link);

    tcp->is_frugal = false;
    if (!tcp->has_ended && tcp->may_read && bw_buffer_room(&tcp->in) > 0)
        pull(tcp);
    if (tcp->in.head != tcp->peeked)
        return BW_AGAIN;
    if (tcp->has_ended && (tcp->reason || bw_buffer_fill(&tcp->in) > 0)) {
        tcp->reason = tcp->reason ? tcp->reason : reason_of(ECONNRESET);
        return BW_CORRUPT;
    }
    tcp->may_read = true; /* whoever is woken asks the socket */
    return BW_OK;
}

static bw_status_t tcp_arm_write(bw_link_t *link, size_t wanted)
{
    tcp_link_t *tcp = tcp_of(link);

    push(tcp);
    if (bw_buffer_room(&tcp->out) >= wanted && !(tcp->is_blocked && tcp->is_awaited))
        return BW_AGAIN;
    tcp->stalls++;
    return BW_OK;
}

static int tcp_fd(const bw_link_t *link)
{
    return ((const tcp_link_t *)link)->epoll;
}

static int tcp_expose(bw_link_t *link)
{
    tcp_link_t *tcp = tcp_of(link);
    int fd = fcntl(tcp->socket, F_DUPFD_CLOEXEC, 3);

    if (fd >= 0)
        (void)epoll_ctl(tcp->epoll, EPOLL_CTL_DEL, tcp->socket, NULL);
    return fd;
}

static bool tcp_is_blocked(const bw_link_t *link)
{
    const tcp_link_t *tcp = (const tcp_link_t *)link;

    return tcp->is_blocked && !tcp->cut_by;
}

static void tcp_is_ready(bw_link_t *link, bool has_room)
{
    tcp_link_t *tcp = tcp_of(link);

    if (has_room)
        tcp->is_blocked = tcp->is_awaited = false;
    else
        tcp->may_read = true;
}

static void tcp_clear_event(bw_link_t *link)
{
    tcp_link_t *tcp = tcp_of(link);
    struct epoll_event events[2];
    int count;

    do
        count = epoll_wait(tcp->epoll, events, 2, 0);
    while (count < 0 && errno == EINTR);
    tcp->reads++;
    for (int i = 0; i < count; i++) {
        if (events[i].data.fd != tcp->socket)
            continue;
        if (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
            tcp->is_ending = true;
        if (events[i].events & EPOLLIN || tcp->is_ending)
            tcp->may_read = true;
        if (events[i].events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
            tcp->is_blocked = tcp->is_awaited = false;
    }
    push(tcp);
}

static void tcp_wake_self(bw_link_t *link)
{
    (void)eventfd_write(tcp_of(link)->event, 1);
}

static bool tcp_trim(bw_link_t *link)
{
    return bw_buffer_trim(&tcp_of(link)->out) || bw_buffer_trim(&tcp_of(link)->in);
}

static void tcp_stats(const bw_link_t *link, bw_link_stats_t *stats_p)
{
    const tcp_link_t *tcp = (const tcp_link_t *)link;
    int in_kernel = 0;

    (void)ioctl(tcp->socket, SIOCOUTQ, &in_kernel);
    *stats_p = (bw_link_stats_t){
        .bytes_in = tcp->in.tail,
        .bytes_out = tcp->out.head,
        .doorbells_in = tcp->reads,
        .doorbells_out = tcp->writes,
        .stalls = tcp->stalls,
        .ring_bytes = tcp->out.size,
        .fill_in = bw_buffer_fill(&tcp->in),
        .fill_out = bw_buffer_fill(&tcp->out),
        .unreleased =
            bw_buffer_fill(&tcp->out) + tcp->lost + (uint64_t)(in_kernel > 0 ? in_kernel : 0),
    };
}

static bool tcp_is_finished(bw_link_t *link)
{
    const tcp_link_t *tcp = tcp_of(link);

    return tcp->has_ended && !tcp->reason && bw_buffer_fill(&tcp->in) == 0;
}

static const char *tcp_reason(bw_link_t *link)
{
    return tcp_of(link)->reason;
}

static void free_link(tcp_link_t *tcp)
{
    bw_buffer_free(&tcp->out);
    bw_buffer_free(&tcp->in);
    if (tcp->socket >= 0)
        close(tcp->socket);
    if (tcp->event >= 0)
        close(tcp->event);
    if (tcp->epoll >= 0)
        close(tcp->epoll);
    free(tcp);
}

/* A socket that is closed with something unread resets the connection, and the peer may lose what
 * is on its way to it: so that is thrown away first. Bounded: a peer that goes on writing is reset.
 */
static void tcp_close(bw_link_t *link, bw_leftover_t *left_p)
{
    tcp_link_t *tcp = tcp_of(link);
    bw_leftover_t left = {.fd = tcp->epoll, .socket = -1};

    push(tcp);
    if (tcp->is_deferred && bw_buffer_fill(&tcp->out) > 0)
        left.unsent = (struct iovec){.iov_base = bw_buffer_place(&tcp->out, tcp->out.tail),
                                     .iov_len = bw_buffer_fill(&tcp->out)};
    else
        (void)shutdown(tcp->socket, SHUT_WR);
    if (bw_discard(tcp->socket, DISCARD_ROUNDS) || left.unsent.iov_len > 0) {
        left.socket = tcp->socket;
        tcp->socket = -1;
    }
    left.map[0] = bw_buffer_take(&tcp->out);
    left.map[1] = bw_buffer_take(&tcp->in);
    tcp->epoll = -1;
    free_link(tcp);
    bw_leftover_give(&left, left_p);
}

static bw_status_t tcp_probe(uint64_t ring_bytes, bw_error_t *error_p)
{
    (void)ring_bytes, (void)error_p;
    return BW_OK;
}

/* Both sides have an end of the same connection already. */
static bw_status_t tcp_connect(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p)
{
    if (order->at_len != BW_TCP_PLACE_BYTES)
        return bw_fail(error_p, BW_INVALID, "no descriptor of a socket", 0);
    return bw_tcp_adopt((int)bw_number(order->at, BW_TCP_PLACE_BYTES), order->ring_bytes, link_p,
                        error_p);
}

static bw_status_t tcp_put_back(bw_link_t *link, const void *bytes, size_t len, bw_error_t *error_p)
{
    bw_buffer_t *in = &tcp_of(link)->in;

    if (in->head != 0 || len > in->size)
        return bw_fail(error_p, BW_INVALID, "what was read before does not fit into the ring", 0);
    if (len > 0)
        memcpy(in->data, bytes, len);
    in->head = len;
    return BW_OK;
}

static void tcp_step(bw_link_t *link, bw_report_t *report_p)
{
    (void)link;
    *report_p = (bw_report_t){.state = BW_LINKED};
}

const bw_carrier_t bw_tcp_carrier = {
    .kind = "tcp",
    .caps = BW_CAP_TELLS_DEATH | BW_CAP_KERNEL_BUFFERS | BW_CAP_IMMEDIATE,
    .probe = tcp_probe,
    .listen = tcp_connect,
    .connect = tcp_connect,
    .step = tcp_step,
    .put_back = tcp_put_back,
    .reserve = tcp_reserve,
    .commit = tcp_commit,
    .defer = tcp_defer,
    .needs_flush = tcp_needs_flush,
    .flush = tcp_flush,
    .peek = tcp_peek,
    .release = tcp_release,
    .write = tcp_write,
    .read = tcp_read,
    .arm_read = tcp_arm_read,
    .arm_write = tcp_arm_write,
    .fd = tcp_fd,
    .expose = tcp_expose,
    .is_blocked = tcp_is_blocked,
    .is_ready = tcp_is_ready,
    .clear_event = tcp_clear_event,
    .wake_self = tcp_wake_self,
    .trim = tcp_trim,
    .stats = tcp_stats,
    .is_finished = tcp_is_finished,
    .reason = tcp_reason,
    .close = tcp_close,
};

/* ---- making one ---- */

/* A descriptor of our own for the socket, which must be a connected stream. */
static bw_status_t take_socket(int socket, int *fd_p, bw_error_t *error_p)
{
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer, type_len = sizeof(int);
    int type = 0, fd, flags;

    if (getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &type_len) < 0 || type != SOCK_STREAM)
        return bw_fail(error_p, BW_INVALID, "the descriptor is no stream socket", 0);
    if (getpeername(socket, (struct sockaddr *)&peer, &len) < 0)
        return bw_fail(error_p, BW_INVALID, "the socket is not connected any more", errno);
    fd = fcntl(socket, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return bw_fail_system(error_p, "a descriptor for the socket", errno);
    flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
        bw_status_t status = bw_fail_system(error_p, "a socket that does not block", errno);

        close(fd);
        return status;
    }
    *fd_p = fd;
    return BW_OK;
}

bw_status_t bw_tcp_watch(int socket, int *fd_p, bw_error_t *error_p)
{
    return take_socket(socket, fd_p, error_p);
}

/* Whole frames are written, so nothing is gained by waiting for more; and what close leaves in the
 * kernel goes out. A socket that is no TCP has none of it. */
static void set_options(int fd)
{
    struct linger no = {0};
    int yes = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &no, sizeof no);
}

static bw_status_t make_poller(tcp_link_t *tcp, bw_error_t *error_p)
{
    struct epoll_event of_socket = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                    .data.fd = tcp->socket};
    struct epoll_event of_event = {.events = EPOLLIN | EPOLLET};

    tcp->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    tcp->epoll = epoll_create1(EPOLL_CLOEXEC);
    of_event.data.fd = tcp->event;
    if (tcp->event < 0 || tcp->epoll < 0 ||
        epoll_ctl(tcp->epoll, EPOLL_CTL_ADD, tcp->socket, &of_socket) < 0 ||
        epoll_ctl(tcp->epoll, EPOLL_CTL_ADD, tcp->event, &of_event) < 0)
        return bw_fail_system(error_p, "epoll of the socket", errno);
    return BW_OK;
}

bw_status_t bw_tcp_adopt(int socket, uint64_t ring_bytes, bw_link_t **link_p, bw_error_t *error_p)
{
    tcp_link_t *tcp;
    bw_status_t status;

    if (!bw_ring_size_is_valid(ring_bytes))
        return bw_fail(error_p, BW_INVALID, "no valid size of a ring", 0);
    tcp = calloc(1, sizeof *tcp);
    if (!tcp)
        return bw_fail(error_p, BW_LIMIT, "memory for the link", ENOMEM);
    tcp->link.ops = &bw_tcp_carrier;
    tcp->socket = tcp->event = tcp->epoll = -1;
    tcp->may_read = true;
    status = take_socket(socket, &tcp->socket, error_p);
    if (status == BW_OK)
        status = bw_buffer_make(&tcp->out, "beamway-tcp", ring_bytes, error_p);
    if (status == BW_OK)
        status = bw_buffer_make(&tcp->in, "beamway-tcp", ring_bytes, error_p);
    if (status == BW_OK)
        status = make_poller(tcp, error_p);
    if (status != BW_OK) {
        free_link(tcp);
        return status;
    }
    set_options(tcp->socket);
    *link_p = &tcp->link;
    return BW_OK;
}
