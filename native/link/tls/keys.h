/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TLS_KEYS_H
#define BW_TLS_KEYS_H

#include "session.h"

/*
 * How nodes name their keys in the handshake, which is the same in all versions. The name that a
 * client gives its key says which suite it wants, namely the one that its processor does best. A
 * server knows each key under all names.
 */
bw_tls_terms_t bw_tls_terms_of(bool is_server, const bw_tls_key_t *keys, int key_count);

/* Explains to people why the handshake failed. */
void bw_tls_explain(const bw_tls_session_t *session, bw_tls_hands_t hands,
                    char text[BW_TEXT_BYTES]);

#endif
