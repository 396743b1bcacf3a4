/* SPDX-License-Identifier: Apache-2.0 */
#include "tls.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/err.h>

#include "../bytes.h"
#include "../tcp/tcp.h"
#include "session.h"
#include "wire.h"

/* What one call decrypts or encrypts at most, at 1 GB/s and more. */
#define PIECE_BYTES ((uint64_t)256 * 1024)

/* As of tcp: what is pulled while large frames come, which are read to where they belong. */
#define PULL_BETWEEN_BYTES ((uint64_t)16 * 1024)

/* What is thrown away while a scheduler waits: up to 4 MB. */
#define DISCARD_ROUNDS 8

typedef struct {
    bw_link_t link; /* first: a bw_link_t pointer is a tls_link_t pointer */
    bw_buffer_t out, in;
    bw_tls_wire_t wire;
    bw_tls_session_t session;
    bw_report_t report;
    uint64_t peeked; /* in.head as the last peek gave it */
    int event, epoll;
    bool is_frugal;     /* large frames are read to where they belong: little is pulled */
    bool has_more;      /* the last reading did not take all that the wire had */
    bool is_awaited;    /* a write waits for room in the socket */
    bool is_deferred;   /* commit leaves the sending to flush */
    bool has_ended;     /* the peer's stream has ended, or the connection has failed */
    const char *reason; /* it has failed */
    const char *cut_by; /* why what we write goes nowhere, NULL if it does not */
    uint64_t stalls;
    uint64_t lost;       /* bytes that were committed after it was cut */
    uint64_t key_limit;  /* records of one sending key */
    uint64_t key_so_far; /* records of this one */
    uint8_t staged[BW_TLS_RECORD_BYTES];
} tls_link_t;

static tls_link_t *tls_of(bw_link_t *link)
{
    return (tls_link_t *)link;
}

static const char *reason_of(int sys_errno)
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
        return "beamway_tls_failed";
    }
}

/* ---- writing ---- */

/* What was not sent yet is lost. */
static void lose(tls_link_t *tls)
{
    tls->lost += bw_buffer_fill(&tls->out);
    tls->out.tail = tls->out.head;
}

/* The connection takes nothing more. The reader tells of it, when everything that had arrived is
 * read. */
static void cut(tls_link_t *tls, const char *reason)
{
    tls->cut_by = reason;
    tls->wire.may_read = true;
    tls->lost += bw_buffer_fill(&tls->wire.out);
    tls->wire.out.tail = tls->wire.out.head;
    lose(tls);
}

static void push_wire(tls_link_t *tls)
{
    bw_tls_wire_push(&tls->wire);
    if (tls->wire.write_error != 0 && !tls->cut_by)
        cut(tls, reason_of(tls->wire.write_error));
}

/* A record, and before it, when that is due, the word that the next key is used from now on. False:
 * cut. */
static bool encrypt_record(tls_link_t *tls, const uint8_t *bytes, size_t len)
{
    SSL *ssl = tls->session.ssl;
    size_t done = 0;

    ERR_clear_error();
    if (++tls->key_so_far > tls->key_limit) {
        tls->key_so_far = 1;
        if (!SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED)) {
            cut(tls, "beamway_tls_failed");
            return false;
        }
    }
    if (SSL_write_ex(ssl, bytes, len, &done) && done == len)
        return true;
    cut(tls, "beamway_tls_failed");
    return false;
}

/* Encrypts what stands in the ring, until the wire is full or, `wholly`, to the end. */
static void encrypt_ring(tls_link_t *tls, bool wholly)
{
    bw_buffer_t *out = &tls->out;

    while (bw_buffer_fill(out) > 0 && (wholly || bw_tls_wire_has_room(&tls->wire))) {
        size_t n = bw_least(bw_buffer_fill(out), BW_TLS_RECORD_BYTES);

        if (!encrypt_record(tls, bw_buffer_place(out, out->tail), n))
            return;
        out->tail += n;
    }
}

