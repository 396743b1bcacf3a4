/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TLS_H
#define BW_TLS_H

#include "../link.h"

/*
 * The tls carrier: a connected stream socket, as in the tcp carrier, over which TLS 1.3 runs.
 * libssl performs the handshake (session.h), and our own code the records (record.h).
 *
 * Both sides know an external pre-shared key, and also perform a Diffie-Hellman exchange, which
 * provides forward secrecy: an attacker who learns the key later cannot decrypt recorded traffic.
 * Certificates are not used: a key is either generated for a single link or is the secret of a
 * cluster. The listening side is the TLS server.
 *
 * Committed bytes are in a ring that is private to this process. A push encrypts them in records of
 * 16 KB, as many as the socket accepts at once, and sends them together; large frames are encrypted
 * without first being copied into the ring. Bytes from the socket are decrypted into the other
 * ring, or directly into their final place.
 */

extern const bw_carrier_t bw_tls_carrier;

/* The address (`at` of an order), both to listen and to connect: the descriptor of the connected
 * socket in network order, the number of keys as one byte, the keys, and the bytes that were
 * already read from the connection. The client uses the first key; the server knows all of them. */
#define BW_TLS_SOCKET_BYTES 4
#define BW_TLS_KEY_BYTES 32
#define BW_TLS_LABEL_BYTES 8
#define BW_TLS_KEYS_MAX 2
#define BW_TLS_PLACE_BYTES(keys) (BW_TLS_SOCKET_BYTES + 1 + (keys) * sizeof(bw_tls_key_t))

/* The client identifies its key by the label, which is not secret and must not contain 0 bytes. A
 * key whose label is all 0 has no label, and must be the only key. */
typedef struct {
    uint8_t label[BW_TLS_LABEL_BYTES];
    uint8_t key[BW_TLS_KEY_BYTES];
} bw_tls_key_t;

/* A listener may send this byte any number of times before the first TLS byte, to show that it is
 * listening. TLS records never begin with it. */
#define BW_TLS_READY 'B'

/* Sets the number of records after which a sending key is replaced; for tests. */
void bw_tls_limit_key(bw_link_t *link, uint64_t records);

/* Derives a key from a password with scrypt (RFC 7914), N = 2^15, r = 8, p = 3. This uses 32 MB of
 * memory and takes about 0.3 s. Any thread may call it. */
bw_status_t bw_tls_derive(const uint8_t *salt, size_t salt_len, const uint8_t *password, size_t len,
                          uint8_t key[BW_DERIVED_BYTES], bw_error_t *error_p);

#endif
