/* SPDX-License-Identifier: Apache-2.0 */
#include "socket_link.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bytes.h"

/* The maximum that one call reads from the socket. Copying this much takes about 100 us. */
#define PULL_BYTES ((uint64_t)512 * 1024)

/* The same limit while large frames arrive. These are read directly into place, so only the
 * beginning of the next frame has to be read here. */
#define PULL_BETWEEN_BYTES ((uint64_t)16 * 1024)

/* The peer counts as silent after this many retransmissions without a response. */
#define SILENT_ROUNDS 2

/* How many rounds of discarding may block a scheduler: up to 4 MB. */
#define DISCARD_ROUNDS 8

static const bw_socket_link_t *const_of(const bw_link_t *link)
{
    return (const bw_socket_link_t *)link;
}

/* ---- the socket ---- */

size_t bw_socket_send(bw_socket_t *sock, const struct iovec *iov, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)iov,
                             .msg_iovlen = (size_t)count};
    ssize_t n;

    if (sock->out != BW_SOCKET_FREE)
        return 0;
    do {
        n = sendmsg(sock->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        sock->writes++;
    } while (n < 0 && errno == EINTR);
    if (n >= 0)
        return (size_t)n;
    sock->out = errno == EAGAIN ? BW_SOCKET_BLOCKED : BW_SOCKET_BROKEN;
    sock->write_error = errno == EAGAIN ? 0 : errno;
    return 0;
}

void bw_socket_push(bw_socket_t *sock, bw_buffer_t *out)
{
    size_t n = 1;

    while (n > 0 && bw_buffer_fill(out) > 0) {
        struct iovec iov = {.iov_base = bw_buffer_place(out, out->tail),
                            .iov_len = bw_buffer_fill(out)};

        n = bw_socket_send(sock, &iov, 1);
        out->tail += n;
    }
}

/* After a send has reported that the connection was reset or timed out, a read only finds the end
 * of the stream, as if the peer had closed its end. EPIPE shows that the peer really had. */
static int error_at_end(const bw_socket_t *sock)
{
    return sock->out == BW_SOCKET_BROKEN && sock->write_error != EPIPE ? sock->write_error : 0;
}

size_t bw_socket_receive(bw_socket_t *sock, struct iovec *iov, int count)
{
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = (size_t)count};
    size_t most = 0;
    ssize_t n;

    for (int i = 0; i < count; i++)
        most += iov[i].iov_len;
    do
        n = recvmsg(sock->fd, &message, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    sock->reads++;
    sock->in = n > 0 && (size_t)n == most ? BW_SOCKET_MAYBE : BW_SOCKET_QUIET;
    if (n > 0)
        return (size_t)n;
    if (n == 0 || errno != EAGAIN) {
        sock->in = BW_SOCKET_ENDED;
        sock->read_error = n < 0 ? errno : error_at_end(sock);
    }
    return 0;
}

static void expect_input(bw_socket_t *sock)
{
    if (sock->in == BW_SOCKET_QUIET)
        sock->in = BW_SOCKET_MAYBE;
}

const char *bw_socket_link_reason_of(const bw_link_t *link, int sys_errno)
{
    switch (sys_errno) {
    case 0:
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
        return const_of(link)->passage->failed;
    }
}

/* ---- writing ---- */

static void lose(bw_socket_link_t *base)
{
    base->lost += bw_buffer_fill(&base->out);
    base->out.tail = base->out.head;
}

void bw_socket_link_cut(bw_link_t *link, const char *reason)
{
    bw_socket_link_t *base = bw_socket_link_of(link);

    base->socket.out = BW_SOCKET_BROKEN;
    if (base->end == BW_SOCKET_OPEN && !base->reason)
        base->reason = reason;
    expect_input(&base->socket);
    lose(base);
}

void bw_socket_link_check(bw_link_t *link)
{
    bw_socket_link_t *base = bw_socket_link_of(link);

    if (bw_socket_link_is_cut(link))
        bw_socket_link_cut(link, bw_socket_link_reason_of(link, base->socket.write_error));
}