static void push(tls_link_t *tls)
{
    if (tls->cut_by)
        return;
    push_wire(tls);
    while (!tls->wire.is_blocked && bw_buffer_fill(&tls->out) > 0) {
        encrypt_ring(tls, false);
        push_wire(tls);
    }
}

static bw_status_t tls_reserve(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    tls_link_t *tls = tls_of(link);

    if (bw_buffer_room(&tls->out) < want)
        push(tls);
    if (bw_buffer_room(&tls->out) == 0)
        return BW_AGAIN;
    span_p->base = bw_buffer_place(&tls->out, tls->out.head);
    span_p->len = bw_buffer_room(&tls->out);
    return BW_OK;
}

static void tls_commit(bw_link_t *link, size_t n)
{
    tls_link_t *tls = tls_of(link);

    tls->out.head += n;
    if (tls->cut_by)
        lose(tls);
    else if (!tls->is_deferred)
        push(tls);
}

static void tls_defer(bw_link_t *link)
{
    tls_of(link)->is_deferred = true;
}

static bool tls_needs_flush(const bw_link_t *link)
{
    return bw_buffer_fill(&((const tls_link_t *)link)->out) > 0;
}

static void tls_flush(bw_link_t *link, bw_span_t *rest_p)
{
    tls_link_t *tls = tls_of(link);

    push(tls);
    *rest_p = (bw_span_t){.base = bw_buffer_place(&tls->out, tls->out.tail),
                          .len = bw_buffer_fill(&tls->out)};
    tls->is_awaited |= rest_p->len > 0;
    tls->out.head = tls->out.tail;
}

/* The next record's bytes: from where they stand, or, if they stand in pieces, staged together. */
static size_t next_record(tls_link_t *tls, const struct iovec *iov, int count, size_t *offset_p,
                          int *used_p, const uint8_t **bytes_p)
{
    size_t len = 0;
    int i = *used_p;

    if (i < count && iov[i].iov_len - *offset_p >= BW_TLS_RECORD_BYTES) {
        *bytes_p = (const uint8_t *)iov[i].iov_base + *offset_p;
        *offset_p += BW_TLS_RECORD_BYTES;
        return BW_TLS_RECORD_BYTES;
    }
    *bytes_p = tls->staged;
    while (i < count && len < BW_TLS_RECORD_BYTES) {
        size_t n = bw_least(iov[i].iov_len - *offset_p, BW_TLS_RECORD_BYTES - len);

        memcpy(tls->staged + len, (const uint8_t *)iov[i].iov_base + *offset_p, n);
        len += n;
        *offset_p += n;
        if (*offset_p == iov[i].iov_len) {
            *offset_p = 0;
            i++;
        }
    }
    *used_p = i;
    return len;
}

/* The positions of the ring go on, as if the bytes had been there. */
static bw_status_t tls_write(bw_link_t *link, const struct iovec *iov, int count, size_t *taken_p)
{
    tls_link_t *tls = tls_of(link);
    size_t offset = 0, taken = 0, len;
    const uint8_t *bytes;
    int used = 0;

    *taken_p = 0;
    push(tls);
    if (tls->cut_by)
        return BW_OK;
    while (taken < PIECE_BYTES && !tls->wire.is_blocked && !tls->cut_by) {
        while (bw_tls_wire_has_room(&tls->wire) && taken < PIECE_BYTES &&
               (len = next_record(tls, iov, count, &offset, &used, &bytes)) > 0 &&
               encrypt_record(tls, bytes, len))
            taken += len;
        if (bw_buffer_fill(&tls->wire.out) == 0)
            break;
        push_wire(tls);
    }
    if (tls->cut_by)
        return BW_OK;
    if (taken == 0) {
        tls->is_awaited = true;
        return BW_AGAIN;
    }
    tls->out.head += taken;
    tls->out.tail = tls->out.head;
    *taken_p = taken;
    return BW_OK;
}

