/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TLS_H
#define BW_TLS_H

#include "../link.h"

/*
 * The tls carrier: a connected stream socket, as of the tcp carrier, with TLS 1.3 of libssl on it.
 *
 * Both sides know a key that nobody else knows, and that no other link has: an external pre-shared
 * key, with an exchange of Diffie and Hellman beside it, so that who learns the key later can read
 * nothing. There are no certificates here; whoever made the key has checked them. The side that
 * listens is TLS's server.
 *
 * What is committed stands in a ring of this process. A push encrypts it in records of 16 KB, as
 * many as the socket takes at once, and sends them together. What the socket has is decrypted into
 * the other ring, or to where it belongs.
 */

extern const bw_carrier_t bw_tls_carrier;

/* Where (`at` of an order), to listen as to connect: the descriptor of the connected socket in
 * network order, the key, and what was read of the connection before. */
#define BW_TLS_SOCKET_BYTES 4
#define BW_TLS_KEY_BYTES 32

/* A listener may say this byte any number of times before the first byte of TLS, to tell that it
 * listens: no record of TLS begins with it. */
#define BW_TLS_READY 'B'

/* A sending key is replaced after so many records; the limit of AES-GCM is 2^24.5. Tests lower it.
 */
#define BW_TLS_KEY_RECORDS ((uint64_t)1 << 23)
void bw_tls_limit_key(bw_link_t *link, uint64_t records);

#endif
