/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PENDING_H
#define BW_PENDING_H

#include <stdint.h>
#include <sys/uio.h>

#include "erl_driver.h"

#include "frame_scheduler.h"

/*
 * Frames that wait for room. They are kept by reference, which keeps the VM's binaries alive; only
 * bytes that are in no binary are copied, once.
 */
typedef struct bw_pending {
    bw_scheduled_t scheduled; /* its `user` is the frame */
    struct bw_pending *next;
    bool is_bulk;  /* a fragment of a large message; set by its user */
    bool is_rest;  /* begins where the bytes before it ended, perhaps within a frame */
    uint64_t size; /* header and padding included */
    int count;     /* of pieces; those before `at` are out, and `offset` bytes of that piece */
    int at;
    size_t offset;
    struct iovec *iov;
    ErlDrvBinary **binv;
} bw_pending_t;

/* Frames in the order in which they go. */
typedef struct {
    bw_pending_t *first, *last;
    uint64_t bytes;
    uint64_t bulk; /* how many of them are */
} bw_pending_list_t;

/* Makes a frame of `size` bytes from `ev` and padding. Returns NULL if out of memory. */
bw_pending_t *bw_pending_keep(const ErlIOVec *ev, uint64_t size);
void bw_pending_free(bw_pending_t *frame);

/* Makes a frame of some bytes of a binary. Returns NULL if out of memory. */
bw_pending_t *bw_pending_part(ErlDrvBinary *binary, size_t offset, size_t len);

void bw_pending_append(bw_pending_list_t *list, bw_pending_t *frame);
void bw_pending_prepend(bw_pending_list_t *list, bw_pending_t *frame);

/* Inserts the frame as early as possible, but not within another frame. */
void bw_pending_insert(bw_pending_list_t *list, bw_pending_t *frame);

/* Gathers the next bytes, at most `most` of them in `count` pieces. Returns the number of
 * pieces. */
int bw_pending_gather(const bw_pending_list_t *list, struct iovec *vector, int count,
                      uint64_t most);

/* Records that `bytes` bytes are out. Frames that are out completely are freed, or moved to the end
 * of `out`, whose `bytes` are those of its whole frames. */
void bw_pending_advance(bw_pending_list_t *list, uint64_t bytes, bw_pending_list_t *out);

/* Frees the frames of `out` that end within its first `bytes` bytes. Returns how many bytes they
 * had. */
uint64_t bw_pending_drop(bw_pending_list_t *out, uint64_t bytes);

/* Puts what is out, except its first `bytes` bytes, back at the front of the list to be sent again;
 * `out` keeps only the frames within those bytes. A part of the list's first frame may be out as
 * well. */
void bw_pending_rewind(bw_pending_list_t *list, bw_pending_list_t *out, uint64_t bytes);

#endif
