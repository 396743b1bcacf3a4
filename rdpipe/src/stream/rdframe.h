/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_FRAME_H
#define RD_FRAME_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

#include "crc.h"

/*
 * The frames of a stream, in both directions of a hop. These functions are pure: they use no link
 * and no clock.
 *
 * A header of 24 bytes, little-endian: magic:16, kind:8, flags:8, length:32, crc:32, value:32,
 * offset:64; then `length` bytes of payload.
 *
 *   down, from the producer to the consumer:
 *     DATA   offset: bytes of the stream before this frame; value: bytes of the stream in it
 *     END    offset: length of the stream; value: 0 (version 0.2.0 sends the producer's exit
 *            status, which no version reads)
 *     RESUME the first frame, if both sides can resume a stream; payload: its id
 *   up:
 *     RESUME the answer; offset: bytes that the consumer already has
 *     DONE   everything up to END was accepted; offset: the number of bytes
 *   both:
 *     ABORT  the stream ends here and is incomplete; value: rd_abort_t; payload: why, as text
 *     PING   a keep-alive message
 *
 * The peer may be able to change the bytes while they are being read, so rd_frame_parse copies the
 * header before it checks it.
 */

#define RD_FRAME_BYTES 24u
#define RD_FRAME_MAGIC 0xBEA4u
#define RD_BLOCK_MAX ((uint32_t)8 * 1024 * 1024)
#define RD_TEXT_MAX 512u

typedef enum { RD_DATA = 1, RD_END, RD_DONE, RD_ABORT, RD_PING, RD_RESUME } rd_kind_t;

enum { RD_FLAG_CRC = 1, RD_FLAG_ZSTD = 2 };

typedef enum {
    RD_ABORT_QUIT = 1,   /* the consumer has closed, as with a broken pipe */
    RD_ABORT_FAULT,      /* a failure, described in the payload; version 0.2.0 also sends 3 */
    RD_ABORT_STOPPED = 4 /* the stream was stopped because another part has failed */
} rd_abort_t;

typedef struct {
    rd_kind_t kind;
    uint8_t flags;
    uint32_t len;
    uint32_t crc; /* covers the stream's bytes in uncompressed form */
    uint32_t value;
    uint64_t offset;
} rd_frame_t;

typedef enum { RD_FRAME_SHORT, RD_FRAME_PART, RD_FRAME_WHOLE, RD_FRAME_CORRUPT } rd_frame_state_t;

static inline void rd_frame_put(uint8_t *at, const rd_frame_t *frame)
{
    uint16_t magic = htole16(RD_FRAME_MAGIC);
    uint32_t words[3] = {htole32(frame->len), htole32(frame->crc), htole32(frame->value)};
    uint64_t offset = htole64(frame->offset);

    memcpy(at, &magic, 2);
    at[2] = (uint8_t)frame->kind;
    at[3] = frame->flags;
    memcpy(at + 4, words, 12);
    memcpy(at + 16, &offset, 8);
}

static inline int rd_frame_is_valid(const rd_frame_t *frame, uint32_t max)
{
    switch (frame->kind) {
    case RD_DATA:
        return frame->len > 0 && frame->len <= max && frame->value > 0 &&
               frame->value <= RD_BLOCK_MAX &&
               (frame->flags & RD_FLAG_ZSTD || frame->value == frame->len);
    case RD_ABORT:
    case RD_RESUME:
        return frame->len <= RD_TEXT_MAX;
    case RD_END:
    case RD_DONE:
    case RD_PING:
        return frame->len == 0;
    default:
        return 0;
    }
}

/* Parses the frame at the start of `avail` bytes. `max` is the longest payload of DATA. *frame_p is
 * set for PART and WHOLE. */
static inline rd_frame_state_t rd_frame_parse(const uint8_t *at, size_t avail, uint32_t max,
                                              rd_frame_t *frame_p)
{
    uint8_t header[RD_FRAME_BYTES];
    uint16_t magic;
    uint32_t words[3];
    uint64_t offset;
    rd_frame_t frame;

    if (avail < RD_FRAME_BYTES)
        return RD_FRAME_SHORT;
    /* volatile, because the compiler must not read memory shared with the peer a second time */
    for (size_t i = 0; i < RD_FRAME_BYTES; i++)
        header[i] = ((const volatile uint8_t *)at)[i];
    memcpy(&magic, header, 2);
    memcpy(words, header + 4, 12);
    memcpy(&offset, header + 16, 8);
    frame = (rd_frame_t){.kind = (rd_kind_t)header[2],
                         .flags = header[3],
                         .len = le32toh(words[0]),
                         .crc = le32toh(words[1]),
                         .value = le32toh(words[2]),
                         .offset = le64toh(offset)};
    if (le16toh(magic) != RD_FRAME_MAGIC || !rd_frame_is_valid(&frame, max))
        return RD_FRAME_CORRUPT;
    *frame_p = frame;
    return avail - RD_FRAME_BYTES < frame.len ? RD_FRAME_PART : RD_FRAME_WHOLE;
}

#endif
