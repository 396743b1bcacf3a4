/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PENDING_H
#define BW_PENDING_H

#include <stdint.h>
#include <sys/uio.h>

#include "erl_driver.h"

#include "frame_scheduler.h"

/*
 * Frames that wait for room, by reference: a frame keeps the VM's binaries alive. Only bytes that
 * are in no binary are copied, once.
 */
typedef struct bw_pending {
    bw_scheduled_t scheduled; /* its `user` is the frame */
    struct bw_pending *next;
    bool is_bulk;  /* a fragment of a large message; set by its user */
    bool is_rest;  /* begins where what went before has ended, maybe within a frame */
    uint64_t size; /* header and padding included */
    int count;     /* of pieces; those before `at` are out, and `offset` bytes of that one */
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

/* A frame of `size` bytes: what is in `ev`, and padding. NULL: no memory. */
bw_pending_t *bw_pending_keep(const ErlIOVec *ev, uint64_t size);
void bw_pending_free(bw_pending_t *frame);

/* Bytes of a binary. NULL: no memory. */
bw_pending_t *bw_pending_part(ErlDrvBinary *binary, size_t offset, size_t len);

void bw_pending_append(bw_pending_list_t *list, bw_pending_t *frame);
void bw_pending_prepend(bw_pending_list_t *list, bw_pending_t *frame);

/* As early as a frame can go: not within another one. */
void bw_pending_insert(bw_pending_list_t *list, bw_pending_t *frame);

/* The next bytes, at most `most` of them in `count` pieces. How many pieces there are. */
int bw_pending_gather(const bw_pending_list_t *list, struct iovec *vector, int count,
                      uint64_t most);

/* So many bytes are out. Frees the frames that are, or moves them to the end of `out`, whose
 * `bytes` are those of its whole frames. */
void bw_pending_advance(bw_pending_list_t *list, uint64_t bytes, bw_pending_list_t *out);

/* Frees the frames of `out` that end within its first bytes: how many bytes they have. */
uint64_t bw_pending_drop(bw_pending_list_t *out, uint64_t bytes);

/* What is out, but for its first `bytes`, goes out once more: before the list, which is empty then
 * or after that. A part of the list's first frame may be out, too. */
void bw_pending_rewind(bw_pending_list_t *list, bw_pending_list_t *out, uint64_t bytes);

#endif
