/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TLS_SESSION_H
#define BW_TLS_SESSION_H

#include <openssl/ssl.h>

#include "record.h"
#include "tls.h"

/*
 * How two sides with the same key agree on the keys of their records: the handshake of TLS 1.3,
 * which libssl does, with an external pre-shared key and a Diffie-Hellman exchange. The tls carrier
 * and rdpipe use it. Early data, tickets, certificates and older versions are not offered, and a
 * server that shows a certificate instead of knowing the key is refused.
 */

/* The client's name for its key, as text. */
#define BW_TLS_IDENTITY_BYTES 32

/* A pre-shared key. The digest of its suite is part of it, so any suite with that digest may be
 * used. */
typedef struct {
    char identity[BW_TLS_IDENTITY_BYTES];
    char label[BW_TLS_LABEL_BYTES + 1]; /* for people; may be empty */
    unsigned suite;
    uint8_t key[BW_TLS_KEY_BYTES];
} bw_tls_psk_t;

#define BW_TLS_PSKS_MAX (2 * BW_TLS_KEYS_MAX)

typedef struct {
    bool is_server;
    bool insists; /* a server prefers its own best suite to the client's */
    int psk_count;
    bw_tls_psk_t psks[BW_TLS_PSKS_MAX]; /* a client uses the first */
    const char *suites;                 /* a list in libssl's format, the best first */
} bw_tls_terms_t;

typedef enum {
    BW_TLS_SHAKING,
    BW_TLS_SHAKEN,
    BW_TLS_CLOSED,  /* the connection has ended */
    BW_TLS_REFUSED, /* the peer rejects us, so it has another key */
    BW_TLS_FAILED   /* what came is wrong: another key, or not TLS */
} bw_tls_hands_t;

typedef struct {
    SSL *ssl; /* NULL after bw_tls_session_free */
    bw_tls_terms_t terms;
    char identity[BW_TLS_IDENTITY_BYTES]; /* as the client named its key */
    const bw_tls_psk_t *known;            /* that key, if this side has it */
    struct {
        uint8_t bytes[BW_RECORD_SECRET_BYTES];
        bool is_there;
    } secrets[2]; /* of the client's traffic and of the server's */
} bw_tls_session_t;

/* Makes what all sessions share, which takes milliseconds. Otherwise the first session does it. Any
 * thread may call this. */
void bw_tls_prepare(void);

/* Makes a session, which must not be moved. It owns the BIOs, which may be the same one, or NULL if
 * there was no memory for them. Returns false if libssl fails; then *step_p names the step. The
 * session must be freed in any case. */
bool bw_tls_session_make(bw_tls_session_t *session, const bw_tls_terms_t *terms, BIO *in, BIO *out,
                         const char **step_p);

/* Frees and wipes the session, which may also be all 0 and never made. */
void bw_tls_session_free(bw_tls_session_t *session);

/* Continues the handshake as far as the BIOs allow. After BW_TLS_SHAKEN the keys of both directions
 * are open, the buffers are unchanged, and nothing after the handshake has been read from the
 * BIO. */
bw_tls_hands_t bw_tls_session_shake(bw_tls_session_t *session, bw_record_reader_t *reader,
                                    bw_record_writer_t *writer);

/* Returns libssl's reason why the last call failed. */
const char *bw_tls_session_reason(void);

#endif
