/* SPDX-License-Identifier: Apache-2.0 */
#include "tcp.h"

#include "../bytes.h"
#include "../socket_link.h"

static void tcp_push(bw_link_t *link)
{
    bw_socket_link_t *tcp = bw_socket_link_of(link);

    bw_socket_push(&tcp->socket, &tcp->out);
}

static size_t tcp_write(bw_link_t *link, const struct iovec *iov, int count)
{
    return bw_socket_send(&bw_socket_link_of(link)->socket, iov, count);
}

static size_t tcp_read(bw_link_t *link, struct iovec *iov, int count)
{
    bw_socket_t *sock = &bw_socket_link_of(link)->socket;
    size_t n = bw_socket_receive(sock, iov, count);

    if (sock->in == BW_SOCKET_ENDED)
        bw_socket_link_end(link, sock->read_error ? bw_socket_link_reason_of(link, sock->read_error)
                                                  : NULL);
    return n;
}

static const bw_passage_t passage = {.name = "beamway-tcp",
                                     .failed = "beamway_tcp_failed",
                                     .push = tcp_push,
                                     .write = tcp_write,
                                     .read = tcp_read};

static void tcp_close(bw_link_t *link, bw_leftover_t *left_p)
{
    bw_socket_link_t *tcp = bw_socket_link_of(link);
    struct iovec unsent = {0};
    bw_span_t rest;

    bw_socket_link_flush(link, &rest);
    if (tcp->is_deferred)
        unsent = (struct iovec){.iov_base = rest.base, .iov_len = rest.len};
    bw_socket_link_close(link, unsent, (struct iovec){0}, left_p);
}

/* Connecting is the same as listening, because each side already has one end of the connection. */
static bw_status_t tcp_connect(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p)
{
    if (order->at_len != BW_TCP_PLACE_BYTES)
        return bw_fail(error_p, BW_INVALID, "no descriptor of a socket", 0);
    return bw_tcp_adopt((int)bw_number(order->at, BW_TCP_PLACE_BYTES), order->ring_bytes, link_p,
                        error_p);
}

static void tcp_step(bw_link_t *link, bw_report_t *report_p)
{
    (void)link;
    *report_p = (bw_report_t){.state = BW_LINKED};
}

const bw_carrier_t bw_tcp_carrier = {
    BW_SOCKET_LINK_OPS,
    .kind = "tcp",
    .caps = BW_CAP_TELLS_DEATH | BW_CAP_KERNEL_BUFFERS | BW_CAP_IMMEDIATE,
    .listen = tcp_connect,
    .connect = tcp_connect,
    .step = tcp_step,
    .trim = bw_socket_link_trim,
    .has_spare = bw_socket_link_has_spare,
    .stats = bw_socket_link_stats,
    .close = tcp_close,
};

bw_status_t bw_tcp_adopt(int socket, uint64_t ring_bytes, bw_link_t **link_p, bw_error_t *error_p)
{
    bw_status_t status;
    bw_socket_link_t *tcp = bw_socket_link_make(&bw_tcp_carrier, &passage, sizeof *tcp, socket,
                                                ring_bytes, &status, error_p);

    if (tcp)
        *link_p = &tcp->link;
    return status;
}
