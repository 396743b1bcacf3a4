/* SPDX-License-Identifier: Apache-2.0 */
#include "bundle_state.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bytes.h"
#include "socket.h"

/* The maximum number of bytes that are read from one connection before the user is woken. */
#define TURN_BYTES ((size_t)256 * 1024)
#define PARTING_MS 5000 /* time limit for sending the last committed bytes after the close */

/* ---- one connection ---- */

static bool has_unsent(const rd_wire_t *wire, const bw_strand_t *strand)
{
    return bw_strand_has_unsent(strand) || (wire->tls && rd_tls_unsent(wire->tls) > 0);
}

static void bury(rd_bundle_t *bundle, unsigned place)
{
    rd_wire_t *wire = &bundle->wires[place];

    close(wire->fd);
    if (wire->tls && rd_tls_reason(wire->tls))
        bundle->last_reason = rd_tls_reason(wire->tls);
    rd_tls_free(wire->tls);
    *wire = (rd_wire_t){.fd = -1};
    bw_strands_lost(&bundle->strands, place);
    atomic_fetch_sub(&bundle->live, 1);
}

/* push_plain and push_tls return false if the connection is dead. */
static bool push_plain(const rd_bundle_t *bundle, const rd_wire_t *wire, bw_strand_t *strand)
{
    while (bw_strand_has_unsent(strand) && !strand->is_blocked) {
        struct iovec iov[2] = {
            {.iov_base = strand->said + strand->said_at, .iov_len = strand->said_len},
            {.iov_base = rd_bundle_place(bundle->out, bundle->out_bytes, strand->at),
             .iov_len = strand->left}};
        struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};
        ssize_t n = sendmsg(wire->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n >= 0)
            bw_strand_sent(strand, (size_t)n);
        else if (errno == EAGAIN)
            strand->is_blocked = true;
        else if (errno != EINTR)
            return false;
    }
    return true;
}

static bool push_tls(const rd_bundle_t *bundle, const rd_wire_t *wire, bw_strand_t *strand)
{
    while (has_unsent(wire, strand) && !strand->is_blocked) {
        size_t n = 1;

        while (strand->said_len > 0 && n > 0)
            bw_strand_sent(strand, n = rd_tls_write(wire->tls, strand->said + strand->said_at,
                                                    strand->said_len));
        while (strand->said_len == 0 && strand->left > 0 && n > 0)
            bw_strand_sent(strand, n = rd_tls_write(
                                       wire->tls,
                                       rd_bundle_place(bundle->out, bundle->out_bytes, strand->at),
                                       strand->left));
        if (n == 0 && rd_tls_unsent(wire->tls) == 0)
            return false; /* libcrypto has failed */
        switch (rd_tls_flush(wire->tls)) {
        case RD_TLS_DONE:
            break;
        case RD_TLS_WANTS_WRITE:
            strand->is_blocked = true;
            break;
        default:
            return false;
        }
    }
    return true;
}

static void push(rd_bundle_t *bundle, unsigned place)
{
    rd_wire_t *wire = &bundle->wires[place];
    bw_strand_t *strand = &bundle->strands.strands[place];

    if (!(wire->tls ? push_tls(bundle, wire, strand) : push_plain(bundle, wire, strand)))
        bury(bundle, place);
}

static void push_live(rd_bundle_t *bundle, unsigned place)
{
    if (bundle->wires[place].fd >= 0)
        push(bundle, place);
}

static void count_used(rd_bundle_t *bundle, rd_wire_t *wire)
{
    if (wire->is_used)
        return;
    wire->is_used = true;
    atomic_fetch_add(&bundle->used, 1);
}

