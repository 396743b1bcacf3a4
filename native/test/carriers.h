/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_CARRIERS_H
#define BW_TEST_CARRIERS_H

/*
 * Runs the same cases over each carrier in BW_CARRIERS, with both ends in one process: a program
 * has a table of cases and `CARRIERS_MAIN(cases)`, and a case opens its link with `open_ends`.
 * rdma runs over the fake verbs (BW_TEST_RDMA, if the headers are installed); see rdma_ends.h for
 * tests over a device.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "rings.h"
#ifdef BW_TEST_RDMA
#include "rdma/rdma_open.h"
#endif

#include "../link/bytes.h"
#include "../link/carriers.h"
#include "../link/socket_link.h"
#include "../link/tcp/tcp.h"
#ifdef BW_TEST_TLS
#include "../link/tls/tls.h"
#endif

/* Everything sent over loopback arrives within this time, even on a busy machine. */
#define ARRIVES_MS 10000

/* Creates a TCP connection from this process to itself. If `buffer` is greater than 0, the kernel
 * buffers little more than that, so that the rings fill up. Segments are as short as on a network:
 * a receiver whose buffer has room for only two of loopback's large segments would report free
 * space only when probed, which happens five times a second. */
static inline bool connect_sockets(int buffer, int *one_p, int *other_p)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int caller = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), peer = -1, segment = 1400;

    for (int fd = listener; buffer > 0 && fd >= 0; fd = fd == listener ? caller : -1) {
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment);
    }
    if (listener >= 0 && caller >= 0 && bind(listener, (struct sockaddr *)&at, sizeof at) == 0 &&
        listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *)&at, &len) == 0 &&
        connect(caller, (struct sockaddr *)&at, sizeof at) == 0)
        peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (listener >= 0)
        close(listener);
    if (peer < 0 && caller >= 0)
        close(caller);
    *one_p = caller;
    *other_p = peer;
    return peer >= 0;
}

static inline bool adopt_both(const int sockets[2], uint64_t ring_bytes, bw_link_t **one_p,
                              bw_link_t **other_p, bw_error_t *error_p)
{
    bool done = bw_tcp_adopt(sockets[0], ring_bytes, one_p, error_p) == BW_OK;

    if (done && bw_tcp_adopt(sockets[1], ring_bytes, other_p, error_p) != BW_OK) {
        (*one_p)->ops->close(*one_p, NULL);
        done = false;
    }
    close(sockets[0]);
    close(sockets[1]);
    return done;
}

/* ---- the carrier of the running case ---- */

/* An attempt to set up a link. It contains the addresses to listen on and to connect to, in the
 * carrier's own format. */
typedef struct {
    uint8_t listen[BW_ADDRESS_MAX], connect[BW_ADDRESS_MAX];
    size_t listen_len, connect_len;
    int sockets[2]; /* used by tcp and tls, or -1 if none */
} attempt_t;

typedef struct {
    const char *kind;
    int descriptors; /* per end, or 0 if unspecified */
    /* Fills in the addresses, with `buffer` as in connect_sockets. NULL if no address is needed to
     * listen, because the listener reports the address to connect to. */
    bool (*begin)(attempt_t *attempt_p, int buffer);
    void (*learn)(attempt_t *attempt, const uint8_t *address);
    /* Returns how many descriptors are open once the carrier's own thread, which does not survive a
     * fork, has no work left. NULL if the carrier has no thread. */
    int (*at_rest)(void);
    bool needs_both; /* bytes in flight arrive only if their writer is also called */
    const bw_carrier_t *table;
    /* Both ends share the same ring: written bytes can be read immediately, and the free space
     * grows byte by byte. */
    bool is_shared;
    bool tells_of_death; /* the stream also ends if the process dies without closing it */
} carrier_t;

static inline bool begin_for_tcp(attempt_t *attempt_p, int buffer)
{
    if (!connect_sockets(buffer, &attempt_p->sockets[0], &attempt_p->sockets[1]))
        return false;
    (void)bw_put(attempt_p->connect, (uint64_t)attempt_p->sockets[0], BW_TCP_PLACE_BYTES);
    (void)bw_put(attempt_p->listen, (uint64_t)attempt_p->sockets[1], BW_TCP_PLACE_BYTES);
    attempt_p->listen_len = attempt_p->connect_len = BW_TCP_PLACE_BYTES;
    return true;
}