static void push(bw_socket_link_t *base)
{
    if (bw_socket_link_is_cut(&base->link))
        return;
    base->passage->push(&base->link);
    bw_socket_link_check(&base->link);
}

bw_status_t bw_socket_link_reserve(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    bw_socket_link_t *base = bw_socket_link_of(link);

    if (bw_buffer_room(&base->out) < want)
        push(base);
    if (bw_buffer_room(&base->out) == 0)
        return BW_AGAIN;
    *span_p = bw_buffer_gap(&base->out);
    return BW_OK;
}

/* Accounts for bytes that flush handed back: they are written again before any others. */
static void note_again(bw_socket_link_t *base, size_t n)
{
    base->handed_back -= bw_least(base->handed_back, n);
}

void bw_socket_link_commit(bw_link_t *link, size_t n)
{
    bw_socket_link_t *base = bw_socket_link_of(link);

    base->out.head += n;
    note_again(base, n);
    if (bw_socket_link_is_cut(link))
        lose(base);
    else if (!base->is_deferred)
        push(base);
}

void bw_socket_link_defer(bw_link_t *link)
{
    bw_socket_link_of(link)->is_deferred = true;
}

bool bw_socket_link_needs_flush(const bw_link_t *link)
{
    return bw_buffer_fill(&const_of(link)->out) > 0;
}

void bw_socket_link_flush(bw_link_t *link, bw_span_t *rest_p)
{
    bw_socket_link_t *base = bw_socket_link_of(link);

    push(base);
    *rest_p = bw_buffer_span(&base->out);
    base->handed_back += rest_p->len;
    base->is_awaited |= rest_p->len > 0;
    bw_buffer_drop(&base->out);
}

/* The ring's positions advance as if the bytes had been in the ring. Bytes that were taken before
 * the connection failed are counted, because the peer may have read them. */
bw_status_t bw_socket_link_write(bw_link_t *link, const struct iovec *iov, int count,
                                 size_t *taken_p)
{
    bw_socket_link_t *base = bw_socket_link_of(link);
    size_t taken;

    *taken_p = 0;
    push(base);
    if (bw_socket_link_is_cut(link))
        return BW_OK;
    taken = base->passage->write(link, iov, count);
    bw_socket_link_check(link);
    if (taken == 0 && !bw_socket_link_is_cut(link)) {
        base->is_awaited = true;
        return BW_AGAIN;
    }
    bw_buffer_skip(&base->out, taken);
    note_again(base, taken);
    *taken_p = taken;
    return BW_OK;
}

bw_status_t bw_socket_link_arm_write(bw_link_t *link, size_t wanted)
{
    bw_socket_link_t *base = bw_socket_link_of(link);

    push(base);
    if (bw_buffer_room(&base->out) >= wanted &&
        !(base->socket.out == BW_SOCKET_BLOCKED && base->is_awaited))
        return BW_AGAIN;
    base->stalls++;
    return BW_OK;
}

/* ---- reading ---- */

void bw_socket_link_end(bw_link_t *link, const char *reason)
{
    bw_socket_link_t *base = bw_socket_link_of(link);

    if (!base->reason)
        base->reason = reason;
    base->end = base->reason ? BW_SOCKET_FAILED : BW_SOCKET_FINISHED;
}

static bool may_pull(const bw_socket_link_t *base)
{
    return base->end == BW_SOCKET_OPEN && (base->socket.in == BW_SOCKET_MAYBE || base->has_more);
}

/* Reads as much into the ring as there is room for. If there is no room, it must not read, because
 * a read of length 0 returns 0, just like the end of the stream. */
static void pull(bw_socket_link_t *base)
{
    bw_span_t gap = bw_buffer_gap(&base->in);
    struct iovec iov = {.iov_base = gap.base};

    if (gap.len == 0)
        return;
    iov.iov_len = bw_least(gap.len, base->is_frugal ? PULL_BETWEEN_BYTES : PULL_BYTES);
    base->in.head += base->passage->read(&base->link, &iov, 1);
}

