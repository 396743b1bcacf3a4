/* SPDX-License-Identifier: Apache-2.0 */
#include "bundle.h"

#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bytes.h"
#include "pace.h"
#include "ranges.h"
#include "twice.h"

#define HEADER_BYTES 24u
#define CHUNK_BYTES ((uint64_t)256 * 1024)
#define SHARE_BYTES ((uint64_t)64 * 1024) /* the same, where there are several connections */
#define UNSENT_BYTES (64 * 1024)          /* of each in the kernel, beside what is on its way */
#define TURN_BYTES ((size_t)1 << 20)      /* read from one connection before the next */
#define DEAD_MS 20000   /* a connection that does not get its bytes acknowledged */
#define PARTING_MS 5000 /* what was committed last has gone by then */
#define PERIOD_MIN_MS 200
#define PERIOD_MAX_MS 2000
#define PERIOD_RTTS 4 /* so long a new connection needs to come up to its speed */

enum { CHUNK = 1, ACK, END };

/* One connection. */
typedef struct {
    int fd; /* -1: dead */
    rd_tls_t *tls;
    bool may_read, is_blocked, has_said_end, has_heard_end;
    uint8_t said[HEADER_BYTES]; /* a header that is being sent */
    size_t said_at, said_len;
    uint64_t at; /* and behind it so many bytes of the ring */
    size_t left;
    uint8_t heard[HEADER_BYTES]; /* a header that is being read */
    size_t heard_len;
    uint64_t to; /* and where the bytes behind it belong */
    size_t due;
} strand_t;

typedef enum { RUNS, ENDED, FAILED } bundle_state_t;

typedef struct {
    bw_link_t link; /* first: a bw_link_t pointer is a pointer to this one */
    pthread_t thread;
    int event; /* the user's: look again */
    int kick;  /* the thread's */
    uint8_t *out, *in;
    uint64_t out_bytes, in_bytes;
    unsigned most;

    /* Between the two threads. Each position has one writer. */
    _Atomic uint64_t out_head, in_tail; /* the user's: committed, released */
    _Atomic uint64_t out_tail, in_head; /* the thread's: acknowledged, arrived */
    _Atomic uint64_t wants;             /* room that the user waits for */
    _Atomic uint64_t awaits;            /* he waits for more than arrived up to here, + 1 */
    _Atomic bool is_asleep;             /* the thread waits */
    _Atomic bool is_closing;            /* the user wants no more */
    _Atomic int state;                  /* bundle_state_t; in_head is final when it is not RUNS */
    _Atomic(const char *) reason;       /* of FAILED */
    _Atomic unsigned live, used;
    pthread_mutex_t mutex; /* of `added` */
    strand_t added[RD_STREAMS_MAX];
    unsigned added_count, taken_count;

    /* The user's. */
    uint64_t peeked, told; /* in_head as peek gave it; in_tail when the thread was told */
    int peeked_state;

    /* The thread's. */
    strand_t strands[RD_STREAMS_MAX];
    unsigned count, last; /* last: the one that took a chunk */
    rd_ranges_t ranges;
    uint64_t seen_head, seen_tail; /* of the user's positions, in the last turn */
    uint64_t next;                 /* the first byte that no connection has taken */
    uint64_t arrived;              /* at the peer, as far as it has said */
    uint64_t acked, acked_all;     /* what we have said: released, arrived */
    const char *last_reason;       /* of a connection that is dead; NULL: it was closed */
    bool owes_ack, has_total;
    uint64_t total; /* the peer's stream has so many bytes */
    rd_pace_t pace;
    bool is_auto;
    int64_t period_ms, period_began_ms;
    uint64_t period_from;
    bool is_first_period; /* shorter, until there are streams to add */
    uint8_t scratch[65536];
} bundle_t;

static bundle_t *bundle_of(bw_link_t *link)
{
    return (bundle_t *)link;
}

static uint8_t *place(uint8_t *ring, uint64_t bytes, uint64_t position)
{
    return ring + (position & (bytes - 1));
}