static bw_status_t tls_arm_write(bw_link_t *link, size_t wanted)
{
    tls_link_t *tls = tls_of(link);

    push(tls);
    if (bw_buffer_room(&tls->out) >= wanted && !(tls->wire.is_blocked && tls->is_awaited))
        return BW_AGAIN;
    tls->stalls++;
    return BW_OK;
}

/* ---- reading ---- */

static void end(tls_link_t *tls, const char *reason)
{
    tls->has_ended = true;
    tls->reason = tls->cut_by ? tls->cut_by : reason;
}

/* Nothing more can be decrypted now. */
static void note_end(tls_link_t *tls, int error)
{
    bw_tls_wire_t *wire = &tls->wire;

    tls->has_more = false;
    if (error == SSL_ERROR_ZERO_RETURN)
        end(tls, NULL);
    else if (wire->has_ended && bw_buffer_fill(&wire->in) == 0)
        end(tls, reason_of(wire->read_error));
    else if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
        end(tls, "beamway_tls_corrupt");
        push_wire(tls); /* the alert */
        cut(tls, "beamway_tls_corrupt");
    }
}

/* Decrypts what there is, at most `most` bytes; 0: nothing, or it has ended. */
static size_t take(tls_link_t *tls, uint8_t *to, size_t most)
{
    SSL *ssl = tls->session.ssl;
    size_t got = 0, n;

    ERR_clear_error();
    tls->has_more = true;
    while (got < most) {
        int done = SSL_read_ex(ssl, to + got, most - got, &n);

        if (done != 1) {
            note_end(tls, SSL_get_error(ssl, done));
            break;
        }
        got += n;
    }
    return got;
}

static bool may_pull(const tls_link_t *tls)
{
    return !tls->has_ended && (tls->wire.may_read || tls->has_more);
}

/* Takes what there is into the ring, as far as there is room. */
static void pull(tls_link_t *tls)
{
    bw_buffer_t *in = &tls->in;
    size_t most = bw_least(bw_buffer_room(in), tls->is_frugal ? PULL_BETWEEN_BYTES : PIECE_BYTES);

    in->head += take(tls, bw_buffer_place(in, in->head), most);
}

static bw_status_t tls_peek(bw_link_t *link, bw_span_t *span_p)
{
    tls_link_t *tls = tls_of(link);
    bw_buffer_t *in = &tls->in;

    if (bw_buffer_fill(in) == 0)
        tls->wire.may_read = true; /* who looks again without an event, asks the socket */
    if (may_pull(tls) && bw_buffer_fill(in) < (tls->is_frugal ? PULL_BETWEEN_BYTES : in->size))
        pull(tls);
    tls->peeked = in->head;
    if (bw_buffer_fill(in) == 0)
        return tls->reason ? BW_SYSTEM : BW_AGAIN;
    span_p->base = bw_buffer_place(in, in->tail);
    span_p->len = bw_buffer_fill(in);
    return BW_OK;
}

static void tls_release(bw_link_t *link, size_t n)
{
    tls_of(link)->in.tail += n;
}

static bw_status_t tls_read(bw_link_t *link, uint8_t *to, size_t most, size_t *got_p)
{
    tls_link_t *tls = tls_of(link);
    bw_buffer_t *in = &tls->in;

    *got_p = 0;
    if (tls->has_ended || bw_buffer_fill(in) > 0)
        return BW_OK;
    tls->is_frugal = tls->wire.may_read = true;
    *got_p = take(tls, to, bw_least(most, PIECE_BYTES));
    in->tail += *got_p;
    in->head += *got_p;
    tls->peeked = in->head;
    return *got_p > 0 || tls->has_ended ? BW_OK : BW_AGAIN;
}

