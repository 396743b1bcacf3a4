/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_DIST_FRAME_H
#define BW_DIST_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/*
 * Reads the properties of a distribution frame that determine its order relative to other frames:
 * which process sends the signal, whether the frame changes the peer's atom cache, and which
 * fragment it is. It understands the frames that ERTS writes in OTP 23 to 28 (erl_dist_protocol,
 * erl_ext_dist). The frames come from this node itself, but this code still never reads past the
 * end of one, and reports frames that it does not understand as UNKNOWN.
 */

/* The first two bytes of a frame. */
#define BW_DIST_VERSION 131
#define BW_DIST_HEADER_WHOLE 68
#define BW_DIST_HEADER_FIRST 69
#define BW_DIST_HEADER_REST 70

typedef enum {
    BW_DIST_TICK,    /* no bytes: a keepalive */
    BW_DIST_WHOLE,   /* 131,68: a signal */
    BW_DIST_FIRST,   /* 131,69: the first fragment of a signal, which names its sender */
    BW_DIST_REST,    /* 131,70: a later fragment, which has only the sequence number */
    BW_DIST_UNKNOWN, /* anything else */
} bw_dist_kind_t;

typedef struct {
    bw_dist_kind_t kind;
    bool has_sender;   /* WHOLE and FIRST: the control message names the sending process */
    bool renews_cache; /* WHOLE and FIRST: the header carries a new atom cache entry */
    /* Number and serial of the sender's pid. A process on another node may have the same ones; then
     * the frames of both are kept in order, as if they had the same sender. */
    uint64_t sender;
    uint64_t sequence; /* FIRST and REST: the VM's term for the sender's pid */
    uint64_t fragment; /* FIRST and REST: counts down; the last fragment is 1 */
} bw_dist_frame_t;

bw_dist_frame_t bw_dist_frame_read(const struct iovec *iov, int count);

#define BW_DIST_CACHE_ENTRIES 2048
typedef struct {
    uint64_t bits[BW_DIST_CACHE_ENTRIES / 64];
} bw_dist_entries_t;

/* Finds the cache entries that the header of a WHOLE or FIRST frame refers to, and those that it
 * updates. Returns false if the frame has no header or an incomplete one. */
bool bw_dist_entries_read(const uint8_t *frame, size_t len, bw_dist_entries_t *all_p,
                          bw_dist_entries_t *renewed_p);

#endif
