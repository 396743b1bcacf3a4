/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_DIST_FRAME_H
#define BW_DIST_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/*
 * What determines the place of a frame of the distribution protocol among others: which process
 * sends its signal, whether it changes the peer's atom cache, and which fragment it is. This file
 * reads what ERTS writes in OTP 23 to 28 (erl_dist_protocol, erl_ext_dist). Frames come from the
 * node itself, but it still never reads past the end of one, and reports what it does not
 * understand as UNKNOWN.
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
    /* Number and serial of the sender's pid, which identify a process of this node. For a process
     * of another node they may be the same as somebody else's, which only gives two senders a
     * common order. */
    uint64_t sender;
    uint64_t sequence; /* of FIRST and REST: the term by which the VM knows the sender's pid */
    uint64_t fragment; /* of FIRST and REST: counts down, 1 is the last */
} bw_dist_frame_t;

bw_dist_frame_t bw_dist_frame_read(const struct iovec *iov, int count);

#define BW_DIST_CACHE_ENTRIES 2048
typedef struct {
    uint64_t bits[BW_DIST_CACHE_ENTRIES / 64];
} bw_dist_entries_t;

/* Reads which entries the header of a WHOLE or FIRST frame refers to, and which of them it renews.
 * Returns false if the frame has no header or only a part of it. */
bool bw_dist_entries_read(const uint8_t *frame, size_t len, bw_dist_entries_t *all_p,
                          bw_dist_entries_t *renewed_p);

#endif
