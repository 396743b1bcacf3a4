/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPE_STREAMS_H
#define PIPE_STREAMS_H

/*
 * Streams over a hop for tests: a producer in a child and a drain in this process, or a producer
 * for which the test puts handcrafted frames into the ring.
 */
#include "pipe_ends.h"

#include "stream/transfer.h"

#define KEY "a key that both sides have"

typedef struct {
    rd_transfer_t transfer;
    rd_stream_t stream;
    pid_t child;
} receiver_t;

static int level;       /* compression level in the current case */
static bool is_stopped; /* the producer is told to stop before it has read the end of its input */

typedef struct {
    uint64_t state;
} dice_t;

static inline uint64_t throw_dice(dice_t *dice, uint64_t below)
{
    dice->state ^= dice->state << 13;
    dice->state ^= dice->state >> 7;
    dice->state ^= dice->state << 17;
    return dice->state % below;
}

/* Returns byte `at` of the stream, which is the same in all tests. */
static inline uint8_t byte_of(uint64_t at)
{
    return (uint8_t)((at * 2654435761u) >> 13 ^ at >> 21);
}

/* Writes the stream in pieces of random size, then closes. */
static inline void write_stream(int fd, uint64_t total, uint64_t piece_max, uint64_t seed)
{
    static uint8_t piece[1 << 20];
    dice_t dice = {seed * 2 + 1};

    for (uint64_t at = 0; at < total;) {
        uint64_t len = 1 + throw_dice(&dice, piece_max), done = 0;

        if (len > total - at)
            len = total - at;
        for (uint64_t i = 0; i < len; i++)
            piece[i] = byte_of(at + i);
        while (done < len) {
            ssize_t n = write(fd, piece + done, len - done);

            if (n <= 0)
                return;
            done += (uint64_t)n;
        }
        at += len;
    }
}

/* Starts a producer in a child. Its input is a pipe that `write_stream` fills. Its status is the
 * outcome of its transfer. */
static inline pid_t start_producer(uint16_t port, uint64_t total, uint64_t piece_max)
{
    pid_t child = fork(), writer;
    rd_key_t key;
    rd_terms_t terms = terms_of(carrier, 65536);
    rd_hop_t hop;
    rd_transfer_t transfer;
    rd_stream_t stream;
    rd_end_t input;
    rd_why_t why;
    int ends[2];

    if (child != 0)
        return child;
    if (pipe(ends) < 0)
        _exit(90);
    writer = fork();
    if (writer == 0) {
        close(ends[0]);
        write_stream(ends[1], total, piece_max, total + 7);
        _exit(0);
    }
    close(ends[1]);
    key = key_of(KEY);
    terms.zstd = level;
    if (!join_listener(port, &key, &terms, &hop, &why) || !rd_transfer_init(&transfer, &why))
        _exit(91);
    rd_stream_open(&stream, &hop, "the consumer");
    input = rd_end_of(ends[0], false);
    if (is_stopped)
        (void)status_of(writer);
    atomic_store(&transfer.stop, is_stopped);
    rd_feed(&transfer, &stream, &input);
    rd_stream_close(&stream);
    if (!is_stopped)
        (void)status_of(writer);
    _exit((int)transfer.outcome);
}

/* Accepts the producer that connects, and closes the listener. */
static inline bool take_producer(receiver_t *receiver, int listener, uint32_t block)
{
    rd_key_t key = key_of(KEY);
    rd_terms_t terms = terms_of(RD_CARRIERS_ALL, block);
    rd_hop_t hop;
    rd_why_t why;
    bool done =
        rd_hop_accept(listener, &key, &terms, -1, rd_now_ms() + LONG_MS, NULL, &hop, &why) &&
        rd_transfer_init(&receiver->transfer, &why);

    close(listener);
    if (done)
        rd_stream_open(&receiver->stream, &hop, "the producer");
    return done;
}

static inline bool begin(receiver_t *receiver, uint64_t total, uint64_t piece_max)
{
    uint16_t port;
    int listener = open_listener(&port);

    receiver->child = start_producer(port, total, piece_max);
    return take_producer(receiver, listener, RD_BLOCK_BYTES);
}

static inline void end(receiver_t *receiver)
{
    rd_stream_close(&receiver->stream);
    rd_transfer_free(&receiver->transfer);
}

/* Starts a child that compares what it reads with the stream. Its status is 0 if it has read
 * exactly the bytes of the stream. */
static inline pid_t start_reader(int fd, int other, uint64_t total, uint64_t stop_after)
{
    pid_t child = fork();
    static uint8_t piece[300000];
    uint64_t at = 0;
    ssize_t n = 0;

    if (child != 0)
        return child;
    close(other);
    while (at < stop_after && (n = read(fd, piece, sizeof piece)) > 0)
        for (ssize_t i = 0; i < n; i++, at++)
            if (piece[i] != byte_of(at))
                _exit(2);
    _exit(n < 0 || (at != total && at < stop_after) ? 1 : 0);
}

static inline void drain_into(receiver_t *receiver, int fd)
{
    rd_end_t output = rd_end_of(fd, true);

    rd_drain(&receiver->transfer, &receiver->stream, &output, NULL);
    (void)rd_end_close(&output);
}

/* ---- handcrafted frames ---- */

/* Call this in a separate process. Joins as the producer of a stream whose blocks have `block`
 * bytes. */
static inline void join_by_hand(uint16_t port, uint32_t block, rd_stream_t *stream)
{
    rd_key_t key = key_of(KEY);
    rd_terms_t terms = terms_of(carrier, block);
    rd_hop_t hop;
    rd_why_t why;

    if (!join_listener(port, &key, &terms, &hop, &why))
        _exit(91);
    rd_stream_open(stream, &hop, "the consumer");
}

/* Call this in a separate process. Accepts the producer that connects to the listener. */
static inline void accept_by_hand(int listener, rd_stream_t *stream)
{
    rd_key_t key = key_of(KEY);
    rd_terms_t terms = terms_of(RD_CARRIERS_ALL, RD_BLOCK_BYTES);
    rd_hop_t hop;
    rd_why_t why;

    if (!rd_hop_accept(listener, &key, &terms, -1, rd_now_ms() + LONG_MS, NULL, &hop, &why))
        _exit(91);
    rd_stream_open(stream, &hop, "the producer");
}

static inline uint8_t *room_by_hand(rd_stream_t *stream, uint32_t bytes)
{
    uint8_t *at = rd_stream_room(stream, bytes);

    if (!at)
        _exit(92);
    return at;
}

/* Prepares the first frame of a stream, "hello", without sending it. */
static inline rd_frame_t hello_at(uint8_t *at)
{
    memcpy(at + RD_FRAME_BYTES, "hello", 5);
    return (rd_frame_t){.kind = RD_DATA,
                        .flags = RD_FLAG_CRC,
                        .len = 5,
                        .value = 5,
                        .crc = rd_crc(at + RD_FRAME_BYTES, 5)};
}

#endif
