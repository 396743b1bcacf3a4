/* SPDX-License-Identifier: Apache-2.0 */
#include "bundle_state.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bytes.h"

#define CHUNK_BYTES ((uint64_t)256 * 1024)
#define SHARE_BYTES ((uint64_t)64 * 1024) /* the same, where there are several connections */
#define TURN_BYTES ((size_t)256 * 1024)   /* read from one connection before the user hears of it */
#define PARTING_MS 5000                   /* what was committed last has gone by then */

enum { CHUNK = 1, ACK, END };

/* ---- one connection ---- */

static void put_header(rd_strand_t *strand, uint8_t kind, uint32_t len, uint64_t offset,
                       uint64_t other)
{
    uint32_t word = htole32(len);
    uint64_t offsets[2] = {htole64(offset), htole64(other)};

    memset(strand->said, 0, 8);
    strand->said[0] = kind;
    memcpy(strand->said + 4, &word, 4);
    memcpy(strand->said + 8, offsets, 16);
    strand->said_at = 0;
    strand->said_len = RD_STRAND_HEADER;
}

static bool has_unsent(const rd_strand_t *strand)
{
    return strand->said_len > 0 || strand->left > 0 ||
           (strand->tls && rd_tls_unsent(strand->tls) > 0);
}

/* What is on its way over it is sent again, unless the peer has ended in order. */
static void bury(rd_bundle_t *bundle, rd_strand_t *strand)
{
    close(strand->fd);
    if (strand->tls && rd_tls_reason(strand->tls))
        bundle->last_reason = rd_tls_reason(strand->tls);
    rd_tls_free(strand->tls);
    if (!strand->has_heard_end && bundle->next > bundle->arrived)
        bundle->next = bundle->arrived;
    bundle->owes_ack = true; /* the last one may have been lost */
    *strand = (rd_strand_t){.fd = -1};
    atomic_fetch_sub(&bundle->live, 1);
}

static void sent(rd_strand_t *strand, size_t n)
{
    size_t of_header = bw_least(n, strand->said_len);

    strand->said_at += of_header;
    strand->said_len -= of_header;
    strand->at += n - of_header;
    strand->left -= n - of_header;
}

/* Both: false if the connection is dead. */
static bool push_plain(rd_bundle_t *bundle, rd_strand_t *strand)
{
    while (has_unsent(strand) && !strand->is_blocked) {
        struct iovec iov[2] = {
            {.iov_base = strand->said + strand->said_at, .iov_len = strand->said_len},
            {.iov_base = rd_bundle_place(bundle->out, bundle->out_bytes, strand->at),
             .iov_len = strand->left}};
        struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};
        ssize_t n = sendmsg(strand->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n >= 0)
            sent(strand, (size_t)n);
        else if (errno == EAGAIN)
            strand->is_blocked = true;
        else if (errno != EINTR)
            return false;
    }
    return true;
}

