/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_JOIN_H
#define BW_JOIN_H

#include <stdbool.h>
#include <stdint.h>

#include "erl_driver.h"

/*
 * Joins the fragments of large signals while they arrive, so that the VM gets one frame and does
 * not copy the fragments together itself.
 *
 * The binary of a join has the size that the first fragment announces. It holds that fragment as it
 * came and then the payloads of the others, so the VM can get it at any time without a copy: once
 * it is complete, as a whole frame (131,68), which begins 16 bytes into it; before that, as a first
 * fragment (131,69) in place of all those that have arrived. It then has the number of the last of
 * them, and the VM gets the rest as they come.
 *
 * Order: the VM acts on a signal when it has the last fragment, so it makes no difference to get
 * all of them then. Only the header of the first one is read earlier, with the atom cache of that
 * moment. A signal is joined only if its header renews no cache entry, and what has arrived goes to
 * the VM ahead of any frame that renews an entry which the header refers to.
 *
 * What does not fit or is too large is not joined: the VM gets it as it came and decides. What does
 * not count down ends the link. Untouched pages of a binary cost no memory, so a peer that
 * announces a lot and sends little uses little.
 */
#define BW_FRAGMENT_HEAD_BYTES 18 /* 131, 69 or 70, sequence:64, fragment:64 */
#define BW_FRAGMENT_BYTES 65536   /* what ERTS puts behind the head of any but the first */
#define BW_JOINS_MAX 16           /* signals at a time */
#define BW_JOINS_BYTES ((uint64_t)256 << 20) /* all of them, as announced */

typedef struct {
    ErlDrvBinary *binary;
    uint64_t sequence;
    uint64_t left; /* fragments that have not arrived; so also the number of the next one */
    uint64_t len;  /* bytes in the binary */
} bw_join_t;

typedef struct {
    int count;
    uint64_t bytes; /* of all binaries */
    bw_join_t joins[BW_JOINS_MAX];
} bw_joins_t;

/* What the VM is given; the caller has the binary now. */
typedef struct {
    ErlDrvBinary *binary;
    ErlDrvSizeT offset, len;
} bw_joined_t;

/* Makes room for a signal if the frame is its first fragment. `head` has the first bytes of the
 * frame, which is `len` bytes. Returns an index, or -1 if the frame is not joined. */
int bw_join_begin(bw_joins_t *joins, const uint8_t head[BW_FRAGMENT_HEAD_BYTES], uint64_t len);

/* Returns the index of the signal whose next fragment this is, or -1. The payload goes to
 * bw_join_gap. */
int bw_join_find(const bw_joins_t *joins, const uint8_t head[BW_FRAGMENT_HEAD_BYTES], uint64_t len);

/* Where the next byte of the signal goes. */
uint8_t *bw_join_gap(const bw_joins_t *joins, int index);

/* So many bytes have been written to the gap: the whole first fragment, or the payload of another.
 * Returns true if bw_join_take must follow: the signal is complete, or must not be joined. */
bool bw_join_advance(bw_joins_t *joins, int index, uint64_t bytes);

/* Ends a join. The index of another one may change. */
bw_joined_t bw_join_take(bw_joins_t *joins, int index);

/* Returns the index of a signal that must be taken and given to the VM before this frame, or -1.
 * The frame is not one of those that bw_join_find has found. BW_JOIN_REFUSES: it is a fragment of a
 * joined signal with another number than the next one. The VM, which knows nothing of those that
 * have arrived, must not get it: ERTS uses the number as an index before it checks it. */
#define BW_JOIN_REFUSES (-2)
int bw_join_ahead_of(const bw_joins_t *joins, const uint8_t *frame, uint64_t len);

/* Frees what is incomplete. */
void bw_joins_free(bw_joins_t *joins);

#endif
