/* SPDX-License-Identifier: Apache-2.0 */
#include "stripes.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bytes.h"
#include "clock.h"
#include "session/flight.h"
#include "session/strands.h"
#include "ring_memory.h"

/* How many bytes a connection may have unsent in the kernel, where no other bytes can pass them. */
#define UNSENT_BYTES (64 * 1024)

/* After how long without traffic the kernel probes a connection, and how long it waits between two
 * probes. */
#define PROBE_SECONDS 10

/* How much is read from one connection before the others get their turn. */
#define TURN_BYTES ((size_t)256 * 1024)

/* An acknowledgement is sent each time this many new bytes have been read. */
#define NEWS_BYTES ((uint64_t)64 * 1024)

_Static_assert(BW_FLIGHT_DRAIN_BYTES > NEWS_BYTES,
               "if the limit is reached, the peer must owe an acknowledgement");

/* How often one call retries if a connection gets bytes after its last read, before it is armed. */
#define ROUNDS 4

/* The epoll data value that marks the eventfd instead of the index of a connection. */
#define WAKE BW_STRIPES_MAX

typedef struct {
    bw_link_t link; /* must be first, so that a bw_link_t pointer is a pointer to this */
    int poll, wake; /* the epoll instance, and an eventfd in it */
    uint8_t *out, *in;
    bw_strands_t strands;
    bw_flight_t flight;
    bw_link_t *connections[BW_STRIPES_MAX]; /* for each live strand */
    short polled[BW_STRIPES_MAX];           /* the events for which each connection is polled */
    bool has_more;                          /* a connection has unread bytes left */
    bool is_corrupt;
    bool has_hung_up;   /* for the last connection that was lost */
    const char *reason; /* for the same connection */
    uint64_t peeked;    /* in.head at the last peek */
    uint64_t stalls;
    bool is_touched; /* the rings may be backed by memory */
    uint8_t scratch[16384];
} stripes_t;

static stripes_t *stripes_of(bw_link_t *link)
{
    return (stripes_t *)link;
}

static const stripes_t *const_of(const bw_link_t *link)
{
    return (const stripes_t *)link;
}

static uint8_t *place_in(uint8_t *ring, uint64_t position)
{
    return ring + (position & (BW_STRIPES_RING_BYTES - 1));
}

/* ---- one connection ---- */

/* Closes a connection. Its last bytes are sent, but without waiting for room. */
static void close_connection(bw_link_t *connection)
{
    (void)shutdown(connection->ops->fd(connection), SHUT_WR);
    connection->ops->close(connection, NULL);
}

static void lose(stripes_t *stripes, unsigned place)
{
    bw_link_t *connection = stripes->connections[place];
    const bw_carrier_t *ops = connection->ops;
    const char *reason = ops->reason(connection);

    stripes->has_hung_up = ops->has_hung_up && ops->has_hung_up(connection);
    stripes->reason = reason ? reason : "connection_closed";
    (void)epoll_ctl(stripes->poll, EPOLL_CTL_DEL, ops->fd(connection), NULL);
    close_connection(connection);
    stripes->connections[place] = NULL;
    bw_strands_lost(&stripes->strands, place);
}

/* A connection that cannot send any more is lost once everything from it has been read. */
static void push(stripes_t *stripes, unsigned place)
{
    bw_link_t *connection = stripes->connections[place];
    bw_strand_t *strand = &stripes->strands.strands[place];

    while (bw_strand_has_unsent(strand) && !strand->is_blocked) {
        struct iovec iov[2] = {
            {.iov_base = strand->said + strand->said_at, .iov_len = strand->said_len},
            {.iov_base = place_in(stripes->out, strand->at), .iov_len = strand->left}};
        int skipped = strand->said_len == 0;
        size_t taken = 0;
        bw_status_t status = connection->ops->write(connection, iov + skipped, 2 - skipped, &taken);

        bw_strand_sent(strand, taken);
        strand->is_blocked = status != BW_OK || taken == 0;
    }
}

/* Reads from a connection. Returns the number of bytes, 0 if there are none now and the connection
 * is armed, or -1 if no more will arrive. */
static ssize_t pull(bw_link_t *connection, uint8_t *to, size_t most)
{
    const bw_carrier_t *ops = connection->ops;

    for (int round = 0; round < ROUNDS; round++) {
        size_t got = 0;
        bw_span_t span;
        bw_status_t status = ops->read(connection, to, most, &got);

        if (got > 0)
            return (ssize_t)got;
        if (status == BW_OK)
            status = ops->peek(connection, &span);
        if (status == BW_OK) {
            got = bw_least(span.len, most);
            memcpy(to, span.base, got);
            ops->release(connection, got);
            return (ssize_t)got;
        }
        if (status != BW_AGAIN || ops->is_finished(connection))
            return -1;
        status = ops->arm_read(connection);
        if (status == BW_OK)
            return ops->is_finished(connection) ? -1 : 0;
        if (status != BW_AGAIN)
            return -1;
    }
    return 0;
}