/* Returns 0 if no bytes are available now, or -1 if the connection has ended. */
static ssize_t pull(const rd_wire_t *wire, void *to, size_t len)
{
    size_t got = 0;
    ssize_t n;

    if (wire->tls) {
        rd_tls_result_t result = rd_tls_read(wire->tls, to, len, &got);

        return result == RD_TLS_DONE                                         ? (ssize_t)got
               : result == RD_TLS_WANTS_READ || result == RD_TLS_WANTS_WRITE ? 0
                                                                             : -1;
    }
    do
        n = recv(wire->fd, to, len, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n > 0 ? n : n < 0 && errno == EAGAIN ? 0 : -1;
}

/* Sets *done_p if any bytes have arrived. Returns false if the connection is dead. */
static bool hear(rd_bundle_t *bundle, unsigned place, bool *done_p)
{
    rd_wire_t *wire = &bundle->wires[place];
    bw_strand_t *strand = &bundle->strands.strands[place];

    for (size_t turn = 0; turn < TURN_BYTES && wire->may_read;) {
        bw_strand_due_t due = bw_strands_due(&bundle->strands, strand);
        ssize_t n;

        if (due.header)
            n = pull(wire, due.header, due.len);
        else if (due.is_new)
            n = pull(wire, rd_bundle_place(bundle->in, bundle->in_bytes, due.at), due.len);
        else
            n = pull(wire, bundle->scratch, bw_least(due.len, sizeof bundle->scratch));
        wire->may_read = n > 0;
        if (n <= 0)
            return n == 0;
        if (!bw_strands_came(&bundle->strands, strand, &due, (size_t)n))
            return false;
        if (!due.header) {
            turn += (size_t)n;
            count_used(bundle, wire);
        }
        *done_p = true;
    }
    return true;
}

/* ---- all connections ---- */

/* Picks up the positions that the user's thread has written. */
static void look(rd_bundle_t *bundle)
{
    bundle->strands.head = atomic_load_explicit(&bundle->out_head, memory_order_acquire);
    bundle->strands.taken = atomic_load_explicit(&bundle->in_tail, memory_order_acquire);
}

static bool assign(rd_bundle_t *bundle)
{
    int place = bw_strands_assign(&bundle->strands);

    if (place < 0)
        return false;
    count_used(bundle, &bundle->wires[place]);
    push(bundle, (unsigned)place);
    return true;
}

static void say_ack(rd_bundle_t *bundle)
{
    int place = bw_strands_acknowledge(&bundle->strands, rd_bundle_ack_bytes(bundle), true);

    if (place >= 0)
        push(bundle, (unsigned)place);
}

/* Publishes the new positions, and wakes the user if the bytes or the room that the user is waiting
 * for are there. */
static void publish(rd_bundle_t *bundle)
{
    const bw_strands_t *strands = &bundle->strands;
    uint64_t wants, awaits;
    bool is_told = false;

    atomic_store(&bundle->out_tail, strands->freed);
    atomic_store(&bundle->in_head, strands->in.head);
    wants = atomic_load(&bundle->wants);
    awaits = atomic_load(&bundle->awaits);
    if (atomic_load(&bundle->state) == RD_BUNDLE_RUNS) {
        if (bw_strands_have_all(strands))
            atomic_store(&bundle->state, RD_BUNDLE_ENDED);
        else if (strands->count > 0 && atomic_load(&bundle->live) == 0) {
            atomic_store(&bundle->reason,
                         bundle->last_reason ? bundle->last_reason : "connection_closed");
            atomic_store(&bundle->state, RD_BUNDLE_FAILED);
        }
        is_told = atomic_load(&bundle->state) != RD_BUNDLE_RUNS;
    }
    if (wants > 0 && rd_bundle_room(bundle) >= wants) {
        atomic_store(&bundle->wants, 0);
        is_told = true;
    }
    if (awaits > 0 && (is_told || strands->in.head + 1 != awaits)) {
        atomic_store(&bundle->awaits, 0);
        is_told = true;
    }
    if (is_told)
        (void)eventfd_write(bundle->event, 1);
}

/* At the end of a period, decides whether to use more connections or fewer. */
static void adjust(rd_bundle_t *bundle)
{
    int64_t now = rd_now_ms();
    /* A full window also counts as demand, because the bytes that arrive then show whether one
     * connection is falling behind. */
    rd_period_t period = {.ms = now - bundle->period_began_ms,
                          .live = bundle->strands.live,
                          .is_hungry = bw_strands_unassigned(&bundle->strands) > 0 ||
                                       rd_bundle_room(bundle) < bundle->out_bytes / 4};

    if (!bundle->is_auto || period.ms < bundle->period_ms)
        return;
    bundle->period_began_ms = now;
    for (unsigned i = 0; i < bundle->strands.count; i++) {
        rd_wire_t *wire = &bundle->wires[i];
        rd_tcp_t tcp;

        if (wire->fd < 0)
            continue;
        tcp = rd_tcp_of(wire->fd);
        rd_period_add(&period, &wire->seen, &tcp);
        wire->seen = tcp;
    }
    bundle->strands.use = rd_stream_count_step(&bundle->stream_count, &period);
}

/* Returns true if the kernel has accepted all data and every END. */
static bool say_end(rd_bundle_t *bundle)
{
    bool is_gone = bw_strands_end(&bundle->strands);

    for (unsigned i = 0; is_gone && i < bundle->strands.count; i++) {
        push_live(bundle, i);
        is_gone = !has_unsent(&bundle->wires[i], &bundle->strands.strands[i]);
    }
    return is_gone;
}

static void wait_for_work(rd_bundle_t *bundle, int ms)
{
    struct pollfd polled[RD_STREAMS_MAX + 1];
    eventfd_t ignored;

    bw_strand_t *strands = bundle->strands.strands;
    unsigned count = bundle->strands.count;

    for (unsigned i = 0; i < count; i++)
        polled[i] =
            (struct pollfd){.fd = bundle->wires[i].fd,
                            .events = (short)(POLLIN | (strands[i].is_blocked ? POLLOUT : 0))};
    polled[count] = (struct pollfd){.fd = bundle->wake, .events = POLLIN};
    (void)poll(polled, count + 1, ms);
    for (unsigned i = 0; i < count; i++) {
        if (polled[i].revents & (POLLOUT | POLLERR | POLLHUP))
            strands[i].is_blocked = false;
        if (polled[i].revents & (POLLIN | POLLERR | POLLHUP))
            bundle->wires[i].may_read = true;
    }
    if (polled[count].revents)
        (void)eventfd_read(bundle->wake, &ignored);
}

static void take_added(rd_bundle_t *bundle)
{
    while (bundle->come < atomic_load(&bundle->added)) {
        int place = bw_strands_add(&bundle->strands);

        bundle->wires[place] = bundle->adds[bundle->come++];
    }
}

/* Returns true if it did anything. */
static bool turn(rd_bundle_t *bundle)
{
    bool done = false;

    take_added(bundle);
    look(bundle);
    bundle->seen_head = bundle->strands.head;
    bundle->seen_tail = bundle->strands.taken;
    for (unsigned i = 0; i < bundle->strands.count; i++) {
        if (bundle->wires[i].fd >= 0 && !hear(bundle, i, &done)) {
            bury(bundle, i);
            done = true;
        }
        push_live(bundle, i);
    }
    look(bundle);
    say_ack(bundle);
    for (unsigned i = 0; i < 2 * RD_STREAMS_MAX && assign(bundle); i++)
        done = true;
    adjust(bundle);
    publish(bundle);
    return done;
}

static bool has_news(const rd_bundle_t *bundle)
{
    return atomic_load(&bundle->out_head) != bundle->seen_head ||
           atomic_load(&bundle->in_tail) != bundle->seen_tail;
}

/* Returns how many milliseconds to wait before the next turn, or -1 to wait until woken. */
static int patience(const rd_bundle_t *bundle, int64_t give_up)
{
    if (give_up)
        return rd_left_ms(give_up);
    return bundle->is_auto && bw_strands_unassigned(&bundle->strands) > 0 ? RD_PERIOD_MIN_MS / 4
                                                                          : -1;
}

void *rd_bundle_thread(void *argument)
{
    rd_bundle_t *bundle = argument;
    int64_t give_up = 0;

    while (!give_up || (atomic_load(&bundle->live) > 0 && rd_left_ms(give_up) > 0)) {
        bool done = turn(bundle);

        if (give_up && say_end(bundle))
            break;
        if (!give_up && atomic_load(&bundle->is_closing)) {
            give_up = rd_now_ms() + PARTING_MS;
            continue;
        }
        atomic_store(&bundle->is_asleep, true);
        wait_for_work(bundle, done || has_news(bundle) ? 0 : patience(bundle, give_up));
        atomic_store(&bundle->is_asleep, false);
    }
    take_added(bundle);
    for (unsigned i = 0; i < bundle->strands.count; i++) {
        const rd_wire_t *wire = &bundle->wires[i];

        if (wire->fd < 0)
            continue;
        if (wire->tls) {
            rd_tls_end(wire->tls);
            (void)rd_tls_flush(wire->tls);
        }
        (void)shutdown(wire->fd, SHUT_WR);
        /* Closing a socket with unread data would reset the connection. */
        (void)bw_discard(wire->fd, 64);
        close(wire->fd);
        rd_tls_free(wire->tls);
    }
    return NULL;
}
