/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_RDMA_ENDS_H
#define BW_TEST_RDMA_ENDS_H

/*
 * Shared by the tests of the rdma carrier. Each case uses two processes, `here` and `there`, with a
 * socket between them, because the carrier's thread and its device objects do not survive a fork.
 * Over real verbs, the cases are skipped, with a reason, if there is no device.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "../check.h"
#include "../rings.h"
#include "rdma_open.h"

#include "../../link/carriers.h"
#include "../../link/rdma/rdma.h"

#define RING BW_RING_MIN_BYTES
/* Everything that must happen happens within this time, even on a busy machine. */
#define WAIT_MS 30000

/* Longer than WAIT_MS, because the other side may itself have to wait for something before it
 * sends. */
#define HEAR_MS (2 * WAIT_MS)

static unsigned side_seconds = 180; /* per case */

/* ---- two processes ---- */

typedef void (*side_fn)(int wire);

/* Called in both processes before the carrier's thread starts, for settings that are per thread. */
static void (*before_rdma)(void);

static inline void report_and_exit(void)
{
    if (check_skipped)
        printf("    %s\n", check_skipped);
    fflush(stdout);
    exit(check_failed ? 1 : check_skipped ? 2 : 0);
}

static inline void begin_rdma(void)
{
    bw_error_t error = {0};

    rdma = bw_carrier(BW_CARRIER_VERSION, &error);
    if (!rdma && getenv("RXE_DEVICE")) /* the guest should have a device */
        printf("    no rdma on %s: %s\n", getenv("RXE_DEVICE"), error.step);
    CHECK(rdma || !getenv("RXE_DEVICE"));
    if (!rdma)
        SKIP(error.step);
}

static inline void run_side(side_fn side, int wire)
{
    (void)alarm(side_seconds);
    if (before_rdma)
        before_rdma();
    begin_rdma();
    if (!check_skipped && !check_failed)
        side(wire);
    report_and_exit();
}

/* Returns the exit status of a side, or -1. The alarm cannot terminate a side that is stopped or
 * blocked in a system call. */
static inline int status_of_side(pid_t side, const char *name, int64_t end)
{
    int status = -1;

    while (waitpid(side, &status, WNOHANG) == 0) {
        if (now_ms() > end) {
            printf("    %s (process %d) does not end:\n", name, (int)side);
            check_tell_where(side);
            (void)kill(side, SIGKILL);
            return -1;
        }
        (void)poll(NULL, 0, 1);
    }
    return status;
}

/* A side that fails prints the reason itself; here it is only counted. */
static inline void run_pair(side_fn here, side_fn there)
{
    int64_t end = now_ms() + 1000 * (int64_t)side_seconds + 10000;
    int wires[2], status[2] = {0, 0};
    pid_t pids[2];

    (void)alarm(side_seconds + 30);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, wires), 0);
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        pids[i] = fork();
        CHECK(pids[i] >= 0);
        if (pids[i] == 0) {
            close(wires[!i]);
            run_side(i == 0 ? here : there, wires[i]);
        }
    }
    close(wires[0]);
    close(wires[1]);
    for (int i = 0; i < 2; i++)
        status[i] = status_of_side(pids[i], i == 0 ? "here" : "there", end);
    (void)alarm(check_seconds);
    if (WIFEXITED(status[0]) && WEXITSTATUS(status[0]) == 2)
        SKIP("not possible here (see above)");
    CHECK_EQ(status[0], 0);
    /* a case may kill this side; otherwise it must have succeeded */
    CHECK(status[1] == 0 || (WIFSIGNALED(status[1]) && WTERMSIG(status[1]) == SIGKILL));
}

/* Sends bytes to the other process or receives them; returns false if the other process has exited
 * or is silent. */
static inline bool tell(int wire, const void *bytes, size_t len)
{
    return send(wire, bytes, len, MSG_NOSIGNAL) == (ssize_t)len;
}

static inline bool hear(int wire, void *bytes, size_t len)
{
    struct pollfd poller = {.fd = wire, .events = POLLIN};

    if (poll(&poller, 1, HEAR_MS) != 1) {
        printf("    the other side has said nothing for %d s\n", HEAR_MS / 1000);
        return false;
    }
    return recv(wire, bytes, len, 0) == (ssize_t)len;
}

