/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_TLS_H
#define RD_TLS_H

#include "key.h"

/*
 * TLS 1.3 over a connected, non-blocking socket: libssl performs the handshake, and record.h with
 * libcrypto handles the records. Both sides have a key, which is used as an external PSK together
 * with a fresh Diffie-Hellman exchange. There are no certificates. A side without the key cannot
 * complete the handshake.
 *
 * Only one thread at a time may use a session. The caller owns the socket. Until rd_tls_stream is
 * called, no bytes are read ahead, because the bytes after the last message may be unencrypted.
 */
typedef struct rd_tls rd_tls_t;

/* Returns NULL if memory is exhausted or libssl does not support TLS 1.3. AES-128-GCM is used if
 * both sides prefer it. */
rd_tls_t *rd_tls_new(int socket, const rd_key_t *key, bool is_server, bool prefers_aes);
void rd_tls_free(rd_tls_t *tls);

/* Returns the name of the cipher suite. May be called only after the handshake. */
const char *rd_tls_suite(const rd_tls_t *tls);

typedef enum {
    RD_TLS_DONE,
    RD_TLS_WANTS_READ,  /* call again when the socket is readable */
    RD_TLS_WANTS_WRITE, /* ... or writable */
    RD_TLS_ENDED,       /* the peer has closed the session cleanly */
    RD_TLS_CLOSED,      /* the connection was closed without a TLS message */
    RD_TLS_REFUSED,     /* the peer has rejected us, because it has a different key */
    RD_TLS_FAILED       /* invalid bytes: the peer has a different key, or does not use TLS */
} rd_tls_result_t;

/* Performs one step of the handshake. */
rd_tls_result_t rd_tls_shake(rd_tls_t *tls);

/* Returns the reason why this thread's last call failed. `tls` may be NULL. */
const char *rd_tls_error(const rd_tls_t *tls);

/* Returns why a record was invalid, as a string literal, or NULL if none was. */
const char *rd_tls_reason(const rd_tls_t *tls);

/* These wait until the handshake is complete, or until exactly `len` bytes are transferred. If
 * rd_tls_connect returns false, *result_p (may be NULL) is the cause. */
bool rd_tls_connect(rd_tls_t *tls, int stop, int64_t deadline, rd_tls_result_t *result_p,
                    rd_why_t *why);
bool rd_tls_read_all(rd_tls_t *tls, void *data, size_t len, int stop, int64_t deadline,
                     rd_why_t *why);
bool rd_tls_write_all(rd_tls_t *tls, const void *data, size_t len, int stop, int64_t deadline,
                      rd_why_t *why);

/* ---- bulk data, after the handshake ---- */

/* Allows many records to be received at once. */
void rd_tls_stream(rd_tls_t *tls);

/* Replaces the sending key after this many records. The default is half of what AES-GCM allows. */
void rd_tls_limit_key(rd_tls_t *tls, uint32_t records);

/* Encrypts up to `len` bytes, and returns how many. If that is 0, call rd_tls_flush first. */
size_t rd_tls_write(rd_tls_t *tls, const void *data, size_t len);

/* Sends the encrypted bytes. WANTS_WRITE means that the socket is full, and CLOSED that it no
 * longer accepts data. */
rd_tls_result_t rd_tls_flush(rd_tls_t *tls);

size_t rd_tls_unsent(const rd_tls_t *tls);

/* Tells the peer that no more data follows. */
void rd_tls_end(rd_tls_t *tls);

/* Reads up to `len` bytes. With DONE, *got_p of them were read. */
rd_tls_result_t rd_tls_read(rd_tls_t *tls, void *data, size_t len, size_t *got_p);

#endif