/* Reads from a connection up to a limit. Returns false if the connection is lost. */
static bool hear(stripes_t *stripes, unsigned place)
{
    bw_strands_t *strands = &stripes->strands;
    bw_strand_t *strand = &strands->strands[place];
    size_t turn = 0;

    while (turn < TURN_BYTES) {
        bw_strand_due_t due = bw_strands_due(strands, strand);
        ssize_t n;

        if (due.header)
            n = pull(stripes->connections[place], due.header, due.len);
        else if (due.is_new)
            n = pull(stripes->connections[place], place_in(stripes->in, due.at), due.len);
        else
            n = pull(stripes->connections[place], stripes->scratch,
                     bw_least(due.len, sizeof stripes->scratch));
        if (n <= 0)
            return n == 0;
        /* Only rdpipe uses END: a link between nodes ends with a word in its stream. */
        if (!bw_strands_came(strands, strand, &due, (size_t)n) || strands->has_total) {
            stripes->is_corrupt = true;
            return true;
        }
        turn += (size_t)n;
    }
    stripes->has_more = true;
    return true;
}

static void poll_for(stripes_t *stripes, unsigned place)
{
    const bw_link_t *connection = stripes->connections[place];
    short wanted = connection->ops->wants(connection);
    struct epoll_event event = {.events = (uint32_t)wanted, .data.u32 = place};

    if (wanted == stripes->polled[place])
        return;
    if (epoll_ctl(stripes->poll, EPOLL_CTL_MOD, connection->ops->fd(connection), &event) == 0)
        stripes->polled[place] = wanted;
}

/* ---- all connections ---- */

/* Takes a sample if it is time, unless so little is in flight that the limit does not matter. The
 * limit is off if the kernel has no numbers, as with connections that are not over TCP. */
static void measure(stripes_t *stripes)
{
    bw_flight_t *flight = &stripes->flight;
    uint64_t now, delivered = 0, rtt_us = 0, in_kernel = 0;
    uint64_t in_flight = bw_strands_in_flight(&stripes->strands);

    if (stripes->strands.head - stripes->strands.out.arrived < BW_FLIGHT_DRAIN_BYTES)
        return;
    now = bw_clock_us();
    if (!bw_flight_is_due(flight, now))
        return;
    for (unsigned place = 0; place < stripes->strands.count; place++) {
        const bw_link_t *connection = stripes->connections[place];
        bw_link_stats_t its;

        if (!connection)
            continue;
        connection->ops->stats(connection, &its);
        delivered += its.delivered_bytes;
        in_kernel += its.kernel_bytes;
        if (rtt_us == 0 || (its.rtt_us > 0 && its.rtt_us < rtt_us))
            rtt_us = its.rtt_us;
    }
    if (delivered > 0 && rtt_us > 0)
        bw_flight_sample(flight, now, delivered, rtt_us,
                         in_flight - bw_least(in_flight, in_kernel));
    else
        *flight = (bw_flight_t){.limit = BW_FLIGHT_MOST_BYTES, .at_us = now};
}

static bool may_send(const stripes_t *stripes)
{
    return bw_strands_in_flight(&stripes->strands) <
           bw_greatest(stripes->flight.limit, BW_FLIGHT_DRAIN_BYTES);
}

/* Sends as much as the path and the connections accept. */
static void send_some(stripes_t *stripes)
{
    int place;

    while ((place = bw_strands_acknowledge(&stripes->strands, NEWS_BYTES, false)) >= 0)
        push(stripes, (unsigned)place);
    measure(stripes);
    while (may_send(stripes) && (place = bw_strands_assign(&stripes->strands)) >= 0)
        push(stripes, (unsigned)place);
    if (bw_strands_unassigned(&stripes->strands) > 0) {
        stripes->flight.has_waited = true;
        stripes->flight.is_full |= !may_send(stripes);
    }
}

static void poll_all(stripes_t *stripes)
{
    for (unsigned place = 0; place < stripes->strands.count; place++)
        if (stripes->connections[place])
            poll_for(stripes, place);
}

static void turn(stripes_t *stripes)
{
    stripes->has_more = false;
    for (unsigned place = 0; place < stripes->strands.count && !stripes->is_corrupt; place++) {
        if (!stripes->connections[place])
            continue;
        if (hear(stripes, place))
            push(stripes, place);
        else
            lose(stripes, place);
    }
    send_some(stripes);
    poll_all(stripes);
}