/* ---- connections ---- */

/* Waits until the connection is no longer in the state `from`. */
static inline bw_state_t wait_from(bw_link_t *connection, bw_state_t from, bw_report_t *report_p)
{
    int64_t end = now_ms() + WAIT_MS;
    struct pollfd poller = {.fd = connection->ops->fd(connection), .events = POLLIN};

    do
        connection->ops->step(connection, report_p);
    while (report_p->state == from && now_ms() < end && poll(&poller, 1, WAIT_MS) >= 0);
    if (report_p->state == BW_FAILED)
        printf("    the link failed: %s\n", report_p->text);
    return report_p->state;
}

static inline bw_rdma_address_t address_of(const struct sockaddr *at)
{
    bw_rdma_address_t address = {0};

    if (at->sa_family == AF_INET) {
        address.family = 4;
        memcpy(address.ip, &((const struct sockaddr_in *)(const void *)at)->sin_addr, 4);
    } else {
        address.family = 6;
        memcpy(address.ip, &((const struct sockaddr_in6 *)(const void *)at)->sin6_addr, 16);
        address.scope = ((const struct sockaddr_in6 *)(const void *)at)->sin6_scope_id;
    }
    return address;
}

static inline bool can_listen(const bw_rdma_address_t *at)
{
    struct pollfd poller = {.events = POLLIN};
    bw_link_t *connection;
    bw_report_t report;
    bw_error_t error;

    if (listen_at(at, 0, 0, RING, &connection, &error) != BW_OK)
        return false;
    poller.fd = connection->ops->fd(connection);
    do
        connection->ops->step(connection, &report);
    while (report.state == BW_WORKING && poll(&poller, 1, WAIT_MS) > 0);
    connection->ops->close(connection, NULL);
    return report.state == BW_LISTENING;
}

/* Finds the first address of the family on which an RDMA device can listen. */
static inline bool find_address(int family, bw_rdma_address_t *address_p)
{
    struct ifaddrs *all = NULL, *at;
    bool found = false;

    if (fake_verbs_held) {
        *address_p = (bw_rdma_address_t){.family = (uint8_t)family};
        return inet_pton(family == 4 ? AF_INET : AF_INET6,
                         family == 4 ? FAKE_VERBS_IPV4 : FAKE_VERBS_IPV6, address_p->ip) == 1 &&
               can_listen(address_p);
    }
    if (getifaddrs(&all) != 0)
        return false;
    for (at = all; at && !found; at = at->ifa_next) {
        if (!at->ifa_addr || at->ifa_addr->sa_family != (family == 4 ? AF_INET : AF_INET6))
            continue;
        *address_p = address_of(at->ifa_addr);
        /* skips link-local addresses; the cases that need one name it themselves */
        found = address_p->scope == 0 && can_listen(address_p);
    }
    freeifaddrs(all);
    return found;
}

/* The message that a listener sends to the other process over the socket between them. */
typedef struct {
    bw_rdma_address_t at;
    uint8_t token[BW_TOKEN_BYTES];
} offer_t;

static inline void begin_listening(int family, uint64_t max_ring_bytes, bw_link_t **connection_p,
                                   offer_t *offer_p)
{
    bw_report_t report;
    bw_error_t error = {0};

    if (!find_address(family, &offer_p->at))
        SKIP(family == 4 ? "no RDMA device with an IPv4 address here"
                         : "no RDMA device with an IPv6 address here");
    CHECK_EQ(listen_at(&offer_p->at, 0, 0, max_ring_bytes, connection_p, &error), BW_OK);
    CHECK_EQ(wait_from(*connection_p, BW_WORKING, &report), BW_LISTENING);
    CHECK(port_of(&report) > 0 && report.device[0] != 0);
    offer_p->at.port = port_of(&report);
    memcpy(offer_p->token, report.token, sizeof offer_p->token);
}

/* `here` listens and `there` connects; both end up with a link. */
static inline void link_here(int wire, int family, uint64_t ring_bytes, bw_link_t **link_p)
{
    bw_link_t *connection = NULL;
    bw_report_t report;
    offer_t offer = {0};

    CHECK_IN(begin_listening(family, ring_bytes, &connection, &offer));
    CHECK(tell(wire, &offer, sizeof offer));
    CHECK_EQ(wait_from(connection, BW_LISTENING, &report), BW_LINKED);
    *link_p = connection;
}

