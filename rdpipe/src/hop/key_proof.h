/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_KEY_PROOF_H
#define RD_KEY_PROOF_H

#include "tls.h"

/*
 * Connections whose other side has proved with a TLS handshake that it has the key of a hop.
 */
#define RD_PROOF_MS 5000 /* time limit for the proof */

typedef struct {
    int fd; /* -1 if none */
    rd_tls_t *tls;
} rd_proved_t;

/* Closes the connection, if it is open. */
void rd_proved_drop(rd_proved_t *proved);

/* The peers that have connected to a listener. Several may be pending at the same time, so that
 * unauthenticated clients do not block the right peer: if there are too many, the oldest
 * unauthenticated one is dropped to make room for the next, but each gets at least one second. */
typedef struct rd_peers rd_peers_t;

/* The caller still owns the listener. Returns NULL if memory is exhausted. */
rd_peers_t *rd_peers_open(int listener, const rd_key_t *key);

bool rd_peers_await(rd_peers_t *peers, int stop, int64_t deadline, rd_proved_t *proved_p,
                    rd_why_t *why);

/* Rejects the remaining peers. Returns how many had been rejected before. */
unsigned rd_peers_close(rd_peers_t *peers);

/* The producer's side: performs the handshake over proved->fd, which proves that both sides have
 * the key. *is_cut_p is set to whether the other side closed the connection before it answered. The
 * socket stays open. */
bool rd_prove(rd_proved_t *proved, const char *peer, const rd_key_t *key, int stop,
              int64_t deadline, bool *is_cut_p, rd_why_t *why);

#endif
