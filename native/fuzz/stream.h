/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FUZZ_STREAM_H
#define BW_FUZZ_STREAM_H

/*
 * For the fuzz targets that generate a stream of frames from their input and check how the pump
 * parses it: the stream, the pieces in which it arrives, and a hash over the delivered frames.
 */
#include "../test/driver/driver_shim.h"

#include "../driver/pump.h"
#include "../link/frame.h"
#include "input.h"

#define STREAM_MAX (320 * 1024) /* large enough for a frame that exceeds the gathering limit */
#define PIECES_MAX 64
#define SHORT_PIECES 500 /* after this many, the rest comes in long pieces, for speed */

/* Number of delivered frames, number of their bytes, and a hash over their lengths and contents. */
typedef struct {
    uint64_t frames, bytes, sum;
} delivered_t;

static delivered_t delivered;

static struct {
    uint8_t bytes[STREAM_MAX];
    size_t len;
} stream;

static void count(delivered_t *to, const uint8_t *at, uint64_t len)
{
    to->frames++;
    to->bytes += len;
    to->sum = to->sum * 31 + len;
    for (; len >= 8; len -= 8, at += 8) {
        uint64_t word;

        memcpy(&word, at, 8);
        to->sum = to->sum * 31 + word;
    }
    for (uint64_t i = 0; i < len; i++)
        to->sum = to->sum * 31 + at[i];
}

static void shim_deliver(const uint8_t *at, uint64_t len)
{
    count(&delivered, at, len);
}

/* Closes the pump and its link. Nothing may be left of the frames. */
static inline void close_pump(bw_pump_t *pump)
{
    bw_link_t *link = pump->link;

    pump_reset(pump);
    pump_drop(pump);
    must(shim.binaries == 0);
    link->ops->close(link, NULL);
    free(shim.bytes);
    shim.bytes = NULL;
    shim.len = 0;
}

/* ---- the stream ---- */

static void append(const void *bytes, size_t len)
{
    if (len > STREAM_MAX - stream.len)
        len = STREAM_MAX - stream.len;
    memcpy(stream.bytes + stream.len, bytes, len);
    stream.len += len;
}

/* Appends a frame of `len` bytes, filled with distinct words, and its padding. */
static inline void append_frame(uint32_t len)
{
    uint8_t header[BW_FRAME_HEADER_BYTES];

    bw_frame_put_header(header, len > 0 ? BW_FRAME_DATA : BW_FRAME_TICK, len);
    append(header, sizeof header);
    for (uint64_t i = 8; i < bw_frame_size(len); i += 8)
        append(&(uint64_t){(len + i) * 0x9E3779B97F4A7C15ull}, 8);
}

static inline void append_header(uint32_t len, uint16_t magic, uint16_t kind)
{
    append(&len, 4);
    append(&magic, 2);
    append(&kind, 2);
}

typedef struct {
    uint32_t len;
    uint16_t magic, kind;
} header_t;

static inline header_t header_at(size_t at)
{
    header_t header;

    memcpy(&header, stream.bytes + at, sizeof header);
    return header;
}

/* ---- the stream from an input ---- */

static struct {
    uint16_t sizes[PIECES_MAX];
    size_t count;
} pieces;

static inline size_t piece_bytes(size_t piece)
{
    return 1 + (pieces.count > 0 && piece < SHORT_PIECES ? pieces.sizes[piece % pieces.count]
                                                         : BW_RING_MIN_BYTES);
}

/* Runs the input's steps, each of which is a byte that selects it, followed by its arguments. Steps
 * 3 and 4 are defined by the target. */
static inline void make_stream(reader_t *reader, void (*append_one)(uint32_t len),
                               void (*own_step)(reader_t *reader, uint64_t step))
{
    stream.len = pieces.count = 0;
    while (reader->left > 0) {
        uint64_t step = number(reader, 1);

        switch (step % 8) {
        case 0:
            append_one((uint32_t)(step / 8));
            break;
        case 1:
            append_one((uint32_t)number(reader, 2));
            break;
        case 2:
            append_one((uint32_t)number(reader, 3) % STREAM_MAX);
            break;
        case 3:
        case 4:
            own_step(reader, step);
            break;
        case 5:
            append(&(uint8_t){next_byte(reader)}, 1);
            break;
        default:
            if (pieces.count < PIECES_MAX)
                pieces.sizes[pieces.count++] = (uint16_t)number(reader, step % 2 + 1);
        }
    }
}

#endif