bw_status_t bw_socket_link_peek(bw_link_t *link, bw_span_t *span_p)
{
    bw_socket_link_t *base = bw_socket_link_of(link);
    bw_buffer_t *in = &base->in;

    base->is_armed = false;
    /* A call without an event must also read the socket, even if the ring holds a partial frame. */
    if (bw_buffer_fill(in) == 0 || in->head == base->peeked)
        expect_input(&base->socket);
    if (may_pull(base) && (bw_buffer_fill(in) < PULL_BETWEEN_BYTES || !base->is_taken))
        pull(base);
    base->is_taken = false;
    base->peeked = in->head;
    if (bw_buffer_fill(in) == 0)
        return base->end == BW_SOCKET_FAILED ? BW_SYSTEM : BW_AGAIN;
    *span_p = bw_buffer_span(in);
    return BW_OK;
}

void bw_socket_link_release(bw_link_t *link, size_t n)
{
    bw_socket_link_t *base = bw_socket_link_of(link);

    base->is_taken |= n > 0;
    base->in.tail += n;
}

bw_status_t bw_socket_link_read(bw_link_t *link, uint8_t *to, size_t most, size_t *got_p)
{
    bw_socket_link_t *base = bw_socket_link_of(link);
    bw_buffer_t *in = &base->in;
    struct iovec iov[2] = {{.iov_base = to, .iov_len = most}, {.iov_len = PULL_BETWEEN_BYTES}};
    size_t n;

    *got_p = 0;
    if (base->end != BW_SOCKET_OPEN || bw_buffer_fill(in) > 0)
        return BW_OK;
    iov[1].iov_base = bw_buffer_gap(in).base;
    base->is_armed = false;
    base->is_frugal = true;
    expect_input(&base->socket);
    n = base->passage->read(link, iov, 2);
    *got_p = bw_least(n, most);
    bw_buffer_skip(in, *got_p);
    in->head += n - *got_p;
    base->peeked = in->head;
    return n > 0 || base->end != BW_SOCKET_OPEN ? BW_OK : BW_AGAIN;
}

/* A stream that ended in the middle of a frame has failed: the rest will never arrive. */
bw_status_t bw_socket_link_arm_read(bw_link_t *link)
{
    bw_socket_link_t *base = bw_socket_link_of(link);

    base->is_frugal = false;
    if (may_pull(base))
        pull(base);
    if (base->in.head != base->peeked)
        return BW_AGAIN;
    if (base->end == BW_SOCKET_FINISHED && bw_buffer_fill(&base->in) > 0)
        bw_socket_link_end(link, "connection_closed");
    if (bw_socket_link_is_cut(link) && base->end == BW_SOCKET_OPEN && !may_pull(base))
        bw_socket_link_end(link, bw_socket_link_reason_of(link, base->socket.write_error));
    if (base->end == BW_SOCKET_FAILED)
        return BW_CORRUPT;
    expect_input(&base->socket); /* so that the socket is read after the wake-up */
    base->is_armed = true;
    return BW_OK;
}

bool bw_socket_link_is_finished(bw_link_t *link)
{
    const bw_socket_link_t *base = const_of(link);

    return base->end == BW_SOCKET_FINISHED && bw_buffer_fill(&base->in) == 0;
}

const char *bw_socket_link_reason(bw_link_t *link)
{
    return const_of(link)->reason;
}

bw_status_t bw_socket_link_put_back(bw_link_t *link, const void *bytes, size_t len,
                                    bw_error_t *error_p)
{
    bw_buffer_t *in = &bw_socket_link_of(link)->in;

    if (in->head == 0 && bw_buffer_put(in, bytes, len))
        return BW_OK;
    return bw_fail(error_p, BW_INVALID, "what was read before does not fit into the ring", 0);
}

/* ---- polling ---- */

int bw_socket_link_fd(const bw_link_t *link)
{
    return const_of(link)->socket.fd;
}

/* If the ring has no room, polling a readable socket would wake the user again and again. */
short bw_socket_link_wants(const bw_link_t *link)
{
    const bw_socket_link_t *base = const_of(link);
    bool reads = base->is_armed && base->end == BW_SOCKET_OPEN && bw_buffer_room(&base->in) > 0;

    return (short)((reads ? POLLIN : 0) | (base->socket.out == BW_SOCKET_BLOCKED ? POLLOUT : 0));
}

