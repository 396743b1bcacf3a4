/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FRAME_H
#define BW_FRAME_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "bytes.h"

/*
 * Frames on a ring: an 8-byte header (length, magic, kind), the payload, and padding to the next
 * multiple of 8. A frame larger than the ring is written and read in pieces, header first.
 *
 * The header is in the host's byte order, because both ends are on the same host or have agreed on
 * the byte order during setup. The bytes come from the peer, so bw_frame_parse checks a copy of it.
 */

#define BW_FRAME_HEADER_BYTES 8u
#define BW_FRAME_MAX_BYTES ((uint32_t)INT32_MAX) /* the VM's own limit for a write */
#define BW_FRAME_MAGIC ((uint16_t)0xBEA3)
#define BW_LOAD_BYTES 8u

typedef enum {
    BW_FRAME_DATA = 1, /* one non-empty packet of the distribution protocol */
    BW_FRAME_TICK = 2, /* a keepalive: no payload, or on a ring the 8 bytes of BW_FRAME_LOAD */
    BW_FRAME_ACK = 3,  /* 8 bytes: how far this side has read */
    BW_FRAME_END = 4,  /* 8 bytes, which are ignored: this side is closing the link */
    BW_FRAME_LOAD = 5, /* 8 bytes: the load of this side (driver/load.h) */
    BW_FRAME_UNIT = 6  /* 8 bytes: compressed packets follow (driver/packing.h) */
} bw_frame_kind_t;

typedef enum {
    BW_FRAME_SHORT,  /* the header is incomplete */
    BW_FRAME_PART,   /* the header is valid, but the payload is incomplete */
    BW_FRAME_WHOLE,  /* header, payload and padding have arrived */
    BW_FRAME_CORRUPT /* no correct peer writes this */
} bw_frame_state_t;

typedef struct {
    uint32_t len;  /* payload bytes */
    uint32_t head; /* header bytes */
    uint64_t size; /* header, payload and padding */
    bw_frame_kind_t kind;
} bw_frame_t;

static inline uint64_t bw_frame_size(uint32_t len)
{
    return (BW_FRAME_HEADER_BYTES + (uint64_t)len + 7) & ~(uint64_t)7;
}

/* Writes the header of a frame. `len` is at most BW_FRAME_MAX_BYTES. */
static inline void bw_frame_put_header(uint8_t *at, bw_frame_kind_t kind, uint32_t len)
{
    uint16_t magic = BW_FRAME_MAGIC, kind16 = (uint16_t)kind;

    memcpy(at, &len, 4);
    memcpy(at + 4, &magic, 2);
    memcpy(at + 6, &kind16, 2);
}

/* Parses the start of `avail` readable bytes. Sets *frame_p for PART and WHOLE. */
static inline bw_frame_state_t bw_frame_parse(const uint8_t *at, size_t avail, bw_frame_t *frame_p)
{
    uint32_t len;
    uint16_t magic, kind;
    uint8_t header[BW_FRAME_HEADER_BYTES];

    if (avail < BW_FRAME_HEADER_BYTES)
        return BW_FRAME_SHORT;
    /* volatile, so that the compiler cannot read the peer's memory twice */
    for (size_t i = 0; i < BW_FRAME_HEADER_BYTES; i++)
        header[i] = ((const volatile uint8_t *)at)[i];
    memcpy(&len, header, 4);
    memcpy(&magic, header + 4, 2);
    memcpy(&kind, header + 6, 2);
    if (magic != BW_FRAME_MAGIC || len > BW_FRAME_MAX_BYTES ||
        !(kind == BW_FRAME_DATA ? len > 0
                                : kind == BW_FRAME_TICK && (len == 0 || len == BW_LOAD_BYTES)))
        return BW_FRAME_CORRUPT;
    frame_p->len = len;
    frame_p->head = BW_FRAME_HEADER_BYTES;
    frame_p->size = bw_frame_size(len);
    frame_p->kind = (bw_frame_kind_t)kind;
    return avail < frame_p->size ? BW_FRAME_PART : BW_FRAME_WHOLE;
}

/* Packets in the format that every Erlang node uses over TCP: a 4-byte length in network order,
 * followed by the payload. An empty packet is a tick. */
#define BW_PACKET_HEADER_BYTES 4u

static inline bw_frame_state_t bw_packet_parse(const uint8_t *at, size_t avail, bw_frame_t *frame_p)
{
    uint64_t len;

    if (avail < BW_PACKET_HEADER_BYTES)
        return BW_FRAME_SHORT;
    len = bw_number(at, BW_PACKET_HEADER_BYTES);
    if (len > BW_FRAME_MAX_BYTES)
        return BW_FRAME_CORRUPT;
    frame_p->len = (uint32_t)len;
    frame_p->head = BW_PACKET_HEADER_BYTES;
    frame_p->size = BW_PACKET_HEADER_BYTES + len;
    frame_p->kind = len > 0 ? BW_FRAME_DATA : BW_FRAME_TICK;
    return avail < frame_p->size ? BW_FRAME_PART : BW_FRAME_WHOLE;
}

/* Packets between two nodes whose link outlives its connections (driver/session.h). A length that
 * is impossible for a packet introduces a word, a control message of 8 bytes in network order. */
#define BW_WORD_BYTES 12u
#define BW_WORD_MASK 0xFFFFFF00u

static inline void bw_word_put(uint8_t *at, bw_frame_kind_t kind, uint64_t number)
{
    bw_put(bw_put(at, BW_WORD_MASK | kind, BW_PACKET_HEADER_BYTES), number, 8);
}

static inline bw_frame_state_t bw_session_parse(const uint8_t *at, size_t avail,
                                                bw_frame_t *frame_p)
{
    uint32_t kind;

    if (avail < BW_PACKET_HEADER_BYTES || at[0] != 0xFF)
        return bw_packet_parse(at, avail, frame_p);
    kind = (uint32_t)bw_number(at, BW_PACKET_HEADER_BYTES) ^ BW_WORD_MASK;
    if (kind < BW_FRAME_ACK || kind > BW_FRAME_UNIT)
        return BW_FRAME_CORRUPT;
    *frame_p = (bw_frame_t){.len = BW_WORD_BYTES - BW_PACKET_HEADER_BYTES,
                            .head = BW_PACKET_HEADER_BYTES,
                            .size = BW_WORD_BYTES,
                            .kind = (bw_frame_kind_t)kind};
    return avail < BW_WORD_BYTES ? BW_FRAME_PART : BW_FRAME_WHOLE;
}

#endif
