/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FUZZ_STREAM_H
#define BW_FUZZ_STREAM_H

/*
 * For the fuzz targets that make a stream of frames from their input and look at what the pump
 * makes of it: the input as numbers, the stream, and a sum over what was delivered.
 */
#include "../test/driver_shim.h"

#include "../driver/pump.h"
#include "../link/frame.h"

#define STREAM_MAX (320 * 1024) /* a frame above the size that is gathered fits */

/* Delivered frames, their bytes, and a sum over their lengths and contents. */
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

/* ---- the input ---- */

typedef struct {
    const uint8_t *at;
    size_t left;
} reader_t;

/* The next n bytes as a number, with zeros past the end. */
static uint64_t number(reader_t *reader, size_t n)
{
    uint64_t value = 0;

    for (size_t i = 0; i < n; i++) {
        value = value << 8 | (reader->left > 0 ? *reader->at : 0);
        reader->at += reader->left > 0;
        reader->left -= reader->left > 0;
    }
    return value;
}

/* ---- the stream ---- */

static void append(const void *bytes, size_t len)
{
    if (len > STREAM_MAX - stream.len)
        len = STREAM_MAX - stream.len;
    memcpy(stream.bytes + stream.len, bytes, len);
    stream.len += len;
}

/* A frame of `len` bytes, words that differ from each other, with its padding. */
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

#endif
