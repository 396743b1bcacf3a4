/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include <poll.h>
#include <sys/socket.h>

#define POLLED_MAX 4

void rd_stream_open(rd_stream_t *stream, const rd_hop_t *hop, const char *peer)
{
    int64_t now = rd_now_ms();

    *stream = (rd_stream_t){.hop = *hop, .peer = peer, .heard_ms = now, .said_ms = now};
}

void rd_stream_close(rd_stream_t *stream)
{
    rd_hop_close(&stream->hop);
}

static bw_link_t *link_of(rd_stream_t *stream)
{
    return stream->hop.link;
}

static rd_next_t lost(rd_stream_t *stream, rd_why_t *why)
{
    const char *reason = link_of(stream)->ops->reason(link_of(stream));

    (void)rd_because_of(why, RD_CAUSE_LOST, "the connection to %s was lost%s%s", stream->peer,
                        reason ? ": " : "", reason ? reason : "");
    return RD_LOST;
}

rd_next_t rd_stream_next(rd_stream_t *stream, rd_frame_t *frame_p, const uint8_t **payload_p,
                         rd_why_t *why)
{
    bw_link_t *link = link_of(stream);
    bool left = stream->peer_left;
    bw_span_t span = {0};
    bw_status_t status = link->ops->peek(link, &span);
    rd_frame_state_t state = RD_FRAME_SHORT;

    if (status == BW_OK)
        state = rd_frame_parse(span.base, span.len, stream->hop.terms.block, frame_p);
    if (state == RD_FRAME_CORRUPT || status == BW_CORRUPT) {
        (void)rd_because(why, "%s sent data that is not a frame of the pipe's protocol",
                         stream->peer);
        return RD_LOST;
    }
    if (state == RD_FRAME_WHOLE) {
        stream->heard_ms = rd_now_ms();
        *payload_p = span.base + RD_FRAME_BYTES;
        return RD_FRAME;
    }
    if (span.len != stream->seen) {
        stream->seen = span.len;
        stream->heard_ms = rd_now_ms();
    }
    if ((status != BW_OK && status != BW_AGAIN) || left || link->ops->is_finished(link))
        return lost(stream, why);
    return RD_NOTHING;
}

void rd_stream_release(rd_stream_t *stream, const rd_frame_t *frame)
{
    link_of(stream)->ops->release(link_of(stream), RD_FRAME_BYTES + frame->len);
    stream->seen = 0;
}

bool rd_stream_is_shared(const rd_stream_t *stream)
{
    return !(stream->hop.link->ops->caps & BW_CAP_KERNEL_BUFFERS);
}

uint8_t *rd_stream_room(rd_stream_t *stream, size_t len)
{
    bw_link_t *link = link_of(stream);
    bw_span_t span;

    stream->wants = 0;
    if (link->ops->reserve(link, RD_FRAME_BYTES + len, &span) == BW_OK &&
        span.len >= RD_FRAME_BYTES + len)
        return span.base;
    stream->wants = RD_FRAME_BYTES + len;
    return NULL;
}

void rd_stream_put(rd_stream_t *stream, uint8_t *at, const rd_frame_t *frame)
{
    rd_frame_put(at, frame);
    link_of(stream)->ops->commit(link_of(stream), RD_FRAME_BYTES + frame->len);
    stream->said_ms = rd_now_ms();
}

bool rd_stream_say(rd_stream_t *stream, const rd_frame_t *frame, const char *text)
{
    rd_frame_t said = *frame;
    uint8_t *at;

    said.len = text ? (uint32_t)strnlen(text, RD_TEXT_MAX) : 0;
    at = rd_stream_room(stream, said.len);
    if (!at)
        return false;
    if (said.len > 0)
        memcpy(at + RD_FRAME_BYTES, text, said.len);
    rd_stream_put(stream, at, &said);
    return true;
}

void rd_stream_say_last(rd_stream_t *stream, const rd_frame_t *frame, const char *text,
                        int64_t deadline)
{
    while (!rd_stream_say(stream, frame, text) && rd_left_ms(deadline) > 0 && !stream->peer_left)
        rd_streams_wait(stream, NULL, NULL, 0, rd_left_ms(deadline));
}

rd_frame_t rd_abort_of(uint64_t offset, const rd_why_t *why)
{
    rd_abort_t as = why->cause == RD_CAUSE_STOPPED ? RD_ABORT_STOPPED : RD_ABORT_FAULT;

    return (rd_frame_t){.kind = RD_ABORT, .value = as, .offset = offset};
}

rd_cause_t rd_abort_cause(const rd_frame_t *frame)
{
    return frame->value == RD_ABORT_STOPPED ? RD_CAUSE_STOPPED : RD_CAUSE_LOST;
}

