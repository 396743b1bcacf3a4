/* SPDX-License-Identifier: Apache-2.0 */
#include "keys.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#include "psk.h"

#define COST_N ((uint64_t)1 << 15)
#define COST_R 8
#define COST_P 3
#define MEMORY_BYTES ((uint64_t)64 << 20)

bw_status_t bw_tls_derive(const uint8_t *salt, size_t salt_len, const uint8_t *password, size_t len,
                          uint8_t key[BW_DERIVED_BYTES], bw_error_t *error_p)
{
    if (EVP_PBE_scrypt((const char *)password, len, salt, salt_len, COST_N, COST_R, COST_P,
                       MEMORY_BYTES, key, BW_DERIVED_BYTES) == 1)
        return BW_OK;
    return bw_fail(error_p, BW_SYSTEM, "libcrypto cannot derive a key: scrypt needs 32 MB", 0);
}

static const struct {
    const char *name, *suites;
    unsigned suite;
} ways[] = {
    {"beamway-aes", "TLS_AES_256_GCM_SHA384", BW_SUITE_AES_256_GCM_SHA384},
    {"beamway-chacha", "TLS_CHACHA20_POLY1305_SHA256", BW_SUITE_CHACHA20_POLY1305_SHA256},
};

static bw_tls_psk_t psk_of(int way, const bw_tls_key_t *key)
{
    bw_tls_psk_t psk = {.suite = ways[way].suite};

    memcpy(psk.label, key->label, sizeof key->label);
    memcpy(psk.key, key->key, sizeof psk.key);
    snprintf(psk.identity, sizeof psk.identity, psk.label[0] ? "%s-%s" : "%s%s", ways[way].name,
             psk.label);
    return psk;
}

bw_tls_terms_t bw_tls_terms_of(bool is_server, const bw_tls_key_t *keys, int key_count)
{
    int best = bw_has_aes() ? 0 : 1;
    bw_tls_terms_t terms = {.is_server = is_server};

    if (!is_server) {
        terms.suites = ways[best].suites;
        terms.psks[terms.psk_count++] = psk_of(best, &keys[0]);
        return terms;
    }
    terms.suites = "TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
    for (int way = 0; way < 2; way++)
        for (int k = 0; k < key_count; k++)
            terms.psks[terms.psk_count++] = psk_of(way, &keys[k]);
    return terms;
}

static void say(char text[BW_TEXT_BYTES], const char *what, const char *why)
{
    snprintf(text, BW_TEXT_BYTES, *why ? "tls: %s (%s)" : "tls: %s%s", what, why);
}

void bw_tls_explain(const bw_tls_session_t *session, bw_tls_hands_t hands, char text[BW_TEXT_BYTES])
{
    const char *reason = bw_tls_session_reason();
    bool is_server = session->terms.is_server;

    if (!reason)
        reason = "no reason given";
    if (hands == BW_TLS_CLOSED)
        say(text, "the peer closed the connection", "");
    else if (is_server && session->identity[0] && !session->known)
        say(text, "the caller has another key", session->identity);
    else if (is_server && !session->identity[0])
        say(text, "the caller names no key", reason);
    else if (!is_server && ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_CERTIFICATE_VERIFY_FAILED)
        say(text, "the peer shows a certificate and does not know the key", "");
    else if (!is_server && hands == BW_TLS_REFUSED)
        say(text, "the peer refuses this node's key", reason);
    else
        say(text, reason, "");
}
