/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_TLS_H
#define RD_TLS_H

#include "key.h"

/*
 * TLS 1.3 over a connected socket, by libssl, with a key that both sides have (an external PSK, and
 * a fresh exchange of Diffie-Hellman beside it). What is plain goes over a second socket, so that
 * whoever uses the connection needs to know nothing of it; a thread moves it between the two.
 */
typedef struct rd_tls rd_tls_t;

/* Shakes hands over `socket`, which does not block; TLS has a descriptor of its own for it, and the
 * caller closes his. *plain_p is the caller's: a stream
 * socket. What it ends by (shutdown, close) ends the other side's, when all before it has gone. */
bool rd_tls_start(int socket, const uint8_t key[RD_MAC_BYTES], bool is_server, int stop,
                  int64_t deadline, rd_tls_t **tls_p, int *plain_p, rd_why_t *why);

/* Why it ended, NULL: in order, or not yet. */
const char *rd_tls_reason(const rd_tls_t *tls);

/* After the plain socket was closed: waits a while until what was written to it has gone. */
void rd_tls_end(rd_tls_t *tls);

#endif
