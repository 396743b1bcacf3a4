/* SPDX-License-Identifier: Apache-2.0 */
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../link/bytes.h"
#include "../../link/token.h"

/* The first bytes that a peer sends. */
#define HELLO_BYTES (BW_TOKEN_BYTES + 8)

bw_status_t bw_pipes_probe(uint64_t ring_bytes, bw_error_t *error_p)
{
    (void)ring_bytes, (void)error_p;
    return BW_OK;
}

/* Writing to a pipe without a reader raises SIGPIPE. The VM ignores that signal, and a test program
 * ignores it from its first link on. */
static pipes_link_t *new_link(void)
{
    pipes_link_t *pipes = calloc(1, sizeof *pipes);

    (void)signal(SIGPIPE, SIG_IGN);
    if (pipes) {
        pipes->link.ops = &bw_pipes_carrier;
        pipes->reader = pipes->writer = pipes->event = pipes->epoll = -1;
        pipes->of_peer[0] = pipes->of_peer[1] = -1;
    }
    return pipes;
}

/* Sets up everything in a link except its pipes. */
static bw_status_t complete(pipes_link_t *pipes, uint64_t ring_bytes, bw_error_t *error_p)
{
    struct epoll_event in = {.events = EPOLLIN | EPOLLET}, out = {.events = EPOLLOUT | EPOLLET};
    bw_status_t status = bw_buffer_make(&pipes->out, "beamway-pipes", ring_bytes, error_p);

    if (status == BW_OK)
        status = bw_buffer_make(&pipes->in, "beamway-pipes", ring_bytes, error_p);
    if (status != BW_OK)
        return status;
    pipes->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pipes->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (pipes->event < 0 || pipes->epoll < 0 ||
        epoll_ctl(pipes->epoll, EPOLL_CTL_ADD, pipes->event, &in) < 0 ||
        epoll_ctl(pipes->epoll, EPOLL_CTL_ADD, pipes->reader, &in) < 0 ||
        epoll_ctl(pipes->epoll, EPOLL_CTL_ADD, pipes->writer, &out) < 0)
        return bw_fail_system(error_p, "epoll of the pipes", errno);
    return BW_OK;
}

static bw_status_t made(pipes_link_t *pipes, bw_status_t status, bw_link_t **link_p)
{
    if (status == BW_OK)
        *link_p = &pipes->link;
    else
        pipes->link.ops->close(&pipes->link, NULL);
    return status;
}

/* ---- the listener ---- */

bw_status_t bw_pipes_listen(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p)
{
    pipes_link_t *pipes = new_link();
    int to_us[2], to_peer[2];
    bw_status_t status = BW_OK;

    if (!pipes)
        return bw_fail(error_p, BW_LIMIT, "memory for the link", ENOMEM);
    pipes->max_ring_bytes = order->ring_bytes;
    if (getrandom(pipes->token, sizeof pipes->token, 0) != (ssize_t)sizeof pipes->token)
        status = bw_fail_system(error_p, "getrandom", errno);
    else if (pipe2(to_us, O_CLOEXEC | O_NONBLOCK) < 0)
        status = bw_fail_system(error_p, "pipe", errno);
    else {
        pipes->reader = to_us[0];
        pipes->of_peer[1] = to_us[1];
        if (pipe2(to_peer, O_CLOEXEC | O_NONBLOCK) < 0)
            status = bw_fail_system(error_p, "pipe", errno);
        else {
            pipes->of_peer[0] = to_peer[0];
            pipes->writer = to_peer[1];
        }
    }
    return made(pipes, status, link_p);
}

static bw_status_t let_in(pipes_link_t *pipes, const uint8_t hello[HELLO_BYTES],
                          bw_error_t *error_p)
{
    uint64_t ring_bytes = bw_number(hello + BW_TOKEN_BYTES, 8);

    if (!bw_token_is_same(hello, pipes->token))
        return bw_fail(error_p, BW_REFUSED, "a peer without the token", 0);
    if (!bw_ring_size_is_valid(ring_bytes) || ring_bytes > pipes->max_ring_bytes)
        return bw_fail(error_p, BW_REFUSED, "a peer with rings of another size", 0);
    return complete(pipes, ring_bytes, error_p);
}

/* Once the peer has sent its hello, it has opened its own descriptors for its ends. */
void bw_pipes_step(bw_link_t *link, bw_report_t *report_p)
{
    pipes_link_t *pipes = (pipes_link_t *)link;
    uint8_t hello[HELLO_BYTES], *at = report_p->address;
    bw_error_t error = {0};

    *report_p = (bw_report_t){.state = BW_LINKED};
    if (pipes->of_peer[0] < 0)
        return;
    if (read(pipes->reader, hello, sizeof hello) != (ssize_t)sizeof hello) {
        report_p->state = BW_LISTENING;
        memcpy(report_p->token, pipes->token, sizeof report_p->token);
        at = bw_put(bw_put(at, (uint64_t)getpid(), 4), (uint64_t)pipes->of_peer[0], 4);
        report_p->address_len =
            (size_t)(bw_put(at, (uint64_t)pipes->of_peer[1], 4) - report_p->address);
        snprintf(report_p->text, sizeof report_p->text, "nobody has come");
        return;
    }
    for (int i = 0; i < 2; i++) {
        close(pipes->of_peer[i]);
        pipes->of_peer[i] = -1;
    }
    report_p->status = let_in(pipes, hello, &error);
    if (report_p->status != BW_OK) {
        report_p->state = BW_FAILED;
        bw_error_text(&error, report_p->text, sizeof report_p->text);
    }
}

/* ---- the connecting side ---- */

static int open_end(const uint8_t *pid, const uint8_t *fd, int flags)
{
    char path[64];
    struct stat end;
    int opened;

    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)bw_number(pid, 4), (int)bw_number(fd, 4));
    if (stat(path, &end) < 0 || !S_ISFIFO(end.st_mode))
        return -1;
    opened = open(path, flags | O_CLOEXEC | O_NONBLOCK);
    return opened;
}

bw_status_t bw_pipes_connect(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p)
{
    pipes_link_t *pipes;
    uint8_t hello[HELLO_BYTES];
    bw_status_t status;

    if (order->at_len != BW_PIPES_ADDRESS_BYTES || !bw_ring_size_is_valid(order->ring_bytes))
        return bw_fail(error_p, BW_INVALID, "no address of pipes, or no size of rings", 0);
    pipes = new_link();
    if (!pipes)
        return bw_fail(error_p, BW_LIMIT, "memory for the link", ENOMEM);
    pipes->reader = open_end(order->at, order->at + 4, O_RDONLY);
    pipes->writer = open_end(order->at, order->at + 8, O_WRONLY);
    if (pipes->reader < 0 || pipes->writer < 0)
        return made(pipes, bw_fail(error_p, BW_REFUSED, "nobody listens there", errno), link_p);
    status = complete(pipes, order->ring_bytes, error_p);
    memcpy(hello, order->token, BW_TOKEN_BYTES);
    (void)bw_put(hello + BW_TOKEN_BYTES, order->ring_bytes, 8);
    if (status == BW_OK && write(pipes->writer, hello, sizeof hello) != (ssize_t)sizeof hello)
        status = bw_fail_system(error_p, "the first words to a listener", errno);
    return made(pipes, status, link_p);
}