static bool push_tls(rd_bundle_t *bundle, rd_strand_t *strand)
{
    while (has_unsent(strand) && !strand->is_blocked) {
        size_t n = 1;

        while (strand->said_len > 0 && n > 0)
            sent(strand,
                 n = rd_tls_write(strand->tls, strand->said + strand->said_at, strand->said_len));
        while (strand->said_len == 0 && strand->left > 0 && n > 0)
            sent(strand,
                 n = rd_tls_write(strand->tls,
                                  rd_bundle_place(bundle->out, bundle->out_bytes, strand->at),
                                  strand->left));
        if (n == 0 && rd_tls_unsent(strand->tls) == 0)
            return false; /* libcrypto cannot */
        switch (rd_tls_flush(strand->tls)) {
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

/* Sends what can be sent now. A connection that is dead is buried. */
static void push(rd_bundle_t *bundle, rd_strand_t *strand)
{
    if (!(strand->tls ? push_tls(bundle, strand) : push_plain(bundle, strand)))
        bury(bundle, strand);
}

/* Bytes, 0: none now, -1: none any more. */
static ssize_t pull(rd_strand_t *strand, void *to, size_t len)
{
    size_t got = 0;
    ssize_t n;

    if (strand->tls) {
        rd_tls_result_t result = rd_tls_read(strand->tls, to, len, &got);

        return result == RD_TLS_DONE                                         ? (ssize_t)got
               : result == RD_TLS_WANTS_READ || result == RD_TLS_WANTS_WRITE ? 0
                                                                             : -1;
    }
    do
        n = recv(strand->fd, to, len, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n > 0 ? n : n < 0 && errno == EAGAIN ? 0 : -1;
}

/* False: no header of ours, or more than there is room for. */
static bool take_header(rd_bundle_t *bundle, rd_strand_t *strand)
{
    uint32_t len;
    uint64_t offset, other, released;

    memcpy(&len, strand->heard + 4, 4);
    memcpy(&offset, strand->heard + 8, 8);
    memcpy(&other, strand->heard + 16, 8);
    len = le32toh(len);
    offset = le64toh(offset);
    other = le64toh(other);
    strand->heard_len = 0;
    switch (strand->heard[0]) {
    case CHUNK:
        released = atomic_load_explicit(&bundle->in_tail, memory_order_acquire);
        if (len == 0 || len > bw_least(CHUNK_BYTES, bundle->in_bytes) ||
            offset > released + bundle->in_bytes - len)
            return false;
        strand->to = offset;
        strand->due = len;
        return true;
    case ACK:
        /* One that has come over another connection may be newer. */
        if (other > atomic_load(&bundle->out_head) || offset > other)
            return false;
        if (other > bundle->arrived)
            bundle->arrived = other;
        if (bundle->next < bundle->arrived)
            bundle->next = bundle->arrived;
        if (offset > atomic_load_explicit(&bundle->out_tail, memory_order_relaxed))
            atomic_store_explicit(&bundle->out_tail, offset, memory_order_release);
        return true;
    case END:
        if (bundle->has_total && bundle->total != offset)
            return false;
        bundle->has_total = strand->has_heard_end = true;
        bundle->total = offset;
        return true;
    default:
        return false;
    }
}

/* Reads what there is, to a bound; false: the connection is dead. *done_p: something came. */
static bool hear(rd_bundle_t *bundle, rd_strand_t *strand, bool *done_p)
{
    for (size_t turn = 0; turn < TURN_BYTES && strand->may_read;) {
        bool is_new = false;
        size_t len;
        ssize_t n;

        if (strand->due == 0) {
            n = pull(strand, strand->heard + strand->heard_len,
                     RD_STRAND_HEADER - strand->heard_len);
            strand->may_read = n > 0;
            if (n <= 0)
                return n == 0;
            strand->heard_len += (size_t)n;
            if (strand->heard_len == RD_STRAND_HEADER && !take_header(bundle, strand))
                return false;
            *done_p = true;
            continue;
        }
        len = rd_ranges_run(&bundle->ranges, strand->to, strand->due, &is_new);
        if (is_new)
            n = pull(strand, rd_bundle_place(bundle->in, bundle->in_bytes, strand->to), len);
        else
            n = pull(strand, bundle->scratch, bw_least(len, sizeof bundle->scratch));
        strand->may_read = n > 0;
        if (n <= 0)
            return n == 0;
        if (is_new && !rd_ranges_add(&bundle->ranges, strand->to, strand->to + (uint64_t)n))
            return false;
        strand->to += (uint64_t)n;
        strand->due -= (size_t)n;
        turn += (size_t)n;
        *done_p = true;
    }
    return true;
}

/* ---- all of them ---- */

static uint64_t unassigned(const rd_bundle_t *bundle)
{
    return atomic_load_explicit(&bundle->out_head, memory_order_acquire) - bundle->next;
}

/* The chunk is sent from the ring. Small ones stay on one connection, so that they arrive in order
 * and the receiver has few ranges. */
static bool assign(rd_bundle_t *bundle)
{
    unsigned seen = 0;
    uint64_t most = bundle->most > 1 ? SHARE_BYTES : CHUNK_BYTES;
    uint64_t len = bw_least(unassigned(bundle), most);

    if (len == 0)
        return false;
    if (len == most)
        bundle->last++;
    for (unsigned i = 0; i < bundle->count; i++) {
        rd_strand_t *strand = &bundle->strands[(bundle->last + i) % bundle->count];
        bool is_used = strand->fd >= 0 && seen < bundle->pace.use;

        seen += strand->fd >= 0;
        if (!is_used || strand->is_blocked || has_unsent(strand) || strand->has_said_end)
            continue;
        put_header(strand, CHUNK, (uint32_t)len, bundle->next, 0);
        strand->at = bundle->next;
        strand->left = len;
        bundle->next += len;
        bundle->last = (bundle->last + i) % bundle->count;
        push(bundle, strand);
        return true;
    }
    return false;
}

/* The peer hears of room by and by, and of what has arrived. */
static void say_ack(rd_bundle_t *bundle)
{
    uint64_t released = atomic_load_explicit(&bundle->in_tail, memory_order_acquire);
    uint64_t arrived = bundle->ranges.head;

    if (released - bundle->acked < rd_bundle_ack_bytes(bundle) &&
        arrived - bundle->acked_all < rd_bundle_ack_bytes(bundle) &&
        !(bundle->owes_ack && arrived > 0))
        return;
    for (unsigned i = 0; i < bundle->count; i++) {
        rd_strand_t *strand = &bundle->strands[i];

        if (strand->fd < 0 || strand->is_blocked || has_unsent(strand) || strand->has_said_end)
            continue;
        put_header(strand, ACK, 0, released, arrived);
        bundle->acked = released;
        bundle->acked_all = arrived;
        bundle->owes_ack = false;
        push(bundle, strand);
        return;
    }
}

/* Tells the user of what he waits for. */
static void publish(rd_bundle_t *bundle)
{
    uint64_t wants = atomic_load(&bundle->wants), awaits = atomic_load(&bundle->awaits);
    bool is_told = false;

    atomic_store(&bundle->in_head, bundle->ranges.head);
    if (atomic_load(&bundle->state) == RD_BUNDLE_RUNS) {
        if (bundle->has_total && bundle->ranges.head == bundle->total)
            atomic_store(&bundle->state, RD_BUNDLE_ENDED);
        else if (bundle->count > 0 && atomic_load(&bundle->live) == 0) {
            atomic_store(&bundle->reason,
                         bundle->last_reason ? bundle->last_reason : "connection_closed");
            atomic_store(&bundle->state, RD_BUNDLE_FAILED);
        }
        is_told = atomic_load(&bundle->state) != RD_BUNDLE_RUNS;
    }
    if (wants > 0 &&
        bundle->out_bytes - (atomic_load(&bundle->out_head) - atomic_load(&bundle->out_tail)) >=
            wants) {
        atomic_store(&bundle->wants, 0);
        is_told = true;
    }
    if (awaits > 0 && (is_told || bundle->ranges.head + 1 != awaits)) {
        atomic_store(&bundle->awaits, 0);
        is_told = true;
    }
    if (is_told)
        (void)eventfd_write(bundle->event, 1);
}

/* Is a period over? Then more connections, or fewer, may be used from now on. */
static void pace(rd_bundle_t *bundle)
{
    int64_t now = rd_now_ms(), ms = now - bundle->period_began_ms;
    /* A full window is hunger, too: then what arrives shows whether one connection is late. */
    bool is_hungry = unassigned(bundle) > 0 || rd_bundle_room(bundle) < bundle->out_bytes / 4;

    if (!bundle->is_auto ||
        ms < (bundle->is_first_period ? bundle->period_ms / 4 : bundle->period_ms))
        return;
    bundle->pace.most = atomic_load(&bundle->live);
    if (bundle->pace.most > 0 && bundle->arrived > bundle->period_from) {
        rd_pace_step(&bundle->pace, (double)(bundle->arrived - bundle->period_from) / (double)ms,
                     is_hungry);
        bundle->is_first_period = bundle->is_first_period && bundle->pace.fewer == 0;
    }
    bundle->period_began_ms = now;
    bundle->period_from = bundle->arrived;
    if (bundle->pace.use > atomic_load(&bundle->used))
        atomic_store(&bundle->used, bundle->pace.use);
}

/* Everything has gone to the kernel: says the end on each connection. True: that has gone, too. */
static bool say_end(rd_bundle_t *bundle)
{
    bool is_gone = unassigned(bundle) == 0;

    for (unsigned i = 0; i < bundle->count; i++)
        is_gone = is_gone && (bundle->strands[i].fd < 0 || bundle->strands[i].has_said_end ||
                              !has_unsent(&bundle->strands[i]));
    if (!is_gone)
        return false;
    for (unsigned i = 0; i < bundle->count; i++) {
        rd_strand_t *strand = &bundle->strands[i];

        if (strand->fd < 0)
            continue;
        if (!strand->has_said_end) {
            put_header(strand, END, 0, bundle->next, 0);
            strand->has_said_end = true;
        }
        push(bundle, strand);
        is_gone = is_gone && !has_unsent(strand);
    }
    return is_gone;
}

/* Waits for what any of the connections or the user does. */
static void wait_for_work(rd_bundle_t *bundle, int ms)
{
    struct pollfd polled[RD_STREAMS_MAX + 1];
    eventfd_t ignored;

    for (unsigned i = 0; i < bundle->count; i++)
        polled[i] = (struct pollfd){
            .fd = bundle->strands[i].fd,
            .events = (short)(POLLIN | (bundle->strands[i].is_blocked ? POLLOUT : 0))};
    polled[bundle->count] = (struct pollfd){.fd = bundle->wake, .events = POLLIN};
    (void)poll(polled, bundle->count + 1, ms);
    for (unsigned i = 0; i < bundle->count; i++) {
        if (polled[i].revents & (POLLOUT | POLLERR | POLLHUP))
            bundle->strands[i].is_blocked = false;
        if (polled[i].revents & (POLLIN | POLLERR | POLLHUP))
            bundle->strands[i].may_read = true;
    }
    if (polled[bundle->count].revents)
        (void)eventfd_read(bundle->wake, &ignored);
}

/* True: something was done. */
static bool turn(rd_bundle_t *bundle)
{
    bool done = false;

    bundle->count = atomic_load(&bundle->added);
    bundle->seen_head = atomic_load(&bundle->out_head);
    bundle->seen_tail = atomic_load(&bundle->in_tail);
    for (unsigned i = 0; i < bundle->count; i++) {
        rd_strand_t *strand = &bundle->strands[i];

        if (strand->fd >= 0 && !hear(bundle, strand, &done)) {
            bury(bundle, strand);
            done = true;
        }
        if (strand->fd >= 0)
            push(bundle, strand);
    }
    say_ack(bundle);
    for (unsigned i = 0; i < 2 * RD_STREAMS_MAX && assign(bundle); i++)
        done = true;
    pace(bundle);
    publish(bundle);
    return done;
}

/* The user has done something since the last turn began. */
static bool has_news(const rd_bundle_t *bundle)
{
    return atomic_load(&bundle->out_head) != bundle->seen_head ||
           atomic_load(&bundle->in_tail) != bundle->seen_tail;
}

/* Until the next turn; -1: something will wake us. */
static int patience(const rd_bundle_t *bundle, int64_t give_up)
{
    if (give_up)
        return rd_left_ms(give_up);
    return bundle->is_auto && unassigned(bundle) > 0 ? RD_PERIOD_MIN_MS / 4 : -1;
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
    for (unsigned i = 0; i < atomic_load(&bundle->added); i++) {
        rd_strand_t *strand = &bundle->strands[i];

        if (strand->fd < 0)
            continue;
        if (strand->tls) {
            rd_tls_end(strand->tls);
            (void)rd_tls_flush(strand->tls);
        }
        (void)shutdown(strand->fd, SHUT_WR);
        /* A socket that is closed with something unread resets the connection. */
        (void)bw_discard(strand->fd, 64);
        close(strand->fd);
        rd_tls_free(strand->tls);
    }
    return NULL;
}
