/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TLS_SESSION_H
#define BW_TLS_SESSION_H

#include <openssl/ssl.h>

#include "record.h"
#include "tls.h"

/*
 * Negotiates record keys between two sides that share a key: the TLS 1.3 handshake, performed by
 * libssl, with an external pre-shared key and a Diffie-Hellman exchange. The tls carrier and rdpipe
 * use it. Early data, tickets, certificates and older versions are not offered, and a server that
 * presents a certificate instead of proving that it knows the key is rejected.
 */

/* The size of the identity that a client sends for its key, as a C string. */
#define BW_TLS_IDENTITY_BYTES 32

/* A pre-shared key. It works with any suite that has the same digest as its own. */
typedef struct {
    char identity[BW_TLS_IDENTITY_BYTES];
    char label[BW_TLS_LABEL_BYTES + 1]; /* for display to users; may be empty */
    unsigned suite;
    uint8_t key[BW_TLS_KEY_BYTES];
} bw_tls_psk_t;

#define BW_TLS_PSKS_MAX (2 * BW_TLS_KEYS_MAX)

typedef struct {
    bool is_server;
    bool insists; /* the server prefers its own first suite to the client's */
    int psk_count;
    bw_tls_psk_t psks[BW_TLS_PSKS_MAX]; /* a client uses only the first */
    const char *suites;                 /* a list in libssl's format, in order of preference */
} bw_tls_terms_t;

typedef enum {
    BW_TLS_SHAKING,
    BW_TLS_SHAKEN,
    BW_TLS_CLOSED,  /* the connection has ended */
    BW_TLS_REFUSED, /* the peer rejects us, so it has a different key */
    BW_TLS_FAILED   /* we reject the peer: it has a different key or does not use TLS */
} bw_tls_hands_t;

typedef struct {
    SSL *ssl; /* NULL after bw_tls_session_free */
    bw_tls_terms_t terms;
    char identity[BW_TLS_IDENTITY_BYTES]; /* the identity that the client sent for its key */
    const bw_tls_psk_t *known;            /* that key, if this side has it */
    struct {
        uint8_t bytes[BW_RECORD_SECRET_BYTES];
        bool is_there;
    } secrets[2]; /* for the client's traffic and for the server's */
} bw_tls_session_t;

/* Creates the state that all sessions share, which takes a few milliseconds. If this is not called,
 * the first session creates that state. Any thread may call this. */
void bw_tls_prepare(void);

/* Initializes a session, which must not be moved in memory. It takes ownership of the BIOs, which
 * may be the same one, or NULL if there was no memory for them. Returns false if libssl fails;
 * *step_p then names the step. The session must be freed in either case. */
bool bw_tls_session_make(bw_tls_session_t *session, const bw_tls_terms_t *terms, BIO *in, BIO *out,
                         const char **step_p);

/* Frees and wipes the session. A zeroed session that was never initialized is allowed. */
void bw_tls_session_free(bw_tls_session_t *session);

/* Continues the handshake as far as the BIOs allow. After BW_TLS_SHAKEN, both keys are initialized,
 * the buffers are unchanged, and nothing after the handshake has been read from the BIO. */
bw_tls_hands_t bw_tls_session_shake(bw_tls_session_t *session, bw_record_reader_t *reader,
                                    bw_record_writer_t *writer);

/* Returns libssl's reason for the failure of the last call. */
const char *bw_tls_session_reason(void);

#endif
