/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_STREAM_H
#define RD_STREAM_H

#include "rdframe.h"
#include "hop.h"

/*
 * Frames over a hop, and signs of life. One thread at a time uses a stream. Nothing blocks but
 * rd_streams_wait.
 *
 * Each side says something at least every RD_PING_MS; who hears nothing for RD_SILENCE_MS takes the
 * other host for gone. A consumer whose reader is slow still pings, so slow is not gone.
 */

#define RD_PING_MS 5000
#define RD_SILENCE_MS 30000

typedef struct {
    rd_hop_t hop;
    const char *peer; /* in messages */
    int64_t heard_ms, said_ms;
    bool peer_left;  /* the other side has ended: what is in the ring is the last */
    bool is_cleared; /* since the last wait */
    size_t seen;     /* unread bytes, when we looked last */
    size_t wants;    /* room that somebody waits for, 0: nobody */
} rd_stream_t;

void rd_stream_open(rd_stream_t *stream, const rd_hop_t *hop, const char *peer);
void rd_stream_close(rd_stream_t *stream);

typedef enum { RD_NOTHING, RD_FRAME, RD_LOST } rd_next_t;

/* The next whole frame and its payload in place; *why is set for RD_LOST. The same frame is given
 * until it is released. */
rd_next_t rd_stream_next(rd_stream_t *stream, rd_frame_t *frame_p, const uint8_t **payload_p,
                         rd_why_t *why);
void rd_stream_release(rd_stream_t *stream, const rd_frame_t *frame);

/* Can the peer write where its payloads lie? */
bool rd_stream_is_shared(const rd_stream_t *stream);

/* Room for a frame with a payload of `len` bytes, or NULL: wait. The payload goes behind the first
 * RD_FRAME_BYTES, then rd_stream_put sends it (frame->len may be less than `len`). */
uint8_t *rd_stream_room(rd_stream_t *stream, size_t len);
void rd_stream_put(rd_stream_t *stream, uint8_t *at, const rd_frame_t *frame);

/* Sends a frame that has a text or nothing as its payload. False: no room, wait. */
bool rd_stream_say(rd_stream_t *stream, const rd_frame_t *frame, const char *text);

/* A last word, for which there may be no room at once: waits for it until `deadline`. */
void rd_stream_say_last(rd_stream_t *stream, const rd_frame_t *frame, const char *text,
                        int64_t deadline);

/* The ABORT that tells of a fault, beside the text of `why`, and the cause of one that has come:
 * what failed there is told best by those who are there. */
rd_frame_t rd_abort_of(uint64_t offset, const rd_why_t *why);
rd_cause_t rd_abort_cause(const rd_frame_t *frame);

/* Pings if it is time. False: the other side is silent for too long, and *why. */
bool rd_stream_tick(rd_stream_t *stream, rd_why_t *why);

/* For a keeper (keeper.h): pings if it is time, and room for a payload of `spare` bytes is left.
 * What was put before and has not gone yet goes on, too. */
void rd_stream_keep(rd_stream_t *stream, size_t spare);

/*
 * Waits until there may be something to read on one of the streams (NULL: none), the room that
 * somebody has waited for, or one of `polled` is ready; at most `ms`. The caller has just looked at
 * everything and found nothing to do. polled[i].revents are set, 0 if it did not poll at all.
 */
struct pollfd;
void rd_streams_wait(rd_stream_t *one, rd_stream_t *other, struct pollfd *polled, size_t count,
                     int ms);

/* Throws away what comes until the other side has closed, or has said ABORT if that is enough. */
void rd_stream_discard_rest(rd_stream_t *stream, bool abort_is_enough, int64_t deadline);

#endif
