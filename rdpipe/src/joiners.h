/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_JOINERS_H
#define RD_JOINERS_H

#include "hop.h"

/*
 * The further streams of a hop over tcp, connected while the first already carries. Each shakes
 * hands with the hop's key. Then the producer says the hello of this hop, and the consumer answers
 * with one byte, 1. The consumer listens until all are there, or for 15 s.
 */

#define RD_HELLO_BYTES 40u

/*
 * Threads that bring `wanted` connections to the link of a hop: of the consumer one that lets them
 * in, of the producer one for each. `socket` is the first stream, whose other end is called again;
 * `listener` is -1 at the producer, else it stays the caller's. NULL, or fewer threads: the hop
 * goes on with the streams that it has.
 */
rd_joiners_t *rd_joiners_start(const rd_hop_t *hop, int socket, int listener, const void *hello,
                               unsigned wanted, const rd_key_t *key);

/* Ends the threads, before the link is closed. NULL: nothing to do. */
void rd_joiners_end(rd_joiners_t *joiners);

#endif
