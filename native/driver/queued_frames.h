/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_QUEUED_FRAMES_H
#define BW_QUEUED_FRAMES_H

#include <stdint.h>
#include <sys/uio.h>

#include "erl_driver.h"

#include "frame_scheduler.h"

/*
 * Frames that are queued until there is room. They are stored by reference, which keeps the VM's
 * binaries alive; only bytes that are not in a binary are copied, once.
 */
typedef struct bw_pending {
    bw_scheduled_t scheduled; /* its `user` points to this frame */
    struct bw_pending *next;
    bool is_bulk;  /* a fragment of a large message; set by the creator of the frame */
    bool is_rest;  /* continues where earlier bytes ended, perhaps within a frame */
    uint64_t size; /* including header and padding */
    int count; /* number of pieces; those before `at`, and the first `offset` bytes of piece `at`,
                  have been sent */
    int at;
    size_t offset;
    struct iovec *iov;
    ErlDrvBinary **binv;
} bw_pending_t;

typedef struct {
    bw_pending_t *first, *last;
    uint64_t bytes;
    uint64_t bulk; /* how many of the frames are bulk */
} bw_pending_list_t;

/* Creates a frame of `size` bytes from `ev` and padding. Returns NULL if out of memory. */
bw_pending_t *bw_pending_keep(const ErlIOVec *ev, uint64_t size);
void bw_pending_free(bw_pending_t *frame);

/* Creates a frame that refers to a part of a binary. Returns NULL if out of memory. */
bw_pending_t *bw_pending_part(ErlDrvBinary *binary, size_t offset, size_t len);

void bw_pending_append(bw_pending_list_t *list, bw_pending_t *frame);
void bw_pending_prepend(bw_pending_list_t *list, bw_pending_t *frame);

/* Inserts the frame as early as possible, but not in the middle of another frame. */
void bw_pending_insert(bw_pending_list_t *list, bw_pending_t *frame);

/* Gathers at most `most` bytes in at most `count` pieces, and returns the number of pieces. */
int bw_pending_gather(const bw_pending_list_t *list, struct iovec *vector, int count,
                      uint64_t most);

/* Records that `bytes` bytes have been sent. Frames that have been sent completely are freed, or
 * moved to the end of `out`, whose `bytes` count only complete frames. */
void bw_pending_advance(bw_pending_list_t *list, uint64_t bytes, bw_pending_list_t *out);

/* Frees the frames of `out` that end within its first `bytes` bytes. Returns their size. */
uint64_t bw_pending_drop(bw_pending_list_t *out, uint64_t bytes);

/* Moves sent bytes, except the first `bytes` of them, from `out` back to the front of the list, so
 * that they are sent again; `out` keeps only the frames within those first bytes. The first frame
 * in the list may have been sent in part. */
void bw_pending_rewind(bw_pending_list_t *list, bw_pending_list_t *out, uint64_t bytes);

#endif
