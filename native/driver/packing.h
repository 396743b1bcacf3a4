/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PACKING_H
#define BW_PACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "../link/codec.h"
#include "../link/session/worth.h"
#include "queued_frames.h"

/*
 * Compresses packets on a link with a session. Several consecutive packets become one unit: a word
 * of the session (frame.h) with the length before and after compression, followed by the compressed
 * bytes. The session numbers, retains and retransmits the bytes of a unit like any others. So it
 * need not know about compression, and no compressor restarts when a connection is lost.
 *
 * Units are packed in the order in which they are sent, with uncompressed packets and words between
 * them. A unit consists of complete packets and contains no word. All calls need the port lock.
 */

/* The maximum size of a unit before compression, which limits the memory of a reader. */
#define BW_UNIT_MAX_BYTES ((size_t)128 * 1024)

/* Packets are gathered for a unit until they have this size; the last one may exceed it. */
#define BW_UNIT_BYTES ((size_t)32 * 1024)

/* Compressing a byte uses this many times as much of a call's budget as copying it does. */
#define BW_UNIT_COST 4

/* Unless `is_always` is set, packets are compressed only if the shortest recent round trip is at
 * least this long. From the same limit on, beamway_resume.erl makes several connections. */
#define BW_FAR_US 5000

typedef struct {
    uint64_t before, after; /* bytes, including the word */
    uint64_t ns;            /* CPU time */
} bw_packed_t;

typedef struct {
    const bw_codec_t *codec; /* NULL if the link does not use compression */
    bool is_always;          /* compress even if the round trip is short */
    bool is_on;              /* units are currently being sent */
    bool has_failed;         /* no more units can be sent, because memory ran out during packing */
    bw_packer_t *packer;
    bw_worth_t worth;
    bw_packed_t out, in;

    bw_unpacker_t *unpacker;
    uint8_t *unit;     /* unpacked packets; has room for one byte more than the largest unit */
    size_t want, made; /* total size of the packets, and how much has been unpacked */
    size_t left;       /* bytes of the unit that have not arrived yet */
    size_t at;         /* how many of the unpacked bytes have been read */
} bw_packing_t;

/* Allows units in both directions. Packing may use up to `percent` percent of one CPU. */
void bw_packing_begin(bw_packing_t *packing, const bw_codec_t *codec, bool is_always,
                      unsigned percent);

/* Sets the shortest recent round trip; 0 if it is not known. */
void bw_packing_path_is(bw_packing_t *packing, uint64_t rtt_us);

/* Returns whether the next packets, `bytes` bytes in total, should be compressed into a unit. */
bool bw_packing_wants(bw_packing_t *packing, bool is_bulk, uint64_t bytes);

/* Compresses the frames into a unit without changing them. Returns NULL if out of memory; the
 * caller then sends the frames uncompressed. */
bw_pending_t *bw_packing_pack(bw_packing_t *packing, const bw_pending_list_t *frames);

/* Called when the link is idle: frees the compressor's history. If it returns true, the caller must
 * send the word for an empty unit, so that the peer forgets its history as well. */
bool bw_packing_rests(bw_packing_t *packing);

typedef enum {
    BW_UNIT_OK,
    BW_UNIT_NO_MEMORY,
    BW_UNIT_CORRUPT /* no correct peer sends this */
} bw_unit_state_t;

/* Handles a unit word from the peer; `word` excludes the first four bytes. */
bw_unit_state_t bw_packing_hear(bw_packing_t *packing, uint64_t word);

/* Unpacks `len` bytes of the unit; `len` must not exceed packing->left. */
bw_unit_state_t bw_packing_unpack(bw_packing_t *packing, const uint8_t *from, size_t len);

/* Returns whether there is a complete unit with packets that have not been read yet. */
static inline bool bw_packing_is_full(const bw_packing_t *packing)
{
    return packing->at < packing->want && packing->left == 0;
}

/* Frees the decompressor's history and the unit that is being received. */
void bw_packing_forget(bw_packing_t *packing);

#endif
