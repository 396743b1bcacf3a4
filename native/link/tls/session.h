/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TLS_SESSION_H
#define BW_TLS_SESSION_H

#include <openssl/ssl.h>

#include "record.h"
#include "tls.h"

/*
 * How two sides with the same key come to the keys of their records: the handshake of TLS 1.3,
 * which is libssl's, with an external pre-shared key and an exchange of Diffie and Hellman. The
 * carrier tls and rdpipe use it. Early data, tickets, certificates and older versions are not
 * offered, and a server that shows a certificate instead of knowing the key is refused.
 */

/* The client's name for its key; text. */
#define BW_TLS_IDENTITY_BYTES 32

/* A pre-shared key. The digest of its suite is part of it; any suite with that digest may be used.
 */
typedef struct {
    char identity[BW_TLS_IDENTITY_BYTES];
    char label[BW_TLS_LABEL_BYTES + 1]; /* for people; may be empty */
    unsigned suite;
    uint8_t key[BW_TLS_KEY_BYTES];
} bw_tls_psk_t;

#define BW_TLS_PSKS_MAX (2 * BW_TLS_KEYS_MAX)

typedef struct {
    bool is_server;
    bool insists; /* a server: the best suite is the first one of ours, not of the client's */
    int psk_count;
    bw_tls_psk_t psks[BW_TLS_PSKS_MAX]; /* a client uses the first */
    const char *suites;                 /* as libssl writes a list of them, the best first */
} bw_tls_terms_t;

typedef enum {
    BW_TLS_SHAKING,
    BW_TLS_SHAKEN,
    BW_TLS_CLOSED,  /* the connection has ended */
    BW_TLS_REFUSED, /* the peer says that it does not like us: it has another key */
    BW_TLS_FAILED   /* what came is wrong: another key, or no TLS */
} bw_tls_hands_t;

typedef struct {
    SSL *ssl; /* NULL after bw_tls_session_free */
    bw_tls_terms_t terms;
    char identity[BW_TLS_IDENTITY_BYTES]; /* as the client named its key */
    const bw_tls_psk_t *known;            /* that key, if this side has it */
    struct {
        uint8_t bytes[BW_RECORD_SECRET_BYTES];
        bool is_there;
    } secrets[2]; /* of the traffic of the client, of the server */
} bw_tls_session_t;

/* Makes what all sessions share, which takes milliseconds. Otherwise the first session makes it.
 * Any thread may call it. */
void bw_tls_prepare(void);

/* The session stays where it is, and owns the BIOs, which may be one; NULL if there was no memory
 * for it. False: libssl cannot; *step_p says what. Free the session in any case. */
bool bw_tls_session_make(bw_tls_session_t *session, const bw_tls_terms_t *terms, BIO *in, BIO *out,
                         const char **step_p);

/* Frees and wipes it, also if it was never made but is all 0. */
void bw_tls_session_free(bw_tls_session_t *session);

/* Goes on as far as the BIOs let it. SHAKEN: the keys of both directions are opened, the
 * buffers stay, and nothing that follows the handshake has been read from the BIO. */
bw_tls_hands_t bw_tls_session_shake(bw_tls_session_t *session, bw_record_reader_t *reader,
                                    bw_record_writer_t *writer);

/* Why the last call failed, as libssl puts it. */
const char *bw_tls_session_reason(void);

#endif