static void hand_out_events(stripes_t *stripes)
{
    struct epoll_event events[BW_STRIPES_MAX + 1];
    int count = epoll_wait(stripes->poll, events, BW_STRIPES_MAX + 1, 0);

    for (int i = 0; i < count; i++) {
        unsigned place = events[i].data.u32;

        if (place == WAKE || !stripes->connections[place])
            continue;
        stripes->connections[place]->ops->is_ready(stripes->connections[place],
                                                   (short)events[i].events);
        if (events[i].events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
            stripes->strands.strands[place].is_blocked = false;
    }
}

/* ---- writing ---- */

static bw_status_t stripes_reserve(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    (void)link, (void)want, (void)span_p;
    return BW_AGAIN;
}

static void stripes_defer(bw_link_t *link)
{
    (void)link;
}

/* Returns how many bytes the user may write now. */
static uint64_t room(const stripes_t *stripes)
{
    const bw_strands_t *strands = &stripes->strands;

    return bw_least(BW_STRIPES_RING_BYTES - (strands->head - strands->freed),
                    BW_CHUNK_SHARE_BYTES -
                        bw_least(bw_strands_unassigned(strands), BW_CHUNK_SHARE_BYTES));
}

static bw_status_t stripes_write(bw_link_t *link, const struct iovec *iov, int count,
                                 size_t *taken_p)
{
    stripes_t *stripes = stripes_of(link);
    size_t at = 0;

    *taken_p = 0;
    stripes->is_touched = true;
    for (int i = 0; i < count;) {
        size_t n = bw_least(iov[i].iov_len - at, room(stripes));

        if (n == 0 && at < iov[i].iov_len) {
            uint64_t before = bw_strands_unassigned(&stripes->strands);

            send_some(stripes);
            if (bw_strands_unassigned(&stripes->strands) == before)
                break;
            continue;
        }
        memcpy(place_in(stripes->out, stripes->strands.head), (uint8_t *)iov[i].iov_base + at, n);
        stripes->strands.head += n;
        *taken_p += n;
        at += n;
        if (at == iov[i].iov_len) {
            i++;
            at = 0;
        }
    }
    send_some(stripes);
    poll_all(stripes);
    return *taken_p > 0 ? BW_OK : BW_AGAIN;
}

static bool stripes_needs_flush(const bw_link_t *link)
{
    const bw_strands_t *strands = &const_of(link)->strands;
    bool is_unsent = bw_strands_unassigned(strands) > 0;

    for (unsigned place = 0; place < strands->count; place++)
        is_unsent |= bw_strand_has_unsent(&strands->strands[place]);
    return is_unsent;
}

static bw_status_t stripes_arm_write(bw_link_t *link, size_t wanted)
{
    stripes_t *stripes = stripes_of(link);

    (void)wanted;
    if (room(stripes) > 0)
        return BW_AGAIN;
    stripes->stalls++;
    return BW_OK;
}

/* ---- reading ---- */

static bool has_failed(const stripes_t *stripes)
{
    return stripes->is_corrupt || stripes->strands.live == 0;
}

static bw_status_t stripes_peek(bw_link_t *link, bw_span_t *span_p)
{
    stripes_t *stripes = stripes_of(link);
    const bw_strands_t *strands = &stripes->strands;

    stripes->is_touched = true;
    hand_out_events(stripes);
    turn(stripes);
    stripes->peeked = strands->in.head;
    if (stripes->is_corrupt)
        return BW_CORRUPT;
    if (strands->in.head == strands->taken)
        return has_failed(stripes) ? BW_SYSTEM : BW_AGAIN;
    *span_p = (bw_span_t){.base = place_in(stripes->in, strands->taken),
                          .len = strands->in.head - strands->taken};
    return BW_OK;
}

static void stripes_release(bw_link_t *link, size_t n)
{
    stripes_t *stripes = stripes_of(link);

    stripes->strands.taken += n;
    send_some(stripes);
}

/* Nothing needs to be armed here, because each connection was armed when it had no more bytes. */
static bw_status_t stripes_arm_read(bw_link_t *link)
{
    stripes_t *stripes = stripes_of(link);

    turn(stripes);
    if (stripes->strands.in.head != stripes->peeked || stripes->has_more)
        return BW_AGAIN;
    return has_failed(stripes) ? BW_CORRUPT : BW_OK;
}

static bool stripes_is_finished(bw_link_t *link)
{
    (void)link;
    return false;
}

static const char *stripes_reason(bw_link_t *link)
{
    const stripes_t *stripes = stripes_of(link);

    return stripes->is_corrupt ? "beamway_session_corrupt" : stripes->reason;
}

static bool stripes_is_corrupt(const bw_link_t *link)
{
    return const_of(link)->is_corrupt;
}

/* ---- polling ---- */

static int stripes_fd(const bw_link_t *link)
{
    return const_of(link)->poll;
}

static void stripes_clear_event(bw_link_t *link)
{
    stripes_t *stripes = stripes_of(link);
    eventfd_t ignored;

    (void)eventfd_read(stripes->wake, &ignored);
    hand_out_events(stripes);
}

static void stripes_wake_self(bw_link_t *link)
{
    (void)eventfd_write(stripes_of(link)->wake, 1);
}

static bool stripes_has_hung_up(const bw_link_t *link)
{
    return const_of(link)->has_hung_up;
}

/* If a connection is silent while another one is not, treats it as lost, so that its bytes are sent
 * over the others. The peer may still wait for the last acknowledgement, so it is sent again. */
static bool stripes_is_silent(bw_link_t *link)
{
    stripes_t *stripes = stripes_of(link);
    bool is_silent[BW_STRIPES_MAX] = {false};
    unsigned silent = 0;
    int place;

    for (unsigned i = 0; i < stripes->strands.count; i++) {
        bw_link_t *connection = stripes->connections[i];

        is_silent[i] = connection && connection->ops->is_silent(connection);
        silent += is_silent[i];
    }
    if (silent > 0 && silent == stripes->strands.live)
        return true;
    for (unsigned i = 0; i < stripes->strands.count; i++)
        if (is_silent[i])
            lose(stripes, i);
    place = bw_strands_acknowledge(&stripes->strands, 1, true);
    if (place >= 0)
        push(stripes, (unsigned)place);
    send_some(stripes);
    poll_all(stripes);
    return false;
}

/* ---- memory and statistics ---- */

/* Returns true only if both rings are empty and their bytes have been acknowledged. */
static bool stripes_has_spare(const bw_link_t *link)
{
    const stripes_t *stripes = const_of(link);
    const bw_strands_t *strands = &stripes->strands;

    return stripes->is_touched && strands->head == strands->freed && strands->in.count == 0 &&
           strands->in.head == strands->taken;
}

static bool stripes_trim(bw_link_t *link)
{
    stripes_t *stripes = stripes_of(link);

    if (!stripes_has_spare(link))
        return false;
    stripes->is_touched = false;
    (void)madvise(stripes->out, BW_STRIPES_RING_BYTES, MADV_REMOVE);
    (void)madvise(stripes->in, BW_STRIPES_RING_BYTES, MADV_REMOVE);
    return false;
}

static void stripes_stats(const bw_link_t *link, bw_link_stats_t *stats_p)
{
    const stripes_t *stripes = const_of(link);
    const bw_strands_t *strands = &stripes->strands;
    bw_link_stats_t sum = {.bytes_in = strands->taken,
                           .bytes_out = strands->head,
                           .stalls = stripes->stalls,
                           .ring_bytes = BW_STRIPES_RING_BYTES,
                           .fill_in = strands->in.head - strands->taken,
                           .unreleased = bw_strands_unassigned(strands)};

    for (unsigned place = 0; place < strands->count; place++) {
        const bw_link_t *connection = stripes->connections[place];
        bw_link_stats_t its;

        if (!connection)
            continue;
        connection->ops->stats(connection, &its);
        sum.ack_ms = sum.rtt_us == 0 || its.ack_ms < sum.ack_ms ? its.ack_ms : sum.ack_ms;
        sum.rtt_us = its.rtt_us > sum.rtt_us ? its.rtt_us : sum.rtt_us;
        sum.unanswered = its.unanswered > sum.unanswered ? its.unanswered : sum.unanswered;
        if (sum.least_rtt_us == 0 || (its.least_rtt_us > 0 && its.least_rtt_us < sum.least_rtt_us))
            sum.least_rtt_us = its.least_rtt_us;
        sum.window_bytes += its.window_bytes;
        sum.delivered_bytes += its.delivered_bytes;
        sum.retransmits += its.retransmits;
        sum.kernel_bytes += its.kernel_bytes;
        sum.doorbells_in += its.doorbells_in;
        sum.doorbells_out += its.doorbells_out;
        sum.unreleased += its.unreleased + strands->strands[place].left;
    }
    sum.unreleased = bw_least(sum.unreleased, sum.bytes_out); /* without headers */
    *stats_p = sum;
}

/* ---- creating and closing ---- */

static void stripes_close(bw_link_t *link, bw_leftover_t *left_p)
{
    stripes_t *stripes = stripes_of(link);
    bw_leftover_t left = {.fd = stripes->poll, .socket = -1};

    for (unsigned place = 0; place < stripes->strands.count; place++)
        if (stripes->connections[place])
            close_connection(stripes->connections[place]);
    if (stripes->wake >= 0)
        close(stripes->wake);
    left.map[0] = (struct iovec){.iov_base = stripes->out, .iov_len = 2 * BW_STRIPES_RING_BYTES};
    left.map[1] = (struct iovec){.iov_base = stripes->in, .iov_len = 2 * BW_STRIPES_RING_BYTES};
    free(stripes->strands.in.of);
    free(stripes);
    bw_leftover_give(&left, left_p);
}

static const bw_carrier_t stripes_ops = {
    .kind = "stripes",
    .caps = BW_CAP_TELLS_DEATH | BW_CAP_KERNEL_BUFFERS,
    .reserve = stripes_reserve,
    .defer = stripes_defer,
    .needs_flush = stripes_needs_flush,
    .write = stripes_write,
    .peek = stripes_peek,
    .release = stripes_release,
    .arm_read = stripes_arm_read,
    .arm_write = stripes_arm_write,
    .fd = stripes_fd,
    .has_hung_up = stripes_has_hung_up,
    .is_silent = stripes_is_silent,
    .clear_event = stripes_clear_event,
    .wake_self = stripes_wake_self,
    .trim = stripes_trim,
    .has_spare = stripes_has_spare,
    .stats = stripes_stats,
    .is_finished = stripes_is_finished,
    .is_corrupt = stripes_is_corrupt,
    .reason = stripes_reason,
    .close = stripes_close,
};

/* A light load uses few of the connections. Without probes a firewall would forget the others, and
 * this side would not notice that the peer has lost one. */
static void set_options(int fd)
{
    int unsent = UNSENT_BYTES, yes = 1, seconds = PROBE_SECONDS;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
}

bw_status_t bw_stripes_add(bw_link_t *link, bw_link_t *connection, bw_error_t *error_p)
{
    stripes_t *stripes = stripes_of(link);
    int fd = connection->ops->fd(connection), place;
    struct epoll_event event = {.events = 0};

    if (link->ops != &stripes_ops)
        return bw_fail(error_p, BW_INVALID, "the link has one connection", 0);
    place = stripes->strands.live < BW_STRIPES_MAX ? bw_strands_add(&stripes->strands) : -1;
    if (place < 0)
        return bw_fail(error_p, BW_LIMIT, "the link has as many connections as it can", 0);
    event.data.u32 = (uint32_t)place;
    if (epoll_ctl(stripes->poll, EPOLL_CTL_ADD, fd, &event) < 0) {
        bw_strands_lost(&stripes->strands, (unsigned)place);
        return bw_fail_system(error_p, "a connection that is polled", errno);
    }
    stripes->polled[place] = 0;
    stripes->connections[place] = connection;
    set_options(fd);
    stripes_wake_self(link); /* the connection may already have bytes */
    return BW_OK;
}

bw_status_t bw_stripes_make(bw_link_t *first, bw_link_t **link_p, bw_error_t *error_p)
{
    stripes_t *stripes = calloc(1, sizeof *stripes);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = WAKE};
    const char *step = "an epoll for connections";
    bw_status_t status;

    if (!stripes)
        return bw_fail(error_p, BW_LIMIT, "memory for the link", ENOMEM);
    stripes->link.ops = &stripes_ops;
    stripes->strands.in_bytes = BW_STRIPES_RING_BYTES;
    stripes->strands.use = BW_STRIPES_MAX;
    stripes->poll = epoll_create1(EPOLL_CLOEXEC);
    stripes->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (stripes->poll >= 0 && stripes->wake >= 0 &&
        epoll_ctl(stripes->poll, EPOLL_CTL_ADD, stripes->wake, &event) == 0)
        stripes->out = bw_map_twice("beamway-stripes", BW_STRIPES_RING_BYTES, &step);
    if (stripes->out)
        stripes->in = bw_map_twice("beamway-stripes", BW_STRIPES_RING_BYTES, &step);
    status = stripes->in ? bw_stripes_add(&stripes->link, first, error_p)
                         : bw_fail_system(error_p, step, errno);
    if (status == BW_OK)
        *link_p = &stripes->link;
    else
        stripes_close(&stripes->link, NULL);
    return status;
}

unsigned bw_stripes_count(const bw_link_t *link)
{
    return link->ops == &stripes_ops ? const_of(link)->strands.live : 0;
}
