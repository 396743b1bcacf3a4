/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_JOIN_H
#define BW_JOIN_H

#include <stdbool.h>
#include <stdint.h>

#include "erl_driver.h"

/*
 * Joins the fragments of large signals as they arrive, so that the VM receives one frame and does
 * not have to assemble the fragments itself.
 *
 * The binary for a join has the size that the first fragment announces. It holds that fragment
 * unchanged, followed by the payloads of the others, so it can be passed to the VM at any time
 * without a copy. A complete signal becomes a whole frame (131,68), which begins 16 bytes into the
 * binary. An incomplete one becomes a first fragment (131,69), which replaces all fragments that
 * have arrived and carries the number of the last of them; the VM then gets the remaining fragments
 * as they arrive.
 *
 * This preserves order because the VM does not act on a signal until it has the last fragment. The
 * only part that it reads earlier is the header of the first fragment, which it decodes with the
 * atom cache as it is at that time. So a signal is joined only if its header updates no cache
 * entry, and its fragments are given to the VM before any frame that updates an entry used there.
 *
 * Fragments that do not fit or are too large are not joined: they are passed to the VM unchanged,
 * and it decides what to do. Fragments whose numbers do not count down cause the link to be closed.
 * Pages of a binary that are never touched use no memory, so a peer that announces a large signal
 * but sends little of it uses little memory here.
 */
#define BW_FRAGMENT_HEAD_BYTES 18 /* 131, 69 or 70, sequence:64, fragment:64 */
#define BW_FRAGMENT_BYTES 65536   /* payload of every fragment from ERTS except the first */
#define BW_JOINS_MAX 16           /* maximum number of signals that are joined at the same time */
#define BW_JOINS_BYTES ((uint64_t)256 << 20) /* maximum total of their announced sizes */

typedef struct {
    ErlDrvBinary *binary;
    uint64_t sequence;
    uint64_t left; /* fragments that have not arrived; also the number of the next one */
    uint64_t len;  /* bytes in the binary */
} bw_join_t;

typedef struct {
    int count;
    uint64_t bytes; /* total size of all binaries */
    bw_join_t joins[BW_JOINS_MAX];
} bw_joins_t;

/* The binary to pass to the VM. The caller owns it. */
typedef struct {
    ErlDrvBinary *binary;
    ErlDrvSizeT offset, len;
} bw_joined_t;

/* Allocates a join if this is the first fragment of a signal. `head` has the first bytes of the
 * frame, which is `len` bytes long. Returns an index, or -1 if the frame is not joined. */
int bw_join_begin(bw_joins_t *joins, const uint8_t head[BW_FRAGMENT_HEAD_BYTES], uint64_t len);

/* Returns the index of the signal whose next fragment this is, or -1. The payload must be written
 * to bw_join_gap. */
int bw_join_find(const bw_joins_t *joins, const uint8_t head[BW_FRAGMENT_HEAD_BYTES], uint64_t len);

/* Returns where to write the next byte of the signal. */
uint8_t *bw_join_gap(const bw_joins_t *joins, int index);

/* Records that the entire first fragment, or the payload of a later one, was written to the gap.
 * Returns true if bw_join_take must follow: the signal is complete or must not be joined. */
bool bw_join_advance(bw_joins_t *joins, int index, uint64_t bytes);

/* Ends a join and returns its data. This may change the index of another join. */
bw_joined_t bw_join_take(bw_joins_t *joins, int index);

/* Returns the index of a signal that must be taken and passed to the VM before this frame, or -1 if
 * there is none. May only be called if bw_join_find did not find a signal for the frame.
 * BW_JOIN_REFUSES means that the frame is a fragment of a joined signal but out of sequence. Such a
 * frame must not be passed to the VM, because ERTS uses the fragment number as an index before
 * checking it, and has not seen the fragments that have arrived here. */
#define BW_JOIN_REFUSES (-2)
int bw_join_ahead_of(const bw_joins_t *joins, const uint8_t *frame, uint64_t len);

void bw_joins_free(bw_joins_t *joins);

#endif