/* Connects to the other side's listener, and steps until the connection reaches the wanted
 * state. */
static inline void connect_there(int wire, uint64_t ring_bytes, bw_state_t wanted,
                                 bw_link_t **connection_p, bw_report_t *report_p)
{
    bw_error_t error = {0};
    offer_t offer;

    if (!hear(wire, &offer, sizeof offer))
        SKIP("the other side could not begin");
    CHECK_EQ(connect_to(&offer.at, offer.token, ring_bytes, WAIT_MS, connection_p, &error), BW_OK);
    CHECK_EQ(wait_from(*connection_p, BW_WORKING, report_p), wanted);
}

static inline void link_there(int wire, uint64_t ring_bytes, bw_link_t **link_p)
{
    bw_report_t report;

    CHECK_IN(connect_there(wire, ring_bytes, BW_LINKED, link_p, &report));
}

/* ---- bytes ---- */

static inline uint8_t byte_at(uint64_t position)
{
    return (uint8_t)(position * 131 + (position >> 11));
}

/* Sleeps until the link's descriptor is readable, then clears it. */
static inline bool sleep_on(bw_link_t *link, int ms)
{
    struct pollfd poller = {.fd = link->ops->fd(link), .events = POLLIN};
    int ready;

    do
        ready = poll(&poller, 1, ms);
    while (ready < 0 && errno == EINTR);
    if (ready == 1)
        link->ops->clear_event(link);
    return ready == 1;
}

/* Waits until there are bytes to read or the link has ended. */
static inline bw_status_t wait_to_read(bw_link_t *link, bw_span_t *span_p, int ms)
{
    int64_t end = now_ms() + ms;
    bw_status_t status;

    while ((status = link->ops->peek(link, span_p)) == BW_AGAIN && now_ms() < end &&
           !link->ops->is_finished(link))
        if (link->ops->arm_read(link) == BW_OK && !link->ops->is_finished(link))
            (void)sleep_on(link, (int)(end - now_ms()) + 1);
    return status;
}

static inline bool writes(bw_link_t *link, const void *bytes, size_t len, int ms)
{
    int64_t end = now_ms() + ms;
    const uint8_t *at = bytes;

    while (len > 0 && now_ms() < end) {
        bw_span_t span = {0};
        size_t n;

        if (link->ops->reserve(link, len, &span) != BW_OK) {
            if (link->ops->arm_write(link, 1) == BW_OK)
                (void)sleep_on(link, (int)(end - now_ms()) + 1);
            continue;
        }
        n = len < span.len ? len : span.len;
        memcpy(span.base, at, n);
        link->ops->commit(link, n);
        at += n;
        len -= n;
    }
    return len == 0;
}

static inline bool reads(bw_link_t *link, const void *bytes, size_t len, int ms)
{
    const uint8_t *at = bytes;

    while (len > 0) {
        bw_span_t span = {0};
        size_t n;

        if (wait_to_read(link, &span, ms) != BW_OK)
            return false;
        n = len < span.len ? len : span.len;
        if (memcmp(span.base, at, n) != 0)
            return false;
        link->ops->release(link, n);
        at += n;
        len -= n;
    }
    return true;
}

/* Waits until the link has ended and returns the reason: "" if it was closed cleanly, or NULL if it
 * has not ended. Bytes that arrive in the meantime are dropped. */
static inline const char *wait_for_end(bw_link_t *link, int ms)
{
    int64_t end = now_ms() + ms;
    bw_span_t span = {0};

    while (now_ms() < end) {
        bw_status_t status = wait_to_read(link, &span, (int)(end - now_ms()));

        if (status == BW_OK)
            link->ops->release(link, span.len);
        else if (status != BW_AGAIN)
            return link->ops->reason(link);
        else if (link->ops->is_finished(link))
            return "";
    }
    return NULL;
}

static inline bool ends_with(bw_link_t *link, const char *reason, int ms)
{
    const char *got = wait_for_end(link, ms);

    if (got && strcmp(got, reason) == 0)
        return true;
    printf("    the link ends with \"%s\", expected \"%s\"\n", got ? got : "(it goes on)", reason);
    return false;
}

#endif