/* Also sends encrypted bytes that the user does not know about. */
void bw_socket_link_is_ready(bw_link_t *link, short events)
{
    bw_socket_link_t *base = bw_socket_link_of(link);

    if (events & (POLLIN | POLLHUP | POLLERR))
        expect_input(&base->socket);
    if (!(events & (POLLOUT | POLLHUP | POLLERR)))
        return;
    if (base->socket.out == BW_SOCKET_BLOCKED) {
        base->socket.out = BW_SOCKET_FREE;
        base->is_awaited = false;
    }
    push(base);
}

void bw_socket_link_clear_event(bw_link_t *link)
{
    const bw_socket_t *sock = &bw_socket_link_of(link)->socket;
    struct pollfd room = {.fd = sock->fd, .events = POLLOUT, .revents = POLLOUT};

    if (sock->out == BW_SOCKET_BLOCKED)
        (void)poll(&room, 1, 0);
    bw_socket_link_is_ready(link, (short)(POLLIN | room.revents));
}

bool bw_socket_link_is_cut(const bw_link_t *link)
{
    return const_of(link)->socket.out == BW_SOCKET_BROKEN;
}

bool bw_socket_link_has_hung_up(const bw_link_t *link)
{
    return const_of(link)->socket.in == BW_SOCKET_ENDED && const_of(link)->socket.read_error == 0;
}

/* All fields are 0 if the socket is not a TCP socket. */
static struct tcp_info info_of(const bw_socket_link_t *base)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;

    (void)getsockopt(base->socket.fd, IPPROTO_TCP, TCP_INFO, &info, &len);
    return info;
}

/* Returns true if the peer acknowledges neither data nor, if its window is full, window probes.
 * These must have been retransmitted twice, so detection takes at least 0.6 s. */
bool bw_socket_link_is_silent(bw_link_t *link)
{
    struct tcp_info info = info_of(const_of(link));

    return info.tcpi_retransmits >= SILENT_ROUNDS || info.tcpi_probes >= SILENT_ROUNDS;
}

void bw_socket_link_leave(bw_link_t *link)
{
    bw_socket_link_of(link)->is_left = true;
}

/* ---- memory and statistics ---- */

bool bw_socket_link_has_spare(const bw_link_t *link)
{
    return bw_buffer_has_spare(&const_of(link)->out) || bw_buffer_has_spare(&const_of(link)->in);
}

bool bw_socket_link_trim(bw_link_t *link)
{
    bw_socket_link_t *base = bw_socket_link_of(link);

    return bw_buffer_trim(&base->out) || bw_buffer_trim(&base->in);
}

void bw_socket_link_stats(const bw_link_t *link, bw_link_stats_t *stats_p)
{
    const bw_socket_link_t *base = const_of(link);
    struct tcp_info info = info_of(base);
    int in_kernel = 0;

    (void)ioctl(base->socket.fd, SIOCOUTQ, &in_kernel);
    *stats_p = (bw_link_stats_t){
        .bytes_in = base->in.tail,
        .bytes_out = base->out.head + base->handed_back,
        .doorbells_in = base->socket.reads,
        .doorbells_out = base->socket.writes,
        .stalls = base->stalls,
        .ring_bytes = base->out.size,
        .fill_in = bw_buffer_fill(&base->in),
        .fill_out = bw_buffer_fill(&base->out),
        .unreleased =
            bw_buffer_fill(&base->out) + base->lost + (uint64_t)(in_kernel > 0 ? in_kernel : 0),
        .rtt_us = info.tcpi_rtt,
        .least_rtt_us = info.tcpi_min_rtt == UINT32_MAX ? 0 : info.tcpi_min_rtt,
        .window_bytes = (uint64_t)info.tcpi_snd_cwnd * info.tcpi_snd_mss,
        .delivered_bytes = info.tcpi_delivered > 0
                               ? (uint64_t)info.tcpi_delivered * info.tcpi_snd_mss
                               : info.tcpi_bytes_acked, /* before Linux 4.18 */
        .retransmits = info.tcpi_total_retrans,
        .unanswered = info.tcpi_retransmits + info.tcpi_probes,
        .ack_ms = info.tcpi_last_ack_recv,
        .kernel_bytes = (uint64_t)(in_kernel > 0 ? in_kernel : 0),
    };
}

