/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_TLS_H
#define RD_TLS_H

#include "key.h"

/*
 * TLS 1.3 over a connected socket that does not block: the handshake by libssl, the records by
 * record.h and libcrypto. Both sides have a key: it is an external PSK, with a fresh exchange of
 * Diffie-Hellman beside it. There are no certificates. A side without the key does not get through
 * the handshake.
 *
 * One thread at a time uses a session. The socket is the caller's. Until rd_tls_stream is called,
 * nothing is read ahead: what follows the last message on the socket may be plain.
 */
typedef struct rd_tls rd_tls_t;

/* NULL: no memory, or libssl has no TLS 1.3. AES-128-GCM is used if both sides prefer it. */
rd_tls_t *rd_tls_new(int socket, const rd_key_t *key, bool is_server, bool prefers_aes);
void rd_tls_free(rd_tls_t *tls);

/* The name of the cipher suite, after the handshake. */
const char *rd_tls_suite(const rd_tls_t *tls);

typedef enum {
    RD_TLS_DONE,
    RD_TLS_WANTS_READ,  /* again when the socket is readable */
    RD_TLS_WANTS_WRITE, /* ... or writable */
    RD_TLS_ENDED,       /* the peer has ended the session in order */
    RD_TLS_CLOSED,      /* the connection was closed without a word of TLS */
    RD_TLS_REFUSED,     /* the peer says that it does not like us: another key */
    RD_TLS_FAILED       /* what came is wrong: another key, or no TLS */
} rd_tls_result_t;

/* One step of the handshake. */
rd_tls_result_t rd_tls_shake(rd_tls_t *tls);

/* Why the last call of this thread failed. `tls` may be NULL. */
const char *rd_tls_error(const rd_tls_t *tls);

/* Why nothing more can be read: a literal; NULL: no record was wrong. */
const char *rd_tls_reason(const rd_tls_t *tls);

/* Waits for the whole handshake, or for exactly `len` bytes. *result_p (may be NULL) is why not. */
bool rd_tls_connect(rd_tls_t *tls, int stop, int64_t deadline, rd_tls_result_t *result_p,
                    rd_why_t *why);
bool rd_tls_read_all(rd_tls_t *tls, void *data, size_t len, int stop, int64_t deadline,
                     rd_why_t *why);
bool rd_tls_write_all(rd_tls_t *tls, const void *data, size_t len, int stop, int64_t deadline,
                      rd_why_t *why);

/* ---- many bytes, after the handshake ---- */

/* From now on many records are received at once. */
void rd_tls_stream(rd_tls_t *tls);

/* A sending key is replaced after so many records; by default half of what AES-GCM allows. */
void rd_tls_limit_key(rd_tls_t *tls, uint32_t records);

/* Encrypts at most `len` bytes: how many; 0: rd_tls_flush first. */
size_t rd_tls_write(rd_tls_t *tls, const void *data, size_t len);

/* Sends what is encrypted. WANTS_WRITE: the socket is full. CLOSED: it takes nothing any more. */
rd_tls_result_t rd_tls_flush(rd_tls_t *tls);

/* Encrypted bytes that the socket does not have yet. */
size_t rd_tls_unsent(const rd_tls_t *tls);

/* Says that nothing follows. */
void rd_tls_end(rd_tls_t *tls);

/* Reads at most `len` bytes: *got_p of them with DONE. */
rd_tls_result_t rd_tls_read(rd_tls_t *tls, void *data, size_t len, size_t *got_p);

#endif
