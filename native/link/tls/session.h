/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TLS_SESSION_H
#define BW_TLS_SESSION_H

#include <openssl/ssl.h>

#include "tls.h"
#include "wire.h"

/* The client's name for its key: that of the suite, and of the key if it has one. */
#define BW_TLS_IDENTITY_BYTES 32

/* A session of TLS 1.3 by a key that both sides have; how it comes to be, and nothing else. */
typedef struct {
    SSL *ssl;
    bool is_server;
    int key_count;
    bw_tls_key_t keys[BW_TLS_KEYS_MAX];   /* until the hands are shaken */
    char identity[BW_TLS_IDENTITY_BYTES]; /* of the client's key; server: as the client named it */
    char label[BW_TLS_LABEL_BYTES + 1];   /* of the key that both know, "" if it has none */
    bool is_known;                        /* server: it has the key that the client named */
} bw_tls_session_t;

/* Makes what all sessions share, which takes milliseconds. Otherwise the first session makes it.
 * Any thread may call it. */
void bw_tls_prepare(void);

/* Takes the keys, at most BW_TLS_KEYS_MAX; the session stays where it is. BW_SYSTEM, and *error_p,
 * if libssl cannot. */
bw_status_t bw_tls_session_make(bw_tls_session_t *session, bool is_server, const bw_tls_key_t *keys,
                                int key_count, bw_tls_wire_t *wire, bw_error_t *error_p);
void bw_tls_session_free(bw_tls_session_t *session);

typedef enum { BW_TLS_SHAKING, BW_TLS_SHAKEN, BW_TLS_REFUSED } bw_tls_hands_t;

/* Goes on as far as the wire lets it. REFUSED: `text` says why. */
bw_tls_hands_t bw_tls_session_shake(bw_tls_session_t *session, bw_tls_wire_t *wire,
                                    char text[BW_TEXT_BYTES]);

#endif
