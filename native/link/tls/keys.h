/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TLS_KEYS_H
#define BW_TLS_KEYS_H

#include "session.h"

/*
 * How nodes name their keys in the handshake, which all versions have in common: a client says by
 * the name of its key which suite it wants, and it wants what its processor does best; a server
 * knows each key by all names.
 */
bw_tls_terms_t bw_tls_terms_of(bool is_server, const bw_tls_key_t *keys, int key_count);

/* Why the hands were not shaken, for people. */
void bw_tls_explain(const bw_tls_session_t *session, bw_tls_hands_t hands,
                    char text[BW_TEXT_BYTES]);

#endif
