/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_HOP_STREAMS_H
#define RD_HOP_STREAMS_H

#include "hop.h"
#include "key_proof.h"

/*
 * The additional streams of a hop over tcp, which are connected while the first one is already
 * carrying data. Each performs a TLS handshake with the hop's key. Then the producer sends this
 * hop's hello, and the consumer answers with the byte 1. The consumer listens until all streams
 * have joined, but for at most 15 s.
 */

#define RD_HELLO_BYTES 40u

/*
 * Starts threads that add `wanted` connections to the link of a hop: at the consumer one thread
 * that accepts them, at the producer up to 16 that connect them. `socket` is the first stream; the
 * producer connects to the same address again. `listener` is -1 at the producer; at the consumer
 * the caller still owns it. If this returns NULL or has started fewer threads, the hop works with
 * the streams that it has.
 */
rd_joiners_t *rd_joiners_start(const rd_hop_t *hop, int socket, int listener, const void *hello,
                               unsigned wanted, const rd_key_t *key);

/* Adds a connection to the link as a stream, which is encrypted or plain. The connection is
 * consumed. Returns false if the link has no room for it. */
bool rd_joiners_add(bw_link_t *link, bool encrypts, rd_proved_t *proved);

/* Stops the threads. Call this before the link is closed. Does nothing for NULL. */
void rd_joiners_end(rd_joiners_t *joiners);

#endif
