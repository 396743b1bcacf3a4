/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_STREAM_H
#define RD_STREAM_H

#include "rdframe.h"
#include "hop/hop.h"

/*
 * Frames over a hop, and keep-alive messages. Only one thread at a time may use a stream. The only
 * calls that block are rd_streams_wait, and rd_stream_say_last and rd_stream_discard_rest, which
 * use it.
 *
 * Each side sends something at least every RD_PING_MS, and a side that receives nothing for
 * RD_SILENCE_MS assumes that the other host is down. A consumer with a slow reader still sends
 * pings, so it is not mistaken for a dead one.
 */

#define RD_PING_MS 5000
#define RD_SILENCE_MS 30000

typedef struct {
    rd_hop_t hop;
    const char *peer; /* the peer's name for messages */
    int64_t heard_ms, said_ms;
    bool peer_left;  /* the other side has closed, so the ring receives no more data */
    bool is_cleared; /* the link's event was cleared since the last wait */
    size_t seen;     /* unread bytes at the last check */
    size_t wants;    /* the amount of room that the caller is waiting for, or 0 if none */
} rd_stream_t;

void rd_stream_open(rd_stream_t *stream, const rd_hop_t *hop, const char *peer);
void rd_stream_close(rd_stream_t *stream);

typedef enum { RD_NOTHING, RD_FRAME, RD_LOST } rd_next_t;

/* Returns the next complete frame with its payload in place, and sets *why for RD_LOST. It returns
 * the same frame until the frame is released. */
rd_next_t rd_stream_next(rd_stream_t *stream, rd_frame_t *frame_p, const uint8_t **payload_p,
                         rd_why_t *why);
void rd_stream_release(rd_stream_t *stream, const rd_frame_t *frame);

/* Returns whether the peer can still write to the memory that holds its payloads. */
bool rd_stream_is_shared(const rd_stream_t *stream);

/* Returns room for a frame with a payload of `len` bytes, or NULL if the caller must wait. The
 * payload goes after the first RD_FRAME_BYTES, and then rd_stream_put sends it (frame->len may be
 * less than `len`). */
uint8_t *rd_stream_room(rd_stream_t *stream, size_t len);
void rd_stream_put(rd_stream_t *stream, uint8_t *at, const rd_frame_t *frame);

/* Sends a frame with an optional text. Returns false if the ring is full. */
bool rd_stream_say(rd_stream_t *stream, const rd_frame_t *frame, const char *text);

/* Sends a last message, and waits until `deadline` if the ring is full. */
void rd_stream_say_last(rd_stream_t *stream, const rd_frame_t *frame, const char *text,
                        int64_t deadline);

/* rd_abort_of creates the ABORT that reports a fault, to be sent with the text of `why`.
 * rd_abort_cause returns the cause of a received ABORT: RD_CAUSE_STOPPED, or else RD_CAUSE_LOST,
 * because the peer can explain the fault best. */
rd_frame_t rd_abort_of(uint64_t offset, const rd_why_t *why);
rd_cause_t rd_abort_cause(const rd_frame_t *frame);

/* Sends a ping if one is due. Fails with *why set if the other side was silent for too long. */
bool rd_stream_tick(rd_stream_t *stream, rd_why_t *why);

/* For a keeper (keepalive.h): sends a ping if one is due and room for a payload of `spare` bytes
 * remains. Also sends frames that were put earlier but have not been sent yet. */
void rd_stream_keep(rd_stream_t *stream, size_t spare);

/*
 * Waits at most `ms` until one of the streams (NULL if none) may have something to read or the room
 * that its caller waits for, or one of `polled` is ready. The caller must just have checked
 * everything and found nothing to do. Sets polled[i].revents, to 0 if it did not poll at all.
 */
struct pollfd;
void rd_streams_wait(rd_stream_t *one, rd_stream_t *other, struct pollfd *polled, size_t count,
                     int ms);

/* Discards incoming data until the other side closes or, if `abort_is_enough`, sends ABORT. */
void rd_stream_discard_rest(rd_stream_t *stream, bool abort_is_enough, int64_t deadline);

#endif