/* As of tcp. */
static bw_status_t tls_arm_read(bw_link_t *link)
{
    tls_link_t *tls = tls_of(link);

    tls->is_frugal = false;
    if (may_pull(tls) && bw_buffer_room(&tls->in) > 0)
        pull(tls);
    if (tls->in.head != tls->peeked)
        return BW_AGAIN;
    if (tls->has_ended && (tls->reason || bw_buffer_fill(&tls->in) > 0)) {
        tls->reason = tls->reason ? tls->reason : "connection_closed";
        return BW_CORRUPT;
    }
    tls->wire.may_read = true; /* whoever is woken asks the socket */
    return BW_OK;
}

/* ---- the table ---- */

static int tls_fd(const bw_link_t *link)
{
    return ((const tls_link_t *)link)->epoll;
}

static void note_events(tls_link_t *tls)
{
    struct epoll_event events[2];
    int count;

    do
        count = epoll_wait(tls->epoll, events, 2, 0);
    while (count < 0 && errno == EINTR);
    tls->wire.reads++;
    for (int i = 0; i < count; i++) {
        bw_tls_wire_t *wire = &tls->wire;

        if (events[i].data.fd != wire->socket)
            continue;
        if (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
            wire->is_ending = true;
        if (events[i].events & EPOLLIN || wire->is_ending)
            wire->may_read = true;
        if (events[i].events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
            wire->is_blocked = tls->is_awaited = false;
    }
}

static void tls_clear_event(bw_link_t *link)
{
    note_events(tls_of(link));
    push(tls_of(link));
}

static void tls_wake_self(bw_link_t *link)
{
    (void)eventfd_write(tls_of(link)->event, 1);
}

static bool tls_trim(bw_link_t *link)
{
    tls_link_t *tls = tls_of(link);

    return bw_buffer_trim(&tls->out) || bw_buffer_trim(&tls->in) ||
           bw_buffer_trim(&tls->wire.out) || bw_buffer_trim(&tls->wire.in);
}

static void tls_stats(const bw_link_t *link, bw_link_stats_t *stats_p)
{
    const tls_link_t *tls = (const tls_link_t *)link;
    uint64_t unsent = bw_buffer_fill(&tls->out) + bw_buffer_fill(&tls->wire.out) + tls->lost;
    int in_kernel = 0;

    (void)ioctl(tls->wire.socket, SIOCOUTQ, &in_kernel);
    *stats_p = (bw_link_stats_t){
        .bytes_in = tls->in.tail,
        .bytes_out = tls->out.head,
        .doorbells_in = tls->wire.reads,
        .doorbells_out = tls->wire.writes,
        .stalls = tls->stalls,
        .ring_bytes = tls->out.size,
        .fill_in = bw_buffer_fill(&tls->in),
        .fill_out = bw_buffer_fill(&tls->out),
        /* encrypted they are more */
        .unreleased = bw_least(unsent + (uint64_t)(in_kernel > 0 ? in_kernel : 0), tls->out.head),
    };
}

static bool tls_is_finished(bw_link_t *link)
{
    const tls_link_t *tls = tls_of(link);

    return tls->has_ended && !tls->reason && bw_buffer_fill(&tls->in) == 0;
}

static const char *tls_reason(bw_link_t *link)
{
    return tls_of(link)->reason;
}

static void free_link(tls_link_t *tls)
{
    bw_tls_session_free(&tls->session);
    bw_tls_wire_free(&tls->wire);
    bw_buffer_free(&tls->out);
    bw_buffer_free(&tls->in);
    if (tls->wire.socket >= 0)
        close(tls->wire.socket);
    if (tls->event >= 0)
        close(tls->event);
    if (tls->epoll >= 0)
        close(tls->epoll);
    OPENSSL_cleanse(tls->staged, sizeof tls->staged);
    free(tls);
}

/* Everything that was committed is encrypted now, and behind it the word that nothing follows. */
static void say_last(tls_link_t *tls)
{
    push(tls);
    if (tls->report.state != BW_LINKED || tls->cut_by)
        return;
    if (tls->is_deferred)
        encrypt_ring(tls, true);
    ERR_clear_error();
    (void)SSL_shutdown(tls->session.ssl);
    push_wire(tls);
}

/* What is left in the socket, and what it has not taken, as of tcp. */
static void tls_close(bw_link_t *link, bw_leftover_t *left_p)
{
    tls_link_t *tls = tls_of(link);
    bw_tls_wire_t *wire = &tls->wire;
    bw_leftover_t left = {.fd = tls->epoll, .socket = -1};

    say_last(tls);
    left.unsent = (struct iovec){.iov_base = bw_buffer_place(&wire->out, wire->out.tail),
                                 .iov_len = bw_buffer_fill(&wire->out)};
    if (left.unsent.iov_len == 0)
        (void)shutdown(wire->socket, SHUT_WR);
    if (bw_discard(wire->socket, DISCARD_ROUNDS) || left.unsent.iov_len > 0) {
        left.socket = wire->socket;
        wire->socket = -1;
    }
    left.map[0] = bw_buffer_take(&tls->out);
    left.map[1] = bw_buffer_take(&tls->in);
    left.map[2] = bw_buffer_take(&wire->out);
    tls->epoll = -1;
    free_link(tls);
    bw_leftover_give(&left, left_p);
}

static bw_status_t tls_put_back(bw_link_t *link, const void *bytes, size_t len, bw_error_t *error_p)
{
    bw_buffer_t *in = &tls_of(link)->in;

    if (in->head != 0 || len > in->size)
        return bw_fail(error_p, BW_INVALID, "what was read before does not fit into the ring", 0);
    if (len > 0)
        memcpy(in->data, bytes, len);
    in->head = len;
    return BW_OK;
}

static bw_status_t tls_probe(uint64_t ring_bytes, bw_error_t *error_p)
{
    (void)ring_bytes, (void)error_p;
    return BW_OK;
}

/* ---- making one ---- */

/* Whole batches are written, so nothing is gained by waiting for more. */
static bw_status_t make_poller(tls_link_t *tls, bw_error_t *error_p)
{
    struct epoll_event of_socket = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                    .data.fd = tls->wire.socket};
    struct epoll_event of_event = {.events = EPOLLIN | EPOLLET};
    int yes = 1;

    (void)setsockopt(tls->wire.socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    tls->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    tls->epoll = epoll_create1(EPOLL_CLOEXEC);
    of_event.data.fd = tls->event;
    if (tls->event < 0 || tls->epoll < 0 ||
        epoll_ctl(tls->epoll, EPOLL_CTL_ADD, tls->wire.socket, &of_socket) < 0 ||
        epoll_ctl(tls->epoll, EPOLL_CTL_ADD, tls->event, &of_event) < 0)
        return bw_fail_system(error_p, "epoll of the socket", errno);
    return BW_OK;
}

/* The parts of a link, in the order in which they need each other. */
static bw_status_t make_parts(tls_link_t *tls, bool is_server, const bw_order_t *order,
                              bw_error_t *error_p)
{
    uint64_t ring = order->ring_bytes;
    bw_status_t status;

    status =
        bw_tcp_watch((int)bw_number(order->at, BW_TLS_SOCKET_BYTES), &tls->wire.socket, error_p);
    if (status == BW_OK)
        status = bw_buffer_make(&tls->out, "beamway-tls", ring, error_p);
    if (status == BW_OK)
        status = bw_buffer_make(&tls->in, "beamway-tls", ring, error_p);
    if (status == BW_OK) /* at the end the whole ring is encrypted behind a full batch */
        status =
            bw_tls_wire_make(&tls->wire, tls->wire.socket,
                             ring < BW_TLS_WIRE_BYTES ? 2 * BW_TLS_WIRE_BYTES : 2 * ring, error_p);
    if (status == BW_OK)
        status = make_poller(tls, error_p);
    if (status == BW_OK)
        status = bw_tls_session_make(&tls->session, is_server, order->at + BW_TLS_SOCKET_BYTES,
                                     &tls->wire, error_p);
    return status;
}

static bw_status_t make_link(bool is_server, const bw_order_t *order, bw_link_t **link_p,
                             bw_error_t *error_p)
{
    size_t fixed = BW_TLS_SOCKET_BYTES + BW_TLS_KEY_BYTES;
    bw_status_t status;
    tls_link_t *tls;

    if (order->at_len < fixed || order->at_len - fixed > BW_TLS_WIRE_BYTES)
        return bw_fail(error_p, BW_INVALID, "no descriptor of a socket with a key", 0);
    if (!bw_ring_size_is_valid(order->ring_bytes) || order->ring_bytes > BW_RING_MAX_BYTES / 2)
        return bw_fail(error_p, BW_INVALID, "no valid size of a ring", 0);
    tls = calloc(1, sizeof *tls);
    if (!tls)
        return bw_fail(error_p, BW_LIMIT, "memory for the link", ENOMEM);
    tls->link.ops = &bw_tls_carrier;
    tls->wire.socket = tls->event = tls->epoll = -1;
    tls->key_limit = BW_TLS_KEY_RECORDS;
    tls->has_more = true;
    tls->report.state = is_server ? BW_LISTENING : BW_WORKING;
    status = make_parts(tls, is_server, order, error_p);
    if (status != BW_OK) {
        free_link(tls);
        return status;
    }
    tls->wire.is_expecting = !is_server;
    bw_tls_wire_put_back(&tls->wire, order->at + fixed, order->at_len - fixed);
    *link_p = &tls->link;
    return BW_OK;
}

static bw_status_t tls_listen(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p)
{
    return make_link(true, order, link_p, error_p);
}

static bw_status_t tls_connect(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p)
{
    return make_link(false, order, link_p, error_p);
}

static void tls_step(bw_link_t *link, bw_report_t *report_p)
{
    tls_link_t *tls = tls_of(link);
    bw_report_t *report = &tls->report;

    note_events(tls);
    if (report->state == BW_WORKING || report->state == BW_LISTENING) {
        bw_tls_hands_t hands = bw_tls_session_shake(&tls->session, &tls->wire, report->text);

        bw_tls_wire_push(&tls->wire);
        if (hands == BW_TLS_SHAKEN) {
            report->state = BW_LINKED;
            snprintf(report->device, sizeof report->device, "%s",
                     SSL_get_cipher_name(tls->session.ssl));
        } else if (hands == BW_TLS_REFUSED) {
            report->state = BW_FAILED;
            report->status = BW_REFUSED;
        }
    }
    *report_p = *report;
}

void bw_tls_limit_key(bw_link_t *link, uint64_t records)
{
    tls_of(link)->key_limit = records;
}

const bw_carrier_t bw_tls_carrier = {
    .kind = "tls",
    .caps = BW_CAP_TELLS_DEATH | BW_CAP_KERNEL_BUFFERS | BW_CAP_COSTLY,
    .probe = tls_probe,
    .listen = tls_listen,
    .connect = tls_connect,
    .step = tls_step,
    .put_back = tls_put_back,
    .reserve = tls_reserve,
    .commit = tls_commit,
    .defer = tls_defer,
    .needs_flush = tls_needs_flush,
    .flush = tls_flush,
    .peek = tls_peek,
    .release = tls_release,
    .write = tls_write,
    .read = tls_read,
    .arm_read = tls_arm_read,
    .arm_write = tls_arm_write,
    .fd = tls_fd,
    .clear_event = tls_clear_event,
    .wake_self = tls_wake_self,
    .trim = tls_trim,
    .stats = tls_stats,
    .is_finished = tls_is_finished,
    .reason = tls_reason,
    .close = tls_close,
};