#ifdef BW_TEST_TLS
/* Like begin_for_tcp, but both ends know a key. */
static inline bool begin_for_tls(attempt_t *attempt_p, int buffer)
{
    static const char keys[1 + sizeof(bw_tls_key_t)] = "\1\0\0\0\0\0\0\0\0"
                                                       "a key that both ends of it know";

    if (!begin_for_tcp(attempt_p, buffer))
        return false;
    memcpy(attempt_p->connect + BW_TLS_SOCKET_BYTES, keys, sizeof keys);
    memcpy(attempt_p->listen + BW_TLS_SOCKET_BYTES, keys, sizeof keys);
    attempt_p->listen_len = attempt_p->connect_len = BW_TLS_PLACE_BYTES(1);
    return true;
}
#endif

#ifdef BW_TEST_RDMA
static inline bool begin_for_rdma(attempt_t *attempt_p, int buffer)
{
    (void)buffer;
    attempt_p->listen_len = put_fake_listener(attempt_p->listen);
    return true;
}

static inline void learn_for_rdma(attempt_t *attempt, const uint8_t *address)
{
    attempt->connect_len = put_fake_peer(attempt->connect, address);
}
#endif

/* Properties of carriers that are not in their function tables. A carrier without any of them is
 * not listed. */
static const carrier_t particular[] = {
    {.kind = "shm", .descriptors = 3},
    {.kind = "tcp", .descriptors = 1, .begin = begin_for_tcp},
#ifdef BW_TEST_TLS
    /* because the rest of a record must be written before any of it can be read */
    {.kind = "tls", .descriptors = 1, .begin = begin_for_tls, .needs_both = true},
#endif
#ifdef BW_TEST_RDMA
    {.kind = "rdma",
     .descriptors = 5,
     .begin = begin_for_rdma,
     .learn = learn_for_rdma,
     .at_rest = descriptors_at_rest,
     .needs_both = true},
#endif
};

static carrier_t running;
static const carrier_t *const carrier = &running;

static inline void run_over(const bw_carrier_t *table)
{
    running = (carrier_t){.kind = table->kind};
    for (size_t i = 0; i < sizeof particular / sizeof *particular; i++)
        if (strcmp(particular[i].kind, table->kind) == 0)
            running = particular[i];
    running.table = table;
    running.is_shared = table->caps & BW_CAP_SHARED_RINGS;
    running.tells_of_death = table->caps & BW_CAP_TELLS_DEATH;
}

/* Counts the descriptors of this process once the carrier's thread has closed those for which it
 * is responsible. */
static inline int held_descriptors(void)
{
    return carrier->at_rest ? carrier->at_rest() : open_descriptors();
}

/* ---- two ends of one link ---- */

static inline bool begin_attempt(attempt_t *attempt_p, int buffer)
{
    *attempt_p = (attempt_t){.sockets = {-1, -1}};
    return !carrier->begin || carrier->begin(attempt_p, buffer);
}

/* Stores the address that the listener has reported. */
static inline void learn_address(attempt_t *attempt, const uint8_t *address, size_t len)
{
    if (carrier->learn) {
        carrier->learn(attempt, address);
    } else if (!carrier->begin) {
        memcpy(attempt->connect, address, len);
        attempt->connect_len = len;
    }
}

/* Closes the sockets of the attempt, because both ends have their own descriptors by now. */
static inline void end_attempt(const attempt_t *attempt)
{
    for (int i = 0; i < 2; i++)
        if (attempt->sockets[i] >= 0)
            close(attempt->sockets[i]);
}

/* Steps the link until it has reached at least this state. */
static inline bool link_reaches(bw_link_t *link, bw_state_t state, bw_report_t *report_p)
{
    struct pollfd poller = {.fd = link->ops->fd(link), .events = POLLIN};

    do
        link->ops->step(link, report_p);
    while (report_p->state < state && !(carrier->table->caps & BW_CAP_IMMEDIATE) &&
           poll(&poller, 1, ARRIVES_MS) == 1);
    if (report_p->state < state || report_p->state == BW_FAILED)
        printf("    no link over %s: %s\n", carrier->kind, report_p->text);
    return report_p->state >= state && report_p->state != BW_FAILED;
}