/* So many bytes are confirmed at once. */
static uint64_t ack_bytes(const bundle_t *bundle)
{
    return bundle->in_bytes / (bundle->most > 1 ? 64 : 16);
}

/* ---- the thread: one connection ---- */

static void put_header(strand_t *strand, uint8_t kind, uint32_t len, uint64_t offset,
                       uint64_t other)
{
    uint32_t word = htole32(len);
    uint64_t offsets[2] = {htole64(offset), htole64(other)};

    memset(strand->said, 0, 8);
    strand->said[0] = kind;
    memcpy(strand->said + 4, &word, 4);
    memcpy(strand->said + 8, offsets, 16);
    strand->said_at = 0;
    strand->said_len = HEADER_BYTES;
}

static bool has_unsent(const strand_t *strand)
{
    return strand->said_len > 0 || strand->left > 0 ||
           (strand->tls && rd_tls_unsent(strand->tls) > 0);
}

/* What is on its way over it is sent again, unless the peer has ended in order. */
static void bury(bundle_t *bundle, strand_t *strand)
{
    close(strand->fd);
    if (strand->tls && rd_tls_reason(strand->tls))
        bundle->last_reason = rd_tls_reason(strand->tls);
    rd_tls_free(strand->tls);
    if (!strand->has_heard_end && bundle->next > bundle->arrived)
        bundle->next = bundle->arrived;
    bundle->owes_ack = true; /* the last one may have been lost */
    *strand = (strand_t){.fd = -1};
    atomic_fetch_sub(&bundle->live, 1);
}

static void sent(strand_t *strand, size_t n)
{
    size_t of_header = bw_least(n, strand->said_len);

    strand->said_at += of_header;
    strand->said_len -= of_header;
    strand->at += n - of_header;
    strand->left -= n - of_header;
}