/* ---- creating and closing ---- */

void bw_socket_link_free(bw_socket_link_t *base)
{
    bw_buffer_free(&base->out);
    bw_buffer_free(&base->in);
    if (base->socket.fd >= 0)
        close(base->socket.fd);
    free(base);
}

/* Closing a socket with unread bytes resets the connection, and then the peer may lose bytes that
 * are still in flight to it. Unread bytes are therefore discarded first, but only up to a limit; a
 * peer that keeps writing is reset. The part that would take too long for this call is done later
 * and needs a descriptor; if none is free, the unsent bytes are lost. */
void bw_socket_link_close(bw_link_t *link, struct iovec unsent, struct iovec map,
                          bw_leftover_t *left_p)
{
    bw_socket_link_t *base = bw_socket_link_of(link);
    bw_leftover_t left = {.fd = base->socket.fd, .socket = -1, .unsent = unsent};

    if (unsent.iov_len == 0 && !base->is_left)
        (void)shutdown(left.fd, SHUT_WR);
    if (!base->is_left && (bw_discard(left.fd, DISCARD_ROUNDS) || unsent.iov_len > 0))
        left.socket = fcntl(left.fd, F_DUPFD_CLOEXEC, 3);
    if (left.socket < 0 && unsent.iov_len > 0 && !base->is_left) {
        left.unsent.iov_len = 0;
        (void)shutdown(left.fd, SHUT_WR);
    }
    left.map[0] = bw_buffer_take(&base->out);
    left.map[1] = bw_buffer_take(&base->in);
    left.map[2] = map;
    base->socket.fd = -1;
    bw_socket_link_free(base);
    bw_leftover_give(&left, left_p);
}

bw_status_t bw_socket_link_probe(uint64_t ring_bytes, bw_error_t *error_p)
{
    (void)ring_bytes, (void)error_p;
    return BW_OK;
}

bw_status_t bw_socket_watch(int socket, int *fd_p, bw_error_t *error_p)
{
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer, type_len = sizeof(int);
    int type = 0, fd, flags;

    if (getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &type_len) < 0 || type != SOCK_STREAM)
        return bw_fail(error_p, BW_INVALID, "the descriptor is not a stream socket", 0);
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

/* Writes consist of whole frames, so waiting for more bytes gains nothing (TCP_NODELAY), and close
 * must not prevent the kernel from sending the rest. Sockets other than TCP have neither option. */
static void set_options(int fd)
{
    struct linger no = {0};
    int yes = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &no, sizeof no);
}

bw_socket_link_t *bw_socket_link_make(const bw_carrier_t *ops, const bw_passage_t *passage,
                                      size_t bytes, int socket, uint64_t ring_bytes,
                                      bw_status_t *status_p, bw_error_t *error_p)
{
    bw_socket_link_t *base;
    bw_status_t status;

    if (!bw_ring_size_is_valid(ring_bytes)) {
        *status_p = bw_fail(error_p, BW_INVALID, "no valid size of a ring", 0);
        return NULL;
    }
    base = calloc(1, bytes);
    if (!base) {
        *status_p = bw_fail(error_p, BW_LIMIT, "memory for the link", ENOMEM);
        return NULL;
    }
    base->link.ops = ops;
    base->passage = passage;
    base->socket.fd = -1;
    status = bw_socket_watch(socket, &base->socket.fd, error_p);
    if (status == BW_OK)
        status = bw_buffer_make(&base->out, passage->name, ring_bytes, error_p);
    if (status == BW_OK)
        status = bw_buffer_make(&base->in, passage->name, ring_bytes, error_p);
    *status_p = status;
    if (status != BW_OK) {
        bw_socket_link_free(base);
        return NULL;
    }
    set_options(base->socket.fd);
    return base;
}