static inline bool start_listening(const attempt_t *attempt, uint64_t ring_bytes,
                                   bw_link_t **link_p, bw_report_t *told_p, bw_error_t *error_p)
{
    bw_order_t order = {
        .at = attempt->listen, .at_len = attempt->listen_len, .ring_bytes = ring_bytes};

    return carrier->table->listen(&order, link_p, error_p) == BW_OK &&
           link_reaches(*link_p, BW_LISTENING, told_p);
}

static inline bool start_connecting(attempt_t *attempt, const bw_report_t *told,
                                    uint64_t ring_bytes, bw_link_t **link_p, bw_error_t *error_p)
{
    bw_order_t order = {.at = attempt->connect, .ring_bytes = ring_bytes, .timeout_ms = ARRIVES_MS};

    learn_address(attempt, told->address, told->address_len);
    order.at_len = attempt->connect_len;
    memcpy(order.token, told->token, sizeof order.token);
    return carrier->table->connect(&order, link_p, error_p) == BW_OK;
}

static inline void close_link(bw_link_t *link)
{
    if (link)
        link->ops->close(link, NULL);
}

/* Steps both ends in turn until they are linked, because each may depend on the other's
 * progress. */
static inline bool both_are_linked(bw_link_t *caller, bw_link_t *listener)
{
    bw_link_t *links[2] = {caller, listener};
    bw_report_t reports[2] = {0};
    bool is_done = false;

    for (int ms = 0; !is_done && ms < ARRIVES_MS; ms++) {
        is_done = true;
        for (int i = 0; i < 2; i++) {
            links[i]->ops->step(links[i], &reports[i]);
            is_done &= reports[i].state >= BW_LINKED;
        }
        (void)poll(NULL, 0, !is_done);
    }
    for (int i = 0; i < 2; i++)
        if (reports[i].state != BW_LINKED)
            printf("    no link over %s: %s\n", carrier->kind, reports[i].text);
    return reports[0].state == BW_LINKED && reports[1].state == BW_LINKED;
}

/* Opens both ends of a link over the carrier of the running case. On failure, *error_p contains the
 * reason. */
static inline bool open_ends(uint64_t ring_bytes, bw_link_t **one_p, bw_link_t **other_p,
                             bw_error_t *error_p)
{
    bw_link_t *caller = NULL, *listener = NULL;
    bw_report_t told;
    attempt_t attempt;
    bool done;

    bw_fail(error_p, BW_SYSTEM, "no link", 0);
    done = begin_attempt(&attempt, 8192) &&
           start_listening(&attempt, ring_bytes, &listener, &told, error_p) &&
           start_connecting(&attempt, &told, ring_bytes, &caller, error_p) &&
           both_are_linked(caller, listener);
    end_attempt(&attempt);
    if (done) {
        *one_p = caller;
        *other_p = listener;
    } else {
        close_link(caller);
        close_link(listener);
    }
    return done;
}

/* ---- one end in each of two processes ---- */

/* Set up before the fork; afterwards each of the two processes uses its own end. */
typedef struct {
    attempt_t attempt;
    int wire[2];
} pair_t;

static inline bool open_pair(pair_t *pair_p)
{
    return begin_attempt(&pair_p->attempt, 8192) &&
           socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair_p->wire) == 0;
}

static inline bool is_said(ssize_t done, size_t bytes)
{
    return done == (ssize_t)bytes;
}

/* Sets up this process's end: side 0 listens, side 1 connects and reports the result. Returns NULL
 * if the link could not be set up. */
static inline bw_link_t *take_end(pair_t *pair, int side, uint64_t ring_bytes)
{
    bw_link_t *link = NULL;
    bw_error_t error = {0};
    bw_report_t report = {0};
    int wire = pair->wire[side];
    bool done;

    close(pair->wire[!side]);
    if (side == 0)
        done = start_listening(&pair->attempt, ring_bytes, &link, &report, &error) &&
               is_said(write(wire, &report, sizeof report), sizeof report) &&
               is_said(read(wire, &report, 1), 1) && link_reaches(link, BW_LINKED, &report);
    else
        done = is_said(recv(wire, &report, sizeof report, MSG_WAITALL), sizeof report) &&
               start_connecting(&pair->attempt, &report, ring_bytes, &link, &error) &&
               is_said(write(wire, &report, 1), 1) && link_reaches(link, BW_LINKED, &report);
    close(wire);
    end_attempt(&pair->attempt);
    if (done)
        return link;
    close_link(link);
    return NULL;
}

