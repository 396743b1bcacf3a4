/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_CARRIERS_H
#define BW_TEST_CARRIERS_H

/*
 * The carriers, with both ends in one process, so that the same cases run over each: a program has
 * a table of cases and `CARRIERS_MAIN(cases)`, and a case opens its link by `open_ends`. rdma runs
 * over fake verbs (BW_TEST_RDMA, if there are the headers); over a device: rdma_ends.h.
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
#include "rdma_open.h"
#endif

#include "../link/tcp/tcp.h"

#define ARRIVES_MS                                                                                 \
    10000 /* what was sent over loopback is there by then, also on a busy machine                  \
           */

/* A TCP connection of this process with itself. With `buffer` above 0 the kernel holds little more
 * than that, so that the rings fill. Segments are as short as on a network then: a receiver whose
 * buffer holds two of loopback's tells of room only when it is probed, five times a second. */
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

static inline bool open_tcp_link(uint64_t ring_bytes, bw_link_t **one_p, bw_link_t **other_p,
                                 bw_error_t *error_p)
{
    int sockets[2];

    if (!connect_sockets(8192, &sockets[0], &sockets[1])) {
        bw_fail(error_p, BW_SYSTEM, "a connection over loopback", errno);
        return false;
    }
    return adopt_both(sockets, ring_bytes, one_p, other_p, error_p);
}

typedef struct {
    const char *kind;
    bool (*open)(uint64_t ring_bytes, bw_link_t **one_p, bw_link_t **other_p, bw_error_t *error_p);
    int descriptors;      /* of one end */
    bool is_shared;       /* both ends see one ring: what is written can be read at once, and room
                             comes by the byte */
    bool tells_of_death;  /* a process that ends without a word ends the stream all the same */
    int (*at_rest)(void); /* the descriptors that are open when the carrier's own thread has nothing
                             left to do; that thread does not outlive a fork. NULL: it has none */
} carrier_t;

static const carrier_t carriers[] = {
    {"shm", open_link, 3, true, false, NULL},
    {"tcp", open_tcp_link, 3, false, true, NULL},
#ifdef BW_TEST_RDMA
    {"rdma", open_rdma_link, 5, false, true, descriptors_at_rest},
#endif
};

static const carrier_t *carrier; /* of the running case */

/* The descriptors of this process; what was closed is not among them. */
static inline int held_descriptors(void)
{
    return carrier->at_rest ? carrier->at_rest() : open_descriptors();
}

/* Two ends of one link over the carrier of the running case. False: *error_p says why. */
static inline bool open_ends(uint64_t ring_bytes, bw_link_t **one_p, bw_link_t **other_p,
                             bw_error_t *error_p)
{
    return carrier->open(ring_bytes, one_p, other_p, error_p);
}

/* ---- one end in each of two processes ---- */

/* What two processes have in common before the fork; each then takes its end. */
typedef struct {
    bw_link_t *links[2]; /* shm: both are mapped already */
    int sockets[2];      /* tcp: -1 if not */
    uint64_t ring_bytes;
} pair_t;

static inline bool open_pair(uint64_t ring_bytes, pair_t *pair_p, bw_error_t *error_p)
{
    *pair_p = (pair_t){.sockets = {-1, -1}, .ring_bytes = ring_bytes};
    if (carrier->is_shared)
        return open_ends(ring_bytes, &pair_p->links[0], &pair_p->links[1], error_p);
    return connect_sockets(8192, &pair_p->sockets[0], &pair_p->sockets[1]);
}

/* The end of this process; the other's is closed here. NULL: it cannot be had. */
static inline bw_link_t *take_end(pair_t *pair, int side)
{
    bw_link_t *link = pair->links[side];
    bw_error_t error = {0};

    if (link) {
        pair->links[!side]->ops->close(pair->links[!side], NULL);
        return link;
    }
    close(pair->sockets[!side]);
    if (bw_tcp_adopt(pair->sockets[side], pair->ring_bytes, &link, &error) != BW_OK)
        return NULL;
    close(pair->sockets[side]);
    return link;
}

/* ---- waiting for what is on its way ---- */

/* What the owner of an end does when its descriptor is readable: what waited goes out. */
static inline void run_end_of(bw_link_t *link)
{
    bw_span_t span;

    link->ops->clear_event(link);
    (void)link->ops->peek(link, &span);
}

/* What the owner of the other end does while this one is waited for: a program sets it. Over rdma
 * nothing goes on without him. */
static void (*meanwhile)(const bw_link_t *waited_for);

/* The descriptor becomes readable, as far as this link owes a wake-up. */
static inline bool is_readable(const bw_link_t *link)
{
    struct pollfd poller = {.fd = link->ops->fd(link), .events = POLLIN};
    int step = meanwhile && carrier->at_rest ? 1 : ARRIVES_MS;

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
    struct pollfd poller = {.fd = link->ops->fd(link), .events = POLLIN};

    return poll(&poller, 1, 0) == 0;
}

/* Waits until `bytes` can be read, or the link has ended or failed; what peek gives then. */
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

/* Waits until `bytes` can be written: of room the peer may tell in its own time. */
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

/* What a carrier has for as long as the process lives is there before its first case. */
static inline bool start_carrier(void)
{
    bw_link_t *one = NULL, *other = NULL;
    bw_error_t error = {0};

    if (!open_ends(BW_RING_MIN_BYTES, &one, &other, &error)) {
        printf("FAIL %s: %s: %s\n", carrier->kind, error.step, strerror(error.sys_errno));
        check_sum.failed++;
        return false;
    }
    one->ops->close(one, NULL);
    other->ops->close(other, NULL);
    return carrier->at_rest() >= 0;
}

/* Cases that fork run only over carriers without a thread of their own. */
static inline void check_carriers(const check_case_t *cases, size_t count, bool forks, int argc,
                                  char **argv)
{
    for (size_t i = 0; i < sizeof carriers / sizeof *carriers; i++) {
        char prefix[16];

        carrier = &carriers[i];
        if (carrier->at_rest && (forks || !start_carrier()))
            continue;
        snprintf(prefix, sizeof prefix, "%s: ", carrier->kind);
        check_each(prefix, cases, count, argc, argv);
    }
}

#define CARRIERS_MAIN(cases)                                                                       \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        check_carriers(cases, sizeof(cases) / sizeof *(cases), false, argc, argv);                 \
        return check_end();                                                                        \
    }

#endif
