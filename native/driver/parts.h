/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PARTS_H
#define BW_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "erl_driver.h"

/*
 * Large binaries that come in many frames: each is put together here, once, while it arrives, and
 * given to the owner when it is whole. Its parts may be mixed with those of others and with
 * ordinary frames.
 *
 * A frame is a part if its first byte is the mark: then follow the number of the binary, its size
 * and the bytes that come next in it, whatever their number. A frame that holds all of a binary is
 * an ordinary one. What a peer announces is bounded, and memory is used by what has come.
 */
#define BW_PART_HEAD_BYTES 13 /* mark:8, number:32, size:64 */
#define BW_PARTS_MAX 64       /* unfinished at a time */
#define BW_PARTS_MAX_BYTES ((uint64_t)1 << 32)

typedef struct {
    ErlDrvBinary *binary;
    uint32_t number;
    uint64_t len; /* bytes so far */
} bw_whole_t;

typedef struct {
    uint8_t mark; /* 0: no frame is a part */
    uint32_t largest;
    uint64_t bytes; /* of all unfinished ones, as announced */
    int count;
    bw_whole_t wholes[BW_PARTS_MAX];
} bw_parts_t;

/* Whether a frame of `len` bytes is a part. `head` are its first bytes, if it has so many. */
bool bw_part_is_one(const bw_parts_t *parts, const uint8_t head[BW_PART_HEAD_BYTES], uint32_t len);

/* Where the bytes of the part go; `len` is that of the frame. The index of the binary, or why there
 * is none: no correct peer says that, or this node has no memory. */
#define BW_PARTS_WRONG (-1)
#define BW_PARTS_NO_MEMORY (-2)
int bw_parts_place(bw_parts_t *parts, const uint8_t head[BW_PART_HEAD_BYTES], uint32_t len);

/* The binary is whole: the caller has it now. */
ErlDrvBinary *bw_parts_take(bw_parts_t *parts, int index);

/* Frees what is unfinished. */
void bw_parts_free(bw_parts_t *parts);

#endif