/* Returns whether bytes have arrived since the last check. If so, the peer is not silent: we are
 * late in reading, for example because of a slow disk. */
static bool has_news(rd_stream_t *stream)
{
    bw_span_t span = {0};

    if (link_of(stream)->ops->peek(link_of(stream), &span) != BW_OK || span.len == stream->seen)
        return false;
    stream->seen = span.len;
    return true;
}

/* If there is no room for a ping, the peer still has plenty to read, so none is needed. */
static void ping(rd_stream_t *stream, size_t spare)
{
    int64_t now = rd_now_ms();
    size_t wants = stream->wants;

    if (now - stream->said_ms < RD_PING_MS)
        return;
    if (rd_stream_room(stream, RD_FRAME_BYTES + spare))
        (void)rd_stream_say(stream, &(rd_frame_t){.kind = RD_PING}, NULL);
    stream->said_ms = now;
    stream->wants = wants;
}

void rd_stream_keep(rd_stream_t *stream, size_t spare)
{
    if (stream->peer_left)
        return;
    link_of(stream)->ops->clear_event(link_of(stream));
    ping(stream, spare);
}

bool rd_stream_tick(rd_stream_t *stream, rd_why_t *why)
{
    int64_t now = rd_now_ms();

    ping(stream, 0);
    if (now - stream->heard_ms < RD_SILENCE_MS)
        return true;
    if (has_news(stream)) {
        stream->heard_ms = now;
        return true;
    }
    return rd_because(why, "heard nothing from %s for %d s: the host or the network is down",
                      stream->peer, RD_SILENCE_MS / 1000);
}

/* Returns false if there may already be something to do. */
static bool arm(rd_stream_t *stream)
{
    bw_link_t *link = link_of(stream);
    bw_status_t status;

    if (!stream->is_cleared) {
        /* From now on only new bytes make the descriptor readable, so the caller must look for
         * those that have arrived already. */
        link->ops->clear_event(link);
        stream->is_cleared = true;
        return false;
    }
    if (stream->peer_left)
        return true;
    status = link->ops->arm_read(link);
    if (status == BW_OK && stream->wants > 0)
        status = link->ops->arm_write(link, stream->wants);
    if (status != BW_OK && status != BW_AGAIN)
        stream->peer_left = true; /* an incomplete frame in the ring will stay incomplete */
    return status == BW_OK;
}

/* Nothing is ever sent on the side connection, so it is readable only once the peer closes it. */
static void look_aside(rd_stream_t *stream, short revents)
{
    char byte;

    if (revents && recv(stream->hop.side, &byte, 1, MSG_DONTWAIT | MSG_PEEK) <= 0)
        stream->peer_left = true;
}

void rd_streams_wait(rd_stream_t *one, rd_stream_t *other, struct pollfd *polled, size_t count,
                     int ms)
{
    rd_stream_t *streams[2] = {one, other};
    struct pollfd all[4 + POLLED_MAX];
    size_t at = 0;

    for (size_t i = 0; i < count; i++)
        polled[i].revents = 0;
    for (int i = 0; i < 2; i++)
        if (streams[i] && !arm(streams[i]))
            return;
    for (int i = 0; i < 2; i++) {
        bool is_there = streams[i] && !streams[i]->peer_left;
        int side = is_there ? streams[i]->hop.side : -1;

        all[at++] = is_there ? bw_link_polled(link_of(streams[i])) : (struct pollfd){.fd = -1};
        all[at++] = (struct pollfd){.fd = side, .events = POLLIN};
    }
    for (size_t i = 0; i < count && i < POLLED_MAX; i++)
        all[at++] = polled[i];
    (void)poll(all, at, ms);
    for (int i = 0; i < 2; i++)
        if (streams[i]) {
            streams[i]->is_cleared = false;
            look_aside(streams[i], all[2 * i + 1].revents);
        }
    for (size_t i = 0; i < count && i < POLLED_MAX; i++)
        polled[i].revents = all[4 + i].revents;
}

void rd_stream_discard_rest(rd_stream_t *stream, bool abort_is_enough, int64_t deadline)
{
    rd_frame_t frame;
    const uint8_t *payload;
    rd_why_t why;

    stream->wants = 0;
    while (rd_left_ms(deadline) > 0) {
        rd_next_t next = rd_stream_next(stream, &frame, &payload, &why);

        if (next == RD_LOST)
            return;
        if (next == RD_FRAME)
            rd_stream_release(stream, &frame);
        else
            rd_streams_wait(stream, NULL, NULL, 0, rd_left_ms(deadline));
        if (next == RD_FRAME && frame.kind == RD_ABORT && abort_is_enough)
            return;
    }
}
