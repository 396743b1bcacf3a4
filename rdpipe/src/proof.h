/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_PROOF_H
#define RD_PROOF_H

#include "tls.h"

/*
 * Connections whose other side has proved that it has the key of a hop, by a handshake of TLS.
 */
#define RD_PROOF_MS 5000 /* time to prove oneself */

typedef struct {
    int fd; /* -1: none */
    rd_tls_t *tls;
} rd_proved_t;

/* Closes it, if it is one. */
void rd_proved_drop(rd_proved_t *proved);

/* Those who have connected to a listener. Strangers wait beside the right one: of those who have
 * not proved themselves the oldest gives way to the next, but each has a second. */
typedef struct rd_peers rd_peers_t;

/* The listener stays the caller's. NULL: no memory. */
rd_peers_t *rd_peers_open(int listener, const rd_key_t *key);

/* Waits for one who has the key. */
bool rd_peers_await(rd_peers_t *peers, int stop, int64_t deadline, rd_proved_t *proved_p,
                    rd_why_t *why);

/* Turns away who is left: how many were in all. */
unsigned rd_peers_close(rd_peers_t *peers);

/* The producer's side: shakes hands over proved->fd, and so proves that both have the key.
 * *is_cut_p: the other side closed before it said what it thinks of us. The socket stays open. */
bool rd_prove(rd_proved_t *proved, const char *peer, const rd_key_t *key, int stop,
              int64_t deadline, bool *is_cut_p, rd_why_t *why);

#endif
