/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_JOIN_H
#define BW_JOIN_H

#include <stdbool.h>
#include <stdint.h>

#include "erl_driver.h"

/*
 * Joins the fragments of large signals while they arrive, so that the VM gets one frame and need
 * not copy the fragments together itself.
 *
 * The binary of a join has the size that the first fragment announces. It holds that fragment
 * unchanged, and then the payloads of the others. So the VM can get it at any time without a copy.
 * A complete signal becomes a whole frame (131,68), which begins 16 bytes into the binary. An
 * incomplete one becomes a first fragment (131,69), which replaces every one that has arrived and
 * has the number of the last of them; the VM then gets the others as they come.
 *
 * The order is safe because the VM acts on a signal only when it has the last fragment. Only the
 * header of the first fragment is read earlier, with the atom cache of that moment. So a signal is
 * joined only if its header renews no cache entry, and its fragments are given to the VM before any
 * frame that renews an entry to which the header refers.
 *
 * Fragments that do not fit or are too large are not joined: the VM gets them unchanged and
 * decides. Fragments whose numbers do not count down end the link. Pages of a binary that are never
 * touched cost no memory, so a peer that announces much and sends little uses little.
 */
#define BW_FRAGMENT_HEAD_BYTES 18 /* 131, 69 or 70, sequence:64, fragment:64 */
#define BW_FRAGMENT_BYTES 65536   /* payload that ERTS puts in each fragment but the first */
#define BW_JOINS_MAX 16           /* signals at the same time */
#define BW_JOINS_BYTES ((uint64_t)256 << 20) /* of all of them, as announced */

typedef struct {
    ErlDrvBinary *binary;
    uint64_t sequence;
    uint64_t left; /* fragments that have not arrived, which is also the number of the next */
    uint64_t len;  /* bytes in the binary */
} bw_join_t;

typedef struct {
    int count;
    uint64_t bytes; /* of all binaries */
    bw_join_t joins[BW_JOINS_MAX];
} bw_joins_t;

/* What the VM is given. The caller owns the binary. */
typedef struct {
    ErlDrvBinary *binary;
    ErlDrvSizeT offset, len;
} bw_joined_t;

/* Makes room for a signal if this is the first fragment of one. `head` has the first bytes of the
 * frame, which is `len` bytes long. Returns an index, or -1 if the frame is not joined. */
int bw_join_begin(bw_joins_t *joins, const uint8_t head[BW_FRAGMENT_HEAD_BYTES], uint64_t len);

/* Returns the index of the signal whose next fragment this is, or -1. The payload must be written
 * to bw_join_gap. */
int bw_join_find(const bw_joins_t *joins, const uint8_t head[BW_FRAGMENT_HEAD_BYTES], uint64_t len);

/* Where the next byte of the signal goes. */
uint8_t *bw_join_gap(const bw_joins_t *joins, int index);

/* `bytes` were written to the gap: all of the first fragment, or the payload of another. Returns
 * true if bw_join_take must follow, because the signal is complete or must not be joined. */
bool bw_join_advance(bw_joins_t *joins, int index, uint64_t bytes);

/* Ends a join. The index of another join may change. */
bw_joined_t bw_join_take(bw_joins_t *joins, int index);

/* Returns the index of a signal that must be taken and given to the VM before this frame, or -1.
 * bw_join_find must not have found the frame. BW_JOIN_REFUSES means that it is a fragment of a
 * joined signal but not the next one. The VM must not get it, because ERTS uses the number as an
 * index before it checks it, and does not know of the fragments that have arrived. */
#define BW_JOIN_REFUSES (-2)
int bw_join_ahead_of(const bw_joins_t *joins, const uint8_t *frame, uint64_t len);

/* Frees the incomplete signals. */
void bw_joins_free(bw_joins_t *joins);

#endif
