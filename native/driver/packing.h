/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PACKING_H
#define BW_PACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "../link/codec.h"
#include "../link/session/worth.h"
#include "pending.h"

/*
 * Packets that are compressed on a link with a session. Some packets that follow each other become
 * one unit: a word of the session (frame.h) with its length before and after, and the bytes. What
 * is numbered, kept and sent again are the bytes of the unit, so the session knows nothing of it,
 * and neither side begins anew when a connection is lost.
 *
 * Units are packed in the order in which they go out. Between them any packet or word may go as it
 * is. A unit holds whole packets and no words. All calls are made under the port lock.
 */

/* Before it is compressed a unit has at most so many bytes: that bounds what a reader allocates. */
#define BW_UNIT_MAX_BYTES ((size_t)128 * 1024)

/* So much is gathered for one. Another frame may be added to less. */
#define BW_UNIT_BYTES ((size_t)32 * 1024)

/* What one byte costs beside one that is copied, for the budget of a call. */
#define BW_UNIT_COST 4

/* Far: the shortest round trip takes so long. So does several connections' (beamway_resume.erl). */
#define BW_FAR_US 5000

typedef struct {
    uint64_t before, after; /* bytes, the word included */
    uint64_t ns;            /* processor time */
} bw_packed_t;

typedef struct {
    const bw_codec_t *codec; /* NULL: this link has no units */
    bool is_always;          /* not only if the path is far */
    bool is_on;              /* units go out now */
    bool has_failed;         /* none can any more: there was no memory within one */
    bw_packer_t *packer;
    bw_worth_t worth;
    bw_packed_t out, in;

    bw_unpacker_t *unpacker;
    uint8_t *unit;     /* packets of a unit: one byte more than those of the largest */
    size_t want, made; /* the bytes that they have, and that are there */
    size_t left;       /* bytes of the unit that have yet to come */
    size_t at;         /* those before it have been read */
    bool is_read_now;  /* what is read now are the packets of a unit */
} bw_packing_t;

/* From now on units may come. `percent` of a processor's time may be spent to make some. */
void bw_packing_begin(bw_packing_t *packing, const bw_codec_t *codec, bool is_always,
                      unsigned percent);

/* The shortest round trip of late; 0: not known. */
void bw_packing_path_is(bw_packing_t *packing, uint64_t rtt_us);

/* Whether the next packets, of so many bytes, shall be a unit. */
bool bw_packing_wants(bw_packing_t *packing, bool is_bulk, uint64_t bytes);

/* A unit of the frames, which stay as they are. NULL: they go as they are; there is no memory. */
bw_pending_t *bw_packing_pack(bw_packing_t *packing, const bw_pending_list_t *frames);

/* The link rests: gives back the memory of what is remembered. True: the peer is told by the word
 * of a unit without bytes that the next unit begins anew. */
bool bw_packing_rests(bw_packing_t *packing);

typedef enum {
    BW_UNIT_OK,
    BW_UNIT_NO_MEMORY,
    BW_UNIT_CORRUPT /* no correct peer sends this */
} bw_unit_state_t;

/* The peer's word, without its first four bytes. */
bw_unit_state_t bw_packing_hear(bw_packing_t *packing, uint64_t word);

/* Some of the unit's bytes, at most packing->left. */
bw_unit_state_t bw_packing_unpack(bw_packing_t *packing, const uint8_t *from, size_t len);

/* Whether a unit is there, whole, of which something has yet to be read. */
static inline bool bw_packing_is_full(const bw_packing_t *packing)
{
    return packing->at < packing->want && packing->left == 0;
}

void bw_packing_free(bw_packing_t *packing);

#endif
