/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_JOINERS_H
#define RD_JOINERS_H

#include "hop.h"

/*
 * The additional streams of a hop over tcp, which are connected while the first already carries
 * data. Each shakes hands with the hop's key. Then the producer sends this hop's hello, and the
 * consumer answers with one byte, 1. The consumer listens until all streams are there, or for 15 s.
 */

#define RD_HELLO_BYTES 40u

/*
 * Starts threads that add `wanted` connections to the link of a hop: at the consumer one thread
 * that accepts them, at the producer one thread for each. `socket` is the first stream; the
 * producer connects to its other end again. `listener` is -1 at the producer, and stays the
 * caller's at the consumer. If this returns NULL or has started fewer threads, the hop works with
 * the streams that it has.
 */
rd_joiners_t *rd_joiners_start(const rd_hop_t *hop, int socket, int listener, const void *hello,
                               unsigned wanted, const rd_key_t *key);

/* Ends the threads. Call it before the link is closed. Does nothing for NULL. */
void rd_joiners_end(rd_joiners_t *joiners);

#endif
