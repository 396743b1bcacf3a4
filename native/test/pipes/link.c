/* SPDX-License-Identifier: Apache-2.0 */
#include "inside.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static pipes_link_t *pipes_of(bw_link_t *link)
{
    return (pipes_link_t *)link;
}

/* Writes as much of the outgoing ring as the pipe accepts. If the pipe has no reader, the bytes
 * count as lost. */
static void push(pipes_link_t *pipes)
{
    bw_buffer_t *out = &pipes->out;
    ssize_t n = 1;

    while (bw_buffer_fill(out) > 0 && !pipes->is_cut && (n > 0 || errno == EINTR)) {
        n = write(pipes->writer, bw_buffer_place(out, out->tail), bw_buffer_fill(out));
        pipes->writes++;
        if (n > 0)
            out->tail += (uint64_t)n;
        pipes->is_cut = n < 0 && errno != EAGAIN && errno != EINTR;
    }
    if (pipes->is_cut) {
        pipes->lost += bw_buffer_fill(out);
        out->tail = out->head;
    }
}

/* Reads the pipe into the ring until the pipe is empty or the ring is full. */
static void pull(pipes_link_t *pipes)
{
    bw_buffer_t *in = &pipes->in;
    ssize_t n = 1;

    while (bw_buffer_room(in) > 0 && !pipes->has_ended && (n > 0 || errno == EINTR)) {
        n = read(pipes->reader, bw_buffer_place(in, in->head), bw_buffer_room(in));
        pipes->reads++;
        if (n > 0)
            in->head += (uint64_t)n;
        pipes->has_ended = n == 0;
    }
}

static bw_status_t pipes_reserve(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    bw_buffer_t *out = &pipes_of(link)->out;

    if (bw_buffer_room(out) < want)
        push(pipes_of(link));
    if (bw_buffer_room(out) == 0)
        return BW_AGAIN;
    *span_p = bw_buffer_gap(out);
    return BW_OK;
}

static void pipes_commit(bw_link_t *link, size_t n)
{
    pipes_of(link)->out.head += n;
    push(pipes_of(link));
}

static bw_status_t pipes_peek(bw_link_t *link, bw_span_t *span_p)
{
    pipes_link_t *pipes = pipes_of(link);
    bw_buffer_t *in = &pipes->in;

    pull(pipes);
    pipes->peeked = in->head;
    if (bw_buffer_fill(in) == 0)
        return link->ops->reason(link) ? BW_SYSTEM : BW_AGAIN;
    *span_p = bw_buffer_span(in);
    return BW_OK;
}

static void pipes_release(bw_link_t *link, size_t n)
{
    pipes_of(link)->in.tail += n;
}

/* The poller reports everything that arrives from now on. If the pipe ends while the user waits for
 * more of a message, the rest will never arrive. */
static bw_status_t pipes_arm_read(bw_link_t *link)
{
    pipes_link_t *pipes = pipes_of(link);

    pull(pipes);
    if (pipes->in.head != pipes->peeked)
        return BW_AGAIN;
    if (!pipes->has_ended || link->ops->is_finished(link))
        return BW_OK;
    pipes->is_cut = true;
    return BW_CORRUPT;
}

/* A pipe that has not accepted everything is full, and the poller reports when it has room
 * again. */
static bw_status_t pipes_arm_write(bw_link_t *link, size_t room)
{
    pipes_link_t *pipes = pipes_of(link);

    push(pipes);
    if (bw_buffer_room(&pipes->out) >= room)
        return BW_AGAIN;
    pipes->stalls++;
    return BW_OK;
}

static int pipes_fd(const bw_link_t *link)
{
    return ((const pipes_link_t *)link)->epoll;
}

static void pipes_clear_event(bw_link_t *link)
{
    struct epoll_event events[3];

    while (epoll_wait(pipes_of(link)->epoll, events, 3, 0) < 0 && errno == EINTR)
        ;
    push(pipes_of(link));
}

static void pipes_wake_self(bw_link_t *link)
{
    (void)eventfd_write(pipes_of(link)->event, 1);
}

static bool pipes_trim(bw_link_t *link)
{
    return bw_buffer_trim(&pipes_of(link)->out) || bw_buffer_trim(&pipes_of(link)->in);
}

static void pipes_stats(const bw_link_t *link, bw_link_stats_t *stats_p)
{
    const pipes_link_t *pipes = (const pipes_link_t *)link;

    *stats_p = (bw_link_stats_t){
        .bytes_in = pipes->in.tail,
        .bytes_out = pipes->out.head,
        .doorbells_in = pipes->reads,
        .doorbells_out = pipes->writes,
        .stalls = pipes->stalls,
        .ring_bytes = pipes->out.size,
        .fill_in = bw_buffer_fill(&pipes->in),
        .fill_out = bw_buffer_fill(&pipes->out),
        .unreleased = bw_buffer_fill(&pipes->out) + pipes->lost,
    };
}

static bool pipes_is_finished(bw_link_t *link)
{
    const pipes_link_t *pipes = pipes_of(link);

    return pipes->has_ended && !pipes->is_cut && bw_buffer_fill(&pipes->in) == 0;
}

/* The end is reported once everything that had arrived has been read. */
static const char *pipes_reason(bw_link_t *link)
{
    return pipes_of(link)->has_ended && pipes_of(link)->is_cut ? "connection_closed" : NULL;
}

/* A pipe retains the bytes that it has accepted until they are read. */
static void pipes_close(bw_link_t *link, bw_leftover_t *left_p)
{
    pipes_link_t *pipes = pipes_of(link);
    bw_leftover_t left = {.fd = pipes->epoll, .socket = -1};
    int fds[] = {pipes->writer, pipes->reader, pipes->event, pipes->of_peer[0], pipes->of_peer[1]};

    push(pipes);
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    left.map[0] = bw_buffer_take(&pipes->out);
    left.map[1] = bw_buffer_take(&pipes->in);
    free(pipes);
    bw_leftover_give(&left, left_p);
}

const bw_carrier_t bw_pipes_carrier = {
    .kind = "pipes",
    .caps = BW_CAP_TELLS_DEATH | BW_CAP_KERNEL_BUFFERS | BW_CAP_IMMEDIATE,
    .probe = bw_pipes_probe,
    .listen = bw_pipes_listen,
    .connect = bw_pipes_connect,
    .step = bw_pipes_step,
    .reserve = pipes_reserve,
    .commit = pipes_commit,
    .peek = pipes_peek,
    .release = pipes_release,
    .arm_read = pipes_arm_read,
    .arm_write = pipes_arm_write,
    .fd = pipes_fd,
    .clear_event = pipes_clear_event,
    .wake_self = pipes_wake_self,
    .trim = pipes_trim,
    .stats = pipes_stats,
    .is_finished = pipes_is_finished,
    .reason = pipes_reason,
    .close = pipes_close,
};
