/* SPDX-License-Identifier: Apache-2.0 */
#include "inside.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../ring_memory.h"

static bw_shm_link_t *shm_of(bw_link_t *link)
{
    return (bw_shm_link_t *)link;
}

static void signal_event(int fd)
{
    uint64_t one = 1;
    ssize_t n;

    /* This fails only if the counter is full (EAGAIN): then the peer has a wake-up pending. */
    do
        n = write(fd, &one, sizeof one);
    while (n < 0 && errno == EINTR);
}

static bw_status_t shm_reserve(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    return bw_tx_reserve(&shm_of(link)->tx, want, span_p);
}

static void ring_peer(bw_shm_link_t *shm)
{
    shm->doorbells_out++;
    signal_event(shm->peer_event);
}

static void shm_commit(bw_link_t *link, size_t n)
{
    bw_shm_link_t *shm = shm_of(link);

    bw_tx_publish(&shm->tx, n);
    if (!shm->is_deferred && bw_tx_alert(&shm->tx))
        ring_peer(shm);
}

static void shm_defer(bw_link_t *link)
{
    shm_of(link)->is_deferred = true;
}

/* A peer that is awake checks for new bytes before it sleeps. */
static bool shm_needs_flush(const bw_link_t *link)
{
    return bw_tx_is_awaited(&((const bw_shm_link_t *)link)->tx);
}

static void shm_flush(bw_link_t *link, bw_span_t *rest_p)
{
    if (bw_tx_alert(&shm_of(link)->tx))
        ring_peer(shm_of(link));
    *rest_p = (bw_span_t){0};
}

static bw_status_t shm_peek(bw_link_t *link, bw_span_t *span_p)
{
    return bw_rx_peek(&shm_of(link)->rx, span_p);
}

static void shm_release(bw_link_t *link, size_t n)
{
    if (bw_rx_release(&shm_of(link)->rx, n))
        ring_peer(shm_of(link));
}

static bw_status_t shm_arm_read(bw_link_t *link)
{
    return bw_rx_arm(&shm_of(link)->rx);
}

static bw_status_t shm_arm_write(bw_link_t *link, size_t room)
{
    bw_status_t status = bw_tx_arm(&shm_of(link)->tx, room);

    if (status == BW_OK)
        shm_of(link)->stalls++;
    return status;
}

static int shm_fd(const bw_link_t *link)
{
    return ((const bw_shm_link_t *)link)->event;
}

static void shm_clear_event(bw_link_t *link)
{
    uint64_t count;
    ssize_t n;

    do
        n = read(shm_of(link)->event, &count, sizeof count);
    while (n < 0 && errno == EINTR);
    if (n == sizeof count)
        shm_of(link)->doorbells_in++;
}

static void shm_wake_self(bw_link_t *link)
{
    signal_event(shm_of(link)->event);
}

/* An idle ring keeps this much memory, because otherwise a link that is used occasionally would set
 * a timer and fault in its pages again at each use. */
#define KEPT_BYTES ((uint64_t)64 * 1024)

static bool shm_has_spare(const bw_link_t *link)
{
    const bw_shm_link_t *shm = (const bw_shm_link_t *)link;

    return shm->tx.head - shm->trimmed_at > KEPT_BYTES;
}

/* Only the producer punches holes, and only when the ring is empty: the consumer then holds no
 * span, and the next bytes come from us. */
static bool shm_trim(bw_link_t *link)
{
    bw_shm_link_t *shm = shm_of(link);

    return bw_tx_is_drained(&shm->tx) &&
           bw_trim(shm->tx.data, shm->tx.size, shm->tx.head, &shm->trimmed_at);
}

static void shm_stats(const bw_link_t *link, bw_link_stats_t *stats_p)
{
    const bw_shm_link_t *shm = (const bw_shm_link_t *)link;
    uint64_t tail = atomic_load(&shm->tx.shared->tail), head = atomic_load(&shm->rx.shared->head);
    uint64_t fill_out = shm->tx.head - tail, fill_in = head - shm->rx.tail;

    *stats_p = (bw_link_stats_t){
        .bytes_in = shm->rx.tail,
        .bytes_out = shm->tx.head,
        .doorbells_in = shm->doorbells_in,
        .doorbells_out = shm->doorbells_out,
        .stalls = shm->stalls,
        .ring_bytes = shm->tx.size,
        .fill_in = fill_in <= shm->rx.size ? fill_in : 0, /* claimed by the peer; for statistics */
        .fill_out = fill_out <= shm->tx.size ? fill_out : 0,
        .unreleased = fill_out <= shm->tx.size ? fill_out : shm->tx.size,
    };
}

