/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PACKING_H
#define BW_PACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "../link/codec.h"
#include "../link/session/worth.h"
#include "pending.h"

/*
 * Packets that are compressed on a link with a session. Several consecutive packets become one
 * unit: a word of the session (frame.h) with its length before and after compression, and the
 * compressed bytes. The bytes that are numbered, kept and sent again are those of the unit, so the
 * session knows nothing of compression, and neither side need restart it when a connection is lost.
 *
 * Units are packed in the order in which they are sent. Between them any packet or word may be sent
 * uncompressed. A unit holds whole packets and no words. All calls are made under the port lock.
 */

/* The largest size of a unit before compression, which bounds what a reader allocates. */
#define BW_UNIT_MAX_BYTES ((size_t)128 * 1024)

/* Packets are gathered for a unit until it has this size; the last one may exceed it. */
#define BW_UNIT_BYTES ((size_t)32 * 1024)

/* The cost of a byte that is compressed, compared with one that is copied, for the budget of a
 * call. */
#define BW_UNIT_COST 4

/* A path is far from this shortest round trip on; beamway_resume.erl uses the same limit for links
 * over several connections. */
#define BW_FAR_US 5000

typedef struct {
    uint64_t before, after; /* bytes, including the word */
    uint64_t ns;            /* processor time */
} bw_packed_t;

typedef struct {
    const bw_codec_t *codec; /* NULL: this link has no units */
    bool is_always;          /* and not only if the path is far */
    bool is_on;              /* units go out now */
    bool has_failed;         /* no unit can go out any more, because memory ran out within one */
    bw_packer_t *packer;
    bw_worth_t worth;
    bw_packed_t out, in;

    bw_unpacker_t *unpacker;
    uint8_t *unit;     /* packets of a unit, with room for one byte more than the largest has */
    size_t want, made; /* the bytes that the packets have, and those that have been unpacked */
    size_t left;       /* bytes of the unit that have yet to come */
    size_t at;         /* the bytes before it have been read */
    bool is_read_now;  /* the pump reads packets of a unit at present */
} bw_packing_t;

/* From now on units may come. `percent` of a processor's time may be spent on making units. */
void bw_packing_begin(bw_packing_t *packing, const bw_codec_t *codec, bool is_always,
                      unsigned percent);

/* Tells it the shortest recent round trip; 0 if that is not known. */
void bw_packing_path_is(bw_packing_t *packing, uint64_t rtt_us);

/* Returns whether the next packets, which have that many bytes, should become a unit. */
bool bw_packing_wants(bw_packing_t *packing, bool is_bulk, uint64_t bytes);

/* Makes a unit of the frames, which it does not change. Returns NULL if out of memory; then the
 * frames go uncompressed. */
bw_pending_t *bw_packing_pack(bw_packing_t *packing, const bw_pending_list_t *frames);

/* The link is idle, so this frees the memory of the compressor's history. Returns true if the peer
 * must be told, with the word of a unit without bytes, that the next unit starts without
 * history. */
bool bw_packing_rests(bw_packing_t *packing);

typedef enum {
    BW_UNIT_OK,
    BW_UNIT_NO_MEMORY,
    BW_UNIT_CORRUPT /* no correct peer sends this */
} bw_unit_state_t;

/* Takes the peer's word, without its first four bytes. */
bw_unit_state_t bw_packing_hear(bw_packing_t *packing, uint64_t word);

/* Unpacks some bytes of the unit, at most packing->left. */
bw_unit_state_t bw_packing_unpack(bw_packing_t *packing, const uint8_t *from, size_t len);

/* Returns whether there is a complete unit that has not been read to its end. */
static inline bool bw_packing_is_full(const bw_packing_t *packing)
{
    return packing->at < packing->want && packing->left == 0;
}

void bw_packing_free(bw_packing_t *packing);

#endif
