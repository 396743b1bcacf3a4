/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_DIST_FRAME_H
#define BW_DIST_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/*
 * What a frame of the distribution protocol says about its place among others: which process sends
 * the signal in it, whether it changes the peer's atom cache, and which fragment it is. It reads
 * what ERTS of OTP 23 to 28 writes (erl_dist_protocol, erl_ext_dist). Frames come from the node
 * itself; still nothing is read past the end of one, and what is not understood is UNKNOWN.
 */

/* The first two bytes of a frame. */
#define BW_DIST_VERSION 131
#define BW_DIST_HEADER_WHOLE 68
#define BW_DIST_HEADER_FIRST 69
#define BW_DIST_HEADER_REST 70

typedef enum {
    BW_DIST_TICK,    /* no bytes: a sign of life */
    BW_DIST_WHOLE,   /* 131,68: a signal */
    BW_DIST_FIRST,   /* 131,69: the first fragment of a signal, which names its sender */
    BW_DIST_REST,    /* 131,70: a further fragment, which names the sequence only */
    BW_DIST_UNKNOWN, /* anything else */
} bw_dist_kind_t;

typedef struct {
    bw_dist_kind_t kind;
    bool has_sender;   /* of WHOLE and FIRST: the control message names the sending process */
    bool renews_cache; /* of WHOLE and FIRST: the header carries a new atom cache entry */
    /* Number and serial of the sender's pid. It is a process of this node, so these two tell it
     * from any other; for one that is not they may put two senders into one order. */
    uint64_t sender;
    uint64_t sequence; /* of FIRST and REST: the word by which the VM knows the sender's pid */
    uint64_t fragment; /* of FIRST and REST: counts down, 1 is the last */
} bw_dist_frame_t;

bw_dist_frame_t bw_dist_frame_read(const struct iovec *iov, int count);

/* Entries of the atom cache. */
#define BW_DIST_CACHE_ENTRIES 2048
typedef struct {
    uint64_t bits[BW_DIST_CACHE_ENTRIES / 64];
} bw_dist_entries_t;

/* Which entries the header of a WHOLE or FIRST frame refers to, and which of them it renews.
 * Returns false if the header is cut, or if there is none. */
bool bw_dist_entries_read(const uint8_t *frame, size_t len, bw_dist_entries_t *all_p,
                          bw_dist_entries_t *renewed_p);

#endif