static bool shm_is_finished(bw_link_t *link)
{
    return bw_rx_is_finished(&shm_of(link)->rx);
}

/* A killed process closes its sockets shortly before its pidfd becomes readable. */
static bool shm_is_orphan(bw_link_t *link)
{
    struct pollfd process = {.fd = shm_of(link)->process, .events = POLLIN};

    return poll(&process, 1, 0) == 1;
}

/* Only the peer can corrupt a ring, and the calls themselves report that. */
static const char *shm_reason(bw_link_t *link)
{
    (void)link;
    return NULL;
}

static void shm_close(bw_link_t *link, bw_leftover_t *left_p)
{
    bw_shm_link_t *shm = shm_of(link);
    bw_leftover_t left = {.fd = shm->event, .socket = -1};

    bw_shm_listener_close(&shm->listener);
    if (shm->map && bw_tx_close(&shm->tx))
        signal_event(shm->peer_event);
    left.map[0] = (struct iovec){.iov_base = shm->map, .iov_len = shm->map_bytes};
    if (shm->peer_event >= 0)
        close(shm->peer_event);
    if (shm->process >= 0)
        close(shm->process);
    free(shm);
    bw_leftover_give(&left, left_p);
}

/* ---- setting up a link ---- */

static bw_status_t shm_listen(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p)
{
    bw_shm_link_t *shm = bw_shm_new_link();
    char dir[BW_ADDRESS_MAX] = {0};
    bw_status_t status;

    if (!shm)
        return bw_fail(error_p, BW_LIMIT, "memory for the link", ENOMEM);
    if (order->at_len >= sizeof dir) {
        status = bw_fail(error_p, BW_INVALID, "socket_dir is too long for a unix socket", 0);
    } else {
        if (order->at_len > 0)
            memcpy(dir, order->at, order->at_len);
        status = bw_shm_listen(order->at_len > 0 ? dir : NULL, &shm->listener, error_p);
    }
    if (status != BW_OK) {
        free(shm);
        return status;
    }
    shm->max_ring_bytes = order->ring_bytes;
    *link_p = &shm->link;
    return BW_OK;
}

static bw_status_t shm_connect(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p)
{
    return bw_shm_connect(order->at, order->at_len, order->token, order->ring_bytes, link_p,
                          error_p);
}

/* Turns a listener into a link with the first peer that has connected. */
static void shm_step(bw_link_t *link, bw_report_t *report_p)
{
    bw_shm_link_t *shm = shm_of(link);
    bw_link_t *accepted = NULL;
    bw_error_t error = {0};

    *report_p = (bw_report_t){.state = BW_LINKED};
    if (shm->listener.fd < 0)
        return;
    if (bw_shm_accept(&shm->listener, shm->max_ring_bytes, &accepted, &error) == BW_OK) {
        bw_shm_listener_close(&shm->listener);
        *shm = *shm_of(accepted);
        free(accepted);
        return;
    }
    report_p->state = BW_LISTENING;
    report_p->address_len = shm->listener.address_len;
    memcpy(report_p->address, shm->listener.address, sizeof report_p->address);
    memcpy(report_p->token, shm->listener.token, sizeof report_p->token);
    bw_error_text(&error, report_p->text, sizeof report_p->text);
}

const bw_carrier_t bw_shm_carrier = {
    .kind = "shm",
    .caps = BW_CAP_SHARED_RINGS | BW_CAP_IMMEDIATE | BW_CAP_FILES,
    .probe = bw_shm_probe,
    .listen = shm_listen,
    .connect = shm_connect,
    .step = shm_step,
    .reserve = shm_reserve,
    .commit = shm_commit,
    .defer = shm_defer,
    .needs_flush = shm_needs_flush,
    .flush = shm_flush,
    .peek = shm_peek,
    .release = shm_release,
    .arm_read = shm_arm_read,
    .arm_write = shm_arm_write,
    .fd = shm_fd,
    .clear_event = shm_clear_event,
    .wake_self = shm_wake_self,
    .trim = shm_trim,
    .has_spare = shm_has_spare,
    .stats = shm_stats,
    .is_finished = shm_is_finished,
    .is_orphan = shm_is_orphan,
    .reason = shm_reason,
    .close = shm_close,
};
