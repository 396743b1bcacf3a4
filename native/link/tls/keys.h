/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TLS_KEYS_H
#define BW_TLS_KEYS_H

#include "session.h"

/*
 * Builds the key identities that nodes use in the handshake, which are the same in all versions.
 * The identity that a client sends contains the suite that it wants, which is the fastest on its
 * CPU. A server accepts each key under all of its identities.
 */
bw_tls_terms_t bw_tls_terms_of(bool is_server, const bw_tls_key_t *keys, int key_count);

/* Writes to `text` why the handshake failed, for the user. */
void bw_tls_explain(const bw_tls_session_t *session, bw_tls_hands_t hands,
                    char text[BW_TEXT_BYTES]);

#endif