/* Both: false if the connection is dead. */
static bool push_plain(bundle_t *bundle, strand_t *strand)
{
    while (has_unsent(strand) && !strand->is_blocked) {
        struct iovec iov[2] = {
            {.iov_base = strand->said + strand->said_at, .iov_len = strand->said_len},
            {.iov_base = place(bundle->out, bundle->out_bytes, strand->at),
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

static bool push_tls(bundle_t *bundle, strand_t *strand)
{
    while (has_unsent(strand) && !strand->is_blocked) {
        size_t n = 1;

        while (strand->said_len > 0 && n > 0)
            sent(strand,
                 n = rd_tls_write(strand->tls, strand->said + strand->said_at, strand->said_len));
        while (strand->said_len == 0 && strand->left > 0 && n > 0)
            sent(strand,
                 n = rd_tls_write(strand->tls, place(bundle->out, bundle->out_bytes, strand->at),
                                  strand->left));
        if (n == 0 && rd_tls_unsent(strand->tls) == 0)
            return false; /* libssl cannot */
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

static bool push(bundle_t *bundle, strand_t *strand)
{
    return strand->tls ? push_tls(bundle, strand) : push_plain(bundle, strand);
}

/* Bytes, 0: none now, -1: none any more. */
static ssize_t pull(strand_t *strand, void *to, size_t len)
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
static bool take_header(bundle_t *bundle, strand_t *strand)
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
        if (len == 0 || len > CHUNK_BYTES || offset > released + bundle->in_bytes - len)
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
static bool hear(bundle_t *bundle, strand_t *strand, bool *done_p)
{
    for (size_t turn = 0; turn < TURN_BYTES && strand->may_read;) {
        bool is_new = false;
        size_t len;
        ssize_t n;

        if (strand->due == 0) {
            n = pull(strand, strand->heard + strand->heard_len, HEADER_BYTES - strand->heard_len);
            strand->may_read = n > 0;
            if (n <= 0)
                return n == 0;
            strand->heard_len += (size_t)n;
            if (strand->heard_len == HEADER_BYTES && !take_header(bundle, strand))
                return false;
            *done_p = true;
            continue;
        }
        len = rd_ranges_run(&bundle->ranges, strand->to, strand->due, &is_new);
        if (is_new)
            n = pull(strand, place(bundle->in, bundle->in_bytes, strand->to), len);
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

/* ---- the thread: all of them ---- */

static void take_added(bundle_t *bundle)
{
    (void)pthread_mutex_lock(&bundle->mutex);
    while (bundle->taken_count < bundle->added_count)
        bundle->strands[bundle->count++] = bundle->added[bundle->taken_count++];
    (void)pthread_mutex_unlock(&bundle->mutex);
}

static uint64_t unassigned(const bundle_t *bundle)
{
    return atomic_load_explicit(&bundle->out_head, memory_order_acquire) - bundle->next;
}

static uint64_t out_room(const bundle_t *bundle)
{
    return bundle->out_bytes - (atomic_load_explicit(&bundle->out_head, memory_order_relaxed) -
                                atomic_load_explicit(&bundle->out_tail, memory_order_acquire));
}

/* The chunk is sent from the ring. Small ones stay on one connection, so that they arrive in order
 * and the receiver has few ranges. */
static bool assign(bundle_t *bundle)
{
    unsigned seen = 0;
    uint64_t most = bundle->most > 1 ? SHARE_BYTES : CHUNK_BYTES;
    uint64_t len = bw_least(unassigned(bundle), most);

    if (len == 0)
        return false;
    if (len == most)
        bundle->last++;
    for (unsigned i = 0; i < bundle->count; i++) {
        strand_t *strand = &bundle->strands[(bundle->last + i) % bundle->count];
        bool is_used = strand->fd >= 0 && seen < bundle->pace.use;

        seen += strand->fd >= 0;
        if (!is_used || strand->is_blocked || has_unsent(strand) || strand->has_said_end)
            continue;
        put_header(strand, CHUNK, (uint32_t)len, bundle->next, 0);
        strand->at = bundle->next;
        strand->left = len;
        bundle->next += len;
        bundle->last = (bundle->last + i) % bundle->count;
        if (!push(bundle, strand))
            bury(bundle, strand);
        return true;
    }
    return false;
}

/* The peer hears of room by and by, and of what has arrived. */
static void say_ack(bundle_t *bundle)
{
    uint64_t released = atomic_load_explicit(&bundle->in_tail, memory_order_acquire);
    uint64_t arrived = bundle->ranges.head;

    if (released - bundle->acked < ack_bytes(bundle) &&
        arrived - bundle->acked_all < ack_bytes(bundle) && !(bundle->owes_ack && arrived > 0))
        return;
    for (unsigned i = 0; i < bundle->count; i++) {
        strand_t *strand = &bundle->strands[i];

        if (strand->fd < 0 || strand->is_blocked || has_unsent(strand) || strand->has_said_end)
            continue;
        put_header(strand, ACK, 0, released, arrived);
        bundle->acked = released;
        bundle->acked_all = arrived;
        bundle->owes_ack = false;
        if (!push(bundle, strand))
            bury(bundle, strand);
        return;
    }
}

/* Tells the user of what he waits for. */
static void publish(bundle_t *bundle)
{
    uint64_t wants = atomic_load(&bundle->wants), awaits = atomic_load(&bundle->awaits);
    bool is_told = false;

    atomic_store(&bundle->in_head, bundle->ranges.head);
    if (atomic_load(&bundle->state) == RUNS) {
        if (bundle->has_total && bundle->ranges.head == bundle->total)
            atomic_store(&bundle->state, ENDED);
        else if (bundle->count > 0 && atomic_load(&bundle->live) == 0) {
            atomic_store(&bundle->reason,
                         bundle->last_reason ? bundle->last_reason : "connection_closed");
            atomic_store(&bundle->state, FAILED);
        }
        is_told = atomic_load(&bundle->state) != RUNS;
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
static void pace(bundle_t *bundle)
{
    int64_t now = rd_now_ms(), ms = now - bundle->period_began_ms;
    /* A full window is hunger, too: then what arrives shows whether one connection is late. */
    bool is_hungry = unassigned(bundle) > 0 || out_room(bundle) < bundle->out_bytes / 4;

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
static bool say_end(bundle_t *bundle)
{
    bool is_gone = unassigned(bundle) == 0;

    for (unsigned i = 0; i < bundle->count; i++)
        is_gone = is_gone && (bundle->strands[i].fd < 0 || bundle->strands[i].has_said_end ||
                              !has_unsent(&bundle->strands[i]));
    if (!is_gone)
        return false;
    for (unsigned i = 0; i < bundle->count; i++) {
        strand_t *strand = &bundle->strands[i];

        if (strand->fd < 0)
            continue;
        if (!strand->has_said_end) {
            put_header(strand, END, 0, bundle->next, 0);
            strand->has_said_end = true;
        }
        if (!push(bundle, strand))
            bury(bundle, strand);
        else
            is_gone = is_gone && !has_unsent(strand);
    }
    return is_gone;
}

/* Waits for what any of the connections or the user does. */
static void wait_for_work(bundle_t *bundle, int ms)
{
    struct pollfd polled[RD_STREAMS_MAX + 1];
    eventfd_t ignored;

    for (unsigned i = 0; i < bundle->count; i++)
        polled[i] = (struct pollfd){
            .fd = bundle->strands[i].fd,
            .events = (short)(POLLIN | (bundle->strands[i].is_blocked ? POLLOUT : 0))};
    polled[bundle->count] = (struct pollfd){.fd = bundle->kick, .events = POLLIN};
    (void)poll(polled, bundle->count + 1, ms);
    for (unsigned i = 0; i < bundle->count; i++) {
        if (polled[i].revents & (POLLOUT | POLLERR | POLLHUP))
            bundle->strands[i].is_blocked = false;
        if (polled[i].revents & (POLLIN | POLLERR | POLLHUP))
            bundle->strands[i].may_read = true;
    }
    if (polled[bundle->count].revents)
        (void)eventfd_read(bundle->kick, &ignored);
}

/* True: something was done. */
static bool turn(bundle_t *bundle)
{
    bool done = false;

    take_added(bundle);
    bundle->seen_head = atomic_load(&bundle->out_head);
    bundle->seen_tail = atomic_load(&bundle->in_tail);
    for (unsigned i = 0; i < bundle->count; i++) {
        strand_t *strand = &bundle->strands[i];

        if (strand->fd >= 0 && !hear(bundle, strand, &done)) {
            bury(bundle, strand);
            done = true;
        }
        if (strand->fd >= 0 && !push(bundle, strand))
            bury(bundle, strand);
    }
    say_ack(bundle);
    for (unsigned i = 0; i < 2 * RD_STREAMS_MAX && assign(bundle); i++)
        done = true;
    pace(bundle);
    publish(bundle);
    return done;
}

/* The user has done something since the last turn began. */
static bool has_news(const bundle_t *bundle)
{
    return atomic_load(&bundle->out_head) != bundle->seen_head ||
           atomic_load(&bundle->in_tail) != bundle->seen_tail;
}

/* Until the next turn; -1: something will wake us. */
static int patience(const bundle_t *bundle, int64_t give_up)
{
    if (give_up)
        return rd_left_ms(give_up);
    return bundle->is_auto && unassigned(bundle) > 0 ? PERIOD_MIN_MS / 4 : -1;
}

static void *run(void *argument)
{
    bundle_t *bundle = argument;
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
    for (unsigned i = 0; i < bundle->count; i++) {
        strand_t *strand = &bundle->strands[i];

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

/* ---- the user's thread ---- */

static void wake_thread(bundle_t *bundle)
{
    if (atomic_exchange(&bundle->is_asleep, false))
        (void)eventfd_write(bundle->kick, 1);
}

static bw_status_t bundle_reserve(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    bundle_t *bundle = bundle_of(link);
    uint64_t room = out_room(bundle);

    (void)want;
    if (room == 0)
        return BW_AGAIN;
    *span_p =
        (bw_span_t){.base = place(bundle->out, bundle->out_bytes,
                                  atomic_load_explicit(&bundle->out_head, memory_order_relaxed)),
                    .len = room};
    return BW_OK;
}

static void bundle_commit(bw_link_t *link, size_t n)
{
    bundle_t *bundle = bundle_of(link);

    atomic_fetch_add(&bundle->out_head, n);
    wake_thread(bundle);
}

static bw_status_t bundle_peek(bw_link_t *link, bw_span_t *span_p)
{
    bundle_t *bundle = bundle_of(link);
    uint64_t tail = atomic_load_explicit(&bundle->in_tail, memory_order_relaxed);

    bundle->peeked_state = atomic_load(&bundle->state);
    bundle->peeked = atomic_load_explicit(&bundle->in_head, memory_order_acquire);
    if (bundle->peeked == tail)
        return bundle->peeked_state == FAILED ? BW_SYSTEM : BW_AGAIN;
    *span_p = (bw_span_t){.base = place(bundle->in, bundle->in_bytes, tail),
                          .len = bundle->peeked - tail};
    return BW_OK;
}

static void bundle_release(bw_link_t *link, size_t n)
{
    bundle_t *bundle = bundle_of(link);
    uint64_t tail = atomic_fetch_add(&bundle->in_tail, n) + n;

    if (tail - bundle->told < ack_bytes(bundle))
        return;
    bundle->told = tail;
    wake_thread(bundle);
}

static bw_status_t bundle_arm_read(bw_link_t *link)
{
    bundle_t *bundle = bundle_of(link);
    int state;

    atomic_store(&bundle->awaits, bundle->peeked + 1);
    state = atomic_load(&bundle->state);
    if (atomic_load(&bundle->in_head) != bundle->peeked || state != bundle->peeked_state)
        return BW_AGAIN;
    if (state == FAILED || (state == ENDED && bundle->peeked != atomic_load(&bundle->in_tail)))
        return BW_CORRUPT;
    return BW_OK;
}

static bw_status_t bundle_arm_write(bw_link_t *link, size_t wanted)
{
    bundle_t *bundle = bundle_of(link);

    atomic_store(&bundle->wants, wanted);
    return out_room(bundle) >= wanted ? BW_AGAIN : BW_OK;
}

static int bundle_fd(const bw_link_t *link)
{
    return ((const bundle_t *)link)->event;
}

static void bundle_clear_event(bw_link_t *link)
{
    eventfd_t ignored;

    (void)eventfd_read(bundle_of(link)->event, &ignored);
}

static void bundle_wake_self(bw_link_t *link)
{
    (void)eventfd_write(bundle_of(link)->event, 1);
}

static bool bundle_is_finished(bw_link_t *link)
{
    const bundle_t *bundle = bundle_of(link);

    return atomic_load(&bundle->state) == ENDED &&
           atomic_load(&bundle->in_head) == atomic_load(&bundle->in_tail);
}

static const char *bundle_reason(bw_link_t *link)
{
    return atomic_load(&bundle_of(link)->reason);
}

static void free_bundle(bundle_t *bundle)
{
    if (bundle->out)
        munmap(bundle->out, 2 * bundle->out_bytes);
    if (bundle->in)
        munmap(bundle->in, 2 * bundle->in_bytes);
    if (bundle->event >= 0)
        close(bundle->event);
    if (bundle->kick >= 0)
        close(bundle->kick);
    free(bundle->ranges.of);
    (void)pthread_mutex_destroy(&bundle->mutex);
    free(bundle);
}

static void bundle_close(bw_link_t *link, bw_leftover_t *left_p)
{
    bundle_t *bundle = bundle_of(link);

    atomic_store(&bundle->is_closing, true);
    (void)eventfd_write(bundle->kick, 1);
    (void)pthread_join(bundle->thread, NULL);
    for (unsigned i = bundle->taken_count; i < bundle->added_count; i++) {
        close(bundle->added[i].fd);
        rd_tls_free(bundle->added[i].tls);
    }
    free_bundle(bundle);
    if (left_p)
        *left_p = (bw_leftover_t){.fd = -1, .socket = -1};
}

static const bw_carrier_t bundle_carrier = {
    .kind = "tcp",
    .caps = BW_CAP_TELLS_DEATH | BW_CAP_KERNEL_BUFFERS,
    .reserve = bundle_reserve,
    .commit = bundle_commit,
    .peek = bundle_peek,
    .release = bundle_release,
    .arm_read = bundle_arm_read,
    .arm_write = bundle_arm_write,
    .fd = bundle_fd,
    .clear_event = bundle_clear_event,
    .wake_self = bundle_wake_self,
    .is_finished = bundle_is_finished,
    .reason = bundle_reason,
    .close = bundle_close,
};

/* ---- making one ---- */

static bool make_rings(bundle_t *bundle, rd_why_t *why)
{
    const char *step = NULL;

    bundle->out = bw_map_twice("rdpipe-out", bundle->out_bytes, &step);
    if (bundle->out)
        bundle->in = bw_map_twice("rdpipe-in", bundle->in_bytes, &step);
    return bundle->in || rd_because(why, "%s: %s", step, strerror(errno));
}

bool rd_bundle_open(const rd_bundle_terms_t *terms, bw_link_t **link_p, rd_why_t *why)
{
    bundle_t *bundle = calloc(1, sizeof *bundle);

    if (!bundle)
        return rd_because(why, "out of memory");
    bundle->link.ops = &bundle_carrier;
    bundle->out_bytes = terms->out_bytes;
    bundle->in_bytes = terms->in_bytes;
    bundle->most = terms->most;
    bundle->is_auto = terms->is_auto && terms->most > 1;
    bundle->pace = rd_pace_of(bundle->is_auto ? 1 : terms->most, terms->most);
    atomic_init(&bundle->used, bundle->pace.use);
    bundle->period_ms = (int64_t)bw_least(PERIOD_RTTS * (uint64_t)terms->rtt_ms, PERIOD_MAX_MS);
    if (bundle->period_ms < PERIOD_MIN_MS)
        bundle->period_ms = PERIOD_MIN_MS;
    bundle->is_first_period = true;
    bundle->period_began_ms = rd_now_ms();
    (void)pthread_mutex_init(&bundle->mutex, NULL);
    bundle->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bundle->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (bundle->kick < 0 || bundle->event < 0) {
        (void)rd_because(why, "eventfd: %s", strerror(errno));
    } else if (make_rings(bundle, why)) {
        if (pthread_create(&bundle->thread, NULL, run, bundle) == 0) {
            *link_p = &bundle->link;
            return true;
        }
        (void)rd_because(why, "cannot start a thread");
    }
    free_bundle(bundle);
    return false;
}

/* A connection whose kernel buffer is full of what waits would be a long queue: with little of it
 * each takes what it can carry. */
static void tune(const bundle_t *bundle, int socket)
{
    int unsent = UNSENT_BYTES, dead_ms = DEAD_MS;

    if (bundle->most > 1)
        (void)setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
    (void)setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, sizeof dead_ms);
}

bool rd_bundle_add(bw_link_t *link, int socket, rd_tls_t *tls)
{
    bundle_t *bundle = bundle_of(link);
    bool done;

    if (tls)
        rd_tls_stream(tls);
    tune(bundle, socket);
    (void)pthread_mutex_lock(&bundle->mutex);
    done = bundle->added_count < RD_STREAMS_MAX;
    if (done) {
        bundle->added[bundle->added_count++] =
            (strand_t){.fd = socket, .tls = tls, .may_read = true};
        atomic_fetch_add(&bundle->live, 1);
    }
    (void)pthread_mutex_unlock(&bundle->mutex);
    if (!done) {
        close(socket);
        rd_tls_free(tls);
        return false;
    }
    (void)eventfd_write(bundle->kick, 1);
    return true;
}

unsigned rd_bundle_live(bw_link_t *link)
{
    return atomic_load(&bundle_of(link)->live);
}

unsigned rd_bundle_used(bw_link_t *link)
{
    return atomic_load(&bundle_of(link)->used);
}