/* ---- waiting for bytes in flight ---- */

/* Does what the owner of an end does when the descriptor is readable: sends queued bytes. */
static inline void run_end_of(bw_link_t *link)
{
    bw_span_t span;

    link->ops->clear_event(link);
    (void)link->ops->peek(link, &span);
}

/* Called while a test waits for one end, to do what the owner of the other end would do. Set by the
 * program. */
static void (*meanwhile)(const bw_link_t *waited_for);

/* Returns whether the poller would report an armed event. Only meaningful while this link still
 * owes its owner a wake-up. */
static inline bool is_readable(const bw_link_t *link)
{
    struct pollfd poller = bw_link_polled(link);
    int step = meanwhile && carrier->needs_both ? 1 : ARRIVES_MS;

    for (int ms = 0; ms < ARRIVES_MS; ms += step) {
        if (poll(&poller, 1, step) == 1)
            return true;
        if (step == 1)
            meanwhile(link);
    }
    return false;
}

static inline bool is_quiet(const bw_link_t *link)
{
    struct pollfd poller = bw_link_polled(link);

    return poll(&poller, 1, 0) == 0;
}

/* Waits until `bytes` can be read, or the link has ended or failed, and returns the result of
 * peek. */
static inline bw_status_t await_bytes(bw_link_t *link, size_t bytes, bw_span_t *span_p)
{
    bw_status_t status;

    for (;;) {
        *span_p = (bw_span_t){0};
        link->ops->clear_event(link);
        status = link->ops->peek(link, span_p);
        if ((status == BW_OK && span_p->len >= bytes) || (status != BW_OK && status != BW_AGAIN) ||
            link->ops->is_finished(link))
            return status;
        if (link->ops->arm_read(link) == BW_OK && !link->ops->is_finished(link) &&
            !is_readable(link))
            return BW_AGAIN;
    }
}

/* Waits until `bytes` can be written. The peer may report free space with a delay. */
static inline bool await_room(bw_link_t *link, size_t bytes)
{
    while (link->ops->arm_write(link, bytes) == BW_OK) {
        if (!is_readable(link))
            return false;
        run_end_of(link);
    }
    return true;
}

/* ---- running ---- */

/* Creates whatever a carrier keeps for the lifetime of the process, before its first case runs. */
static inline bool start_carrier(void)
{
    bw_link_t *one = NULL, *other = NULL;
    bw_error_t error = {0};

    if (!open_ends(BW_RING_MIN_BYTES, &one, &other, &error)) {
        printf("FAIL %s: %s: %s\n", carrier->kind, error.step, strerror(error.sys_errno));
        check_sum.failed++;
        return false;
    }
    close_link(one);
    close_link(other);
    if (carrier->at_rest() >= 0)
        return true;
    printf("FAIL %s: the carrier's thread does not come to rest\n", carrier->kind);
    check_sum.failed++;
    return false;
}

/* Returns false for a carrier that has its own thread, because threads do not survive a
 * fork. */
static inline bool may_fork(void)
{
    return !carrier->at_rest;
}

static inline bool has_packets(void)
{
    return carrier->table->put_back;
}

/* Runs the cases over each carrier that `is_for` accepts, or over all carriers if it is NULL. */
static inline void check_carriers(const check_case_t *cases, size_t count, bool (*is_for)(void),
                                  int argc, char **argv)
{
    const bw_carrier_t *tables[] = {BW_CARRIERS(BW_ADDRESS_OF) NULL};
    size_t last = sizeof tables / sizeof *tables - 1;
#ifdef BW_TEST_RDMA
    bw_error_t error = {0};

    tables[last] = bw_carrier(BW_CARRIER_VERSION, &error);
#endif
    for (size_t i = 0; i <= last && tables[i]; i++) {
        char prefix[16];

        run_over(tables[i]);
        if ((is_for && !is_for()) || (carrier->at_rest && !start_carrier()))
            continue;
        snprintf(prefix, sizeof prefix, "%s: ", carrier->kind);
        check_each(prefix, cases, count, argc, argv);
    }
}

#define CARRIERS_MAIN(cases)                                                                       \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        check_carriers(cases, sizeof(cases) / sizeof *(cases), NULL, argc, argv);                  \
        return check_end();                                                                        \
    }

#endif
